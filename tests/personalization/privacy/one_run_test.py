"""Lower bounds on ε from one training: closed forms, and Gaussian releases."""

import math

import numpy as np
import pytest
from scipy import stats

from personalization.privacy import canaries
from personalization.privacy import one_run

_DELTA = 1e-5


@pytest.mark.parametrize('r', [10, 100, 1000])
def test_if_all_guesses_are_right_the_bound_has_a_closed_form(r):
  # P[W >= r] = (e^ε / (1 + e^ε))^r = .05.
  rate = 0.05 ** (1 / r)
  exact = math.log(rate / (1 - rate))
  assert one_run.lower_bound(r, r, r, 0.0) == pytest.approx(exact, abs=2e-4)


def test_without_delta_it_is_the_interval_of_clopper_and_pearson():
  rate = stats.binomtest(90, 100, alternative='greater').proportion_ci(0.95).low
  exact = math.log(rate / (1 - rate))
  assert one_run.lower_bound(1000, 100, 90, 0.0) == pytest.approx(
    exact, abs=2e-4
  )


def _by_enumeration(m, r, v, epsilon, delta):
  """Writes out theorem 5.2, with the binomial from its definition."""
  q = math.exp(epsilon) / (1 + math.exp(epsilon))
  mass = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
  worst = max(
    2 / i * sum(mass[k] for k in range(r + 1) if v > k >= v - i)
    for i in range(1, m + 1)
  )
  return min(1, sum(mass[v:]) + delta * m * worst)


@pytest.mark.parametrize(
  ('m', 'r', 'v'), [(40, 20, 15), (40, 40, 40), (100, 60, 58), (30, 10, 1)]
)
@pytest.mark.parametrize('delta', [0.0, 1e-3])
def test_the_p_value_is_that_of_the_theorem(m, r, v, delta):
  for epsilon in (0.0, 0.7, 3.0):
    assert one_run.p_value(m, r, v, epsilon, delta) == pytest.approx(
      _by_enumeration(m, r, v, epsilon, delta), rel=1e-10
    )


def test_delta_lowers_the_bound_and_chance_gives_none():
  without = one_run.lower_bound(1000, 100, 95, 0.0)
  assert 0 < one_run.lower_bound(1000, 100, 95, 1e-5) < without
  assert one_run.lower_bound(1000, 100, 50, 0.0) == 0


def _release(distance, m, seed):
  """Draws the scores of canaries at this distance, in deviations."""
  rng = np.random.default_rng(seed)
  is_in = rng.random(m) < 0.5
  return rng.normal(size=m) + distance * is_in, is_in


def _epsilon(distance):
  return canaries.epsilon_between((0.0, 1.0), (distance, 1.0), _DELTA)


@pytest.mark.parametrize('distance', [0.5, 1.0, 2.0])
def test_bounds_of_gaussian_releases_are_below_their_epsilon(distance):
  for seed in range(5):
    scores, is_in = _release(distance, 1000, seed)
    bound = one_run.find_bound(scores, is_in, _DELTA)
    normal = one_run.find_normal_bound(scores, is_in, _DELTA)
    assert bound.epsilon < normal < _epsilon(distance)
    assert 0.3 * _epsilon(distance) < normal


def test_bounds_fail_as_rarely_as_they_say():
  # Randomized response is as visible as ε-privacy lets it be.
  epsilon, failures = 1.0, 0
  rng = np.random.default_rng(0)
  for _ in range(300):
    is_in = rng.random(100) < 0.5
    truth = rng.random(100) < 1 / (1 + math.exp(-epsilon))
    scores = np.where(is_in == truth, 1.0, -1.0) + 1e-3 * rng.normal(size=100)
    failures += one_run.find_bound(scores, is_in, 0.0).epsilon > epsilon
  assert failures / 300 < one_run.FAILURE + 0.03


def test_without_noise_all_is_told_unless_nothing_moves():
  is_in = np.arange(20) % 2 == 0
  nothing = np.zeros(20)
  assert one_run.find_normal_bound(nothing, is_in, _DELTA) == 0
  assert one_run.find_normal_bound(nothing + is_in, is_in, _DELTA) == 1000


def test_less_noise_than_is_claimed_is_seen():
  scores, is_in = _release(2.0, 500, 0)
  assert one_run.find_normal_bound(scores, is_in, _DELTA) > _epsilon(1.0)


def test_updates_that_are_not_clipped_are_seen_by_both_bounds():
  is_in = np.arange(200) % 2 == 0
  scores = 1e6 * is_in + np.random.default_rng(0).normal(size=200)
  assert one_run.find_bound(scores, is_in, _DELTA).epsilon > 2.5
  assert one_run.find_normal_bound(scores, is_in, _DELTA) > 100
  assert one_run.find_bound(scores, is_in, _DELTA).epsilon == pytest.approx(
    one_run.largest_bound(200, _DELTA)
  )
