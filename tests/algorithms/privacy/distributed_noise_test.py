"""Noise that clients add together: what is sent, and what comes of the sum."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated.python.aggregators import discretization
from tensorflow_federated.python.aggregators import distributed_dp

from algorithms.privacy import distributed_noise
from tests.algorithms import helpers
from tests.algorithms.privacy import private_aggregation_test

_aggregate = private_aggregation_test._aggregate


@functools.cache
def _own(noise=2.0, clip=0.5, clients=4.0, bits=20):
  return distributed_noise.Distributed(noise, clip, clients, bits=bits)


def _records(number, size=2000):
  rng = np.random.default_rng(0)
  return [
    tuple(0.3 * rng.normal(size=[2, size]) / math.sqrt(2 * size))
    for _ in range(number)
  ]


@pytest.mark.parametrize('bits', [12, 20])
def test_without_noise_it_is_the_mean_but_for_rounding(bits):
  records = _records(4)
  with helpers.use_runtime('cohort'):
    (result,) = _aggregate(_own(noise=0.0, bits=bits), records)
  off = np.array(result) - np.mean(records, axis=0)
  # Four roundings, each of variance 1/4 at most.
  s = distributed_noise.scale(0.0, 0.5, 4.0, 4000, bits)
  assert 0.3 < np.std(off) / (math.sqrt(4 * 0.25) / (4 * s)) < 1
  assert abs(np.mean(off)) < 4 * np.std(off) / math.sqrt(off.size)


@pytest.mark.parametrize('number', [4, 3])
def test_each_client_adds_its_share_of_the_noise(number):
  records = _records(number)
  with helpers.use_runtime('cohort'):
    first, second = _aggregate(_own(), records, rounds=2)
  noise = np.array(first) - np.sum(records, axis=0) / 4
  other = np.array(second) - np.sum(records, axis=0) / 4
  expected = 2 * 0.5 / 4 * math.sqrt(number / 4)
  for one in (*noise, *other):
    assert np.std(one) == pytest.approx(expected, rel=0.05)
    assert abs(np.mean(one)) < 4 * expected / math.sqrt(one.size)
  assert abs(np.corrcoef(noise.ravel(), other.ravel())[0, 1]) < 0.06


def test_both_runtimes_give_the_same_bits():
  results = []
  for runtime in ('cohort', 'native'):
    with helpers.use_runtime(runtime):
      results.append(_aggregate(_own(), _records(4), rounds=2))
  helpers.assert_equal(*results)


@pytest.mark.parametrize('value', [1e30, np.nan])
def test_no_client_moves_the_sum_by_more_than_its_sensitivity(value):
  aggregator = _own(noise=0.0)
  records = _records(3)
  bad = (np.full(2000, value), np.arange(2000.0))
  with helpers.use_runtime('cohort'):
    (without,) = _aggregate(aggregator, records)
    (with_it,) = _aggregate(aggregator, [*records, bad])
  moved = np.linalg.norm(np.ravel(np.subtract(with_it, without)))
  l2 = distributed_noise.sensitivity(0.0, 0.5, 4.0, 4000, 20).l2
  s = distributed_noise.scale(0.0, 0.5, 4.0, 4000, 20)
  assert 0.99 * 0.5 / 4 < moved <= l2 / s / 4


def test_a_client_sends_integers_of_so_many_bits_that_tell_nothing():
  aggregator = _own(clip=1e-3, bits=12)
  record = {'a': tf.zeros([4000])}
  query = aggregator.query({'a': tf.TensorSpec([4000])}, tf.constant([0, 1]))
  params = query.derive_sample_params(query.initial_global_state())
  sent = aggregator.send(query, params, record, tf.constant([2, 3])).numpy()
  assert sent.dtype == np.int32
  assert sent.shape == (4096,)
  assert sent.min() >= 0
  assert sent.max() < 2**12
  around_zero = (sent + 2**11) % 2**12 - 2**11
  assert np.std(around_zero) == pytest.approx(params.stddev, rel=0.05)


@pytest.mark.parametrize('stddev', [0.0, 0.5, 3.0, 1000.0])
def test_noise_is_the_difference_of_poissons(stddev):
  drawn = distributed_noise.skellam(tf.constant([1, 2]), 100_000, stddev)
  drawn = drawn.numpy().astype(np.float64)
  assert np.mean(drawn) == pytest.approx(0, abs=4 * stddev / 100_000**0.5)
  assert np.var(drawn) == pytest.approx(stddev**2, rel=0.03)
  if stddev == 0.5:  # Its fourth cumulant is its variance.
    fourth = np.mean(drawn**4) - 3 * np.var(drawn) ** 2
    assert fourth == pytest.approx(0.25, rel=0.1)


def test_the_transform_is_orthonormal():
  vector = tf.constant(np.random.default_rng(0).normal(size=16), tf.float32)
  h = np.array([[1.0]])
  for _ in range(4):
    h = np.block([[h, h], [h, -h]])
  turned = distributed_noise.hadamard(vector)
  np.testing.assert_allclose(
    turned, h @ vector.numpy() / 4, rtol=1e-4, atol=1e-6
  )
  np.testing.assert_allclose(
    distributed_noise.hadamard(turned), vector, rtol=1e-4, atol=1e-6
  )


@pytest.mark.parametrize(
  ('noise', 'clients', 'dimension', 'bits'),
  [(1.0, 100.0, 4096, 20), (0.5, 20.0, 30, 16), (0.0, 10.0, 1000, 12)],
)
def test_scale_and_sensitivity_are_those_of_tff(
  noise, clients, dimension, bits
):
  clip = 0.1
  s = distributed_noise.scale(noise, clip, clients, dimension, bits)
  size = distributed_noise.padded_size(dimension)
  expected = distributed_dp._heuristic_scale_factor(
    noise * clip / clients**0.5,
    clip,
    bits,
    clients,
    size,
    distributed_dp._clip_prob_to_num_stddevs(1e-4),
  )
  assert s == pytest.approx(float(expected), rel=1e-5)
  of_one = distributed_noise.sensitivity(noise, clip, clients, dimension, bits)
  l2 = discretization.inflated_l2_norm_bound(clip, 1 / s, 0.0, size)
  # Theirs has a leeway of 1e-5 by itself, not over the clip.
  assert of_one.l2 == pytest.approx(s * (float(l2) + 1e-5 * clip), rel=1e-5)
  assert of_one.l1 == pytest.approx(of_one.l2 * min(size**0.5, of_one.l2))


def test_rounding_costs_little_of_the_noise():
  # What TFF's measurements tell for a noise of 1 and 100 clients: .9991.
  of_one = distributed_noise.sensitivity(1.0, 0.1, 100.0, 4000, 20)
  z = math.sqrt(100 * of_one.variance) / of_one.l2
  assert z == pytest.approx(0.9991, abs=1e-4)


def test_the_form_of_tff_has_secure_sums():
  method = helpers.build(
    'fedavg', aggregator=_own(), client_weighting='uniform'
  )
  proto = str(tf.nest.flatten([method.next.to_building_block()])[0])
  assert 'federated_secure_sum_bitwidth' in proto
