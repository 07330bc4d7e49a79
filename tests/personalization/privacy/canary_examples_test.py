"""Canaries in a silo: what is seen of them, beside its guarantee."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from algorithms import aggregation
from algorithms import registry
from algorithms.privacy import private_steps
from base import errors
from personalization.privacy import canary_clients
from personalization.privacy import canary_examples
from personalization.privacy import one_run
from personalization.privacy import ways
from personalization.rounds import schedules
from personalization.rounds import training
from tasks.data import populations
from tests.algorithms import helpers
from tests.personalization.privacy import linear_tasks

_FEATURES = 600
_CANARIES = 256
_DELTA = 1e-5


@functools.cache
def _task():
  silos = populations.Population(['a', 'b'], {'train': lambda _: {}})
  return linear_tasks.make(silos, _FEATURES)


def _method(name='fedavg'):
  known = registry.settings_names(name)
  values = {'client_learning_rate': 1e-3, 'client_weighting': 'uniform'}
  settings = registry.make_settings(
    name, {n: value for n, value in values.items() if n in known}
  )
  return registry.build(name, _task().model, settings, aggregation.mean(), ())


def _train(noise, is_in, poisson=False):
  """Trains with canaries; returns their scores, and the claimed ε."""
  task = canary_examples.make_task(_task(), is_in)
  size = len(is_in) // (4 if poisson else 1)
  settings = schedules.TrainingSettings(
    total_rounds=3,
    clients_per_round=0,
    batch_size=size,
    poisson_batches=poisson,
  )
  method = ways.apply(
    'example',
    ways.ExampleSettings(noise=noise, clip=0.5, delta=_DELTA),
    'fedavg',
    canary_examples.add_to_method(_method()),
    task,
    settings,
  )
  with helpers.use_runtime('cohort'):
    before = method.initial_state([0, 1])
    trained = training.train(method, task, settings)
  (first,), (last,) = map(method.models, (before, trained.server_state))
  scores, _ = canary_clients.scores(first, last, len(is_in))
  return scores, method.guarantee.epsilon


def test_without_noise_each_is_seen_as_long_as_the_clip():
  is_in = np.arange(20) % 3 > 0
  scores, _ = _train(0.0, is_in)
  # In each of 3 rounds: the rate, times the clip, by the size of the batch.
  np.testing.assert_allclose(
    scores, is_in * 3 * 1e-3 * 0.5 / 20, rtol=1e-3, atol=1e-9
  )


def _bounds(noise, poisson=False):
  is_in = np.random.default_rng(0).random(_CANARIES) < 0.5
  scores, epsilon = _train(noise, is_in, poisson)
  return (
    one_run.find_bound(scores, is_in, _DELTA).epsilon,
    one_run.find_normal_bound(scores, is_in, _DELTA),
    epsilon,
  )


def test_what_is_seen_is_near_the_guarantee():
  bound, normal_bound, epsilon = _bounds(2.0)
  assert bound < epsilon
  assert 0.4 * epsilon < normal_bound < epsilon


def test_with_poisson_batches_no_more_is_seen_than_is_guaranteed():
  bound, normal_bound, epsilon = _bounds(0.5, poisson=True)
  assert bound < epsilon
  assert 0.0 < normal_bound < epsilon


def _without_clip(share_of_square, square, clip):
  return share_of_square(square, 1e3 * clip)


def _with_half_of_the_noise(normal, protection, like):
  return {name: leaf / 2 for name, leaf in normal(protection, like).items()}


@pytest.mark.parametrize(
  ('name', 'fault'),
  [('_share_of_square', _without_clip), ('_normal', _with_half_of_the_noise)],
)
def test_a_fault_is_seen(monkeypatch, name, fault):
  right = getattr(private_steps, name)
  monkeypatch.setattr(private_steps, name, functools.partial(fault, right))
  _, normal_bound, epsilon = _bounds(2.0)
  assert normal_bound > epsilon


def test_the_gradient_is_the_direction():
  model = canary_examples.add_to_method(_method()).trainer.model
  weights = model.init([0, 1])
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = model.mean_loss(weights, {'canary': tf.constant([3])}, tf.ones([1]))
  for name, slope in tape.gradient(loss, weights).items():
    expected = canary_clients.direction(weights, 3)[name]
    np.testing.assert_allclose(slope / canary_clients.LENGTH, expected)


def test_a_method_without_a_global_model_is_refused():
  with pytest.raises(errors.UserError, match='one global model'):
    canary_examples.add_to_method(_method('hypcluster'))
