"""One-shot empirical ε by canary clients (Andrew et al. 2023).

Canaries are extra clients that each send S times a random unit vector of their
own, u_i. What is released, r, is the sum of a round or the change of a model in
training, and g_i = cos(u_i, r) tells how visible a client is: had it not taken
part, g_i would be that of an unrelated vector, N(0, 1/d). With a normal
distribution fitted to the g_i,

  ε = the least with  ∫ (p - e^ε q)_+ <= δ  and  ∫ (q - e^ε p)_+ <= δ

where p = N(0, 1/d) and q = N(mean g, variance g). It is an estimate, and biased
up: no bound, and no guarantee.
"""

import math

import numpy as np
from scipy import optimize
from scipy import stats

# Below it, p is not close to normal.
_FEWEST_DIMENSIONS = 1000
# How far from a mean, in deviations, distributions are compared.
_REACH = 40.0
_PLACES = 40_001
# What no estimate is above: beyond it nothing is hidden.
_LARGEST_EPSILON = 1000.0


def cosines(canaries: np.ndarray, released: np.ndarray) -> np.ndarray:
  """Returns g_i of unit vectors, `[canaries, d]`, in what was released."""
  return np.asarray(canaries @ released / np.linalg.norm(released))


def _hockey_stick(
  epsilon: float, log_p: np.ndarray, log_q: np.ndarray, width: np.ndarray
) -> float:
  """Integrates (p - e^ε q)_+ over places with these log densities."""
  # Where it is above zero, log p is the larger.
  above = log_p - log_q > epsilon
  share = -np.expm1(epsilon + log_q[above] - log_p[above])
  return float(np.sum(np.exp(log_p[above]) * share * width[above]))


def epsilon_between(
  p: tuple[float, float], q: tuple[float, float], delta: float
) -> float:
  """Finds the least ε by which two normal distributions are close, both ways.

  Args:
    p: The mean and the deviation of one.
    q: Those of the other.
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
  if excess(_LARGEST_EPSILON) > 0:
    return _LARGEST_EPSILON
  return float(optimize.brentq(excess, 0.0, _LARGEST_EPSILON, xtol=1e-6))


def empirical_epsilon(found: np.ndarray, dimension: int, delta: float) -> float:
  """Estimates ε from the cosines of canaries.

  Args:
    found: g_i of each canary.
    dimension: d, the number of entries of what was released.
    delta: The δ.

  Returns:
    The estimate.
  """
  if dimension < _FEWEST_DIMENSIONS:
    raise ValueError(
      f'The density of cosines is taken for normal from {_FEWEST_DIMENSIONS}'
      f' dimensions on, not in {dimension}.'
    )
  without = 0.0, 1 / math.sqrt(dimension)
  return epsilon_between(
    without, (float(np.mean(found)), float(np.std(found, ddof=1))), delta
  )
