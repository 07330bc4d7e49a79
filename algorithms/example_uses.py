"""How often a method uses the examples of a silo, which privacy counts."""

from typing import NamedTuple


class Walk(NamedTuple):
  """Steps over the batches of a client, such as those of a round, repeated.

  Attributes:
    times: The number of repetitions, each with new batches.
    epochs: The passes over all examples that the batches make up.
    gradients: The private gradients of each batch, each with separate noise.
    most_steps: The largest number of steps, if the number depends on what the
      client has learned; the first batch then follows the last one.
  """

  times: int
  epochs: int = 1
  gradients: int = 1
  most_steps: int = 0

  def steps(self, steps: int) -> int:
    """Counts the steps of a silo, given its steps in a pass."""
    return max(self.epochs * steps, self.most_steps)

  def passes(self, steps: int) -> int:
    """Counts how often they can use an example, given the steps in a pass."""
    return max(self.epochs, -(-self.most_steps // steps))


class Uses(NamedTuple):
  """How often a method uses the examples of a silo.

  Attributes:
    walks: The steps by private gradients.
    choices: The choices among models by the examples' losses.
    reuses_batches: Whether a client may take several steps on one batch.
  """

  walks: tuple[Walk, ...] = ()
  choices: int = 0
  reuses_batches: bool = False
