"""Tells whether two releases share noise, from the models alone.

Composition adds up the ε of releases only if their noise is independent. What a
training learns differs little from one draw of its noise to another. So the
training is done again, several times, with noise of its own: what is left of
the released change of its model, without the mean of these replays, is noise.
The rests of two releases are correlated if they share noise, whatever its size,
and their correlation is about zero if they do not. How near to zero it is by
chance is learnt from the replays, which share nothing.
"""

import dataclasses
import itertools
import math

import numpy as np
from scipy import stats

# Two releases that share nothing are as correlated as this by chance in one of
# so many pairs.
_CHANCE = 1e-4
# Models with fewer weights need more replays to be told from chance.
_FEW_WEIGHTS = 1000


def num_replays(num_weights: int) -> int:
  """Returns how often to do the training of a model of this size again.

  With n replays the rests of equal noise have a correlation of n / (n + 1).
  """
  return 8 if num_weights < _FEW_WEIGHTS else 4


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A comparison of two releases, which tells whether they share noise.

  Attributes:
    correlation: The correlation of what is left of them.
    p_value: The probability of one so far from zero if they share no noise.
  """

  correlation: float
  p_value: float

  @property
  def is_shared(self) -> bool:
    """Whether the releases share noise."""
    return self.p_value < _CHANCE


def _normalized(rests: np.ndarray) -> np.ndarray:
  norms = np.linalg.norm(rests, axis=-1, keepdims=True)
  return np.asarray(rests / np.where(norms > 0, norms, 1))


def compare(first: np.ndarray, second: np.ndarray) -> Comparison:
  """Compares two releases of models with the same weights.

  Args:
    first: The change of the model of one release, and of each of its replays,
      `[1 + replays, weights]`.
    second: Those of the other release.
  """
  rests, of_replays = [], []
  for changes in (first, second):
    replays = changes[1:].astype(np.float64)
    rests.append(_normalized(changes[0] - np.mean(replays, 0)))
    others = (np.sum(replays, 0) - replays) / (len(replays) - 1)
    of_replays.append(_normalized(replays - others))
  correlation = float(rests[0] @ rests[1])
  by_chance = [a @ b for a, b in itertools.product(*of_replays)]
  # Noise that is large in few directions has few dimensions.
  deviation = max(
    math.sqrt(np.mean(np.square(by_chance))), len(rests[0]) ** -0.5
  )
  freedom = max(deviation**-2 - 2, 1.0)
  t = correlation * math.sqrt(freedom / max(1 - correlation**2, 1e-15))
  return Comparison(correlation, float(2 * stats.t.sf(abs(t), freedom)))
