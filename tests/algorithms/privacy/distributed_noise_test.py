"""Noise that clients add together: what is sent, and what comes of the sum."""

import decimal
import functools
import math

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
from tensorflow_federated.python.aggregators import discretization
from tensorflow_federated.python.aggregators import distributed_dp

from algorithms.privacy import distributed_noise
from tests.algorithms import helpers
from tests.algorithms.privacy import private_aggregation_test

_aggregate = private_aggregation_test._aggregate
_DRAWN = 200_000


def _float64(value):
  return tf.constant(value, tf.float64)


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


@pytest.mark.parametrize('noise', [0.01, 2.0])
def test_both_runtimes_draw_the_same_bits(noise):
  # Without updates, whose float32 norms may differ in their last bit.
  nothing = [tuple(np.zeros([2, 2000]))] * 4
  results = []
  for runtime in ('cohort', 'native'):
    with helpers.use_runtime(runtime):
      results.append(_aggregate(_own(noise, bits=12), nothing, rounds=2))
  helpers.assert_equal(*results)
  assert np.std(results[0]) > 0


def test_both_runtimes_round_alike_but_for_a_few_entries():
  results = []
  for runtime in ('cohort', 'native'):
    with helpers.use_runtime(runtime):
      results.append(np.ravel(_aggregate(_own(), _records(4))))
  # A last bit of float32 decides whether an entry is rounded up, which is one
  # of the integers that are rotated back.
  s = distributed_noise.scale(2.0, 0.5, 4.0, 4000, 20)
  assert np.linalg.norm(np.subtract(*results)) < math.sqrt(200) / s / 4


def test_a_round_is_one_program():
  with helpers.use_runtime('cohort') as context:
    _aggregate(_own(), _records(4))
    explained = context.explain(
      private_aggregation_test._process(_own(), 2000)[1]
    )
  assert 'one XLA program' in explained


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


def test_a_client_sends_integers_of_so_many_bits():
  aggregator = _own(noise=0.0, clip=1.0, bits=12)
  record = {'a': tf.constant(np.random.default_rng(0).normal(size=4000))}
  record = {'a': tf.cast(record['a'], tf.float32)}
  query = aggregator.query({'a': tf.TensorSpec([4000])}, tf.constant([0, 1]))
  params = query.derive_sample_params(query.initial_global_state())
  sent, count = aggregator.send(query, params, record, tf.constant([2, 3]))
  sent = sent.numpy()
  assert sent.dtype == np.int32
  assert sent.shape == (4096,)
  assert sent.min() >= 0
  assert sent.max() < 2**12
  assert count == 1
  around_zero = (sent + 2**11) % 2**12 - 2**11
  exact = query.preprocess_record(params, record).numpy()
  assert np.max(np.abs(around_zero - exact)) < 1


_draw = tf.function(
  lambda seed, variance: distributed_noise.skellam(seed, _DRAWN, variance),
  jit_compile=True,
)


def _drawn(variance):
  """Draws noise under XLA."""
  drawn = _draw(tf.constant([1, 2]), tf.constant(variance, tf.float64))
  return drawn.numpy().astype(np.float64)


# The second and the third are those next to the change from one way to draw to
# the other.
@pytest.mark.parametrize('variance', [0.25, 19.99, 20.0, 300.0, 1e6, 1e11])
def test_noise_has_the_distribution_of_skellam(variance):
  drawn = _drawn(variance)
  least, most = int(drawn.min()), int(drawn.max())
  values, counts = np.unique(drawn, return_counts=True)
  share = np.cumsum(counts) / _DRAWN
  if variance <= 300:  # scipy's is exact here, but not far beyond.
    of_rate = stats.skellam(variance / 2, variance / 2)
    expected = of_rate.cdf(values)
    # Values that are not rare, by Pearson's test.
    common = of_rate.pmf(np.arange(least, most + 1)) * _DRAWN
    observed = np.bincount(drawn.astype(int) - least)
    kept = common > 10
    off = np.sum((observed - common)[kept] ** 2 / common[kept])
    assert stats.chi2.sf(off, np.sum(kept)) > 1e-3
  else:
    # By Edgeworth's series: the kurtosis changes it by less than 1e-6.
    expected = stats.norm.cdf((values + 0.5) / math.sqrt(variance))
  # The largest difference of a discrete distribution is less than that of a
  # continuous one (Kolmogorov and Smirnov).
  assert np.max(np.abs(share - expected)) < 1.95 / math.sqrt(_DRAWN)
  scaled = drawn / math.sqrt(variance)
  for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3 + 1 / variance)):
    deviation = np.std(scaled**power) / math.sqrt(_DRAWN)
    assert abs(np.mean(scaled**power) - moment) < 4 * deviation


def test_without_variance_there_is_no_noise():
  assert not np.any(_drawn(0.0))


def _log_factorial(n):
  """Computes log n! in decimals, by Stirling's series where n is large."""
  if n < 1000:
    return decimal.Decimal(math.factorial(n)).ln()
  two_pi = 2 * decimal.Decimal('3.14159265358979323846264338327950288419716940')
  x = decimal.Decimal(n)
  series = 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)
  return (x + decimal.Decimal('0.5')) * x.ln() - x + two_pi.ln() / 2 + series


@pytest.mark.parametrize('rate', [10.0, 10.5, 33.0, 1e3, 1e6, 1e10])
def test_densities_are_those_of_poisson_far_into_the_tail(rate):
  root = math.sqrt(rate)
  k = np.unique(np.round(rate + root * np.linspace(-30, 30, 2001)))
  k = k[k >= 0]
  found = distributed_noise._log_density(k - math.floor(rate), _float64(rate))
  with decimal.localcontext(prec=60):
    exact = decimal.Decimal(rate)
    expected = [
      float(int(n) * exact.ln() - exact - _log_factorial(int(n))) for n in k
    ]
  np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize('rate', [10.0, 11.7, 100.0, 1e4, 1e10])
def test_no_variable_would_have_to_be_accepted_with_more_than_certainty(rate):
  # Otherwise what is accepted would not have the distribution of Poisson.
  u = np.concatenate(
    [np.linspace(0, 1, 200_001)[1:-1], 10.0 ** -np.arange(1, 16)]
  )
  _, accepts = distributed_noise.propose(_float64(u), _float64(rate))
  assert np.max(accepts) <= 1e-12
  assert np.mean(np.exp(accepts.numpy()[:199_999])) > 0.7


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
  assert 'federated_secure_modular_sum' in proto
