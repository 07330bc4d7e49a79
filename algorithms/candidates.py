"""The candidates that a method offers for each client's personalized model."""

import dataclasses

from base import words


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One of the personalized models that a client can choose from.

  Candidates that differ only in their value are a curve over it, such as those
  after 0, 1, … epochs with one learning rate.

  Attributes:
    value: The number on its curve, such as the 3 of '3 epochs'; None if it has
      none.
    unit: The unit of the value, in the plural if it has one, such as 'epochs'
      or 'coefficient'.
    label: The label of its curve, such as 'rate 0.005'. A candidate without a
      label is on all curves of its unit.
    text: Its name, if that does not have the form '3 epochs, rate 0.005'.
  """

  value: float | None = None
  unit: str = ''
  label: str = ''
  text: str | None = None

  @property
  def name(self) -> str:
    """The name in results and tables."""
    if self.text is not None:
      return self.text
    number = ''
    if self.value is not None:
      number = f'{self.value:g} {words.noun(self.value, self.unit)}'
    return ', '.join(filter(None, (number, self.label)))

  def __str__(self) -> str:
    return self.name


def list_epochs(
  name: str, num_epochs: int, baseline: str | None
) -> tuple[Candidate, ...]:
  """Lists a model after 0, 1, … epochs, and before them its baseline, if any.

  Args:
    name: The name of the model.
    num_epochs: The largest number of epochs.
    baseline: The name of the baseline.
  """
  after = [
    Candidate(epoch, 'epochs', text=f'{name}, {words.count(epoch, "epochs")}')
    for epoch in range(num_epochs + 1)
  ]
  return (*([Candidate(text=baseline)] if baseline else []), *after)
