"""Clients whose data sets are read into arrays do what TFF's runtime does."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes import helpers
from tests.tff_runtimes.parity import checks
from tff_runtimes import cohort

_FLOAT = np.float32
_SIZE = 3
_STACKED = 'clients are stacked, and a call is one XLA program'
_BATCH = collections.OrderedDict(
  x=tff.TensorType(_FLOAT, [None, _SIZE]), y=tff.TensorType(np.int32, [None])
)


def _client(
  num_examples: int, labels: int = 2, batch_size: int = 2
) -> tf.data.Dataset:
  rng = np.random.default_rng(num_examples)
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(
      x=rng.normal(size=[num_examples, _SIZE]).astype(_FLOAT),
      y=rng.integers(labels, size=[num_examples], dtype=np.int32),
    )
  ).batch(batch_size)


def _explanation(parity: checks.Parity, computation: tff.Computation) -> str:
  context: cohort.CohortContext = parity.cohorts['stack=True']
  return context.explain(computation)


def _model() -> tff.learning.models.VariableModel:
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(
      [
        tf.keras.layers.Input([_SIZE]),
        tf.keras.layers.Dense(4, activation='relu'),
        tf.keras.layers.Dense(2),
      ]
    ),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=_client(1).element_spec,
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


_SGD = tff.learning.optimizers.build_sgdm(0.1)
_PROCESSES: dict[str, Callable[[], tff.learning.templates.LearningProcess]] = {
  'FedAvg': lambda: tff.learning.algorithms.build_weighted_fed_avg(
    _model, _SGD, _SGD
  ),
  'FedAvg by Adam': lambda: tff.learning.algorithms.build_weighted_fed_avg(
    _model, tff.learning.optimizers.build_adam(0.01), _SGD
  ),
  'FedProx': lambda: tff.learning.algorithms.build_weighted_fed_prox(
    _model, 0.1, _SGD, _SGD
  ),
  'Mime Lite': lambda: tff.learning.algorithms.build_weighted_mime_lite(
    _model, tff.learning.optimizers.build_sgdm(0.1, 0.9), _SGD
  ),
  'FedSGD': lambda: tff.learning.algorithms.build_fed_sgd(_model, _SGD),
}


@pytest.fixture(name='fedavg', scope='module')
def _fedavg(parity) -> tuple[tff.Computation, Any]:
  """The rounds of federated averaging, and the state before them."""
  process = _PROCESSES['FedAvg']()
  return process.next, helpers.run(parity.native, process.initialize)


@pytest.mark.slow
@pytest.mark.parametrize('name', _PROCESSES)
def test_a_round_of_a_process(parity, name):
  process = _PROCESSES[name]()
  state = helpers.run(parity.native, process.initialize)
  clients = [_client(4), _client(6), _client(2)]
  parity(process.next, state, clients)
  assert _STACKED in _explanation(parity, process.next)


@pytest.mark.parametrize('sizes', [(4, 6, 2), (4, 5), (5, 0), (1,)])
def test_clients_with_some_numbers_of_examples(parity, fedavg, sizes):
  run_round, state = fedavg
  parity(run_round, state, [_client(size) for size in sizes])
  assert _STACKED in _explanation(parity, run_round)


@pytest.mark.slow
def test_the_evaluation_of_a_model(parity):
  process = tff.learning.algorithms.build_fed_eval(_model)
  state = helpers.run(parity.native, process.initialize)
  parity(process.next, state, [_client(4), _client(5)])
  assert _STACKED in _explanation(parity, process.next)


@pytest.mark.slow
def test_an_lstm(parity):
  def model() -> tff.learning.models.VariableModel:
    return tff.learning.models.from_keras_model(
      tf.keras.Sequential(
        [
          tf.keras.layers.Input([_SIZE]),
          tf.keras.layers.Embedding(4, 2),
          tf.keras.layers.LSTM(2),
          tf.keras.layers.Dense(2),
        ]
      ),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      input_spec=_client(1).element_spec,
    )

  def words(data: tf.data.Dataset) -> tf.data.Dataset:
    return data.map(
      lambda batch: collections.OrderedDict(
        x=tf.math.floor(tf.abs(batch['x'])), y=batch['y']
      )
    )

  process = tff.learning.algorithms.build_weighted_fed_avg(model, _SGD, _SGD)
  state = helpers.run(parity.native, process.initialize)
  parity(process.next, state, [words(_client(4)), words(_client(2))])
  assert _STACKED in _explanation(parity, process.next)


def test_a_label_that_does_not_exist_is_an_error(parity, fedavg):
  run_round, state = fedavg
  parity.raises(
    run_round,
    lambda: (state, [_client(4), _client(4, labels=9)]),
    tf.errors.InvalidArgumentError,
  )


def test_what_is_not_finite_is_left_out(parity, fedavg):
  run_round, state = fedavg
  broken = _client(4).map(
    lambda batch: collections.OrderedDict(x=batch['x'] / 0, y=batch['y'])
  )
  parity(run_round, state, [_client(4), broken])


def _reduce(
  step: Callable[[tf.Tensor, Any], tf.Tensor], initial: Any = 1.0
) -> tff.Computation:
  work = tff.tensorflow.computation(
    lambda data: data.reduce(initial, step), tff.SequenceType(_BATCH)
  )
  return checks.mapped(work, tff.SequenceType(_BATCH))


def _add_if_less(state: tf.Tensor, batch: Any) -> tf.Tensor:
  with tf.control_dependencies([tf.debugging.assert_less(state, 100)]):
    return state + batch['y'][0]


_STEPS: dict[str, tuple[Callable[[Any, Any], Any], Any, bool]] = {
  'sums': (lambda s, b: s + tf.reduce_sum(b['x']), 1.0, True),
  'rows': (lambda s, b: s + tf.gather(b['x'][0], b['y'][0]), 1.0, True),
  'a maximum': (lambda s, b: tf.maximum(s, tf.reduce_max(b['x'])), -9.0, True),
  'sizes': (lambda s, b: 3 * s + tf.shape(b['y'])[0], 0, True),
  'a state that grows': (
    lambda s, b: tf.concat([s, b['y']], 0),
    np.zeros([0], np.int32),
    False,
  ),
  'an assertion': (_add_if_less, 0, False),
  'random numbers': (lambda s, b: s + 0 * tf.random.uniform([]), 1.0, False),
  'text': (lambda s, b: tf.strings.join([s, 'a']), '', False),
}


@pytest.mark.parametrize('name', _STEPS)
def test_a_step(parity, name):
  step, initial, is_stacked = _STEPS[name]
  computation = _reduce(step, initial)
  parity(computation, [_client(4), _client(5), _client(1)])
  assert (_STACKED in _explanation(parity, computation)) == is_stacked


def test_rows_that_do_not_exist_are_an_error(parity):
  computation = _reduce(lambda s, b: s + tf.gather([1.0], b['y'][0]))
  parity.raises(
    computation,
    lambda: ([_client(4), _client(4, labels=9)],),
    tf.errors.InvalidArgumentError,
  )


def test_a_maximum_of_what_is_not_a_number_is_the_same(parity):
  step, initial, _ = _STEPS['a maximum']
  computation = _reduce(step, initial)
  broken = _client(4).map(
    lambda batch: collections.OrderedDict(
      x=batch['x'] + [np.nan, 0.0, 0.0], y=batch['y']
    )
  )
  parity(computation, [_client(4), broken])
  flags = _reduce(
    lambda s, b: s + tf.cast(tf.reduce_max(b['x']) > 0, tf.int32), 0
  )
  parity(flags, [_client(4), broken])


def test_integers_that_are_divided_by_zero_are_an_error(parity):
  computation = _reduce(lambda s, b: s + 6 // b['y'][0], 1)
  parity.raises(
    computation, lambda: ([_client(4)] * 2,), tf.errors.InvalidArgumentError
  )


def _explained(parity: checks.Parity, clients: Sequence[Any]) -> str:
  computation = _reduce(lambda s, b: s + tf.reduce_sum(b['x']))
  parity(computation, clients)
  return _explanation(parity, computation)


def test_elements_of_too_many_shapes_are_not_stacked(parity):
  clients = [_client(10 + k, batch_size=10) for k in range(6)]
  assert 'have 6 shapes' in _explained(parity, clients)


def test_data_sets_that_never_fit_are_not_read_again():
  context = cohort.create_cohort_context(stack=True)
  computation = _reduce(lambda s, b: s + tf.reduce_sum(b['x']), 0.0)
  clients = [_client(10 + k, batch_size=10) for k in range(6)]
  for _ in range(3):
    helpers.run(context, computation, clients)
  assert 'not stacked' in context.explain(computation)
  assert 'have 6 shapes' in context.explain(computation)


def test_a_data_set_with_effects_is_read_once():
  calls = []

  def count() -> np.ndarray:
    calls.append(1)
    return np.float32(len(calls))

  data = _client(2).map(
    lambda batch: collections.OrderedDict(
      x=batch['x'] * 0
      + tf.reshape(tf.numpy_function(count, [], tf.float32), []),
      y=batch['y'],
    )
  )
  computation = _reduce(lambda s, b: s + b['x'][0, 0], 0.0)
  context = cohort.create_cohort_context(stack=True)
  assert helpers.run(context, computation, [data]) == [1.0]
  assert 'PyFunc in a data set' in context.explain(computation)


def test_a_data_set_that_is_too_large_is_not_read():
  context = cohort.create_cohort_context()
  computation = _reduce(lambda s, b: s + tf.reduce_sum(b['x']), 0.0)
  large = _client(2).map(
    lambda batch: collections.OrderedDict(
      x=tf.tile(batch['x'], [2**18, 1]), y=batch['y']
    )
  )
  helpers.run(context, computation, [large])
  assert 'more than 1048576 bytes' in context.explain(computation)


def test_a_shuffled_data_set_has_another_order_each_time():
  data = tf.data.Dataset.range(50).shuffle(50)
  number = tff.SequenceType(np.int64)
  computation = checks.mapped(
    tff.tensorflow.computation(
      lambda data: data.reduce(np.int64(0), lambda a, b: 3 * a + b), number
    ),
    number,
  )
  context = cohort.create_cohort_context(stack=True)
  results = [helpers.run(context, computation, [data]) for _ in range(3)]
  assert _STACKED in context.explain(computation)
  assert len(set(map(int, np.ravel(results)))) > 1
