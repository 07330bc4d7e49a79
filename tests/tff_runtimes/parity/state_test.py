"""Work that keeps state starts afresh for each client and each call."""

import collections
import concurrent.futures
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes.parity import checks

_FLOAT = np.float32
_VECTOR = tff.TensorType(_FLOAT, [3])
_CLIENTS = [np.array([k, 2 * k, -1], _FLOAT) for k in range(1, 5)]


def _variable(x):
  total = tf.Variable(1.0)
  with tf.control_dependencies([total.assign_add(tf.reduce_sum(x))]):
    return total.read_value()


def _variable_of_a_shape(x):
  state = tf.Variable(tf.zeros([3]))
  for _ in range(3):
    state.assign_add(x)
  state.scatter_nd_update([[1]], [7.0])
  return state.read_value(), state.sparse_read([2, 0])


@tf.function
def _count_in_a_loop(x, state):
  for _ in tf.range(5):
    state.assign_add(tf.reduce_sum(x))
    if state > 10.0:
      state.assign(0.5)
  return state.read_value()


def _variable_in_a_loop(x):
  return _count_in_a_loop(x, tf.Variable(0.0))


def _two_variables(x):
  first, second = tf.Variable(1.0), tf.Variable(2.0)
  first.assign_add(x[0])
  second.assign_add(first * x[1])
  first.assign(second + 1.0)
  return first.read_value(), second.read_value()


def _old_variable(x):
  old = tf.compat.v1.get_variable(
    'old', initializer=tf.constant([1.0, 2.0, 3.0])
  )
  update = tf.compat.v1.assign_add(old, x)
  with tf.control_dependencies([update]):
    return tf.identity(old.read_value())


def _old_reference_variable(x):
  old = tf.compat.v1.get_variable(
    'reference', initializer=tf.zeros([3]), use_resource=False
  )
  update = tf.compat.v1.assign_add(old, x)
  with tf.control_dependencies([update]):
    return tf.identity(update) * 2


def _mutable_table(x):
  table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, -1.0)
  keys = tf.cast(x, tf.int64)
  with tf.control_dependencies([table.insert(keys, x * 2)]):
    found = table.lookup(tf.constant([1, 2, 3, 4], tf.int64))
    with tf.control_dependencies([found]):
      return found, table.size()


def _dense_table(x):
  table = tf.lookup.experimental.DenseHashTable(
    tf.int64, tf.float32, -1.0, empty_key=-100, deleted_key=-200
  )
  keys = tf.cast(x, tf.int64)
  with tf.control_dependencies([table.insert(keys, x * 2)]):
    found = table.lookup(tf.constant([1, 2, 3, 4], tf.int64))
    with tf.control_dependencies([found]):
      return found, table.size()


def _static_table(x):
  table = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(
      tf.constant(['a', 'b', 'c']), tf.constant([5, 6, 7])
    ),
    -1,
  )
  return table.lookup(tf.constant(['b', 'z'])), tf.reduce_sum(x)


def _static_vocabulary(x):
  table = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(
      tf.constant(['1', '2', '3']), tf.constant([0, 1, 2], tf.int64)
    ),
    2,
  )
  return table.lookup(tf.strings.as_string(tf.cast(x, tf.int32)))


def _queue(x):
  queue = tf.queue.FIFOQueue(10, [tf.float32], shapes=[[]])
  with tf.control_dependencies([queue.enqueue_many([x])]):
    size = queue.size()
    with tf.control_dependencies([size]):
      return queue.dequeue(), size


def _priority_queue(x):
  queue = tf.queue.PriorityQueue(10, [tf.float32], [[]])
  with tf.control_dependencies([queue.enqueue_many([tf.cast(x, tf.int64), x])]):
    return queue.dequeue()


def _array(x):
  array = tf.TensorArray(tf.float32, 3, clear_after_read=False)
  array = array.unstack(x)
  return array.read(0) + array.read(2), array.stack()


def _generator(x):
  generator = tf.random.Generator.from_seed(7)
  first = generator.normal([2])
  with tf.control_dependencies([first]):
    second = generator.uniform([2])
  with tf.control_dependencies([second]):
    state = tf.identity(generator.state)
  return first, second, state, tf.reduce_sum(x)


def _seeded_random(x):
  return tf.random.uniform([3], seed=3), tf.reduce_sum(x)


def _seeded_normal(x):
  return tf.random.normal([], seed=5) + tf.reduce_sum(x)


def _keras_metric(x):
  metric = tf.keras.metrics.Mean()
  metric.update_state(x)
  metric.update_state(x * 2, sample_weight=[1.0, 0.5, 0.0])
  return metric.result(), [v.read_value() for v in metric.variables]


def _keras_auc(x):
  metric = tf.keras.metrics.AUC(num_thresholds=5)
  metric.update_state([0.0, 1.0, 1.0], tf.sigmoid(x))
  return metric.result()


def _keras_model(x):
  model = tf.keras.Sequential(
    [
      tf.keras.layers.Dense(4, 'relu', kernel_initializer='ones'),
      tf.keras.layers.BatchNormalization(),
      tf.keras.layers.Dense(1, kernel_initializer='ones'),
    ]
  )
  inputs = tf.reshape(x, [1, 3])
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(model(inputs, training=True) ** 2)
  gradients = tape.gradient(loss, model.trainable_variables)
  for gradient, variable in zip(gradients, model.trainable_variables):
    variable.assign_sub(0.1 * gradient)
  return model(inputs), [v.read_value() for v in model.variables]


def _keras_optimizer(x):
  variable = tf.Variable(tf.ones([3]))
  optimizer = tf.keras.optimizers.legacy.Adam(0.1)
  for _ in range(3):
    optimizer.apply_gradients([(x, variable)])
  return variable.read_value()


def _initialized_at_random(x):
  layer = tf.keras.layers.Dense(
    2, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=3)
  )
  return tf.shape(layer(tf.reshape(x, [1, 3])))


def _lstm(x):
  layer = tf.keras.layers.LSTM(
    2, kernel_initializer='ones', recurrent_initializer='zeros'
  )
  return layer(tf.reshape(x, [1, 3, 1]))


def _asserted(x):
  with tf.control_dependencies([tf.debugging.assert_greater(x, -5.0)]):
    return x + 1


def _printed(x):
  with tf.control_dependencies([tf.print('x is', x)]):
    return x + 1


def _dataset_with_state(x):
  total = tf.Variable(0.0)
  for element in [x, x * 2]:
    total.assign_add(
      tf.data.Dataset.from_tensor_slices(element).reduce(
        0.0, lambda a, b: a + b
      )
    )
  return total.read_value()


_WORK = {
  'variable': _variable,
  'variable of a shape': _variable_of_a_shape,
  'variable in a loop': _variable_in_a_loop,
  'two variables': _two_variables,
  'old variable': _old_variable,
  'old reference variable': _old_reference_variable,
  'mutable table': _mutable_table,
  'dense table': _dense_table,
  'static table': _static_table,
  'static vocabulary': _static_vocabulary,
  'queue': _queue,
  'priority queue': _priority_queue,
  'array': _array,
  'generator': _generator,
  'Keras metric': _keras_metric,
  'Keras AUC': _keras_auc,
  'Keras model': _keras_model,
  'Keras optimizer': _keras_optimizer,
  'initialized at random': _initialized_at_random,
  'LSTM': _lstm,
  'asserted': _asserted,
  'printed': _printed,
  'data set with state': _dataset_with_state,
}


@pytest.mark.parametrize('name', _WORK)
def test_state_starts_afresh(parity, name):
  computation = checks.everywhere(_WORK[name], _VECTOR)
  first = parity(computation, _CLIENTS, _CLIENTS[0], rtol=1e-4)
  # A second call finds nothing of the first.
  parity.gives(first, computation, _CLIENTS, _CLIENTS[0], rtol=1e-4)


@pytest.mark.parametrize('name', _WORK)
def test_a_block_with_state_is_used_twice(parity, name):
  block = tff.tensorflow.computation(lambda x: _WORK[name](x), _VECTOR)

  @tff.federated_computation(
    checks.at_clients(_VECTOR), checks.at_server(_VECTOR)
  )
  def run(x, y):
    mapped = tff.federated_map(block, x)
    common = tff.federated_map(block, (tff.federated_broadcast(y)))
    return (
      mapped,
      tff.federated_map(block, x),
      common,
      tff.federated_map(block, y),
    )

  parity(run, _CLIENTS, _CLIENTS[0], rtol=1e-4)


@pytest.mark.parametrize('work', [_seeded_random, _seeded_normal])
@pytest.mark.parametrize('size', [1, 4])
def test_seeded_numbers_are_those_of_a_fresh_state(parity, work, size):
  block = tff.tensorflow.computation(lambda x: work(x), _VECTOR)
  computation = checks.mapped(work, _VECTOR)
  clients = [_CLIENTS[0]] * size
  # Not on the native runtime, which may go on in a session of its pool.
  with tf.Graph().as_default() as graph:
    result = work(tf.constant(_CLIENTS[0]))
  with tf.compat.v1.Session(graph=graph) as session:
    expected = session.run(result)
  for _ in range(2):
    parity.gives([expected] * size, computation, clients)
    parity.gives(expected, block, _CLIENTS[0])


@pytest.mark.parametrize('name', ['variable', 'mutable table', 'queue'])
def test_state_in_an_aggregation_starts_afresh(parity, name):
  block = tff.tensorflow.computation(lambda x: _WORK[name](x), _VECTOR)
  numbers = block.type_signature.result

  def _number(x):
    result = _WORK[name](x)
    result = result[0] if isinstance(result, (tuple, list)) else result
    return tf.reduce_sum(result)

  del numbers
  accumulate = tff.tensorflow.computation(
    lambda a, x: a + _number(x), _FLOAT, _VECTOR
  )
  merge = tff.tensorflow.computation(lambda a, b: a + b, _FLOAT, _FLOAT)
  report = tff.tensorflow.computation(
    lambda a: _number(tf.fill([3], a)), _FLOAT
  )

  @tff.federated_computation(checks.at_clients(_VECTOR))
  def run(x):
    return tff.federated_aggregate(x, 0.0, accumulate, merge, report)

  parity(run, _CLIENTS)


def test_keys_of_a_table_depend_on_the_argument(parity):
  def work(words):
    table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(
        tf.constant(['a', 'b']), tf.constant([1, 2])
      ),
      9,
    )
    mutable = tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, -1)
    with tf.control_dependencies([mutable.insert(words, table.lookup(words))]):
      found = mutable.lookup(tf.constant(['a', 'b', 'c']))
      return found, mutable.export()[0][:1] != ''

  clients = [
    np.array(words, object) for words in ([b'a'], [b'b', b'c'], [b'c', b'a'])
  ]
  kind = tff.TensorType(np.str_, [None])
  parity(checks.everywhere(work, kind), clients, clients[0])


def test_a_model_is_trained_by_each_client(parity):
  def work(x):
    weight = tf.Variable(tf.zeros([3]))
    losses = tf.keras.metrics.Mean()
    for _ in range(3):
      with tf.GradientTape() as tape:
        loss = tf.reduce_sum((weight - x) ** 2)
      losses.update_state(loss)
      weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return collections.OrderedDict(
      weight=weight.read_value(), loss=losses.result()
    )

  block = tff.tensorflow.computation(lambda x: work(x), _VECTOR)

  @tff.federated_computation(checks.at_clients(_VECTOR))
  def run(x):
    trained = tff.federated_map(block, x)
    return tff.federated_mean(trained), trained

  parity(run, _CLIENTS)


def _together(context, computation, arguments):
  """Runs a computation in four threads at once."""
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    futures = [
      threads.submit(checks.run_once, context, computation, *args)
      for args in arguments
    ]
    return [future.result() for future in futures]


@pytest.mark.parametrize(
  'name', ['variable', 'Keras model', 'mutable table', 'static table', 'array']
)
def test_four_threads_get_their_own_results(parity, name):
  computation = checks.everywhere(_WORK[name], _VECTOR)
  arguments = [
    ([client * k for client in _CLIENTS[: 1 + k % 4]], _CLIENTS[k % 4])
    for k in range(12)
  ]
  expected = [
    checks.run_once(parity.native, computation, *args) for args in arguments
  ]
  for context in parity.cohorts.values():
    results = _together(context, computation, arguments)
    checks.assert_same(results, expected, rtol=1e-4)


def test_four_threads_run_a_computation_that_is_new(parity):
  for name, context in parity.cohorts.items():
    computation = checks.everywhere(lambda x: tf.tanh(x) * 3, _VECTOR)
    arguments = [(_CLIENTS, _CLIENTS[k % 4]) for k in range(4)]
    results = _together(context, computation, arguments)
    for k, result in enumerate(results):
      np.testing.assert_allclose(
        result[1], np.tanh(_CLIENTS[k]) * 3, rtol=1e-5, err_msg=name
      )


def test_four_threads_run_different_computations(parity):
  def make(k):
    return checks.everywhere(lambda x: x * (k + 1), _VECTOR)

  def call(context, k):
    return checks.run_once(context, make(k), _CLIENTS, _CLIENTS[0])

  for context in parity.cohorts.values():
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
      results = list(threads.map(functools.partial(call, context), range(8)))
    for k, result in enumerate(results):
      np.testing.assert_allclose(result[1], _CLIENTS[0] * (k + 1))
