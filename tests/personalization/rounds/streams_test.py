"""Private releases share neither noise nor coins; all others share both."""

from collections.abc import Mapping
import dataclasses
import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import registry
from personalization import stages
from personalization.privacy import ways
from personalization.rounds import schedules
from personalization.rounds import streams
from personalization.rounds import training
from tasks import task as tasks
from tasks.data import populations
from tasks.models import linear
from tff_runtimes import cohort

# As many numbers as tell correlated noise from independent noise.
_SIZE = 500
# Independent noise is further apart than this once in a billion pairs.
_LARGEST_CORRELATION = 6.5 / _SIZE**0.5
_MEAN = aggregation.mean()
_SETTINGS = schedules.TrainingSettings(total_rounds=1, clients_per_round=0)


@pytest.fixture(scope='module', autouse=True)
def _context():
  with tff.framework.get_context_stack().install(
    cohort.create_cohort_context(stack=False)
  ):
    yield


def _load(client_id: str) -> populations.Examples:
  rng = np.random.default_rng(int(client_id))
  x = rng.normal(size=[4, _SIZE]).astype(np.float32)
  return {'x': x, 'y': x[:, 0]}


def _task(settings: object = None, cross_silo: bool = False) -> tasks.Task:
  client_ids = [str(k) for k in range(6)]
  sets = {s: _load for s in ('train', 'personalization', 'evaluation')}
  population = populations.Population(client_ids, sets)
  return tasks.Task(
    name='small',
    model=linear.LinearRegression(_SIZE),
    metric='half_squared_error',
    higher_is_better=False,
    train=population,
    validation=population,
    test=population,
    cross_silo=cross_silo,
    batch_size=4,
    padded=False,
    attributes={
      'group': tasks.Attribute('ab', {c: int(c) % 2 for c in client_ids})
    },
    settings=settings,
  )


def _build(name='fedavg', way='gaussian', task=None, how=_SETTINGS, **values):
  """Builds a private method whose updates are zero but for the noise."""
  task = task or _task()
  zero = {'client_learning_rate': 0.0, 'client_weighting': 'uniform'}
  known = registry.settings_names(name)
  settings = {k: v for k, v in (zero | values).items() if k in known}
  method = registry.build(
    name,
    task.model,
    registry.make_settings(name, settings),
    _MEAN,
    ('evaluation',),
    num_clients=len(task.train.client_ids),
    num_groups=2,
  )
  private = {'noise': values.get('noise', 1.0), 'delta': 1e-3}
  made = ways.settings_class(way)(**private)
  return ways.apply(way, made, name, method, task, how)


def _train(method, task=None, how=_SETTINGS):
  """Trains all stages of a method; returns the noise of each release."""
  task, noises = task or _task(), []

  def train(method, _=''):
    stage = stages.prepare(method, task, how, train)
    ended = training.train(stage.method, stage.task, how)
    before = stage.method.initial_state([0, 1])
    for after, start in zip(
      method.models(ended.server_state), stage.method.models(before)
    ):
      moved = np.concatenate(
        [np.ravel(after[n] - start[n]) for n in sorted(after)]
      )
      if moved.any():
        noises.append(moved)
    return ended

  train(method)
  return noises


def _releases() -> Mapping[str, list[np.ndarray]]:
  """Returns the noise of everything that a program can release together."""
  other_rounds = dataclasses.replace(_SETTINGS, batch_size=3)
  other_seed = dataclasses.replace(_SETTINGS, seed=1)
  cycles = dataclasses.replace(
    _SETTINGS, clients_per_round=3, client_sampling='cycles'
  )
  warm = dataclasses.replace(
    _build(), first_models=(_task().model.init([0, 7]),)
  )
  return {
    'fedavg': _train(_build()),
    'another method': _train(_build('fedprox')),
    'with a server of its own': _train(_build('fedavgm')),
    'two models': _train(_build('hypcluster')),
    'two stages': _train(_build('group')),
    'another noise': _train(_build(noise=1.5)),
    'another rate': _train(_build(server_learning_rate=0.5)),
    'another clip that adapts': _train(_build(way='adaptive', noise=0.2)),
    'a tree': _train(_build(way='tree', how=cycles), how=cycles),
    'noise of clients': _train(_build(way='local')),
    'other batches': _train(_build(how=other_rounds), how=other_rounds),
    'another seed': _train(_build(how=other_seed), how=other_seed),
    'other settings of the task': _train(_build(), _task(settings='other')),
    'a warm start': _train(warm),
  }


@functools.cache
def _all_noises():
  return [
    (f'{name}, release {k}', noise)
    for name, noises in _releases().items()
    for k, noise in enumerate(noises)
  ]


def test_no_two_releases_share_noise():
  names, noises = zip(*_all_noises())
  # Chance says how many models of a cluster move.
  assert len(noises) >= 15
  correlations = np.abs(np.corrcoef(noises))
  np.fill_diagonal(correlations, 0)
  first, second = np.unravel_index(correlations.argmax(), correlations.shape)
  pair = names[first], names[second]
  assert correlations.max() < _LARGEST_CORRELATION, pair


def test_the_same_release_has_the_same_noise():
  (first,), (again,) = _train(_build()), _train(_build())
  np.testing.assert_array_equal(first, again)
  longer = dataclasses.replace(_SETTINGS, total_rounds=3)
  assert streams.find_for_training(
    _build(how=longer), _task(), longer
  ) == streams.find_for_training(_build(), _task(), _SETTINGS)


def _draws(method, how):
  schedule = training.make_schedule(method, _task(), how)
  return [schedule.make_round(r)[0].tolist() for r in range(1, 40)]


def test_coins_of_private_trainings_are_their_own():
  how = dataclasses.replace(
    _SETTINGS, clients_per_round=3, client_sampling='poisson'
  )
  private = [
    _build(name, how=how).replace_trainer(_build(name, how=how).trainer)
    for name in ('fedavg', 'fedprox')
  ]
  first, second = (_draws(method, how) for method in private)
  assert first != second
  public = [dataclasses.replace(method, guarantee=None) for method in private]
  first, second = (_draws(method, how) for method in public)
  assert first == second


def test_silos_add_noise_of_their_own_in_each_release():
  task = _task(cross_silo=True)
  keys = {
    streams.find_for_evaluation(
      _build(name, 'example', task, **values), task, _SETTINGS
    )
    for name, values in (
      ('fedavg', {}),
      ('ditto', {}),
      ('finetuning', {}),
      ('finetuning', dict(finetuning_epochs=3)),
      ('fedavg', dict(noise=2.0)),
    )
  }
  assert len(keys) == 5
  public = registry.build(
    'fedavg',
    task.model,
    registry.make_settings('fedavg', {}),
    _MEAN,
    ('evaluation',),
  )
  assert streams.find_for_evaluation(public, task, _SETTINGS) == (0,)
  assert streams.find_for_training(public, task, _SETTINGS) == (0,)
