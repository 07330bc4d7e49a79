"""Lower bounds on the ε of one training, from which canaries are found in it.

Each of m canaries is in the training or not, by a fair coin. An auditor sees
what the training releases, guesses for r of the canaries whether they are in,
and abstains for the others. The more guesses are right, the larger ε must be
(Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training
run"). `find_bound` assumes nothing about the training; but it is far below ε
where the noise is Gaussian and canaries are few. `find_normal_bound` assumes
that scores are normal, and is near ε then.
"""

import dataclasses
import math

import numpy as np
from scipy import stats

from personalization.privacy import canaries

# The probability with which a bound is wrong. The normal one is as large as ε
# if a guarantee is tight, where it would often cry wolf.
FAILURE, NORMAL_FAILURE = 0.05, 0.001
# No bound is above this one, nor is it found to more places.
_LARGEST_EPSILON, _PLACES = 100.0, 1e-4
# The fewest guesses to bound by.
_FEWEST_GUESSES = 16


@dataclasses.dataclass(frozen=True)
class Bound:
  """A lower bound on ε.

  Attributes:
    epsilon: The bound.
    guesses: r, the number of guesses.
    right: v, the number of right ones.
  """

  epsilon: float
  guesses: int
  right: int


def p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
  """Bounds the probability of so many right guesses under (ε, δ)-privacy.

  It is theorem 5.2 of the paper, with W ~ Binomial(r, e^ε / (1 + e^ε)):

    P[V >= v] <= P[W >= v] + δ m max_i (2 / i) P[v > W >= v - i]

  Args:
    m: The number of canaries, each of which is in by a fair coin.
    r: The number of guesses; for the other canaries the auditor abstains.
    v: The number of right guesses.
    epsilon: ε.
    delta: δ.
  """
  rate = 1 / (1 + math.exp(-epsilon))
  at_least = float(stats.binom.sf(v - 1, r, rate))
  i = np.arange(1, v + 1)
  below = np.cumsum(stats.binom.pmf(v - i, r, rate))
  return min(
    1.0, at_least + delta * m * float(np.max(2 * below / i, initial=0))
  )


def lower_bound(
  m: int, r: int, v: int, delta: float, failure: float = FAILURE
) -> float:
  """Returns the largest ε that so many right guesses refute.

  Args:
    m: See `p_value`.
    r: See `p_value`.
    v: See `p_value`.
    delta: δ.
    failure: The probability with which a guarantee that holds is refuted.
  """
  low, high = 0.0, _LARGEST_EPSILON
  if p_value(m, r, v, low, delta) > failure:
    return 0.0
  while high - low > _PLACES:
    middle = (low + high) / 2
    if p_value(m, r, v, middle, delta) <= failure:
      low = middle
    else:
      high = middle
  return low


def find_bound(scores: np.ndarray, is_in: np.ndarray, delta: float) -> Bound:
  """Finds a lower bound on ε, which holds with a probability of 95 %.

  The auditor guesses that the canaries of the largest scores are in, and that
  as many of the smallest scores are not. The number of guesses is chosen from
  m, m/2, m/4, …, each of which has its share of the probability of failure.

  Args:
    scores: How visible each canary is, `[m]`.
    is_in: Whether it is in the training.
    delta: δ.
  """
  m = len(scores)
  order = np.argsort(scores, kind='stable')
  halves = [m // 2]
  while halves[-1] >= _FEWEST_GUESSES:
    halves.append(halves[-1] // 2)
  bounds = []
  for half in halves:
    right = np.sum(is_in[order[m - half :]]) + np.sum(~is_in[order[:half]])
    r, v = 2 * half, int(right)
    found = lower_bound(m, r, v, delta, FAILURE / len(halves))
    bounds.append(Bound(found, r, v))
  return max(bounds, key=lambda bound: bound.epsilon)


def largest_bound(m: int, delta: float) -> float:
  """Returns the bound if all guesses are right: m canaries show no more."""
  return find_bound(
    np.arange(m, dtype=float), np.arange(m) >= m // 2, delta
  ).epsilon


def find_normal_bound(
  scores: np.ndarray, is_in: np.ndarray, delta: float
) -> float:
  """Finds a lower bound on ε if scores are normal, which holds in 99.9 %.

  Two normal distributions of one deviation are told apart as well as a Gaussian
  mechanism's. Their distance in deviations is bounded by its standard error.

  Args:
    scores: How visible each canary is, `[m]`.
    is_in: Whether it is in the training.
    delta: δ.
  """
  inside, outside = scores[is_in], scores[~is_in]
  deviation = np.std(outside, ddof=1)
  apart = np.mean(inside) - np.mean(outside)
  if not deviation:
    return canaries.LARGEST_EPSILON if apart else 0.0
  distance = apart / deviation
  spread = np.std(inside, ddof=1) / deviation
  error = math.sqrt(
    spread**2 / len(inside)
    + 1 / len(outside)
    + distance**2 / (2 * len(outside))
  )
  least = distance - stats.norm.isf(NORMAL_FAILURE) * error
  if least <= 0:
    return 0.0
  return canaries.epsilon_between((0.0, 1.0), (float(least), 1.0), delta)
