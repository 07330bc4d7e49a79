"""The candidates that a method offers for each client's personalized model."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One of the personalized models that a client can choose from.

  Candidates that differ in their value alone are a curve over it, as those
  after 0, 1, … epochs with one learning rate.

  Attributes:
    value: The number that tells it from others, as the 3 of '3 epochs'; None if
      none does.
    unit: What the value is a number of, as 'epochs' or 'coefficient'.
    label: What else it is, as 'rate 0.005'; it has this in common with others
      on its curve. A candidate without a label is on all curves of its unit.
    text: Its name, if it is another one than '3 epochs, rate 0.005'.
  """

  value: float | None = None
  unit: str = ''
  label: str = ''
  text: str | None = None

  @property
  def name(self) -> str:
    """The name, as results and tables have it."""
    if self.text is not None:
      return self.text
    number = '' if self.value is None else f'{self.value:g} {self.unit}'
    return ', '.join(filter(None, (number, self.label)))

  def __str__(self) -> str:
    return self.name
