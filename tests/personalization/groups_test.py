"""Groups that are found: planted ones, and those of optimal bipartitions."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import itertools

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import methods
from algorithms import registry
from base import errors
from personalization import groups
from personalization import stages
from personalization.judgement import evaluation
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import task as tasks
from tasks.data import populations
from tasks.models import linear
from tff_runtimes import cohort

_SETTINGS = schedules.TrainingSettings(total_rounds=20, clients_per_round=0)
# A linear function for each planted group.
_PLANTED = np.float32([[2, -1, 0.5], [-2, 1, 0.5]])
_MEAN = aggregation.mean()


@pytest.fixture(name='cohort_context', scope='module', autouse=True)
def _cohort_context() -> Iterator[None]:
  context = cohort.create_cohort_context(trust_xla=True)
  with tff.framework.get_context_stack().install(context):
    yield


def _load(client_id: str) -> populations.Examples:
  k = int(client_id.rpartition('_')[2])
  rng = np.random.default_rng(k)
  x = rng.normal(size=[24 + k % 3, 3]).astype(np.float32)
  return {'x': x, 'y': x @ _PLANTED[k % len(_PLANTED)]}


def _group(client_id: str) -> int:
  return int(client_id.rpartition('_')[2]) % len(_PLANTED)


def _make_task(train: Sequence[str]) -> tasks.Task:
  held_out = [[f'{kind}_{k}' for k in range(30, 38)] for kind in ('v', 't')]
  sets = populations.halves(_load)
  everybody = [*train, *itertools.chain(*held_out)]
  return tasks.Task(
    name='planted',
    model=linear.LinearRegression(3),
    metric='half_squared_error',
    higher_is_better=False,
    train=populations.Population(train, {'train': _load}),
    validation=populations.Population(held_out[0], sets),
    test=populations.Population(held_out[1], sets),
    cross_silo=False,
    batch_size=5,
    padded=True,
    attributes={
      'group': tasks.Attribute('ab', {c: _group(c) for c in everybody})
    },
  )


_CLIENTS = tuple(f'train_{k}' for k in range(12))


def _build(name: str = 'group', **values) -> methods.Method:
  settings = registry.make_settings(
    name,
    dict(server_optimizer='sgd', server_learning_rate=1.0, group_epochs=15)
    | values,
  )
  model = linear.LinearRegression(3)
  return registry.build(
    name, model, settings, _MEAN, ('evaluation',), num_groups=len(_PLANTED)
  )


_FINDING = {
  'inferred': dict(groups='inferred', num_groups=2),
  'inferred by single linkage': dict(
    groups='inferred', num_groups=2, linkage='single'
  ),
  'hypcluster': dict(groups='hypcluster', num_groups=2, warmstart_rounds=0.0),
}


class _Trainings:
  """Trains each method once."""

  def __init__(self, task: tasks.Task):
    self.task = task
    self.done = {}

  def stage(self, method: methods.Method) -> stages.Stage:
    return stages.prepare(method, self.task, _SETTINGS, self.train)

  def train(self, method: methods.Method, role: str = '') -> training.Trained:
    del role
    key = method.training_key
    if key not in self.done:
      stage = self.stage(method)
      self.done[key] = training.train(stage.method, stage.task, _SETTINGS)
    return self.done[key]


@functools.cache
def _trainings(clients: Sequence[str] = _CLIENTS) -> _Trainings:
  return _Trainings(_make_task(clients))


def _rand_index(found: tasks.Attribute, client_ids: Sequence[str]) -> float:
  return sklearn_metrics.adjusted_rand_score(
    [_group(c) for c in client_ids], found.gather(client_ids)
  )


@pytest.mark.parametrize('finding', list(_FINDING))
def test_planted_groups_are_recovered(finding):
  found = _trainings().stage(_build(**_FINDING[finding])).found
  assert _rand_index(found, _CLIENTS) == 1


@pytest.mark.parametrize('finding', list(_FINDING))
def test_clients_that_were_in_no_training_belong_to_a_group(finding):
  trainings = _trainings()
  found = trainings.stage(_build(**_FINDING[finding])).found
  held_out = [*trainings.task.validation.client_ids]
  held_out += trainings.task.test.client_ids
  assert _rand_index(found, [*_CLIENTS, *held_out]) == 1


def test_the_order_of_clients_changes_no_group():
  backwards = _trainings(_CLIENTS[::-1])
  method = _build(**_FINDING['inferred'])
  first, second = (t.stage(method).found for t in (_trainings(), backwards))
  assert first == second


def test_the_hypcluster_that_finds_groups_is_trained_as_it_is_alone():
  trainings = _trainings()
  method = _build(**_FINDING['hypcluster'])
  trainings.stage(method)
  shared = method.replace_trainer(method.trainer.hypcluster)
  found = trainings.done[shared.training_key].server_state.server.models
  alone = training.train(shared, trainings.task, _SETTINGS)
  for model, expected in zip(found, alone.server_state.server.models):
    for name, weight in expected.items():
      np.testing.assert_array_equal(model[name], weight)


def test_known_groups_are_those_of_the_task():
  trainings = _trainings()
  stage = trainings.stage(_build())
  assert stage.found is None
  assert stage.task is trainings.task


def test_every_group_begins_with_the_global_model():
  trainings = _trainings()
  method = _build()
  expected = trainings.train(method.predecessor).server_state.server.model
  first = trainings.stage(method).method.initial_state([0, 1])
  for model in first.server.models:
    for name, weight in model.items():
      np.testing.assert_array_equal(weight, expected[name])


def test_groups_learn_their_planted_functions():
  trained = _trainings().train(_build(group_epochs=60))
  kernels = [w['kernel'] for w in trained.server_state.server.models]
  np.testing.assert_allclose(kernels, _PLANTED, atol=0.02)


def test_groups_and_fine_tuning_within_them_are_better_than_without():
  trainings = _trainings()
  means = []
  for name in ('fedadam', 'fedadam+finetuning', 'group', 'group+finetuning'):
    values = {}
    if 'group' not in name:
      values = dict(server_optimizer='sgd', server_learning_rate=1.0)
      settings = registry.make_settings(name, values)
      method = registry.build(
        name, trainings.task.model, settings, _MEAN, ('evaluation',)
      )
    else:
      method = _build(name)
    trained = trainings.train(method)
    stage = trainings.stage(method)
    evaluated = evaluation.evaluate(method, trained, stage.task, _SETTINGS)
    means.append(evaluated.test.values['half_squared_error'].mean(0).min())
  fl, per_fl, group_fl, group_per_fl = means
  assert fl > per_fl > group_per_fl
  assert fl > group_fl >= group_per_fl
  # All of them share the global model, and both group methods theirs.
  assert len({id(trained) for trained in trainings.done.values()}) == len(
    trainings.done
  )


def _worst_similarity(cosines: np.ndarray, is_first: np.ndarray) -> float:
  return cosines[np.ix_(is_first, ~is_first)].max()


@pytest.mark.parametrize('seed', range(10))
def test_single_linkage_is_the_optimal_bipartition(seed):
  updates = np.random.default_rng(seed).normal(size=[9, 4])
  directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
  cosines = directions @ directions.T
  best = min(
    _worst_similarity(cosines, np.array([True, *rest]))
    for rest in itertools.product([False, True], repeat=8)
    if not all(rest)
  )
  found = groups.divide(updates, 2, 'single') == 0
  assert _worst_similarity(cosines, found) == pytest.approx(best)


@pytest.mark.parametrize('linkage', ['single', 'complete'])
def test_parting_into_three_is_parting_twice(linkage):
  updates = np.random.default_rng(0).normal(size=[12, 3])
  in_two, in_three = (groups.divide(updates, k, linkage) for k in (2, 3))
  whole = [g for g in range(2) if len(np.unique(in_three[in_two == g])) == 1]
  (split,) = {0, 1} - set(whole)
  parts = groups.divide(updates[in_two == split], 2, linkage)
  assert (
    sklearn_metrics.adjusted_rand_score(parts, in_three[in_two == split]) == 1
  )


def test_groups_are_numbered_by_their_first_clients():
  updates = np.array([[0, 1], [1, 0], [0.1, 1], [-1, -1]])
  np.testing.assert_array_equal(
    groups.divide(updates, 3, 'complete'), [0, 1, 0, 2]
  )


def test_the_length_of_an_update_means_nothing():
  updates = np.array([[0, 1e-6], [9, 0], [1e-3, 5], [1, 0.1]])
  np.testing.assert_array_equal(
    groups.divide(updates, 2, 'complete'), [0, 1, 0, 1]
  )


def test_an_update_belongs_to_the_group_of_the_most_similar_mean():
  means = np.array([[1.0, 1.0], [1.0, -1.0]])
  updates = np.array([[0.1, 0.2], [5.0, -4.0], [np.nan, 1.0]])
  np.testing.assert_array_equal(groups.find_nearest(updates, means), [0, 1, 0])


def test_more_groups_than_clients_are_refused():
  method = _build(groups='inferred', num_groups=13)
  with pytest.raises(errors.UserError, match='12 clients'):
    _trainings().stage(method)


def test_models_for_other_groups_than_the_task_knows_are_refused():
  settings = registry.make_settings('group', {'num_groups': 3})
  task = _make_task(_CLIENTS)
  method = registry.build(
    'group', task.model, settings, _MEAN, ('evaluation',), num_groups=2
  )
  with pytest.raises(errors.UserError, match='knows 2 groups'):
    groups.check(method, task)


def test_a_task_without_groups_can_have_them_found():
  task = dataclasses.replace(_make_task(_CLIENTS), attributes={})
  training.check(_build(**_FINDING['inferred']), task)
  with pytest.raises(errors.UserError, match='needs to know the group'):
    training.check(_build(), task)
