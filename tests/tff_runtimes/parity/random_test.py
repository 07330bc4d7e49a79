"""Stateless random numbers are those of the native runtime."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes.parity import checks

_SEED = tff.TensorType(np.int32, [2])
_RANDOM = {
  'uniform': lambda seed: tf.random.stateless_uniform([3, 2], seed),
  'uniform in a range': lambda seed: tf.random.stateless_uniform(
    [5], seed, -2.0, 7.0
  ),
  'uniform of float64': lambda seed: tf.random.stateless_uniform(
    [3], seed, dtype=tf.float64
  ),
  'uniform of float16': lambda seed: tf.random.stateless_uniform(
    [3], seed, dtype=tf.float16
  ),
  'uniform integers': lambda seed: tf.random.stateless_uniform(
    [7], seed, 0, 100, tf.int32
  ),
  'uniform long integers': lambda seed: tf.random.stateless_uniform(
    [7], seed, 0, 2**40, tf.int64
  ),
  'all integers': lambda seed: tf.random.stateless_uniform(
    [3], seed, None, None, tf.int32
  ),
  'normal': lambda seed: tf.random.stateless_normal([3, 3], seed),
  'normal scalar': lambda seed: tf.random.stateless_normal([], seed),
  'normal of float64': lambda seed: tf.random.stateless_normal(
    [3], seed, dtype=tf.float64
  ),
  'truncated normal': lambda seed: tf.random.stateless_truncated_normal(
    [5], seed
  ),
  'categorical': lambda seed: tf.random.stateless_categorical(
    tf.math.log([[0.2, 0.5, 0.3], [0.9, 0.05, 0.05]]), 6, seed
  ),
  'shuffle': lambda seed: tf.random.experimental.stateless_shuffle(
    tf.range(9), seed
  ),
  'gamma': lambda seed: tf.random.stateless_gamma([4, 1], seed, alpha=[0.7]),
  'Poisson': lambda seed: tf.random.stateless_poisson([4, 1], seed, [3.0]),
  'binomial': lambda seed: tf.random.stateless_binomial(
    [4, 1], seed, [10.0], [0.3]
  ),
  'parameterized normal': lambda seed: (
    tf.random.stateless_parameterized_truncated_normal(
      [4], seed, 0.0, 1.0, -1.0, 2.0
    )
  ),
  'dropout': lambda seed: tf.nn.experimental.stateless_dropout(
    tf.ones([4, 3]), 0.4, seed
  ),
  'split seeds': lambda seed: tf.random.split(seed, 3),
  'folded seeds': lambda seed: tf.random.fold_in(seed, 5),
  'Philox': lambda seed: tf.random.stateless_uniform([3], seed, alg='philox'),
  'orthogonal': lambda seed: tf.abs(
    tf.linalg.qr(tf.random.stateless_normal([3, 3], seed))[1]
  ),
  'random sign': lambda seed: tf.sign(
    tf.random.stateless_uniform([9], seed, -1.0, 1.0)
  ),
  'crop': lambda seed: tf.image.stateless_random_crop(
    tf.reshape(tf.range(25), [5, 5, 1]), [2, 2, 1], seed
  ),
  'in a loop': lambda seed: tf.while_loop(
    lambda k, _: k < 4,
    lambda k, t: (
      k + 1,
      t + tf.random.stateless_uniform([2], seed + tf.stack([k, 0])),
    ),
    (0, tf.zeros([2])),
  ),
  'in a map': lambda seed: tf.map_fn(
    lambda k: tf.random.stateless_normal([2], tf.stack([k, seed[1]])),
    tf.range(3),
    fn_output_signature=tf.float32,
  ),
  'in a data set': lambda seed: (
    tf.data.Dataset.range(4)
    .map(
      lambda k: tf.random.stateless_uniform(
        [], tf.stack([seed[0], tf.cast(k, tf.int32)])
      )
    )
    .reduce(0.0, lambda a, b: 2 * a + b)
  ),
}


@pytest.mark.parametrize('name', _RANDOM)
def test_numbers_from_a_seed_in_the_argument(parity, name):
  seeds = [
    np.array(seed, np.int32) for seed in ([0, 0], [1, 2], [-5, 2**31 - 1])
  ]
  parity(
    checks.everywhere(_RANDOM[name], _SEED),
    seeds,
    np.array([3, 4], np.int32),
    # Two compilers, one stream of bits: no more than rounding may differ.
    rtol=1e-6,
    atol=1e-7,
  )


@pytest.mark.parametrize('name', checks.first(8, _RANDOM))
def test_numbers_from_a_seed_that_is_constant(parity, name):
  work = lambda x: (_RANDOM[name](tf.constant([7, 8])), x)  # noqa: E731
  parity(checks.everywhere(work, np.int32), [1, 2, 3], 4, rtol=1e-6, atol=1e-7)


_BITS = [
  'uniform',
  'uniform integers',
  'uniform long integers',
  'all integers',
  'categorical',
  'shuffle',
  'dropout',
  'split seeds',
  'random sign',
]


@pytest.mark.parametrize('name', _BITS)
def test_plain_numbers_are_equal_in_every_bit(parity, name):
  seeds = [np.array([k, k * k], np.int32) for k in range(6)]
  parity(checks.everywhere(_RANDOM[name], _SEED), seeds, seeds[3], exact=True)


@pytest.mark.parametrize('name', ['uniform', 'normal', 'shuffle', 'gamma'])
def test_numbers_do_not_depend_on_the_shapes_of_others(parity, name):
  """Clients of equal shapes may be stacked, and others may not."""
  kind = tff.to_type([_SEED, tff.TensorType(np.float32, [None])])
  work = lambda pair: (_RANDOM[name](pair[0]), tf.size(pair[1]))  # noqa: E731
  computation = checks.mapped(work, kind)
  seed = np.array([3, 4], np.int32)
  equal = [(seed + k, np.zeros(2, np.float32)) for k in range(3)]
  different = [(seed + k, np.zeros(2 + k, np.float32)) for k in range(3)]
  first = parity(computation, equal, rtol=1e-6, atol=1e-7)
  second = parity(computation, different, rtol=1e-6, atol=1e-7)
  checks.assert_same([pair[0] for pair in first], [pair[0] for pair in second])


@pytest.mark.parametrize('name', ['uniform', 'normal', 'shuffle'])
def test_numbers_do_not_depend_on_who_else_is_there(parity, name):
  computation = checks.mapped(_RANDOM[name], _SEED)
  seeds = [np.array([k, 4], np.int32) for k in range(5)]
  together = parity(computation, seeds, rtol=1e-6, atol=1e-7)
  for k in (0, 4):
    alone = parity(computation, seeds[k : k + 1], rtol=1e-6, atol=1e-7)
    checks.assert_same(alone, together[k : k + 1])


def test_a_seed_with_the_wrong_type_of_integer_is_the_same(parity):
  work = lambda seed: tf.random.stateless_normal([3], seed)  # noqa: E731
  seeds = [np.array([k, 2**40 + k], np.int64) for k in range(3)]
  kind = tff.TensorType(np.int64, [2])
  parity(checks.everywhere(work, kind), seeds, seeds[0], rtol=1e-6, atol=1e-7)


def test_work_that_asks_for_xla_gets_the_same_numbers(parity):
  """TFF's own runtime compiles nothing, and XLA has other random numbers."""
  draw = tf.function(
    lambda seed: tf.random.stateless_normal([3], seed), jit_compile=True
  )
  seeds = [np.array([k, 2], np.int32) for k in range(3)]
  computation = checks.everywhere(lambda seed: draw(seed), _SEED)
  parity(computation, seeds, seeds[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('size', [1, 3])
def test_unseeded_numbers_differ_between_clients(parity, size):
  computation = checks.mapped(lambda x: x + tf.random.uniform([4]), np.float32)
  clients = [np.float32(0)] * size
  seen = set()
  for context in parity.cohorts.values():
    for _ in range(2):
      results = checks.run_once(context, computation, clients)
      seen |= {numbers.tobytes() for numbers in results}
  assert len(seen) == 2 * size * len(parity.cohorts)


def test_a_draw_is_one_draw_wherever_it_is_used(parity):
  draw = tff.tensorflow.computation(
    lambda x: x + tf.random.uniform([]), np.float32
  )

  @tff.federated_computation(checks.at_clients(np.float32))
  def run(x):
    drawn = tff.federated_map(draw, x)
    total = tff.federated_sum(drawn)
    return drawn, drawn, total, tff.federated_broadcast(total)

  for context in [parity.native, *parity.cohorts.values()]:
    one, other, total, _ = checks.run_once(context, run, [0.0, 1.0, 2.0])
    assert list(one) == list(other)
    np.testing.assert_allclose(sum(one), total, rtol=1e-5)
