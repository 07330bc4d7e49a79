"""One-shot empirical ε by canary clients (Andrew et al. 2023).

Canaries are extra clients, each of which sends S times a random unit vector
u_i. Let r be what is released: the sum of a round, or the change of a model in
training. Then g_i = cos(u_i, r) says how visible a canary is: had it not taken
part, g_i would be the cosine of an unrelated vector, N(0, 1/d). With a normal
distribution fitted to the g_i,

  ε = the least with  ∫ (p - e^ε q)_+ <= δ  and  ∫ (q - e^ε p)_+ <= δ

where p = N(0, 1/d) and q = N(mean g, variance g). This is an estimate that is
biased upwards; it is neither a bound nor a guarantee.
"""

import math

import numpy as np
from scipy import optimize
from scipy import stats

# In fewer dimensions p is not close to normal.
_FEWEST_DIMENSIONS = 1000
# Distributions are compared up to this many deviations from their means.
_REACH = 40.0
_PLACES = 40_001
# The largest estimate; above it nothing is hidden.
LARGEST_EPSILON = 1000.0


def cosines(canaries: np.ndarray, released: np.ndarray) -> np.ndarray:
  """Returns g_i of unit vectors, `[canaries, d]`, and a released vector."""
  return np.asarray(canaries @ released / np.linalg.norm(released))


def _hockey_stick(
  epsilon: float, log_p: np.ndarray, log_q: np.ndarray, width: np.ndarray
) -> float:
  """Integrates (p - e^ε q)_+ over places with these log densities."""
  # Where the integrand is above zero, log p is larger than log q.
  above = log_p - log_q > epsilon
  share = -np.expm1(epsilon + log_q[above] - log_p[above])
  return float(np.sum(np.exp(log_p[above]) * share * width[above]))


def epsilon_between(
  p: tuple[float, float], q: tuple[float, float], delta: float
) -> float:
  """Finds the least ε for which two normal distributions are (ε, δ)-close.

  Args:
    p: The mean and the deviation of one distribution.
    q: The mean and the deviation of the other.
    delta: The δ.

  Returns:
    ε, at most 1000.
  """
  places = np.sort(
    np.concatenate(
      [
        mean + deviation * np.linspace(-_REACH, _REACH, _PLACES)
        for mean, deviation in (p, q)
      ]
    )
  )
  width = np.gradient(places)
  log_p, log_q = (stats.norm.logpdf(places, *of) for of in (p, q))

  def excess(epsilon: float) -> float:
    both = (
      _hockey_stick(epsilon, log_p, log_q, width),
      _hockey_stick(epsilon, log_q, log_p, width),
    )
    return max(both) - delta

  if excess(0.0) <= 0:
    return 0.0
  if excess(LARGEST_EPSILON) > 0:
    return LARGEST_EPSILON
  return float(optimize.brentq(excess, 0.0, LARGEST_EPSILON, xtol=1e-6))


def empirical_epsilon(found: np.ndarray, dimension: int, delta: float) -> float:
  """Estimates ε from the cosines of canaries.

  Args:
    found: g_i of each canary.
    dimension: d, the number of entries of the released vector.
    delta: The δ.

  Returns:
    The estimate.
  """
  if dimension < _FEWEST_DIMENSIONS:
    raise ValueError(
      f'The density of cosines is close to normal from {_FEWEST_DIMENSIONS}'
      f' dimensions on, not in {dimension}.'
    )
  without = 0.0, 1 / math.sqrt(dimension)
  return epsilon_between(
    without, (float(np.mean(found)), float(np.std(found, ddof=1))), delta
  )
