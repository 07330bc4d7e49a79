"""Canaries in real trainings: what is seen of them, beside the guarantee."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from algorithms import aggregation
from algorithms import registry
from base import errors
from personalization.privacy import canary_clients
from personalization.privacy import ways
from personalization.rounds import schedules
from personalization.rounds import training
from tasks.data import populations
from tests.algorithms import helpers
from tests.personalization.privacy import linear_tasks

_FEATURES = 10_000
_CANARIES = 300
_DELTA = 1e-5
_MEAN = aggregation.mean()


def _examples(client_id):
  rng = np.random.default_rng(int(client_id))
  x = rng.normal(size=[2, _FEATURES]).astype(np.float32)
  return {'x': x, 'y': np.float32(x[:, 0] + x[:, 1])}


@functools.cache
def _task():
  clients = populations.Population(
    [str(k) for k in range(10)], {'train': _examples}
  )
  return linear_tasks.make(clients, _FEATURES)


@functools.cache
def _watched():
  return canary_clients.add_to_task(_task(), [True] * _CANARIES)


def _method(name='fedavg', **values):
  known = registry.settings_names(name)
  values = dict(client_weighting='uniform', client_learning_rate=1e-6) | values
  of_method = {n: value for n, value in values.items() if n in known}
  return registry.build(
    name, _task().model, registry.make_settings(name, of_method), _MEAN, ()
  )


def _trained(noise):
  """Trains with canaries; returns the estimate and the guarantee."""
  settings = schedules.TrainingSettings(total_rounds=4, clients_per_round=0)
  method = ways.apply(
    'gaussian',
    ways.CentralSettings(noise=noise, clip=0.5, delta=_DELTA),
    'fedavg',
    canary_clients.add_to_method(_method()),
    _watched(),
    settings,
  )
  with helpers.use_runtime('cohort'):
    before = method.initial_state([0, 1])
    trained = training.train(method, _watched(), settings)
  (first,), (last,) = map(method.models, (before, trained.server_state))
  estimate = canary_clients.estimate(first, last, _CANARIES, _DELTA)
  return estimate, method.guarantee.epsilon


@pytest.mark.parametrize('noise', [1.5, 3.0])
def test_what_a_training_tells_is_near_its_guarantee(noise):
  # All clients in all rounds: the change of the model is one Gaussian release.
  # The estimate is biased up, the more so where ε is small.
  estimate, epsilon = _trained(noise)
  assert 0.6 * epsilon < estimate < 1.6 * epsilon


def test_without_noise_everything_is_told():
  estimate, epsilon = _trained(noise=0.0)
  assert estimate > 100
  assert epsilon == np.inf


def _directions(number, like):
  return np.array(
    [
      np.concatenate(
        [np.ravel(leaf) for leaf in canary_clients.direction(like, k).values()]
      )
      for k in range(number)
    ]
  )


# With fewer weights than directions may have, and with more of them.
_MODELS = [
  {'a': tf.zeros([700]), 'b': tf.zeros([3, 5])},
  {'a': tf.zeros([50_000])},
]


@pytest.mark.parametrize('like', _MODELS, ids=['small', 'large'])
def test_directions_are_orthonormal_and_on_all_parts_of_the_model(like):
  directions = _directions(40, like)
  np.testing.assert_allclose(directions @ directions.T, np.eye(40), atol=1e-6)
  used = np.flatnonzero(directions[0])
  assert len(used) == canary_clients.most(directions.shape[1])
  assert used[-1] > 0.7 * directions.shape[1]


@pytest.mark.parametrize('like', _MODELS, ids=['small', 'large'])
def test_scores_are_the_parts_of_the_change_in_each_direction(like):
  rng = np.random.default_rng(0)
  before, after = (
    {n: rng.normal(size=leaf.shape) for n, leaf in like.items()}
    for _ in range(2)
  )
  found, _ = canary_clients.scores(before, after, 40)
  change = [np.ravel(before[n] - after[n]) for n in sorted(like)]
  expected = _directions(40, like) @ np.concatenate(change)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_canary_that_is_left_out_sends_nothing():
  # Without noise, and with two rounds, one sees who sent.
  is_in = [True, False, False, True]
  settings = schedules.TrainingSettings(total_rounds=2, clients_per_round=0)
  task = canary_clients.add_to_task(_task(), is_in)
  method = ways.apply(
    'gaussian',
    ways.CentralSettings(noise=0.0, clip=0.5, delta=_DELTA),
    'fedavg',
    canary_clients.add_to_method(_method(client_learning_rate=1e-9)),
    task,
    settings,
  )
  with helpers.use_runtime('cohort'):
    before = method.initial_state([0, 1])
    trained = training.train(method, task, settings)
  (first,), (last,) = map(method.models, (before, trained.server_state))
  found, _ = canary_clients.scores(first, last, 4)
  expected = np.where(is_in, 2 * 0.5 / 14, 0)
  np.testing.assert_allclose(found, expected, atol=1e-4)


def test_trainers_of_several_models_are_refused():
  with pytest.raises(errors.UserError, match='one global model'):
    canary_clients.add_to_method(_method('hypcluster'))
