"""What the candidates of a personalized model stand for."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A candidate: a number of something, as epochs, and how it was made.

  Attributes:
    value: The number; None if there is none.
    unit: What the number is of, as 'epochs'.
    label: What else tells candidates apart, as 'rate 0.1'.
    text: The name, if it is not made of these.
  """

  value: float | None = None
  unit: str = ''
  label: str = ''
  text: str | None = None

  def __str__(self) -> str:
    if self.text is not None:
      return self.text
    return ', '.join(filter(None, [f'{self.value:g} {self.unit}', self.label]))
