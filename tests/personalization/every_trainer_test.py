"""Every trainer runs to a result, in silos and on devices."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
import tensorflow_federated as tff

from algorithms import registry
from base import errors
from personalization import stages
from personalization.judgement import evaluation
from personalization.judgement import measurements
from personalization.judgement import outcomes
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import task as tasks
from tasks.data import populations
from tests.algorithms import helpers
from tff_runtimes import cohort

_TRAINING_SETTINGS = schedules.TrainingSettings(
  total_rounds=2, clients_per_round=3, batch_size=4
)
# Settings without which a trainer does not do all that it can.
_SETTINGS: Mapping[str, Mapping[str, object]] = {
  'group': dict(group_epochs=2),
  'group, inferred': dict(group_epochs=2, groups='inferred', num_groups=2),
  'group, hypcluster': dict(group_epochs=2, groups='hypcluster', num_groups=2),
}
# Those that have nothing for new clients.
_OF_TRAINED_CLIENTS = ('fedamp', 'fedproto', 'mocha')
_NAMES = sorted({*registry.TRAINERS, *_SETTINGS})


@pytest.fixture(scope='module', autouse=True)
def _context() -> Iterator[None]:
  # Few clients take longer to compile than to compute.
  with tff.framework.get_context_stack().install(
    cohort.create_cohort_context(stack=False)
  ):
    yield


def _load(client_id: str) -> populations.Examples:
  k = int(client_id)
  rng = np.random.default_rng(k)
  x = rng.normal(size=[8 + k % 3, 3]).astype(np.float32)
  return {'x': x, 'y': (x @ rng.normal(size=3)).astype(np.float32)}


def _task(name: str, cross_silo: bool) -> tasks.Task:
  everybody = [str(k) for k in range(12)]
  # As many are trained in both, which thus share their training programs.
  train, *held_out = everybody[:6], everybody[6:9], everybody[9:]
  if cross_silo:
    held_out = [train] * 2
    sets = {s: _load for s in ('train', 'personalization', 'evaluation')}
  else:
    sets = populations.halves(_load)

  def population(client_ids: Sequence[str]) -> populations.Population:
    return populations.Population(client_ids, sets)

  model = helpers.model_for(name)
  (metric,) = model.metrics
  return tasks.Task(
    name='small',
    model=model,
    metric=metric,
    higher_is_better=metric == 'accuracy',
    train=populations.Population(train, {'train': _load}),
    validation=population(held_out[0]),
    test=population(held_out[1]),
    cross_silo=cross_silo,
    batch_size=4,
    padded=False,
    attributes={
      'group': tasks.Attribute('ab', {c: int(c) % 2 for c in everybody})
    },
  )


def _result(trainer: str, cross_silo: bool) -> outcomes.Outcome:
  """Trains, personalizes and evaluates, and returns the outcome."""
  name = trainer.partition(',')[0]
  task = _task(name, cross_silo)
  method = registry.build(
    name,
    task.model,
    registry.make_settings(
      name, helpers.small(name) | _SETTINGS.get(trainer, {})
    ),
    helpers.MEAN,
    measurements.evaluation_sets(task),
    num_clients=len(task.train.client_ids),
    num_groups=2,
  )
  training.check(method, task)

  def stage(method):
    return stages.prepare(
      method, task, _TRAINING_SETTINGS, lambda m, _: train(stage(m))
    )

  def train(stage):
    return training.train(stage.method, stage.task, _TRAINING_SETTINGS)

  prepared = stage(method)
  evaluated = evaluation.evaluate(
    prepared.method,
    train(prepared),
    prepared.task,
    _TRAINING_SETTINGS,
  )
  return outcomes.Outcome(evaluated, prepared.task)


@pytest.mark.parametrize('cross_silo', [True, False], ids=['silos', 'devices'])
@pytest.mark.parametrize('trainer', _NAMES)
def test_runs_to_a_result(trainer, cross_silo):
  if trainer in _OF_TRAINED_CLIENTS and not cross_silo:
    with pytest.raises(errors.UserError, match='only clients that it was'):
      _result(trainer, cross_silo)
    return
  outcome = _result(trainer, cross_silo)
  assert outcome.test.values.shape == (6 if cross_silo else 3,)
  assert np.isfinite(outcome.test.values).all()
