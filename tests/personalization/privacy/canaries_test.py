"""Empirical ε by canaries: against closed forms, and on one release."""

import collections
import math

import numpy as np
import pytest
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms.privacy import private_aggregation
from personalization.privacy import accounting
from personalization.privacy import canaries
from tests.algorithms import helpers

_DELTA = 1e-6


@pytest.mark.parametrize(
  ('deviation', 'epsilon'), ((4.22, 1.001), (1.54, 3.008), (0.541, 10.002))
)
def test_epsilon_between_two_normals_is_that_of_the_gaussian_mechanism(
  deviation, epsilon
):
  found = canaries.epsilon_between((0.0, deviation), (1.0, deviation), _DELTA)
  assert found == pytest.approx(epsilon, abs=6e-4)
  exact, _ = accounting.epsilon(accounting.gaussian(deviation), _DELTA)
  assert found == pytest.approx(exact, rel=1e-3)


def test_equal_distributions_have_none():
  assert canaries.epsilon_between((0.5, 2.0), (0.5, 2.0), _DELTA) == 0


def test_both_ways_count():
  narrow, wide = (0.0, 1.0), (0.0, 2.0)
  assert canaries.epsilon_between(narrow, wide, _DELTA) == pytest.approx(
    canaries.epsilon_between(wide, narrow, _DELTA)
  )


def _cosines_of_one_release(noise, d, k, rng):
  """Draws g_i of k canaries in the sum of all, with noise on each of d entries.

  The canaries are drawn in coordinates in which only the first k of d entries
  are not zero (by Bartlett's decomposition), as d is large.
  """
  vectors = np.tril(rng.normal(size=[k, k]), -1)
  vectors[np.diag_indices(k)] = np.sqrt(rng.chisquare(d - np.arange(k)))
  vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
  released = vectors.sum(0) + noise * rng.normal(size=k)
  beyond = noise**2 * rng.chisquare(d - k)
  return vectors @ released / math.sqrt(released @ released + beyond)


@pytest.mark.parametrize(
  ('noise', 'mean', 'deviation'),
  ((4.22, 1.38, 0.28), (1.54, 3.43, 0.38), (0.541, 10.45, 0.42)),
)
def test_one_release_is_estimated_as_by_others(noise, mean, deviation):
  rng = np.random.default_rng(0)
  found = [
    canaries.empirical_epsilon(
      _cosines_of_one_release(noise, 10**6, 1000, rng), 10**6, _DELTA
    )
    for _ in range(8)
  ]
  assert np.mean(found) == pytest.approx(mean, abs=3 * deviation / math.sqrt(8))
  assert np.mean(found) > 0.95 * {4.22: 1.001, 1.54: 3.008}.get(noise, 10.002)


def _estimate(noise, d=20_000, k=200):
  """Estimates ε of our aggregator, to which canaries alone send."""
  rng = np.random.default_rng(1)
  vectors = rng.normal(size=[k, d])
  vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
  clip = 0.5
  aggregator = private_aggregation.Gaussian(noise, clip, float(k))
  updates_type = collections.OrderedDict(
    model=tff.to_type(
      aggregation.Update(tff.TensorType(np.float32, [d]), np.float32)
    )
  )
  process = private_aggregation.make_process(
    aggregator, {'model': None}, updates_type
  )
  seed = np.array([0, 1], np.int32)
  updates = [
    collections.OrderedDict(
      model=aggregation.Update(np.float32(clip * u), np.float32(1))
    )
    for u in vectors
  ]
  with helpers.use_runtime('cohort'):
    output = process.next(
      process.initialize((seed, aggregator.numbers)), updates, [seed] * k
    )
  found = canaries.cosines(vectors, output.result['model'])
  return canaries.empirical_epsilon(found, d, 1e-5)


def test_canaries_in_our_sums_are_as_visible_as_the_noise_lets_them_be():
  # The means and deviations of 60 releases by `_cosines_of_one_release`. So few
  # canaries lead to more than ε, 4.38 and .93.
  assert _estimate(1.0) == pytest.approx(5.26, abs=3 * 0.79)
  assert _estimate(4.0) == pytest.approx(1.66, abs=3 * 0.76)
  assert _estimate(0.0) > 50


def test_few_dimensions_are_refused():
  with pytest.raises(ValueError, match='1000 dimensions'):
    canaries.empirical_epsilon(np.zeros(5), 999, _DELTA)
