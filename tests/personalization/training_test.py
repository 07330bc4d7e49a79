"""Tests of the training loop."""

import collections
from collections.abc import Iterator
import csv
import dataclasses
import functools
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from algorithms import fedavg
from algorithms import process
from algorithms import registry as algorithm_registry
from base import errors
from base import seeds
from personalization import checkpoints
from personalization import schedule
from personalization import training
from runtimes import cohort
from runtimes import native
from tasks import registry as task_registry
from tasks.data import populations
from tasks.models import linear
from tests import computations

# A checkpoint after rounds 3, 6 and 7.
_OPTIONS = training.Options(
  total_rounds=7,
  clients_per_round=3,
  batch_size=4,
  rounds_per_checkpoint=3,
  seed=5,
)


@pytest.fixture(name='cohort_context', scope='module', autouse=True)
def _cohort_context() -> Iterator[None]:
  context = cohort.create_cohort_context()
  with tff.framework.get_context_stack().install(context):
    yield


@functools.cache
def _task():
  return task_registry.load(
    'synthetic',
    num_train_clients=6,
    min_examples=6,
    max_examples=10,
    log_examples_mean=1.0,
  )


def _with_client(examples, client_id='train_000002', padded=True):
  """The task with a client whose examples are changed."""
  task = _task()
  load = task.train.sets['train']

  def changed(asked):
    return examples(load(asked)) if asked == client_id else load(asked)

  population = populations.Population(task.train.client_ids, {'train': changed})
  return dataclasses.replace(task, train=population, padded=padded)


def _without_examples(examples):
  return {name: values[:0] for name, values in examples.items()}


def _not_finite(examples):
  return examples | {'x': np.full_like(examples['x'], np.nan)}


def _build(name, model=None, **hyperparameters):
  return algorithm_registry.build(
    name,
    model or _task().model,
    algorithm_registry.hyperparameters(name, hyperparameters),
    tff.aggregators.MeanFactory(no_nan_division=True),
    ('evaluation',),
  )


@functools.cache
def _fedadam():
  """A method whose server has a state beside the model: the moments."""
  return _build('fedadam')


@functools.cache
def _with_client_states():
  """A method whose clients count their rounds, and draw a number in each."""
  model = _task().model

  def client(weights, numbers, data, state, seed):
    del numbers
    drawn = tf.random.stateless_uniform([2], seed)
    # Not finite if the client's examples are not.
    finite = tf.math.is_finite(tf.reduce_sum(data.examples['x']))
    broken = tf.where(finite, 0.0, np.nan)
    return process.ClientResult(
      update=tf.nest.map_structure(tf.ones_like, weights),
      weight=tf.constant(1.0),
      state=collections.OrderedDict(
        rounds=state['rounds'] + 1, drawn=state['drawn'] + drawn + broken
      ),
      loss=tf.reduce_sum(drawn),
      num_examples=tf.reduce_sum(data.mask),
    )

  method = process.Method(
    initialize=lambda seed, numbers: model.init(seed),
    message=lambda server: server,
    client=client,
    server=lambda server, numbers, update, sums: update,
    personalize=lambda *_: tf.constant(0.0),
    initialize_client=lambda seed: collections.OrderedDict(
      rounds=tf.constant(0),
      drawn=tf.random.stateless_uniform([2], seed),
    ),
  )
  return process.build(
    method,
    model=model,
    hyperparameters=fedavg.Hyperparameters(),
    aggregator=tff.aggregators.MeanFactory(no_nan_division=True),
    evaluation_sets=('evaluation',),
    candidates=('only',),
    baseline=None,
    training='counting',
  )


def _recording(algorithm, rounds):
  """`algorithm` with rounds that only record what is given to them."""

  def next_round(state, clients):
    rounds.append(clients)
    return state, clients.stacked['state'], dict(dropped_clients=0, loss=0)

  return computations.exchange(algorithm, next=next_round)


def _one_by_one(algorithm):
  """`algorithm`, whose rounds cannot be made one program."""
  return computations.exchange(
    algorithm, next=lambda *args: algorithm.next(*args)
  )


class _Releases(tff.program.ReleaseManager):
  """Remembers what is released, in order."""

  def __init__(self):
    self.values = []

  async def release(self, value, key):
    self.values.append((key, value))


class _Interrupted(Exception):
  pass


def _train(
  algorithm=None, task=None, *, interrupt=(), folder=None, **arguments
):
  """Trains, but is interrupted behind some rounds and started again."""
  options = {
    name: arguments.pop(name)
    for name in list(arguments)
    if name in {field.name for field in dataclasses.fields(_OPTIONS)}
  }
  on_round = arguments.pop('on_round', lambda *_: None)
  interrupt = list(interrupt)

  def interrupted_on_round(round_num, metrics):
    on_round(round_num, metrics)
    if round_num in interrupt:
      interrupt.remove(round_num)
      raise _Interrupted

  while True:
    try:
      return training.train(
        algorithm or _fedadam(),
        task or _task(),
        dataclasses.replace(_OPTIONS, **options),
        checkpoint_dir=folder,
        on_round=interrupted_on_round,
        **arguments,
      )
    except _Interrupted:
      pass


def _bits(structure):
  """All that is in a structure of numbers, exactly."""
  return [
    (leaf.dtype, leaf.shape, leaf.tobytes())
    for leaf in map(np.asarray, tree.flatten(structure))
  ]


def _assert_same_bits(first, second):
  tree.assert_same_structure(first.server_state, second.server_state)
  assert _bits(first.server_state) == _bits(second.server_state)
  tree.assert_same_structure(first.client_states, second.client_states)
  assert _bits(first.client_states) == _bits(second.client_states)
  assert dataclasses.replace(
    first, server_state=None, client_states=None
  ) == dataclasses.replace(second, server_state=None, client_states=None)


def _assert_close(first, second):
  tree.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
    first,
    second,
  )


@pytest.fixture(name='uninterrupted', scope='module')
def _uninterrupted(cohort_context):
  """What a run that is not interrupted ends with, and what it released."""
  del cohort_context
  releases = _Releases()
  return _train(release_managers=(releases,)), releases.values


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
  moments = expected.server_state['server']['optimizer']
  assert sum(np.any(leaf) for leaf in tree.flatten(moments)) >= 4

  releases = _Releases()
  trained = _train(
    interrupt=interrupt, folder=tmp_path, release_managers=(releases,)
  )
  _assert_same_bits(trained, expected)
  # Each round once and in order, with the same numbers.
  assert releases.values == expected_releases
  assert [key for key, _ in releases.values] == list(range(1, 8))


def test_a_run_goes_on_behind_its_last_checkpoint(tmp_path):
  done = []
  _train(
    interrupt=[5],
    folder=tmp_path,
    on_round=lambda round_num, _: done.append(round_num),
  )
  # Those from one checkpoint to the next are one program: 6 was done too.
  assert done == [1, 2, 3, 4, 5, 7]
  done.clear()
  _train(
    _one_by_one(_fedadam()),
    interrupt=[5],
    folder=tmp_path / 'one by one',
    on_round=lambda round_num, _: done.append(round_num),
  )
  assert done == [1, 2, 3, 4, 5, 4, 5, 6, 7]


def test_a_run_that_was_done_does_nothing_again(tmp_path, uninterrupted):
  _train(folder=tmp_path)
  releases = _Releases()
  trained = _train(
    _recording(_fedadam(), rounds := []),
    folder=tmp_path,
    release_managers=(releases,),
  )
  _assert_same_bits(trained, uninterrupted[0])
  assert not rounds
  assert not releases.values


def test_an_interruption_between_the_release_and_the_checkpoint(
  tmp_path, uninterrupted, monkeypatch
):
  def train(name):
    return training.train(
      _fedadam(),
      _task(),
      _OPTIONS,
      checkpoint_dir=tmp_path / f'{name}_checkpoints',
      release_managers=(
        tff.program.CSVFileReleaseManager(
          tmp_path / f'{name}.csv', key_fieldname='round'
        ),
      ),
    )

  save = checkpoints.NpzProgramStateManager.save

  async def interrupted_save(self, state, version):
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


def test_more_rounds_go_on_behind_fewer(tmp_path, uninterrupted):
  _train(folder=tmp_path, total_rounds=5)
  _assert_same_bits(_train(folder=tmp_path), uninterrupted[0])


def test_how_often_it_is_saved_changes_nothing(tmp_path, uninterrupted):
  trained = _train(folder=tmp_path, rounds_per_checkpoint=1)
  _assert_same_bits(trained, uninterrupted[0])


def test_a_seed_fixes_every_bit(uninterrupted):
  # With nothing that was compiled, loaded or drawn before.
  new_task = task_registry.load(
    'synthetic',
    num_train_clients=6,
    min_examples=6,
    max_examples=10,
    log_examples_mean=1.0,
  )
  with tff.framework.get_context_stack().install(
    cohort.create_cohort_context()
  ):
    trained = _train(_build('fedadam'), new_task)
  _assert_same_bits(trained, uninterrupted[0])


def test_another_seed_gives_another_model(uninterrupted):
  trained = _train(seed=6)
  model, other = (
    t.server_state['server']['model'] for t in (trained, uninterrupted[0])
  )
  assert np.any(model['kernel'] != other['kernel'])


def test_the_number_of_rounds_does_not_change_them(uninterrupted):
  releases = _Releases()
  _train(total_rounds=3, release_managers=(releases,))
  assert releases.values == uninterrupted[1][:3]


def test_both_runtimes_end_with_the_same_model(uninterrupted):
  releases = _Releases()
  with tff.framework.get_context_stack().install(
    native.create_native_context()
  ):
    trained = _train(release_managers=(releases,))
  _assert_close(trained.server_state, uninterrupted[0].server_state)
  _assert_close(releases.values, uninterrupted[1])


def test_an_interrupted_run_on_the_native_runtime(tmp_path):
  with tff.framework.get_context_stack().install(
    native.create_native_context()
  ):
    expected = _train()
    _assert_same_bits(_train(interrupt=[5], folder=tmp_path), expected)


@pytest.mark.parametrize('clients_per_round', [3, 0])
def test_rounds_in_one_program_are_the_rounds_one_by_one(clients_per_round):
  for algorithm in (_fedadam(), _with_client_states(), _build('ditto')):
    releases = _Releases(), _Releases()
    together, one_by_one = (
      _train(a, clients_per_round=clients_per_round, release_managers=(r,))
      for a, r in zip((algorithm, _one_by_one(algorithm)), releases)
    )
    _assert_close(together.server_state, one_by_one.server_state)
    _assert_close(together.client_states, one_by_one.client_states)
    _assert_close(releases[0].values, releases[1].values)


@pytest.mark.parametrize('at_once', [True, False])
def test_what_comes_next_is_prepared_meanwhile(at_once, uninterrupted):
  asked = [threading.Event() for _ in range(_OPTIONS.total_rounds + 1)]

  class Schedule(schedule.Schedule):
    """Remembers which rounds it was asked for."""

    def _batching(self, round_num):
      if round_num < len(asked):
        asked[round_num].set()
      return super()._batching(round_num)

  def on_round(round_num, metrics):
    del metrics
    # It would wait for ever if the next were made when it is asked for.
    assert all(event.wait(60) for event in asked[round_num + 1 :][:1])

  algorithm = _fedadam() if at_once else _one_by_one(_fedadam())
  trained = _train(
    algorithm, schedule=Schedule(_task(), _OPTIONS), on_round=on_round
  )
  _assert_close(trained.server_state, uninterrupted[0].server_state)


@pytest.mark.parametrize('padded', [True, False])
def test_an_error_in_what_is_prepared_is_raised(padded):
  task = _with_client(lambda _: 1 / 0, padded=padded)
  sizes = {'train': np.full(6, 10)}
  task = dataclasses.replace(
    task, train=dataclasses.replace(task.train, sizes=sizes)
  )
  with pytest.raises(ZeroDivisionError):
    _train(task=task)
  assert not [t for t in threading.enumerate() if t.name.startswith('prefetch')]


@pytest.mark.parametrize('interruption', [KeyboardInterrupt, MemoryError])
def test_nothing_is_left_running_when_it_is_interrupted(interruption):
  def on_round(round_num, metrics):
    raise interruption

  with pytest.raises(interruption):
    _train(on_round=on_round)
  assert not [t for t in threading.enumerate() if t.name.startswith('prefetch')]


def test_training_that_goes_on_is_as_training_at_once(uninterrupted):
  first = _train(total_rounds=2)
  assert first.round == 2
  _assert_same_bits(_train(start=first), uninterrupted[0])


def test_trainings_that_share_a_schedule(uninterrupted):
  shared = schedule.Schedule(_task(), _OPTIONS, kept=3)
  for _ in range(2):
    _assert_same_bits(_train(schedule=shared), uninterrupted[0])
  assert shared.several.cache_info().hits == 3


def test_padding_changes_nothing(uninterrupted):
  trained = _train(task=dataclasses.replace(_task(), padded=False))
  _assert_close(trained.server_state, uninterrupted[0].server_state)


def test_the_metrics_of_the_rounds(uninterrupted):
  shown = []
  _train(on_round=lambda *arguments: shown.append(arguments))
  assert shown == uninterrupted[1]
  rows = schedule.sample(_OPTIONS, 6, 1)
  clients = np.array(_task().train.client_ids)[rows]
  sizes = [len(_task().train.sets['train'](c)['y']) for c in clients]
  metrics = shown[0][1]
  assert metrics['num_clients'] == 3
  assert metrics['num_examples'] == sum(sizes)
  # The model knew nothing yet when it saw the first batches.
  assert 0.5 < metrics['loss'] < 10
  assert {type(value) for value in metrics.values()} == {float}


class TestSample:
  def test_clients_are_drawn_without_replacement(self):
    for round_num in range(1, 100):
      rows = schedule.sample(_OPTIONS, 6, round_num)
      assert len(set(rows)) == 3
      assert set(rows) <= set(range(6))

  def test_all_clients_are_drawn_equally_often(self):
    drawn = np.concatenate(
      [schedule.sample(_OPTIONS, 6, round_num) for round_num in range(2000)]
    )
    np.testing.assert_allclose(np.bincount(drawn), 1000, rtol=0.1)

  def test_seed_and_round_are_all_that_it_depends_on(self):
    def cohorts(**options):
      options = dataclasses.replace(_OPTIONS, **options)
      return [tuple(schedule.sample(options, 100, r)) for r in range(20)]

    same = dict(
      total_rounds=999,
      batch_size=1,
      client_epochs=5,
      drop_partial_batches=True,
      rounds_per_checkpoint=1,
    )
    assert cohorts(**same) == cohorts()
    assert len(set(cohorts())) == 20
    assert not set(cohorts(seed=6)) & set(cohorts())

  @pytest.mark.parametrize('clients_per_round', [0, 6])
  def test_all_clients_in_order(self, clients_per_round):
    options = dataclasses.replace(_OPTIONS, clients_per_round=clients_per_round)
    rows = schedule.sample(options, 6, 1)
    np.testing.assert_array_equal(rows, range(6))


class TestWhatARoundIsGiven:
  def rounds(self, **options):
    rounds = []
    _train(_recording(_fedadam(), rounds), **options)
    return [clients.stacked for clients in rounds]

  def test_each_client_and_round_has_a_seed_of_its_own(self):
    seeds = np.concatenate([clients['seed'] for clients in self.rounds()])
    assert len(set(map(tuple, seeds))) == 7 * 3

  def test_every_round_has_the_same_shapes(self):
    shapes = [
      tree.map_structure(lambda leaf: tuple(leaf.shape), dict(clients))
      for clients in self.rounds(clients_per_round=2)
    ]
    assert len(shapes) == 7
    assert shapes.count(shapes[0]) == 7

  def test_batches_differ_from_round_to_round_and_from_epoch_to_epoch(self):
    data = [
      clients['data']
      for clients in self.rounds(clients_per_round=0, client_epochs=2)
    ]
    epochs = [
      epoch.tobytes() for own in data for epoch in np.split(own.indices[0], 2)
    ]
    assert len(set(epochs)) == 2 * 7

  def test_an_epoch_has_each_example_once(self):
    data = self.rounds(clients_per_round=0, client_epochs=2)[0]['data']
    for k, client_id in enumerate(_task().train.client_ids):
      size = len(_task().train.sets['train'](client_id)['y'])
      for indices, weights in zip(
        np.split(data.indices[k], 2), np.split(data.mask[k], 2)
      ):
        assert sorted(indices[weights > 0]) == list(range(size))

  def test_batches_that_are_not_full_can_be_left_out(self):
    data = self.rounds(clients_per_round=0, drop_partial_batches=True)[0]
    full = data['data'].mask.sum(axis=2)
    assert set(full.ravel()) <= {0, 4}

  @pytest.mark.parametrize(('batch_size', 'expected'), [(1, 1), (5, 5), (0, 7)])
  def test_the_size_of_a_batch_is_the_tasks_unless_it_is_set(
    self, batch_size, expected
  ):
    task = dataclasses.replace(_task(), batch_size=7)
    rounds = self.rounds(batch_size=batch_size, task=task)
    assert rounds[0]['data'].indices.shape[2] == expected


def test_local_training_takes_no_rounds(tmp_path):
  algorithm = _recording(_build('local'), rounds := [])
  trained = _train(
    algorithm,
    folder=tmp_path,
    on_round=lambda *_: pytest.fail('There was a round.'),
  )
  assert not rounds
  assert not list(tmp_path.iterdir())
  initial = algorithm.initial_state(seeds.pair('model', 5))
  assert _bits(trained.server_state) == _bits(initial)


def test_no_rounds_leave_the_initial_model(tmp_path):
  trained = _train(total_rounds=0, folder=tmp_path)
  initial = _fedadam().initial_state(seeds.pair('model', 5))
  assert _bits(trained.server_state) == _bits(initial)


def test_clients_without_examples_take_no_part_and_are_named():
  task = _with_client(_without_examples)
  trained = _train(
    _recording(_fedadam(), rounds := []), task, clients_per_round=0
  )
  assert trained.skipped_clients == ('train_000002',)
  assert trained.client_ids == tuple(f'train_{k:06d}' for k in (0, 1, 3, 4, 5))
  assert {len(clients) for clients in rounds} == {5}


def test_a_method_for_trained_clients_only_is_refused_new_ones():
  algorithm = dataclasses.replace(
    _recording(_fedadam(), rounds := []), personalizes_new_clients=False
  )
  with pytest.raises(errors.UserError, match='synthetic evaluates clients'):
    _train(algorithm)
  assert not rounds
  _train(algorithm, dataclasses.replace(_task(), cross_silo=True))
  assert len(rounds) == 7


def test_more_clients_a_round_than_there_are():
  with pytest.raises(errors.UserError, match='is 7, but synthetic has 6'):
    _train(_recording(_fedadam(), rounds := []), clients_per_round=7)
  task = _with_client(_without_examples)
  with pytest.raises(errors.UserError, match='is 6, but synthetic has 5'):
    _train(_recording(_fedadam(), rounds), task, clients_per_round=6)
  assert not rounds


def test_nobody_to_train_on():
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
  algorithm = _recording(other(), rounds := [])
  with pytest.raises(checkpoints.CheckpointError) as info:
    _train(algorithm, folder=tmp_path, total_rounds=9)
  assert isinstance(info.value, errors.UserError)
  assert str(tmp_path / 'program_state_7.npz') in str(info.value)
  assert not rounds


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path):
  _train(_recording(_fedadam(), []), folder=tmp_path)
  path = tmp_path / 'program_state_7.npz'
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(errors.UserError, match=str(path)):
    _train(_recording(_fedadam(), []), folder=tmp_path)


@pytest.mark.parametrize('interrupt', [[], [5]], ids=['at_once', 'resumed'])
def test_dropped_clients_are_counted(tmp_path, interrupt):
  task = _with_client(_not_finite)
  trained = _train(
    task=task, clients_per_round=0, interrupt=interrupt, folder=tmp_path
  )
  assert trained.dropped_clients == 7
  assert all(
    np.all(np.isfinite(leaf)) for leaf in tree.flatten(trained.server_state)
  )


class TestClientStates:
  def drawn(self, number):
    """What the client of a number has drawn before its first round."""
    seed = np.array([_OPTIONS.seed, number], np.int32)
    return _with_client_states().initialize_client(seed)['drawn']

  @pytest.mark.parametrize('padded', [True, False])
  def test_a_client_keeps_its_state_from_round_to_round(self, padded):
    task = dataclasses.replace(_task(), padded=padded)
    trained = _train(_with_client_states(), task)
    cohorts = [schedule.sample(_OPTIONS, 6, r) for r in range(1, 8)]
    np.testing.assert_array_equal(
      trained.client_states['rounds'], np.bincount(np.concatenate(cohorts))
    )

  def test_a_client_that_was_never_drawn_has_its_initial_state(self):
    trained = _train(_with_client_states(), total_rounds=1)
    drawn = set(schedule.sample(_OPTIONS, 6, 1))
    for k, state in enumerate(trained.client_states['drawn']):
      assert np.any(state != self.drawn(k)) == (k in drawn)

  def test_an_interrupted_run_ends_as_one_that_was_not(self, tmp_path):
    _assert_same_bits(
      _train(_with_client_states(), interrupt=[3, 5], folder=tmp_path),
      _train(_with_client_states()),
    )

  @pytest.mark.parametrize('padded', [True, False])
  def test_a_client_that_is_dropped_forgets_the_round(self, padded):
    task = _with_client(_not_finite, padded=padded)
    trained = _train(_with_client_states(), task, clients_per_round=0)
    rounds = trained.client_states['rounds']
    np.testing.assert_array_equal(rounds, [7, 7, 0, 7, 7, 7])

  def test_the_states_of_some_clients_and_of_some_that_were_held_out(self):
    trained = _train(_with_client_states())
    # The numbers of those that were held out come after the 6 trained ones.
    states = training.client_states(
      trained,
      _with_client_states(),
      ['new', 'train_000004', 'train_000001', 'other', 'other'],
      _OPTIONS.seed,
      first_row=10,
    )
    drawn = trained.client_states['drawn']
    np.testing.assert_array_equal(
      states['drawn'],
      [self.drawn(16), drawn[4], drawn[1], self.drawn(19), self.drawn(19)],
    )
    rounds = trained.client_states['rounds']
    np.testing.assert_array_equal(
      states['rounds'], [0, rounds[4], rounds[1], 0, 0]
    )

  def test_trained_clients_alone_have_the_states_they_ended_with(self):
    trained = _train(_with_client_states())
    client_ids = trained.client_ids[::-1]
    states = training.client_states(
      trained, _with_client_states(), client_ids, _OPTIONS.seed
    )
    for name, state in states.items():
      np.testing.assert_array_equal(state, trained.client_states[name][::-1])

  def test_clients_start_apart_and_by_the_seed(self):
    algorithm = _with_client_states()
    states = [
      training.initial_client_states(algorithm, ['a', 'b'], seed)
      for seed in (1, 1, 2)
    ]
    assert _bits(states[0]) == _bits(states[1])
    assert len(set(np.concatenate([s['drawn'] for s in states]).flat)) == 8

  def test_a_method_may_keep_none(self):
    trained = _train(total_rounds=0)
    assert not tree.flatten(trained.client_states)
    states = training.client_states(trained, _fedadam(), ['new'], 5)
    assert not tree.flatten(states)
