"""Tests that the cohort runtime gives what TFF's own runtime gives."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes import helpers
from tff_runtimes import cohort
from tff_runtimes import values

# Runs a computation on all runtimes.
_Parity = Callable[..., Any]


@pytest.fixture(name='parity')
def _parity(native_context, each_context, cohort_context) -> _Parity:
  """Asserts that all runtimes give the same, and returns that."""

  def run(computation: tff.Computation, *args: Any) -> Any:
    expected = helpers.run(native_context, computation, *args)
    for context in (each_context, cohort_context):
      helpers.assert_same(helpers.run(context, computation, *args), expected)
    return expected

  return run


def _features(num_clients: int = 6) -> list[dict[str, np.ndarray]]:
  rng = np.random.default_rng(0)
  return [
    collections.OrderedDict(
      x=rng.normal(size=[5, 3]).astype(np.float32),
      y=rng.normal(size=[5, 1]).astype(np.float32),
    )
    for _ in range(num_clients)
  ]


def _datasets() -> list[tf.data.Dataset]:
  return [
    tf.data.Dataset.from_tensor_slices(client).batch(2)
    for client in _features()
  ]


def _keras_model() -> tf.keras.Model:
  inputs = tf.keras.Input([3])
  hidden = tf.keras.layers.Dense(4, 'relu', kernel_initializer='ones')(inputs)
  outputs = tf.keras.layers.Dense(1, kernel_initializer='ones')(hidden)
  return tf.keras.Model(inputs, outputs)


def _model() -> tff.learning.models.VariableModel:
  return tff.learning.models.from_keras_model(
    _keras_model(),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=_datasets()[0].element_spec,
    metrics=[tf.keras.metrics.MeanAbsoluteError()],
  )


# The others are in `parity/library_test.py`.
_PROCESSES = {
  'fed_sgd': lambda: tff.learning.algorithms.build_fed_sgd(_model),
  'mime_lite': lambda: tff.learning.algorithms.build_weighted_mime_lite(
    _model,
    base_optimizer=tff.learning.optimizers.build_sgdm(0.05, 0.9),
  ),
}


@pytest.mark.parametrize('name', _PROCESSES)
def test_three_rounds_of_learning(native_context, cohort_context, name):
  process = _PROCESSES[name]()
  results = []
  for context in (native_context, cohort_context):
    state = helpers.run(context, process.initialize)
    for _ in range(3):
      output = helpers.run(context, process.next, state, _datasets())
      state = output.state
    results.append((state, output.metrics))
  helpers.assert_same(*results, rtol=1e-4)


def test_evaluation(native_context, cohort_context):
  process = tff.learning.algorithms.build_fed_eval(_model)
  results = []
  for context in (native_context, cohort_context):
    state = helpers.run(context, process.initialize)
    results.append(helpers.run(context, process.next, state, _datasets()))
  helpers.assert_same(*results)


_VALUE = tff.to_type(collections.OrderedDict(a=(np.float32, [3]), b=np.float32))


def _tree_sum() -> tff.aggregators.AggregationFactory:
  return tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
    noise_multiplier=0.0,
    clients_per_round=6,
    l2_norm_clip=1.0,
    record_specs=collections.OrderedDict(
      a=tf.TensorSpec([3]), b=tf.TensorSpec([])
    ),
  )


# The others are in `parity/library_test.py`.
_AGGREGATORS = {
  'dp_fixed': lambda: (
    tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
      noise_multiplier=0.0, clients_per_round=6, clip=0.5
    )
  ),
  'dp_adaptive': lambda: (
    tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
      noise_multiplier=1e-3,
      clients_per_round=6,
      initial_l2_norm_clip=0.5,
    )
  ),
  'dp_tree': _tree_sum,
  'measured': lambda: tff.aggregators.add_measurements(
    tff.aggregators.SumFactory(),
    client_measurement_fn=lambda value: collections.OrderedDict(
      largest=tff.federated_max(
        tff.federated_map(tff.tensorflow.computation(lambda v: v['b']), value)
      )
    ),
  ),
}


@pytest.mark.parametrize('name', _AGGREGATORS)
def test_two_rounds_of_an_aggregator(
  native_context, each_context, cohort_context, name
):
  process = _AGGREGATORS[name]().create(_VALUE)
  rng = np.random.default_rng(1)
  clients = [
    collections.OrderedDict(
      a=rng.normal(size=3).astype(np.float32),
      b=np.float32(rng.normal()),
    )
    for _ in range(6)
  ]
  results = []
  for context in (native_context, each_context, cohort_context):
    state = helpers.run(context, process.initialize)
    for _ in range(2):
      output = helpers.run(context, process.next, state, clients)
      state = output.state
    results.append((output.result, output.measurements))
  expected, of_each, of_cohort = results
  # The adaptive one draws its noise from the clock.
  atol = 1e-1 if name == 'dp_adaptive' else 1e-6
  helpers.assert_same(of_each, expected, atol=atol)
  helpers.assert_same(of_cohort, expected, atol=atol)


def test_a_tensorflow_computation(parity):
  @tff.tensorflow.computation(np.int32, tff.TensorType(np.float32, [None]))
  def scale(n, x):
    return collections.OrderedDict(y=tf.cast(n, tf.float32) * x, name='it')

  result = parity(scale, 2, np.ones(3, np.float32))
  assert list(result) == ['y', 'name']


def test_client_results(parity):
  double = tff.tensorflow.computation(lambda x: 2 * x, np.int32)

  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.CLIENTS),
    tff.FederatedType(np.int32, tff.SERVER),
  )
  def run(numbers, common):
    return tff.federated_map(double, numbers), numbers, common

  result = parity(run, list(range(7)), 3)
  assert result[0] == [0, 2, 4, 6, 8, 10, 12]


def test_truth_values(parity):
  negate = tff.tensorflow.computation(lambda b: tf.logical_not(b), np.bool_)

  @tff.federated_computation(tff.FederatedType(np.bool_, tff.CLIENTS))
  def run(flags):
    return tff.federated_map(negate, flags)

  parity(run, [True, False, True, True, False])


def test_aggregations_that_depend_on_each_other(parity):
  subtract = tff.tensorflow.computation(
    lambda pair: (pair[0] - pair[1]) ** 2, (np.float32, np.float32)
  )

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def variance(x):
    mean = tff.federated_broadcast(tff.federated_mean(x))
    squares = tff.federated_map(subtract, (x, mean))
    return tff.federated_mean(squares), tff.federated_max(squares), squares

  numbers = [1.0, 2.0, 4.0, 8.0, 16.0]
  result = parity(variance, numbers)
  assert result[0] == pytest.approx(np.var(numbers), abs=5e-5)


@pytest.mark.parametrize('size', [0, 1, 2, 3, 4, 5, 9])
def test_any_number_of_clients(parity, size):
  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.CLIENTS),
    tff.FederatedType(np.float32, tff.CLIENTS),
  )
  def run(x, weight):
    return tff.federated_sum(x), tff.federated_mean(x, weight)

  x = [float(k + 1) for k in range(size)]
  weight = [1.0 + k % 2 for k in range(size)]
  result = parity(run, x, weight)
  assert result[0] == sum(x)


def test_sums_minima_and_maxima_of_integers(parity):
  @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
  def run(x):
    return tff.federated_sum(x), tff.federated_min(x), tff.federated_max(x)

  parity(run, [2**40, 3, -5, 7, 11])


def test_clients_of_different_shapes(parity):
  mean = tff.tensorflow.computation(
    lambda x: tf.reduce_mean(x), tff.TensorType(np.float32, [None])
  )

  @tff.federated_computation(
    tff.FederatedType(tff.TensorType(np.float32, [None]), tff.CLIENTS)
  )
  def run(x):
    return tff.federated_sum(tff.federated_map(mean, x))

  parity(run, [np.arange(k + 1, dtype=np.float32) for k in range(5)])


def test_strings(cohort_context):
  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def run(x):
    join = tff.tensorflow.computation(lambda s: s + '!', np.str_)
    return tff.federated_map(join, x)

  result = helpers.run(cohort_context, run, ['a', 'b'])
  assert list(result) == [b'a!', b'b!']


def test_sequences(parity):
  add = tff.tensorflow.computation(lambda a, b: a + b, (np.int32, np.int32))
  double = tff.tensorflow.computation(lambda x: 2 * x, np.int32)

  @tff.federated_computation(tff.SequenceType(np.int32))
  def run(x):
    return tff.sequence_reduce(tff.sequence_map(double, x), 1, add)

  assert parity(run, [1, 2, 3]) == 13


def test_sequences_that_the_native_runtime_cannot_give(cohort_context):
  double = tff.tensorflow.computation(lambda x: 2 * x, np.int32)

  @tff.federated_computation(tff.SequenceType(np.int32))
  def run(x):
    return tff.sequence_sum(x), tff.sequence_map(double, x)

  total, doubled = helpers.run(cohort_context, run, [1, 2, 3])
  assert total == 6
  assert list(doubled.as_numpy_iterator()) == [2, 4, 6]


def test_select(parity):
  pick = tff.tensorflow.computation(
    lambda table, key: tf.gather(table, key),
    (tff.TensorType(np.float32, [3]), np.int32),
  )
  total = tff.tensorflow.computation(
    lambda rows: rows.reduce(0.0, lambda a, b: a + b),
    tff.SequenceType(np.float32),
  )

  @tff.federated_computation(
    tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS),
    tff.FederatedType(tff.TensorType(np.float32, [3]), tff.SERVER),
  )
  def run(keys, table):
    largest = tff.federated_value(3, tff.SERVER)
    rows = tff.federated_select(keys, largest, table, pick)
    return tff.federated_sum(tff.federated_map(total, rows))

  keys = [np.array(pair, np.int32) for pair in ([0, 1], [2, 2])]
  assert parity(run, keys, np.array([1, 10, 100], np.float32)) == 211


def test_work_that_needs_no_data():
  one = tff.tensorflow.computation(lambda: tf.constant(1))

  @tff.federated_computation
  def count():
    return tff.federated_sum(tff.federated_eval(one, tff.CLIENTS))

  context = cohort.create_cohort_context(default_num_clients=5)
  assert helpers.run(context, count) == 5


def test_variables_belong_to_one_client(parity):
  @tff.tensorflow.computation(np.float32)
  def count(x):
    total = tf.Variable(0.0)
    with tf.control_dependencies([total.assign_add(x)]):
      return total.read_value()

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def run(x):
    return tff.federated_map(count, x), tff.federated_map(count, x)

  numbers = [float(k) for k in range(20)]
  parity(run, numbers)


def test_stacked_clients_are_a_list_of_clients(parity):
  @tff.federated_computation(tff.FederatedType(_VALUE, tff.CLIENTS))
  def run(x):
    return tff.federated_sum(x), x

  stacked = values.StackedClients(
    collections.OrderedDict(
      a=np.arange(15, dtype=np.float32).reshape(5, 3),
      b=np.arange(5, dtype=np.float32),
    ),
    5,
  )
  helpers.assert_same(parity(run, stacked), parity(run, list(stacked)))


class NestedBatch(NamedTuple):
  """Examples, in a container that TFF knows by its fields."""

  x: Any
  shift: Any


class NestedReply(NamedTuple):
  """The replies of the clients and of the server."""

  parts: Any
  count: Any


_BATCH = tff.to_type(
  NestedBatch(
    collections.OrderedDict(
      inner=NestedBatch(tff.TensorType(np.float32, [2]), np.int32)
    ),
    np.float32,
  )
)
_ANY_RUNTIME = pytest.mark.parametrize(
  'runtime', ['native_context', 'each_context', 'cohort_context']
)


def _batch(k: int) -> NestedBatch:
  return NestedBatch(
    collections.OrderedDict(
      inner=NestedBatch(np.array([k, k + 1], np.float32), np.int32(k))
    ),
    np.float32(k / 2),
  )


@tff.tensorflow.computation(_BATCH, _BATCH)
def _reply(server, client):
  assert isinstance(client, NestedBatch)
  assert isinstance(client.x['inner'], NestedBatch)
  inner = client.x['inner']
  sent = NestedBatch(inner.x * server.x['inner'].x, inner.shift)
  return NestedReply(
    collections.OrderedDict(sent=sent), client.shift + server.shift
  )


@tff.federated_computation(
  tff.FederatedType(_BATCH, tff.SERVER), tff.FederatedType(_BATCH, tff.CLIENTS)
)
def _exchange(server, clients):
  replies = tff.federated_map(
    _reply, (tff.federated_broadcast(server), clients)
  )
  return NestedReply(
    parts=collections.OrderedDict(replies=replies, server=server),
    count=tff.federated_sum(replies),
  )


_STACKED = values.StackedClients(
  NestedBatch(
    collections.OrderedDict(
      inner=NestedBatch(
        np.stack([np.arange(3), np.arange(1, 4)], axis=1).astype(np.float32),
        np.arange(3, dtype=np.int32),
      )
    ),
    np.arange(3, dtype=np.float32) / 2,
  ),
  3,
)
_ANY_CLIENTS = pytest.mark.parametrize(
  'clients', [_STACKED, [_batch(k) for k in range(3)]], ids=['stacked', 'list']
)
_REPLY_CONTAINERS = (
  NestedReply,
  [
    (
      collections.OrderedDict,
      [('sent', (NestedBatch, [None, None]))],
    ),
    None,
  ],
)


@_ANY_RUNTIME
@_ANY_CLIENTS
def test_named_tuples_have_the_right_values(request, runtime, clients):
  context = request.getfixturevalue(runtime)
  result = helpers.run(context, _exchange, _batch(2), clients)
  sent = [reply.parts['sent'] for reply in result.parts['replies']]
  expected = [[2 * k, 3 * (k + 1)] for k in range(3)]
  np.testing.assert_allclose([part.x for part in sent], expected)
  assert [part.shift for part in sent] == [0, 1, 2]
  np.testing.assert_allclose(result.count.parts['sent'].x, [6, 18])
  assert result.count.count == 4.5


@_ANY_RUNTIME
@_ANY_CLIENTS
def test_named_tuples_of_clients_come_back(request, runtime, clients):
  context = request.getfixturevalue(runtime)
  replies = helpers.run(context, _exchange, _batch(2), clients).parts['replies']
  assert len(replies) == 3
  for reply in replies:
    assert helpers.containers(reply) == _REPLY_CONTAINERS


@_ANY_RUNTIME
@_ANY_CLIENTS
def test_named_tuples_of_the_server_come_back(request, runtime, clients):
  context = request.getfixturevalue(runtime)
  result = helpers.run(context, _exchange, _batch(2), clients)
  assert isinstance(result, NestedReply)
  assert helpers.containers(result.count) == _REPLY_CONTAINERS
  assert helpers.containers(result.parts['server']) == helpers.containers(
    _batch(2)
  )


def test_named_tuples_of_stacked_clients_stay_stacked(cohort_context):
  result = helpers.run(cohort_context, _exchange, _batch(2), _STACKED)
  replies = result.parts['replies']
  assert isinstance(replies, values.StackedClients)
  assert helpers.containers(replies.stacked) == _REPLY_CONTAINERS
  assert replies.stacked.parts['sent'].x.shape == (3, 2)


@_ANY_RUNTIME
def test_a_result_goes_in_again(request, runtime):
  context = request.getfixturevalue(runtime)

  @tff.federated_computation(
    tff.FederatedType(_BATCH, tff.SERVER),
    tff.FederatedType(_BATCH, tff.CLIENTS),
  )
  def same(server, clients):
    return server, clients

  first = helpers.run(context, same, _batch(1), _STACKED)
  helpers.assert_same(helpers.run(context, same, *first), first)


def test_large_clients_are_stacked_when_asked_for():
  big = tff.TensorType(np.float32, [4_000_000])

  @tff.tensorflow.computation(np.float32)
  def fill(x):
    return tf.fill([4_000_000], x)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def run(x):
    filled = tff.federated_map(fill, x)
    return tff.federated_sum(filled), tff.federated_map(
      tff.tensorflow.computation(lambda v: v[0], big), filled
    )

  context = cohort.create_cohort_context(stack=True)
  result = helpers.run(context, run, [float(k) for k in range(7)])
  assert 'are stacked' in context.explain(run)
  np.testing.assert_allclose(result[0], 21.0)
  assert list(result[1]) == [0, 1, 2, 3, 4, 5, 6]


def _judge_by_model(size: int) -> tff.Computation:
  """Makes a computation whose clients read a model of so many weights."""
  model_type = tff.TensorType(np.float32, [size])

  @tff.tensorflow.computation(model_type, np.float32)
  def judge(model, x):
    return x * model[0]

  @tff.federated_computation(
    tff.FederatedType(model_type, tff.SERVER),
    tff.FederatedType(np.float32, tff.CLIENTS),
  )
  def run(model, clients):
    return tff.federated_map(judge, (tff.federated_broadcast(model), clients))

  return run


@pytest.mark.parametrize(('size', 'stacked'), [(100, True), (1_000_000, False)])
def test_clients_that_read_much_are_not_stacked(cohort_context, size, stacked):
  model = np.full(size, 2, np.float32)
  judge = _judge_by_model(size)
  assert helpers.run(cohort_context, judge, model, [1.0, 2.0]) == [2, 4]
  explanation = cohort_context.explain(judge)
  assert ('are stacked' in explanation) == stacked
  assert ('4000004 bytes' in explanation) != stacked


@pytest.mark.parametrize('stack', [None, True])
def test_tensors_at_the_server_reach_clients_without_a_copy(stack):
  size = 50_000_000
  context = cohort.create_cohort_context(stack=stack)
  computation = _judge_by_model(size)
  model, clients = tf.ones([size]), [float(k) for k in range(8)]
  results = []

  def run() -> None:
    results.append(helpers.run(context, computation, model, clients))

  assert helpers.peak_memory(run) < 4 * size
  assert list(results[0]) == clients


def test_arrays_at_the_server_are_copied_once_for_all_clients(each_context):
  size = 50_000_000
  computation = _judge_by_model(size)
  model, clients = np.ones(size, np.float32), [float(k) for k in range(8)]
  # TensorFlow itself may need two copies to make an aligned tensor.
  grown = helpers.peak_memory(
    lambda: helpers.run(each_context, computation, model, clients)
  )
  assert grown < 2.5 * model.nbytes


def test_assertions_are_kept(cohort_context):
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def run(x):
    return tff.federated_secure_sum(x, 3)

  assert helpers.run(cohort_context, run, [1, 2, 3, 3, 3]) == 12
  with pytest.raises(tf.errors.InvalidArgumentError, match='larger than'):
    helpers.run(cohort_context, run, [1, 2, 3, 4, 5])


def test_different_numbers_of_clients_are_an_error(cohort_context):
  kind = tff.FederatedType(np.int32, tff.CLIENTS)

  @tff.federated_computation(kind, kind)
  def run(x, y):
    return tff.federated_sum(x), tff.federated_sum(y)

  with pytest.raises(ValueError, match='different numbers of clients'):
    helpers.run(cohort_context, run, [1, 2], [1, 2, 3])


def test_a_value_that_does_not_fit_is_an_error(cohort_context):
  double = tff.tensorflow.computation(
    lambda x: 2 * x, tff.TensorType(np.float32, [2])
  )
  with pytest.raises(TypeError, match=r'float32\[2\]'):
    helpers.run(cohort_context, double, np.zeros(3, np.float32))


def test_work_that_is_no_tensorflow_is_an_error_that_names_it(cohort_context):
  jax = tff.jax.computation(lambda x: x + 1, np.int32)
  with pytest.raises(NotImplementedError, match='xla'):
    helpers.run(cohort_context, jax, 1)
