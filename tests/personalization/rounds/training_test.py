"""Tests of the training loop."""

import asyncio
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import csv
import dataclasses
import functools
import itertools
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from algorithms import aggregation
from algorithms import as_trained
from algorithms import fedavg
from algorithms import local
from algorithms import methods
from algorithms import registry as method_registry
from algorithms import trainers
from algorithms.privacy import private_aggregation
from base import errors
from base import seeds
from personalization.rounds import checkpoints
from personalization.rounds import client_states
from personalization.rounds import cohorts
from personalization.rounds import round_runners
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import registry as task_registry
from tasks import task as tasks
from tasks.data import populations
from tasks.models import linear
from tasks.models import models
from tests import computations
from tff_runtimes import cohort
from tff_runtimes import native
from tff_runtimes import values

# A checkpoint after rounds 3, 6 and 7.
_SETTINGS = schedules.TrainingSettings(
  total_rounds=7,
  clients_per_round=3,
  batch_size=4,
  rounds_per_checkpoint=3,
  seed=5,
)


# One object for all methods, as programs are shared by methods that have the
# same aggregator.
_MEAN = tff.aggregators.MeanFactory(no_nan_division=True)


@pytest.fixture(name='cohort_context', scope='module', autouse=True)
def _cohort_context() -> Iterator[None]:
  context = cohort.create_cohort_context(trust_xla=True)
  with tff.framework.get_context_stack().install(context):
    yield


def _load_task() -> tasks.Task:
  return task_registry.load(
    'synthetic',
    num_train_clients=6,
    min_examples=6,
    max_examples=10,
    log_examples_mean=1.0,
  )


_task = functools.cache(_load_task)
Examples = Mapping[str, np.ndarray]


def _replace_client(
  change: Callable[[Examples], Examples],
  client_id: str = 'train_000002',
  padded: bool = True,
) -> tasks.Task:
  """The task with a client whose examples are changed."""
  task = _task()
  load = task.train.sets['train']

  def changed(asked: str) -> Examples:
    return change(load(asked)) if asked == client_id else load(asked)

  population = populations.Population(task.train.client_ids, {'train': changed})
  return dataclasses.replace(task, train=population, padded=padded)


def _remove_examples(examples: Examples) -> Examples:
  return {name: feature[:0] for name, feature in examples.items()}


def _not_finite(examples: Examples) -> Examples:
  return {**examples, 'x': np.full_like(examples['x'], np.nan)}


def _build(
  name: str,
  model: models.Model | None = None,
  aggregator: aggregation.Factory = _MEAN,
) -> methods.Method:
  return method_registry.build(
    name,
    model or _task().model,
    method_registry.make_settings(name, {}),
    aggregator,
    ('evaluation',),
  )


def _make_method(trainer: trainers.Trainer) -> methods.Method:
  return methods.Method(
    as_trained.AsTrained(trainer, as_trained.AsTrainedSettings()),
    _MEAN,
    ('evaluation',),
  )


@functools.cache
def _fedadam() -> methods.Method:
  """A method whose server has a state beside the model: the moments."""
  return _build('fedadam')


@functools.cache
def _ditto() -> methods.Method:
  """A method whose clients keep a model, of 2,440 bytes."""
  return _build('ditto')


@dataclasses.dataclass(frozen=True)
class _Counting(trainers.Trainer):
  """Has clients count their rounds, and draw a number in each."""

  settings: local.LocalSettings

  def initialize(self, seed: tf.Tensor) -> local.LocalState:
    return local.LocalState(self.model.init(seed))

  def initialize_client(self, seed: tf.Tensor) -> Any:
    return collections.OrderedDict(
      rounds=tf.constant(0), drawn=tf.random.stateless_uniform([2], seed)
    )

  def client(
    self, message: Any, client: trainers.Client
  ) -> trainers.ClientResult:
    drawn = tf.random.stateless_uniform([2], client.seed)
    # Not finite if the client's examples are not.
    finite = tf.math.is_finite(tf.reduce_sum(client.data.examples['x']))
    broken = tf.where(finite, 0.0, np.nan)
    ones = tf.nest.map_structure(tf.ones_like, message)
    return trainers.ClientResult(
      updates={'model': aggregation.Update(ones)},
      state=collections.OrderedDict(
        rounds=client.state['rounds'] + 1,
        drawn=client.state['drawn'] + drawn + broken,
      ),
      loss=tf.reduce_sum(drawn),
    )

  def server(self, server: Any, aggregate: Any, sums: Any) -> local.LocalState:
    del server, sums
    return local.LocalState(aggregate['model'])


@functools.cache
def _counting() -> methods.Method:
  return _make_method(_Counting(_task().model, local.LocalSettings()))


@dataclasses.dataclass(frozen=True)
class _InGroups(fedavg.FedAvg):
  """Measures the groups of the clients."""

  needs = ('group',)

  def client(self, message: Any, client: trainers.Client) -> Any:
    group = tf.cast(client.attributes['group'], tf.float32)
    result = super().client(message, client)
    return result._replace(measured=collections.OrderedDict(group=group))


def _build_grouped() -> methods.Method:
  return _make_method(_InGroups(_task().model, fedavg.FedAvgSettings()))


def _recording(method: methods.Method, rounds: list[Any]) -> methods.Method:
  """`method` with rounds that only record what is given to them."""

  def next_round(state: Any, clients: Any) -> Any:
    rounds.append(clients)
    states = values.StackedClients(clients.stacked.state, len(clients))
    return (
      state,
      states,
      dict(dropped_clients=0, num_clients=len(clients), loss=0),
    )

  return computations.exchange(method, next=next_round)


def _one_by_one(method: methods.Method) -> methods.Method:
  """`method`, whose rounds cannot be made one program."""
  return computations.exchange(method, next=lambda *args: method.next(*args))


class _Releases(tff.program.ReleaseManager):
  """Remembers what is released, in order."""

  def __init__(self) -> None:
    self.values: list[tuple[int, Any]] = []

  async def release(self, value: Any, key: int) -> None:
    self.values.append((key, value))


class _Interrupted(Exception):
  pass


def _train(
  method: methods.Method | None = None,
  task: tasks.Task | None = None,
  *,
  interrupt: Sequence[int] = (),
  folder: pathlib.Path | None = None,
  on_round: Callable[[int, Any], None] = lambda *_: None,
  schedule: schedules.Schedule | None = None,
  start: training.Trained | None = None,
  **changed: Any,
) -> training.Trained:
  """Trains, but is interrupted after some rounds and started again.

  Args:
    method: The method.
    task: The task.
    interrupt: The rounds after which it is interrupted.
    folder: The folder of its checkpoints.
    on_round: As in `training.Callbacks`.
    schedule: As in `training.train`.
    start: Likewise.
    **changed: Other callbacks, and settings of the training.

  Returns:
    The training.
  """
  names = [field.name for field in dataclasses.fields(training.Callbacks)]
  callbacks = {name: changed.pop(name) for name in names if name in changed}
  interruptions = list(interrupt)

  def interrupted_on_round(round_num: int, metrics: Any) -> None:
    on_round(round_num, metrics)
    if round_num in interruptions:
      interruptions.remove(round_num)
      raise _Interrupted

  while True:
    try:
      return training.train(
        method or _fedadam(),
        task or _task(),
        dataclasses.replace(_SETTINGS, **changed),
        schedule=schedule,
        start=start,
        checkpoint_dir=folder,
        callbacks=training.Callbacks(
          on_round=interrupted_on_round, **callbacks
        ),
      )
    except _Interrupted:
      pass


def _states(trained: training.Trained) -> Any:
  """The states of all clients that could take part."""
  store = trained.client_states
  return store.read(range(len(store.client_ids)))


def _bits(structure: Any) -> list[Any]:
  """All that is in a structure of numbers, exactly."""
  return [
    (leaf.dtype, leaf.shape, leaf.tobytes())
    for leaf in map(np.asarray, tree.flatten(structure))
  ]


def _assert_same_bits(
  first: training.Trained, second: training.Trained
) -> None:
  for a, b in (
    (first.server_state, second.server_state),
    (_states(first), _states(second)),
  ):
    tree.assert_same_structure(a, b)
    assert _bits(a) == _bits(b)
  assert first.client_states.client_ids == second.client_states.client_ids
  no_states = dict(server_state=None, client_states=None)
  assert dataclasses.replace(first, **no_states) == dataclasses.replace(
    second, **no_states
  )


def _assert_close(first: Any, second: Any) -> None:
  tree.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
    first,
    second,
  )


@pytest.fixture(name='uninterrupted', scope='module')
def _uninterrupted(cohort_context: None) -> tuple[training.Trained, list[Any]]:
  """What a run that is not interrupted ends with, and what it released."""
  del cohort_context
  releases = _Releases()
  return _train(release_managers=(releases,)), releases.values


# Resuming.


@pytest.mark.parametrize(
  'interrupt',
  [
    pytest.param([3], id='after_a_checkpoint'),
    pytest.param([5], id='between_checkpoints'),
    pytest.param([2], id='before_the_first_checkpoint'),
    pytest.param([7], id='after_the_last_round'),
    pytest.param([2, 5, 6], id='three_times'),
  ],
)
def test_an_interrupted_run_ends_as_one_that_was_not(
  tmp_path, uninterrupted, interrupt
):
  expected, expected_releases = uninterrupted
  moments = expected.server_state.server.optimizer
  assert sum(np.any(leaf) for leaf in tree.flatten(moments)) >= 4

  releases = _Releases()
  trained = _train(
    interrupt=interrupt, folder=tmp_path, release_managers=(releases,)
  )
  _assert_same_bits(trained, expected)
  # Each round once and in order, with the same numbers.
  assert releases.values == expected_releases
  assert [key for key, _ in releases.values] == list(range(1, 8))


@pytest.mark.parametrize(
  ('make', 'expected'),
  [
    # Those from one checkpoint to the next are one program: 6 was done too.
    pytest.param(_fedadam, [1, 2, 3, 4, 5, 7], id='at_once'),
    pytest.param(
      lambda: _one_by_one(_fedadam()),
      [1, 2, 3, 4, 5, 4, 5, 6, 7],
      id='one_by_one',
    ),
  ],
)
def test_a_run_resumes_after_its_last_checkpoint(tmp_path, make, expected):
  done: list[int] = []
  _train(
    make(),
    interrupt=[5],
    folder=tmp_path,
    on_round=lambda round_num, _: done.append(round_num),
  )
  assert done == expected


def test_a_run_that_was_done_does_nothing_again(tmp_path, uninterrupted):
  _train(folder=tmp_path)
  releases, rounds = _Releases(), []
  trained = _train(
    _recording(_fedadam(), rounds),
    folder=tmp_path,
    release_managers=(releases,),
  )
  _assert_same_bits(trained, uninterrupted[0])
  assert not rounds
  assert not releases.values


@pytest.mark.parametrize(
  ('one_by_one', 'rounds'), [(False, [2, 4, 6]), (True, [2, 4, 4, 6])]
)
def test_evaluations_see_their_rounds_and_change_nothing(
  tmp_path, one_by_one, rounds
):
  method = _counting()
  make = _one_by_one if one_by_one else lambda built: built
  seen: list[tuple[int, Any]] = []

  async def evaluate(trained: training.Trained) -> None:
    bits = _bits([trained.server_state, _states(trained)])
    seen.append((trained.round, bits))

  trained = _train(
    make(method),
    folder=tmp_path,
    interrupt=[5],
    evaluate=evaluate,
    rounds_per_evaluation=2,
  )
  _assert_same_bits(trained, _train(make(method)))
  # One by one, round 4 was done, and no checkpoint after it.
  assert [round_num for round_num, _ in seen] == rounds
  after_4 = _train(make(method), total_rounds=4)
  expected = _bits([after_4.server_state, _states(after_4)])
  assert all(bits == expected for round_num, bits in seen if round_num == 4)


def test_a_round_that_is_released_twice_is_there_once(
  tmp_path, uninterrupted, monkeypatch
):
  def train(name: str) -> training.Trained:
    return training.train(
      _fedadam(),
      _task(),
      _SETTINGS,
      checkpoint_dir=tmp_path / f'{name}_checkpoints',
      callbacks=training.Callbacks(
        release_managers=(
          tff.program.CSVFileReleaseManager(
            tmp_path / f'{name}.csv', key_fieldname='round'
          ),
        )
      ),
    )

  save = checkpoints.NpzProgramStateManager.save

  async def interrupted_save(self: Any, state: Any, version: int) -> None:
    if version == 6:
      raise _Interrupted
    await save(self, state, version)

  with monkeypatch.context() as patch:
    patch.setattr(checkpoints.NpzProgramStateManager, 'save', interrupted_save)
    with pytest.raises(_Interrupted):
      train('interrupted')
  with (tmp_path / 'interrupted.csv').open(newline='') as file:
    assert [row['round'] for row in csv.DictReader(file)] == list('123456')

  _assert_same_bits(train('interrupted'), uninterrupted[0])
  train('whole')
  # Each round once, though three were released twice.
  tables = [
    (tmp_path / f'{name}.csv').read_bytes() for name in ('interrupted', 'whole')
  ]
  assert tables[0] == tables[1]


def test_more_rounds_resume_after_fewer(tmp_path, uninterrupted):
  _train(folder=tmp_path, total_rounds=5)
  _assert_same_bits(_train(folder=tmp_path), uninterrupted[0])


def test_how_often_it_is_saved_changes_nothing(tmp_path, uninterrupted):
  trained = _train(folder=tmp_path, rounds_per_checkpoint=1)
  _assert_same_bits(trained, uninterrupted[0])


def test_the_latest_two_checkpoints_are_kept(tmp_path):
  _train(folder=tmp_path, total_rounds=20)
  names = sorted(path.name for path in tmp_path.iterdir())
  assert names == ['program_state_18.npz', 'program_state_20.npz']


def test_an_interrupted_native_run_ends_as_one_that_was_not(tmp_path):
  with tff.framework.get_context_stack().install(
    native.create_native_context(allow_exposed=True)
  ):
    expected = _train()
    _assert_same_bits(_train(interrupt=[5], folder=tmp_path), expected)


@pytest.mark.parametrize('make', [_fedadam, _ditto])
def test_a_training_that_is_stopped_goes_on_from_that_round(
  tmp_path, way, make, monkeypatch
):
  monkeypatch.setattr(round_runners, '_SECONDS_AT_ONCE', 0.0)  # Round by round.
  method = way(make())
  expected = _train(method)
  trained: training.Trained | None = None
  rounds: list[int] = []
  at_checkpoints: list[int] = []
  releases = _Releases()
  while trained is None or trained.round < expected.round:
    answers = iter([False, True])  # To stop after the second round.
    trained = _train(
      method,
      folder=tmp_path,
      release_managers=(releases,),
      on_round=lambda number, _: rounds.append(number),
      on_checkpoint=at_checkpoints.append,
      should_stop=lambda: next(answers, True),  # noqa: B023
    )
  _assert_same_bits(trained, expected)
  assert rounds == list(range(1, 8))
  assert at_checkpoints == [0, 2, 2, 3, 4, 4, 6, 6, 7]
  assert [key for key, _ in releases.values] == rounds


def test_a_training_that_starts_from_another_has_no_checkpoints(tmp_path):
  first = _train(total_rounds=2)
  with pytest.raises(ValueError, match='cannot start from another'):
    _train(start=first, folder=tmp_path)


# The same numbers, whatever the way to them.


def test_a_seed_fixes_every_bit(uninterrupted):
  # With nothing that was compiled, loaded or drawn before.
  context = cohort.create_cohort_context(trust_xla=True)
  mean = tff.aggregators.MeanFactory(no_nan_division=True)
  with tff.framework.get_context_stack().install(context):
    trained = _train(_build('fedadam', aggregator=mean), _load_task())
  _assert_same_bits(trained, uninterrupted[0])


def test_another_seed_gives_another_model(uninterrupted):
  trained = _train(seed=6)
  model, other = (
    t.server_state.server.model for t in (trained, uninterrupted[0])
  )
  assert np.any(model['kernel'] != other['kernel'])


def test_the_number_of_rounds_does_not_change_them(uninterrupted):
  releases = _Releases()
  _train(total_rounds=3, release_managers=(releases,))
  assert releases.values == uninterrupted[1][:3]


def test_both_runtimes_end_with_the_same_model(uninterrupted):
  releases = _Releases()
  with tff.framework.get_context_stack().install(
    native.create_native_context(allow_exposed=True)
  ):
    trained = _train(release_managers=(releases,))
  _assert_close(trained.server_state, uninterrupted[0].server_state)
  _assert_close(releases.values, uninterrupted[1])


@pytest.mark.parametrize(
  ('make', 'clients_per_round'), [(_counting, 3), (_counting, 0), (_ditto, 3)]
)
def test_rounds_in_one_program_are_the_rounds_one_by_one(
  make, clients_per_round
):
  releases = _Releases(), _Releases()
  together, one_by_one = (
    _train(method, clients_per_round=clients_per_round, release_managers=(r,))
    for method, r in zip((make(), _one_by_one(make())), releases)
  )
  _assert_close(together.server_state, one_by_one.server_state)
  _assert_close(_states(together), _states(one_by_one))
  _assert_close(releases[0].values, releases[1].values)


@pytest.mark.parametrize(
  ('make', 'client_sampling', 'clients_per_round'),
  [
    # Of one client on average, some rounds have none.
    (_counting, 'poisson', 1),
    (_counting, 'cyclic_poisson', 1),
    (_fedadam, 'passes', 4),
  ],
)
def test_rounds_of_cohorts_of_any_size_are_the_same_in_one_program(
  make, client_sampling, clients_per_round
):
  changed = dict(
    client_sampling=client_sampling,
    clients_per_round=clients_per_round,
    client_epochs=2,
  )
  releases = _Releases(), _Releases()
  together, one_by_one = (
    _train(method, release_managers=(r,), **changed)
    for method, r in zip((make(), _one_by_one(make())), releases)
  )
  _assert_close(together.server_state, one_by_one.server_state)
  _assert_close(_states(together), _states(one_by_one))
  _assert_close(releases[0].values, releases[1].values)
  settings = dataclasses.replace(_SETTINGS, **changed)
  assert [metrics['num_clients'] for _, metrics in releases[0].values] == [
    len(schedules.sample(settings, 6, round_num)) for round_num in range(1, 8)
  ]


def test_a_private_run_that_is_interrupted_has_the_same_noise(tmp_path):
  aggregator = private_aggregation.Gaussian(noise=1.0, clip=1.0, clients=3.0)
  method = dataclasses.replace(_build('fedadam'), aggregator=aggregator)
  expected = _train(method, client_sampling='poisson')
  trained = _train(
    method, folder=tmp_path, interrupt=[2, 5], client_sampling='poisson'
  )
  _assert_same_bits(trained, expected)
  assert expected.server_state.aggregator.updates.round == 7


def test_a_private_training_is_one_program():
  aggregator = private_aggregation.Gaussian(noise=1.0, clip=1.0, clients=3.0)
  method = dataclasses.replace(_build('fedadam'), aggregator=aggregator)
  context = tff.framework.get_context_stack().current
  assert context.rounds(method.next, schedules.PLAN) is not None


def test_steps_are_the_same_at_once_one_by_one_and_not_padded():
  changed = dict(client_steps=3, client_epochs=2)
  together, one_by_one, not_padded = (
    _train(method, task, **changed).server_state.server.model
    for method, task in (
      (_fedadam(), _task()),
      (_one_by_one(_fedadam()), _task()),
      (_fedadam(), dataclasses.replace(_task(), padded=False)),
    )
  )
  _assert_close(together, one_by_one)
  _assert_close(together, not_padded)
  other = _train(client_epochs=2)
  assert np.any(other.server_state.server.model['bias'] != together['bias'])


@pytest.mark.parametrize('changed', [{}, dict(client_steps=2)], ids=str)
def test_examples_one_after_another_are_those_that_are_stacked(
  changed, monkeypatch
):
  stacked = _train(**changed)
  monkeypatch.setattr(schedules.Schedule, '_is_stacked', False)
  _assert_close(_train(**changed).server_state, stacked.server_state)


def test_padding_changes_nothing(uninterrupted):
  trained = _train(task=dataclasses.replace(_task(), padded=False))
  _assert_close(trained.server_state, uninterrupted[0].server_state)


def test_training_that_goes_on_is_as_training_at_once(uninterrupted):
  first = _train(total_rounds=2)
  assert first.round == 2
  _assert_same_bits(_train(start=first), uninterrupted[0])


def test_training_that_goes_on_keeps_the_states_of_clients():
  expected = _train(_counting())
  for method in (_counting(), _one_by_one(_counting())):
    first = _train(method, total_rounds=2)
    _assert_same_bits(_train(method, start=first), expected)


def test_trainings_may_share_a_schedule(uninterrupted):
  shared = schedules.Schedule(_task(), _SETTINGS, num_kept=3)
  for _ in range(2):
    _assert_same_bits(_train(schedule=shared), uninterrupted[0])
  assert shared.make_rounds.cache_info().hits == 3


# Rounds that are prepared.


@pytest.mark.parametrize('at_once', [True, False])
def test_what_comes_next_is_prepared_meanwhile(at_once, uninterrupted):
  asked = [threading.Event() for _ in range(_SETTINGS.total_rounds + 1)]

  class Schedule(schedules.Schedule):
    """Remembers which rounds it was asked for."""

    def _batching(self, round_num: int) -> cohorts.Batching:
      if round_num < len(asked):
        asked[round_num].set()
      return super()._batching(round_num)

  def on_round(round_num: int, metrics: Any) -> None:
    del metrics
    # It would wait for ever if the next were made when it is asked for.
    assert all(event.wait(60) for event in asked[round_num + 1 :][:1])

  method = _fedadam() if at_once else _one_by_one(_fedadam())
  trained = _train(
    method, schedule=Schedule(_task(), _SETTINGS), on_round=on_round
  )
  _assert_close(trained.server_state, uninterrupted[0].server_state)


def _prefetch_threads() -> list[threading.Thread]:
  return [t for t in threading.enumerate() if t.name.startswith('prefetch')]


@pytest.mark.parametrize('padded', [True, False])
def test_an_error_in_what_is_prepared_is_raised(padded):
  def fail(examples: Examples) -> Examples:
    raise ZeroDivisionError

  task = _replace_client(fail, padded=padded)
  sizes = {'train': np.full(6, 10)}
  task = dataclasses.replace(
    task, train=dataclasses.replace(task.train, sizes=sizes)
  )
  with pytest.raises(ZeroDivisionError):
    _train(task=task)
  assert not _prefetch_threads()


def test_what_was_trained_before_a_clients_data_fail_is_kept(tmp_path):
  calls = itertools.count()

  def fail(examples: Examples) -> Examples:
    if next(calls) > 0:
      raise errors.UserError('train_000002: y is 99.')
    return examples

  plain = _replace_client(dict, padded=False)
  load = plain.train.sets['train']
  counts = [len(load(client_id)['y']) for client_id in plain.train.client_ids]
  sizes = {'train': np.array(counts)}
  expected = _train(task=plain, rounds_per_checkpoint=100)
  releases = _Releases()
  saved: list[int] = []

  def train(task: tasks.Task) -> training.Trained:
    return _train(
      task=dataclasses.replace(
        task, train=dataclasses.replace(task.train, sizes=sizes)
      ),
      folder=tmp_path,
      release_managers=[releases],
      on_checkpoint=saved.append,
      rounds_per_checkpoint=100,
    )

  with pytest.raises(errors.UserError, match='y is 99'):
    train(_replace_client(fail, padded=False))
  assert saved[0] == 0
  assert saved[-1] > 0
  assert [key for key, _ in releases.values] == list(range(1, saved[-1] + 1))
  _assert_same_bits(train(plain), expected)


@pytest.mark.parametrize('interruption', [KeyboardInterrupt, MemoryError])
def test_nothing_is_left_running_when_it_is_interrupted(interruption):
  def on_round(round_num: int, metrics: Any) -> None:
    raise interruption

  with pytest.raises(interruption):
    _train(on_round=on_round)
  assert not _prefetch_threads()


# Metrics, and clients that are left out.


def test_the_metrics_of_each_round_are_shown_as_floats(uninterrupted):
  shown: list[Any] = []
  _train(on_round=lambda *arguments: shown.append(arguments))
  assert shown == uninterrupted[1]
  rows = schedules.sample(_SETTINGS, 6, 1)
  clients = np.array(_task().train.client_ids)[rows]
  sizes = [len(_task().train.sets['train'](c)['y']) for c in clients]
  metrics = shown[0][1]
  assert metrics['num_clients'] == 3
  assert metrics['num_examples'] == sum(sizes)
  # The model knew nothing yet when it saw the first batches.
  assert 0.5 < metrics['loss'] < 10
  assert {type(value) for value in metrics.values()} == {float}


def test_local_training_takes_no_rounds(tmp_path):
  rounds: list[Any] = []
  method = _recording(_build('local'), rounds)
  trained = _train(
    method,
    folder=tmp_path,
    on_round=lambda *_: pytest.fail('There was a round.'),
  )
  assert not rounds
  assert not list(tmp_path.iterdir())
  initial = method.initial_state(seeds.pair('model', 5))
  assert _bits(trained.server_state) == _bits(initial)


def test_no_rounds_leave_the_initial_model(tmp_path):
  trained = _train(total_rounds=0, folder=tmp_path)
  initial = _fedadam().initial_state(seeds.pair('model', 5))
  assert _bits(trained.server_state) == _bits(initial)


def test_clients_without_examples_take_no_part_and_are_named():
  rounds: list[Any] = []
  trained = _train(
    _recording(_fedadam(), rounds),
    _replace_client(_remove_examples),
    clients_per_round=0,
  )
  assert trained.skipped_clients == ('train_000002',)
  assert trained.client_states.client_ids == tuple(
    f'train_{k:06d}' for k in (0, 1, 3, 4, 5)
  )
  assert {len(clients) for clients in rounds} == {5}


@pytest.mark.parametrize('interrupt', [[], [5]], ids=['at_once', 'resumed'])
def test_dropped_clients_are_counted(tmp_path, interrupt):
  task = _replace_client(_not_finite)
  trained = _train(
    task=task, clients_per_round=0, interrupt=interrupt, folder=tmp_path
  )
  assert trained.dropped_clients == 7
  assert not trained.diverged
  assert all(
    np.all(np.isfinite(leaf)) for leaf in tree.flatten(trained.server_state)
  )


@pytest.mark.parametrize('at_once', [True, False])
@pytest.mark.parametrize(
  ('total_rounds', 'interrupt'), [(7, []), (50, []), (50, [6])]
)
def test_a_training_without_a_finite_update_stops(
  tmp_path, at_once, total_rounds, interrupt
):
  population = _task().train
  load = population.sets['train']
  bad = populations.Population(
    population.client_ids, {'train': lambda c: _not_finite(load(c))}
  )
  method = _fedadam() if at_once else _one_by_one(_fedadam())
  arguments: Any = dict(
    task=dataclasses.replace(_task(), train=bad),
    method=method,
    total_rounds=total_rounds,
    folder=tmp_path,
  )
  trained = _train(interrupt=interrupt, **arguments)
  assert trained.diverged
  assert trained.round == (7 if total_rounds == 7 else 12 if at_once else 10)
  assert trained.rounds_without_update == min(trained.round, 10)
  again = _train(on_round=lambda *_: pytest.fail('It goes on.'), **arguments)
  assert (again.diverged, again.round) == (True, trained.round)


@pytest.mark.parametrize(
  ('at_once', 'clients_per_round'), [(True, 3), (True, 0), (False, 3)]
)
def test_clients_know_their_attributes(at_once, clients_per_round):
  client_ids = _task().train.client_ids
  groups = {client_id: k // 2 for k, client_id in enumerate(client_ids)}
  task = dataclasses.replace(
    _task(), attributes={'group': tasks.Attribute(('x', 'y', 'z'), groups)}
  )
  releases = _Releases()
  _train(
    _build_grouped() if at_once else _one_by_one(_build_grouped()),
    task,
    clients_per_round=clients_per_round,
    release_managers=(releases,),
  )
  settings = dataclasses.replace(_SETTINGS, clients_per_round=clients_per_round)
  for round_num, metrics in releases.values:
    rows = schedules.sample(settings, 6, round_num)
    assert metrics['group'] == pytest.approx(np.mean(rows // 2))


# What is refused.


def test_a_task_without_the_attributes_of_a_method_is_refused():
  with pytest.raises(errors.UserError, match='needs to know the group'):
    _train(_build_grouped())


@dataclasses.dataclass(frozen=True)
class _ForTrainedClients(fedavg.FedAvg):
  personalizes_new_clients = False


def test_a_method_for_trained_clients_only_is_refused_new_ones():
  rounds: list[Any] = []
  trainer = _ForTrainedClients(_task().model, fedavg.FedAvgSettings())
  method = _recording(_make_method(trainer), rounds)
  with pytest.raises(errors.UserError, match='can personalize only clients'):
    _train(method)
  assert not rounds
  _train(method, dataclasses.replace(_task(), cross_silo=True))
  assert len(rounds) == 7


def test_more_clients_a_round_than_there_are_is_an_error():
  rounds: list[Any] = []
  method = _recording(_fedadam(), rounds)
  with pytest.raises(errors.UserError, match='is 7, but synthetic has 6'):
    _train(method, clients_per_round=7)
  task = _replace_client(_remove_examples)
  with pytest.raises(errors.UserError, match='is 6, but synthetic has 5'):
    _train(method, task, clients_per_round=6)
  assert not rounds


def test_nobody_to_train_on_is_an_error():
  nobody = populations.Population(
    ('a', 'b'),
    {'train': lambda _: {'x': np.zeros([0, 60]), 'y': np.zeros([0])}},
  )
  task = dataclasses.replace(_task(), train=nobody)
  with pytest.raises(errors.UserError, match='synthetic has no clients'):
    _train(task=task, clients_per_round=0)


@pytest.mark.parametrize(
  'other',
  [
    lambda: _build('fedavg'),
    lambda: _build('fedadam', linear.LogisticRegression(5, 10)),
    lambda: _build('fedadam', linear.LinearRegression(60)),
  ],
  ids=['method', 'features', 'model'],
)
def test_the_checkpoint_of_another_is_refused_by_name(tmp_path, other):
  _train(_recording(_fedadam(), []), folder=tmp_path)
  rounds: list[Any] = []
  method = _recording(other(), rounds)
  with pytest.raises(checkpoints.CheckpointError) as info:
    _train(method, folder=tmp_path, total_rounds=9)
  assert isinstance(info.value, errors.UserError)
  assert str(tmp_path / 'program_state_7.npz') in str(info.value)
  assert not rounds


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path):
  _train(_recording(_fedadam(), []), folder=tmp_path)
  path = tmp_path / 'program_state_7.npz'
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(errors.UserError, match=str(path)):
    _train(_recording(_fedadam(), []), folder=tmp_path)


def test_a_checkpoint_without_the_states_of_clients_is_refused(tmp_path):
  _train(_counting(), folder=tmp_path)
  (tmp_path / client_states.FILE_NAME).unlink()
  with pytest.raises(errors.UserError, match='lacks the states of the clients'):
    _train(_counting(), folder=tmp_path, total_rounds=9)


def test_the_states_of_another_method_are_refused(tmp_path):
  # What the server has is the same for both.
  _train(_one_by_one(_ditto()), folder=tmp_path)
  (tmp_path / 'program_state_7.npz').unlink()
  (tmp_path / 'program_state_6.npz').unlink()
  with pytest.raises(errors.UserError, match='another method or model'):
    _train(_counting(), folder=tmp_path)


# The models of another training.


def test_the_models_of_a_checkpoint_can_be_loaded(tmp_path, uninterrupted):
  _train(folder=tmp_path)
  (model,) = training.saved_models(
    _fedadam(), tmp_path, 7, like=_task().model.init(seeds.pair('model'))
  )
  expected = uninterrupted[0].server_state.server.model
  assert list(model) == list(expected)
  assert _bits(model) == _bits(expected)


def test_a_training_can_begin_with_the_models_of_another(tmp_path):
  _train(folder=tmp_path)
  like = _task().model.init(seeds.pair('model'))
  saved = training.saved_models(_fedadam(), tmp_path, 7, like=like)
  warm = dataclasses.replace(_fedadam(), first_models=saved)
  trained = _train(warm, total_rounds=0)
  assert _bits(trained.server_state.server.model) == _bits(saved[0])
  # The rest begins anew.
  initial = _fedadam().initial_state(seeds.pair('model', 5))
  optimizer = trained.server_state.server.optimizer
  assert _bits(optimizer) == _bits(initial.server.optimizer)


def test_each_of_several_models_can_be_loaded(tmp_path):
  trained = _train(_build('hypcluster'), folder=tmp_path, total_rounds=2)
  like = _task().model.init(seeds.pair('model'))
  saved = training.saved_models(_build('hypcluster'), tmp_path, 2, like=like)
  places = trained.server_state.server.models
  assert len(saved) == len(places) > 1
  for model, expected in zip(saved, places):
    assert _bits(model) == _bits(expected)


@pytest.mark.parametrize(
  ('method', 'round_num', 'message'),
  [('fedadam', 4, 'no checkpoint of round 4'), ('hypcluster', 7, 'is not in')],
)
def test_models_that_are_not_there_are_an_error(
  tmp_path, method, round_num, message
):
  _train(_recording(_fedadam(), []), folder=tmp_path)
  like = _task().model.init(seeds.pair('model'))
  with pytest.raises(errors.UserError, match=message):
    training.saved_models(_build(method), tmp_path, round_num, like=like)


# The states of clients.


def _drawn(number: int) -> np.ndarray:
  """Returns the numbers that a client draws before its first round."""
  seed = np.array([_SETTINGS.seed, number], np.int32)
  return _counting().initialize_client(seed)['drawn']


@pytest.mark.parametrize('padded', [True, False])
def test_a_client_keeps_its_state_from_round_to_round(padded):
  task = dataclasses.replace(_task(), padded=padded)
  trained = _train(_counting(), task)
  cohorts = [schedules.sample(_SETTINGS, 6, r) for r in range(1, 8)]
  np.testing.assert_array_equal(
    _states(trained)['rounds'], np.bincount(np.concatenate(cohorts))
  )


@pytest.mark.parametrize('at_once', [True, False])
def test_a_client_that_was_never_drawn_has_its_initial_state(at_once):
  method = _counting() if at_once else _one_by_one(_counting())
  trained = _train(method, total_rounds=1)
  drawn = set(schedules.sample(_SETTINGS, 6, 1))
  for k, state in enumerate(_states(trained)['drawn']):
    assert np.any(state != _drawn(k)) == (k in drawn)


@pytest.mark.parametrize('padded', [True, False])
def test_a_client_that_is_dropped_forgets_the_round(padded):
  task = _replace_client(_not_finite, padded=padded)
  trained = _train(_counting(), task, clients_per_round=0)
  rounds = _states(trained)['rounds']
  np.testing.assert_array_equal(rounds, [7, 7, 0, 7, 7, 7])


def test_held_out_clients_have_initial_states_of_their_own():
  trained = _train(_counting())
  # The numbers of those that were held out come after the 6 trained ones.
  states = trained.read_states(
    ['new', 'train_000004', 'train_000001', 'other', 'other'],
    rows=[10, 0, 2, 13, 13],
  )
  of_trained = _states(trained)
  drawn, rounds = of_trained['drawn'], of_trained['rounds']
  np.testing.assert_array_equal(
    states['drawn'],
    [_drawn(16), drawn[4], drawn[1], _drawn(19), _drawn(19)],
  )
  np.testing.assert_array_equal(
    states['rounds'], [0, rounds[4], rounds[1], 0, 0]
  )


def test_trained_clients_alone_have_the_states_they_ended_with():
  trained = _train(_counting())
  states = trained.read_states(trained.client_states.client_ids[::-1], range(6))
  for name, state in states.items():
    np.testing.assert_array_equal(state, _states(trained)[name][::-1])


def test_the_states_of_a_cohort_are_found_without_a_walk_over_all_clients():
  num_clients = 342_477
  trained = training.Trained(
    None,
    training.make_client_states(
      _counting(), [str(k) for k in range(num_clients)], 5
    ),
    0,
    (),
  )
  rows = trained.client_states.rows
  np.testing.assert_array_equal(
    trained.read_states(['342476', 'new'], [0, 1])['drawn'],
    [_drawn(342_476), _drawn(342_478)],
  )
  assert trained.client_states.rows is rows


def test_clients_start_apart_and_by_the_seed():
  states = [
    training.make_client_states(_counting(), ['a', 'b'], seed).read([0, 1])
    for seed in (1, 1, 2)
  ]
  assert _bits(states[0]) == _bits(states[1])
  assert len(set(np.concatenate([s['drawn'] for s in states]).flat)) == 8


def test_a_method_may_keep_no_states():
  trained = _train(total_rounds=0)
  assert not tree.flatten(_states(trained))
  assert not tree.flatten(trained.read_states(['new'], [0]))


def test_a_training_can_be_extended_while_its_results_are_in_use(tmp_path):
  method = _one_by_one(_counting())
  results = [
    _train(method, folder=tmp_path, total_rounds=total_rounds)
    for total_rounds in (5, 5, 7)
  ]
  assert [trained.round for trained in results] == [5, 5, 7]
  _assert_same_bits(results[-1], _train(method))


def test_only_the_clients_of_a_round_are_read_and_initialized():
  initialized: list[int] = []

  def initialize(seed: np.ndarray) -> Any:
    initialized.append(int(seed[1]))
    return _counting().initialize_client(seed)

  method = computations.exchange(
    _one_by_one(_counting()), initialize_client=initialize
  )
  _train(method, total_rounds=1)
  assert set(initialized) == {0, *schedules.sample(_SETTINGS, 6, 1)}


def test_rounds_are_one_by_one_if_clients_keep_much(monkeypatch):
  runners: list[Any] = []
  make = round_runners.make_runner

  def spy(*args: Any) -> Any:
    runners.append(make(*args))
    return runners[-1]

  monkeypatch.setattr(round_runners, 'make_runner', spy)
  size = 6 * training.make_client_states(_ditto(), ['a'], 5).bytes_per_client
  for most_bytes in (size, size - 1):
    monkeypatch.setattr(round_runners, '_MOST_STATE_BYTES', most_bytes)
    _train(_ditto(), total_rounds=1)
  assert [type(runner).__name__ for runner in runners] == [
    '_AtOnce',
    '_OneByOne',
  ]


# Kills of trainings whose clients keep large states.


@pytest.fixture(name='way', params=['at_once', 'one_by_one'])
def _way(request: Any) -> Callable[[methods.Method], methods.Method]:
  return _one_by_one if request.param == 'one_by_one' else lambda method: method


@pytest.fixture(name='memory', params=['much_memory', 'little_memory'])
def _memory(request: Any, monkeypatch: Any) -> None:
  if request.param == 'little_memory':
    # Two of the six personal models.
    monkeypatch.setattr(client_states, '_MOST_BYTES', 5_000)


@pytest.mark.parametrize('make', [_counting, _ditto])
@pytest.mark.parametrize('interrupt', [[3, 5], [1, 4, 7]], ids=str)
def test_states_are_as_in_a_run_that_was_not_interrupted(
  tmp_path, way, memory, make, interrupt
):
  del memory
  method = way(make())
  _assert_same_bits(
    _train(method, interrupt=interrupt, folder=tmp_path), _train(method)
  )


def _raise_before(patch: Any, owner: Any, name: str, call: int) -> None:
  """Has a function be interrupted when it is called for the nth time."""
  function = getattr(owner, name)
  calls = 0

  @functools.wraps(function)
  def interrupted(*args: Any, **kwargs: Any) -> Any:
    nonlocal calls
    calls += 1
    if calls == call:
      raise _Interrupted
    return function(*args, **kwargs)

  patch.setattr(owner, name, interrupted)


_STORE = client_states.ClientStates
_MANAGER = checkpoints.NpzProgramStateManager
_KILL_POINTS = {
  'before_the_states': (_STORE, 'commit'),
  'before_the_checkpoint': (_MANAGER, 'save'),
  'while_the_checkpoint_is_written': (np, 'savez'),
  'before_the_old_checkpoint_is_removed': (_MANAGER, '_remove_old'),
  'before_the_old_states_are_removed': (_STORE, 'prune'),
}


@pytest.mark.parametrize('newest', ['newest_whole', 'newest_deleted'])
@pytest.mark.parametrize('call', [1, 2, 3, 4])
@pytest.mark.parametrize('point', _KILL_POINTS)
def test_a_checkpoint_can_be_interrupted_anywhere(
  tmp_path, monkeypatch, point, call, newest
):
  monkeypatch.setattr(client_states, '_MOST_BYTES', 0)
  method = _one_by_one(_counting())
  changed = dict(rounds_per_checkpoint=2, clients_per_round=2)
  with monkeypatch.context() as patch:
    _raise_before(patch, *_KILL_POINTS[point], call)
    with pytest.raises(_Interrupted):
      training.train(
        method,
        _task(),
        dataclasses.replace(_SETTINGS, **changed),
        checkpoint_dir=tmp_path,
      )
  if newest == 'newest_deleted':
    # As a user does if it is damaged.
    versions = asyncio.run(_MANAGER(tmp_path).get_versions())
    for version in (versions or [])[-1:]:
      (tmp_path / f'program_state_{version}.npz').unlink()
  trained = _train(method, folder=tmp_path, **changed)
  _assert_same_bits(trained, _train(method, **changed))


def test_the_database_is_free_after_an_exception_that_is_kept(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(client_states, '_MOST_BYTES', 0)

  def on_round(round_num: int, metrics: Any) -> None:
    if round_num == 5:
      raise KeyboardInterrupt

  method = _one_by_one(_counting())
  with pytest.raises(KeyboardInterrupt) as kept:
    _train(method, folder=tmp_path, on_round=on_round)
  _assert_same_bits(_train(method, folder=tmp_path), _train(method))
  assert kept.value.__traceback__ is not None


_KILLED = """
import os, pathlib, signal, sys
import tensorflow_federated as tff
from personalization.rounds import client_states
from tff_runtimes import cohort
from tests.personalization.rounds import training_test as test

client_states._MOST_BYTES = 0
tff.framework.set_default_context(cohort.create_cohort_context(trust_xla=True))
test._train(
  test._one_by_one(test._ditto()),
  folder=pathlib.Path(sys.argv[1]),
  on_round=lambda n, _: n == 5 and os.kill(os.getpid(), signal.SIGKILL),
)
"""


def test_a_training_that_is_killed_ends_as_one_that_was_not(
  tmp_path, monkeypatch
):
  root = pathlib.Path(__file__).parents[3]
  killed = subprocess.run(
    [sys.executable, '-c', _KILLED, tmp_path],
    cwd=root,
    env={'PYTHONPATH': ':'.join([str(root), *sys.path])},
    check=False,
  )
  assert killed.returncode == -signal.SIGKILL
  # The round before it was killed is partly in the database.
  monkeypatch.setattr(client_states, '_MOST_BYTES', 0)
  done: list[int] = []
  method = _one_by_one(_ditto())
  trained = _train(
    method, folder=tmp_path, on_round=lambda n, _: done.append(n)
  )
  assert done == [4, 5, 6, 7]
  _assert_same_bits(trained, _train(method))


def test_the_states_of_a_training_can_be_read_afterwards(tmp_path):
  trained = _train(_ditto(), folder=tmp_path, total_rounds=2)
  rows = set()
  for round_num in (1, 2):
    rows.update(schedules.sample(_SETTINGS, 6, round_num))
  found = dict(client_states.read_saved(tmp_path, 2))
  assert list(found) == [_task().train.client_ids[row] for row in sorted(rows)]
  for row, leaves in zip(sorted(rows), found.values()):
    np.testing.assert_array_equal(
      leaves['personal/kernel'], _states(trained).personal['kernel'][row]
    )
