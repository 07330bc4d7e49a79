"""What raises an error on the native runtime raises one here, and names it."""

import asyncio
import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes.parity import checks

_GOOD, _BAD = 1, 7


def _checked(check):
  def work(x):
    with tf.control_dependencies([check(x)]):
      return tf.identity(x)

  return work


# Each fails if its argument is 7, and does not if it is 1.
_WORK = {
  'division by zero': lambda x: 10 // (x - 7),
  'remainder of zero': lambda x: 10 % (x - 7),
  'truncated division by zero': lambda x: tf.truncatediv(10, x - 7),
  'gather': lambda x: tf.gather(tf.constant([1, 2, 3]), x),
  'gather of a negative': lambda x: tf.gather(tf.constant([1, 2, 3]), 6 - x),
  'gather n-d': lambda x: tf.gather_nd(tf.constant([1, 2, 3]), [[x]]),
  'scatter': lambda x: tf.scatter_nd([[x]], [5], [4]),
  'scatter add': lambda x: tf.tensor_scatter_nd_add(
    tf.zeros([4]), [[x]], [1.0]
  ),
  'sparse cross entropy': lambda x: (
    tf.nn.sparse_softmax_cross_entropy_with_logits([x, 0], tf.eye(2, 3))
  ),
  'Keras cross entropy': lambda x: (
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
      [x, 0], tf.eye(2, 3)
    )
  ),
  'inverse': lambda x: tf.linalg.inv(tf.cast([[1, x], [2, 14]], tf.float32)),
  'Cholesky': lambda x: tf.linalg.cholesky(
    tf.cast([[7 - x, 0], [0, 7 - x]], tf.float64)
  ),
  'solve': lambda x: tf.linalg.solve(
    tf.cast([[1, x], [2, 14]], tf.float32), tf.ones([2, 1])
  ),
  'assert equal': _checked(lambda x: tf.debugging.assert_equal(x, 1)),
  'assert less': _checked(lambda x: tf.debugging.assert_less(x, 5)),
  'assert with a message': _checked(
    lambda x: tf.debugging.Assert(x < 5, ['too large', x])
  ),
  'assert a shape': _checked(
    lambda x: tf.debugging.assert_equal(tf.size(tf.range(x)), 1)
  ),
  'assert in a condition': lambda x: tf.cond(
    x > 0,
    lambda: _checked(lambda y: tf.debugging.assert_less(y, 5))(x),
    lambda: x,
  ),
  'check of numbers': lambda x: tf.debugging.check_numerics(
    1.0 / tf.cast(x - 7, tf.float32), 'not finite'
  ),
  'reshape': lambda x: tf.reshape(tf.range(x), [tf.minimum(x, 1)]),
  'reshape to a size that is no divisor': lambda x: tf.reshape(
    tf.range(x), [(x + 1) // 2, -1]
  ),
  'ensured shape': lambda x: tf.ensure_shape(tf.range(x), [1]),
  'concatenation': lambda x: tf.concat([tf.zeros([2, x]), tf.zeros([2, 1])], 0),
  'sum of different sizes': lambda x: tf.range(x + 1) + tf.range(2),
  'product of matrices': lambda x: tf.matmul(tf.ones([2, x]), tf.ones([1, 2])),
  'slice': lambda x: tf.slice(tf.range(5), [x], [2]),
  'split': lambda x: tf.split(tf.range(x * 3), [1, 2]),
  'index': lambda x: tf.range(5)[x],
  'top k': lambda x: tf.math.top_k(tf.range(3), x)[0],
  'broadcast': lambda x: tf.broadcast_to(tf.zeros([x]), [3]),
  'range': lambda x: tf.range(0, 5, 7 - x),
  'range of a negative size': lambda x: tf.fill([5 - x], 0),
  'one hot': lambda x: tf.one_hot([0], 3 - x),
  'unsorted segment sum': lambda x: tf.math.unsorted_segment_sum(
    [1, 2], [0, x], 3
  ),
  'segment sum': lambda x: tf.math.segment_sum([1, 2], [x - 1, 5]),
  'parse a number': lambda x: tf.strings.to_number(
    tf.strings.join([tf.strings.as_string(x), tf.repeat('x', x - 1)])
  ),
  'decode': lambda x: tf.io.decode_raw(
    tf.strings.substr('abcdabc', 0, x + 3), tf.int32
  ),
  'base 64': lambda x: tf.io.decode_base64(tf.where(x < 5, 'AAAA', '!!')),
  'dequeue': lambda x: _dequeue(x),
  'table': lambda x: tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer([1, 1], tf.stack([1, x])), 0
  ).lookup(tf.constant(1)),
  'tensor array': lambda x: (
    tf.TensorArray(tf.int32, 3).unstack([1, 2, 3]).read(x)
  ),
  'in a function that asks for XLA': lambda x: tf.function(
    lambda y: tf.gather([1, 2, 3], y), jit_compile=True
  )(x),
  'in a loop': lambda x: tf.while_loop(
    lambda k, _: k < 9, lambda k, t: (k + 1, t + 10 // (k - x)), (5, 0)
  ),
  'in a map': lambda x: tf.map_fn(lambda k: 10 // (k - x), tf.range(5, 9)),
  'in a data set': lambda x: (
    tf.data.Dataset.range(8)
    .map(lambda k: 10 // (tf.cast(k, tf.int32) + 2 - x))
    .reduce(0, lambda a, b: a + b)
  ),
  'an empty data set': lambda x: (
    tf.data.Dataset.range(tf.cast(7 - x, tf.int64)).take(1).get_single_element()
  ),
}


def _dequeue(x):
  queue = tf.queue.FIFOQueue(10, [tf.int32], shapes=[[]])
  with tf.control_dependencies([queue.enqueue_many([tf.range(7 - x)])]):
    with tf.control_dependencies([queue.close()]):
      return queue.dequeue()


@pytest.mark.parametrize('name', _WORK)
def test_an_error_in_work_of_clients(parity, name):
  computation = checks.mapped(_WORK[name], np.int32)
  clients = [_GOOD, _GOOD, _BAD, _GOOD, _GOOD]
  parity.agrees(computation, lambda: (clients,))
  # Afterwards it works again.
  parity.agrees(computation, lambda: ([_GOOD, _GOOD],))


@pytest.mark.parametrize('name', checks.first(10, _WORK))
def test_an_error_in_work_of_the_server(parity, name):
  block = tff.tensorflow.computation(lambda x: _WORK[name](x), np.int32)

  @tff.federated_computation(
    checks.at_server(np.int32), checks.at_clients(np.int32)
  )
  def run(x, y):
    return tff.federated_map(block, x), tff.federated_sum(y)

  parity.agrees(run, lambda: (_BAD, [1, 2, 3]))
  parity.agrees(run, lambda: (_GOOD, [1, 2, 3]))
  parity.agrees(block, lambda: (_BAD,))


@pytest.mark.parametrize('name', checks.first(20, _WORK))
def test_an_error_in_work_of_which_only_the_sum_is_seen(parity, name):
  def work(x):
    result = _WORK[name](x)
    first = tf.nest.flatten(result)[0]
    return (
      tf.reduce_sum(tf.cast(first, tf.float64))
      if (first.dtype != tf.string)
      else tf.cast(tf.strings.length(first), tf.float64)
    )

  block = tff.tensorflow.computation(lambda x: work(x), np.int32)

  @tff.federated_computation(checks.at_clients(np.int32))
  def run(x):
    return tff.federated_sum(tff.federated_map(block, x))

  parity.agrees(run, lambda: ([_GOOD, _GOOD, _BAD, _GOOD, _GOOD],), rtol=1e-5)


@pytest.mark.parametrize(
  'name', ['division by zero', 'gather', 'assert less', 'table', 'dequeue']
)
@pytest.mark.parametrize('position', [0, 2, 4])
def test_an_error_names_the_client(parity, name, position):
  computation = checks.mapped(_WORK[name], np.int32)
  clients = [_GOOD] * 5
  clients[position] = _BAD
  errors = parity.raises(computation, lambda: (clients,))
  for context, error in errors.items():
    notes = ' '.join([str(error), *getattr(error, '__notes__', [])])
    assert f'client {position} of 5' in notes.lower(), context


@pytest.mark.parametrize('name', ['assert with a message', 'check of numbers'])
def test_an_error_says_what_the_check_says(parity, name):
  words = {
    'assert with a message': 'too large',
    'check of numbers': 'not finite',
  }
  computation = checks.mapped(_WORK[name], np.int32)
  errors = parity.raises(computation, lambda: ([_GOOD, _BAD],))
  for error in errors.values():
    assert words[name] in str(error)


def test_an_error_in_an_aggregation(parity):
  divide = tff.tensorflow.computation(
    lambda a, x: a + 10 // (x - 7), np.int32, np.int32
  )
  add = tff.tensorflow.computation(lambda a, b: a + b, np.int32, np.int32)
  same = tff.tensorflow.computation(lambda a: a, np.int32)

  @tff.federated_computation(checks.at_clients(np.int32))
  def run(x):
    return tff.federated_aggregate(x, 0, divide, add, same)

  parity.raises(run, lambda: ([1, 7, 2],))
  parity(run, [1, 2])


def test_an_error_in_the_report_of_an_aggregation(parity):
  add = tff.tensorflow.computation(lambda a, b: a + b, np.int32, np.int32)
  report = tff.tensorflow.computation(lambda a: 10 // (a - 7), np.int32)

  @tff.federated_computation(checks.at_clients(np.int32))
  def run(x):
    return tff.federated_aggregate(x, 0, add, add, report)

  parity.raises(run, lambda: ([3, 4],))
  parity(run, [3, 5])


def test_an_error_in_work_whose_result_nobody_sees(parity):
  divide = tff.tensorflow.computation(lambda x: 10 // (x - 7), np.int32)

  @tff.federated_computation(checks.at_clients(np.int32))
  def run(x):
    tff.federated_map(divide, x)
    return tff.federated_sum(x)

  parity.agrees(run, lambda: ([1, 7],))


def test_an_error_in_one_of_two_results(parity):
  work = tff.tensorflow.computation(
    lambda x: collections.OrderedDict(bad=10 // (x - 7), good=x), np.int32
  )

  @tff.federated_computation(checks.at_clients(np.int32))
  def run(x):
    both = tff.federated_map(work, x)
    return tff.federated_sum(both['good'])

  parity.agrees(run, lambda: ([1, 7],))


@pytest.mark.parametrize('largest', [3, 5])
def test_a_secure_sum_is_checked(parity, largest):
  @tff.federated_computation(checks.at_clients(np.int32))
  def run(x):
    return tff.federated_secure_sum(x, largest)

  parity.agrees(run, lambda: ([1, 2, 4],))
  parity.agrees(run, lambda: ([1, -2, 1],))


def test_a_failed_call_does_not_disturb_others(parity):
  computation = checks.mapped(_WORK['division by zero'], np.int32)
  for _ in range(3):
    parity.raises(computation, lambda: ([_BAD] * 8,))
    parity(computation, [_GOOD] * 8)


_TENSORFLOW = tff.tensorflow.computation(lambda x: x + 1, np.int32)
_FUNCTION_TYPE = tff.FunctionType(np.int32, np.int32)
_REASONED = (NotImplementedError, TypeError, ValueError)


def test_a_function_as_an_argument_is_refused(parity):
  computation = tff.federated_computation(
    lambda f, x: f(x), [_FUNCTION_TYPE, np.int32]
  )
  # The native runtime takes one.
  errors = parity.cohorts_raise(
    computation, lambda: (_TENSORFLOW, 1), _REASONED
  )
  assert all('function' in str(error) for error in errors.values())


def test_a_function_as_a_result_is_refused(parity):
  computation = tff.federated_computation(lambda x: (x, _TENSORFLOW), np.int32)
  errors = parity.cohorts_raise(computation, lambda: (1,), _REASONED)
  for error in errors.values():
    assert 'function' in str(error).lower() or '->' in str(error)


def test_a_jax_block_is_refused_or_the_same(parity):
  jax = tff.jax.computation(lambda x: x + 1, np.int32)
  parity.agrees_or_refuses(jax, 1)


def test_an_error_does_not_reach_an_event_loop(parity):
  """The native runtime cannot run in a loop that runs; this one may."""
  computation = checks.mapped(lambda x: x + 1, np.int32)

  async def call(context):
    return checks.run_once(context, computation, [1, 2])

  for context in parity.cohorts.values():
    assert list(asyncio.run(call(context))) == [2, 3]
