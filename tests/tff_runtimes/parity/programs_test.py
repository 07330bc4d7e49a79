"""TFF's programs run on the cohort runtime."""

import asyncio
import collections
import datetime
import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes.parity import checks
from tff_runtimes import cohort

_SECONDS = 60.0


# As in the fixture `parity`.
@pytest.fixture(
  name='context',
  params=[False, True],
  ids=['stack=False', 'stack=True'],
  scope='module',
)
def _context(request) -> tff.framework.AsyncContext:
  return cohort.create_async_cohort_context(stack=request.param)


@pytest.fixture(name='program')
def _program(context) -> Any:
  """Makes a program's context the one in which computations run."""
  federated = tff.program.NativeFederatedContext(context)
  with tff.framework.get_context_stack().install(federated):
    yield federated


def _run(coroutine: Any) -> Any:
  """Runs a coroutine, which must not hang."""

  async def limited() -> Any:
    return await asyncio.wait_for(coroutine, _SECONDS)

  return asyncio.run(limited())


@tff.federated_computation(
  checks.at_clients(np.int32), checks.at_server(np.int32)
)
def _add(x, y):
  return tff.federated_sum(x), y


_DIVIDE = checks.mapped(lambda x: 10 // x, np.int32)


@tff.federated_computation(checks.at_clients(np.int32))
def _sum_of_quotients(x):
  block = tff.tensorflow.computation(lambda v: 10 // v, np.int32)
  return tff.federated_sum(tff.federated_map(block, x))


def test_it_is_an_async_context(context):
  assert isinstance(context, tff.framework.AsyncContext)


def test_a_computation_is_awaited(context):
  async def run() -> Any:
    with tff.framework.get_context_stack().install(context):
      return await _add([1, 2, 3], 4)

  result = _run(run())
  checks.assert_same(result, (np.int32(6), np.int32(4)))


def test_clients_results_are_lists(context):
  async def run() -> Any:
    with tff.framework.get_context_stack().install(context):
      return await _DIVIDE([1, 2, 5])

  checks.assert_same(_run(run()), [np.int32(10), np.int32(5), np.int32(2)])


def test_many_are_awaited_at_once(context):
  async def run() -> Any:
    with tff.framework.get_context_stack().install(context):
      return await asyncio.gather(
        *(_add(list(range(k)), k) for k in range(1, 12))
      )

  for k, result in enumerate(_run(run()), start=1):
    assert (int(result[0]), int(result[1])) == (k * (k - 1) // 2, k)


def test_the_event_loop_goes_on_meanwhile(context):
  slow = checks.mapped(
    lambda x: tf.while_loop(
      lambda k, _: k < 50_000,
      lambda k, t: (k + 1, tf.sin(t) + x),
      (0, x),
    )[1],
    np.float32,
  )
  ticks = []

  async def tick() -> None:
    while True:
      ticks.append(1)
      await asyncio.sleep(0.01)

  async def run() -> Any:
    with tff.framework.get_context_stack().install(context):
      ticking = asyncio.create_task(tick())
      await slow([0.5] * 4)
      ticking.cancel()

  _run(run())
  assert len(ticks) > 3


def test_an_error_comes_through(context):
  async def run(clients: list[int]) -> Any:
    with tff.framework.get_context_stack().install(context):
      return await _sum_of_quotients(clients)

  with pytest.raises(Exception, match='zero'):
    _run(run([1, 0, 2]))
  assert int(_run(run([1, 2]))) == 15


def test_an_error_of_one_leaves_the_others_alone(context):
  async def run() -> Any:
    with tff.framework.get_context_stack().install(context):
      return await asyncio.gather(
        *(_sum_of_quotients([1, k]) for k in range(4)), return_exceptions=True
      )

  results = _run(run())
  assert isinstance(results[0], Exception)
  assert [int(result) for result in results[1:]] == [20, 15, 13]


def test_a_wrong_argument_is_an_error(context):
  async def run() -> Any:
    with tff.framework.get_context_stack().install(context):
      return await _add(['a', 2], 4)

  with pytest.raises((TypeError, ValueError)):
    _run(run())


def test_the_value_of_a_program(program):
  async def run() -> Any:
    with tff.framework.get_context_stack().install(program):
      reference = _sum_of_quotients([1, 2, 5])
      return await tff.program.materialize_value(reference)

  assert int(_run(run())) == 17


def test_values_go_from_one_computation_to_the_next(program):
  async def run() -> Any:
    with tff.framework.get_context_stack().install(program):
      total, _ = _add([1, 2], 4)
      _, again = _add([5], total)
      return await tff.program.materialize_value((total, again))

  assert tuple(int(value) for value in _run(run())) == (3, 3)


def test_an_error_comes_through_a_program(program):
  async def run() -> Any:
    with tff.framework.get_context_stack().install(program):
      return await tff.program.materialize_value(_sum_of_quotients([0]))

  with pytest.raises(Exception, match='zero'):
    _run(run())


def _dataset(k: int) -> tf.data.Dataset:
  rng = np.random.default_rng(k)
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(
      x=rng.normal(size=[4, 2]).astype(np.float32),
      y=np.ones([4, 1], np.float32),
    )
  ).batch(2)


def _model() -> tff.learning.models.VariableModel:
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(
      [tf.keras.layers.Dense(1, kernel_initializer='ones', input_shape=[2])]
    ),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=_dataset(0).element_spec,
  )


class _Released(tff.program.ReleaseManager):
  """Remembers what is released."""

  def __init__(self) -> None:
    self.values: list[Any] = []

  async def release(self, value: Any, key: Any) -> None:
    self.values.append((key, await tff.program.materialize_value(value)))


class _States(tff.program.ProgramStateManager):
  """Keeps the states of a program in memory.

  TFF's own writes files, which does not go with each release of `wrapt`.
  """

  def __init__(self) -> None:
    self._states: dict[int, Any] = {}

  async def get_versions(self) -> list[int] | None:
    return sorted(self._states) or None

  async def load(self, version: int, structure: Any) -> Any:
    del structure
    return self._states[version]

  async def remove(self, version: int) -> None:
    self._states.pop(version, None)

  async def remove_all(self) -> None:
    self._states.clear()

  async def save(self, program_state: Any, version: int) -> None:
    self._states[version] = await tff.program.materialize_value(program_state)


class _Clients(tff.program.FederatedDataSourceIterator):
  """Gives the same clients in all rounds.

  In contrast to that of TFF it holds no data sets, which cannot be copied.
  """

  @property
  def federated_type(self) -> tff.FederatedType:
    return _source().federated_type

  def to_bytes(self) -> bytes:
    return b''

  @classmethod
  def from_bytes(cls, data: bytes) -> '_Clients':
    del data
    return cls()

  def select(self, k: int | None = None) -> list[tf.data.Dataset]:
    return [_dataset(client) for client in range(k or 0)]


class _Source(tff.program.FederatedDataSource):
  """Is the source of `_Clients`."""

  @property
  def federated_type(self) -> tff.FederatedType:
    element_type = tff.types.tensorflow_to_type(_dataset(0).element_spec)
    return tff.FederatedType(tff.SequenceType(element_type), tff.CLIENTS)

  def iterator(self) -> _Clients:
    return _Clients()


def _source() -> tff.program.FederatedDataSource:
  return _Source()


def _managers(evaluated: _Released, evaluation: Any) -> Any:
  def make_process(_: str) -> Any:
    return evaluation, None

  return tff.learning.programs.EvaluationManager(
    data_source=_source(),
    aggregated_metrics_manager=evaluated,
    create_state_manager_fn=lambda _: _States(),
    create_process_fn=make_process,
    cohort_size=3,
    duration=datetime.timedelta(milliseconds=1),
  )


@functools.cache  # Building and compiling them takes seconds.
def _processes() -> tuple[Any, Any]:
  """Builds the processes that train and evaluate a model."""
  train = tff.learning.algorithms.build_weighted_fed_avg(
    _model, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1)
  )
  return train, tff.learning.algorithms.build_fed_eval(_model)


def _train(program: Any, states: _States, rounds: int) -> Any:
  """Runs TFF's training program; returns all that it releases."""
  train, evaluation = _processes()
  models, metrics, evaluated = _Released(), _Released(), _Released()

  async def run() -> None:
    with tff.framework.get_context_stack().install(program):
      await tff.learning.programs.train_model(
        train_process=train,
        train_data_source=_source(),
        train_per_round_clients=3,
        train_total_rounds=rounds,
        program_state_manager=states,
        model_output_manager=models,
        train_metrics_manager=metrics,
        evaluation_manager=_managers(evaluated, evaluation),
        evaluation_periodicity=1,
      )

  _run(run())
  return models.values, metrics.values, evaluated.values


def test_a_training_program(program):
  models, metrics, evaluated = _train(program, _States(), 3)
  assert len(metrics) >= 3
  assert models
  assert evaluated


def test_a_training_program_goes_on_after_a_restart(program):
  states = _States()
  _train(program, states, 2)
  _, metrics, _ = _train(program, states, 4)
  assert max(key for key, _ in metrics) == 4
  assert min(key for key, _ in metrics) >= 2
