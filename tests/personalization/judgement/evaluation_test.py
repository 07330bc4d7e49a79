"""Tests of the evaluation on held-out examples."""

import collections
from collections.abc import Iterator
import dataclasses
import functools
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from algorithms import aggregation
from algorithms import registry as algorithm_registry
from base import errors
from personalization.judgement import evaluation
from personalization.judgement import measurements
from personalization.judgement import outcomes
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import registry as task_registry
from tasks import task as tasks
from tasks.data import populations
from tasks.models import linear
from tests import computations
from tests import data as test_data
from tff_runtimes import cohort
from tff_runtimes import values

_METRIC = 'half_squared_error'
_MODEL = linear.LinearRegression(3)
_EPOCHS = 3
_RATE = 0.1
_OPTIONS = schedules.TrainingSettings(batch_size=4, clients_per_round=0, seed=5)
# The weights that training has ended with: a kernel, and a bias.
_WEIGHTS = np.array([0.3, -0.2, 0.5, 0.1], np.float32)


# One object for all methods, as programs are shared by methods that have the
# same aggregator.
_MEAN = aggregation.mean()


@pytest.fixture(name='cohort_context', scope='module', autouse=True)
def _cohort_context() -> Iterator[None]:
  context = cohort.create_cohort_context(trust_xla=True)
  with tff.framework.get_context_stack().install(context):
    yield


def _population(sizes, seed=0):
  """Clients with given numbers of examples in each set."""
  examples = {}
  for i, (client_id, sets) in enumerate(sizes.items()):
    for j, (name, n) in enumerate(sets.items()):
      rng = np.random.default_rng([seed, i, j])
      x = rng.normal(size=[n, 3]).astype(np.float32)
      examples[name, client_id] = {'x': x, 'y': x[:, 0] + np.float32(i)}

  def loader(name):
    return lambda client_id: examples[name, client_id]

  names = next(iter(sizes.values()))
  return populations.Population(
    tuple(sizes), {name: loader(name) for name in names}
  )


def _sizes(prefix, sizes):
  """Numbers of examples to adapt to and to be judged by."""
  return {
    f'{prefix}{k}': dict(personalization=n, evaluation=m)
    for k, (n, m) in enumerate(sizes)
  }


def _task(**changes):
  """A cross-device task; 'v1', 't2' and 't3' lack examples."""
  fields = dict(
    name='linear',
    model=_MODEL,
    metric=_METRIC,
    higher_is_better=False,
    train=_population({'a': {'train': 5}, 'b': {'train': 7}}),
    validation=_population(
      _sizes('v', [(5, 3), (4, 0), (9, 2), (1, 1)]), seed=1
    ),
    test=_population(
      _sizes('t', [(4, 6), (11, 1), (0, 4), (3, 0), (2, 2), (8, 5), (6, 3)]),
      seed=2,
    ),
    cross_silo=False,
    batch_size=4,
    padded=True,
  )
  return tasks.Task(**(fields | changes))


def _cross_silo_task(**changes):
  """Clients each with examples of three kinds; 'c2' lacks those to test."""
  sizes = {
    f'c{k}': dict(zip(('train', 'validation', 'test'), counts))
    for k, counts in enumerate([(5, 3, 2), (9, 2, 4), (4, 4, 0), (7, 1, 3)])
  }
  clients = _population(sizes)

  def population(**sets):
    return populations.Population(
      clients.client_ids,
      {name: clients.sets[part] for name, part in sets.items()},
    )

  return _task(
    train=population(train='train'),
    validation=population(personalization='train', evaluation='validation'),
    test=population(personalization='train', evaluation='test'),
    cross_silo=True,
    **changes,
  )


_SETTINGS = {
  'finetuning': {
    'finetuning_epochs': _EPOCHS,
    'finetuning_learning_rates': [_RATE],
  }
}


@functools.cache
def _build(name='finetuning', sets=('evaluation',), **settings):
  return algorithm_registry.build(
    name,
    _MODEL,
    algorithm_registry.make_settings(name, _SETTINGS.get(name, {}) | settings),
    _MEAN,
    sets,
  )


def _trained(algorithm, weights=_WEIGHTS, states=None):
  """What training ended with, if it was with these weights."""
  state = algorithm.initial_state([0, 1])
  model = collections.OrderedDict(kernel=weights[:3], bias=weights[3])
  state = state._replace(server=state.server._replace(model=model))
  states = states or training.make_client_states(algorithm, ('a', 'b'), 5)
  return training.Trained(state, states, 0, ())


def _evaluate(algorithm=None, task=None, options=_OPTIONS, **arguments):
  task = task or _task()
  algorithm = algorithm or _build(sets=measurements.evaluation_sets(task))
  return evaluation.evaluate(
    algorithm, _trained(algorithm), task, options, **arguments
  )


def _error(weights, examples):
  """Half the mean squared error; no number if there are no examples."""
  if not len(examples['y']):
    return np.nan
  residuals = examples['x'] @ weights[:3] + weights[3] - examples['y']
  return 0.5 * np.mean(np.square(residuals))


def _evaluate_by_hand(
  population, client_ids, sets=('evaluation',), batch_size=4
):
  """The errors after 0, 1, … epochs of SGD: {set: [clients, epochs + 1]}."""
  results = {name: [] for name in sets}
  for client_id in client_ids:
    examples = {name: load(client_id) for name, load in population.sets.items()}
    x, y = (examples['personalization'][name] for name in ('x', 'y'))
    x = np.append(x, np.ones([len(x), 1]), axis=1)
    weights = np.array(_WEIGHTS, np.float64)
    for name in sets:
      results[name].append([_error(weights, examples[name])])
    for _ in range(_EPOCHS):
      for first in range(0, len(y), batch_size):
        batch = slice(first, first + batch_size)
        residuals = x[batch] @ weights - y[batch]
        weights -= _RATE * x[batch].T @ residuals / len(residuals)
      for name in sets:
        results[name][-1].append(_error(weights, examples[name]))
  return results


def _assert_close(first, second):
  np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)


_VALIDATION, _TEST = ('v0', 'v2', 'v3'), ('t0', 't1', 't4', 't5', 't6')


@pytest.fixture(name='result', scope='module')
def _result(cohort_context) -> evaluation.Evaluation:
  del cohort_context
  return _evaluate()


def test_all_candidates_of_each_client_against_the_same_by_hand(result):
  assert [str(candidate) for candidate in result.candidates] == [
    '0 epochs',
    '1 epoch',
    '2 epochs',
    '3 epochs',
  ]
  assert result.baseline == 0
  for metrics, population, client_ids in (
    (result.validation, _task().validation, _VALIDATION),
    (result.test, _task().test, _TEST),
  ):
    assert metrics.client_ids == client_ids
    expected = _evaluate_by_hand(population, client_ids)['evaluation']
    _assert_close(metrics.values[_METRIC], expected)
    _assert_close(metrics.values['loss'], expected)


def test_who_diverged_is_judged_by_no_metric_but_counted():
  metrics = evaluation.ClientMetrics(
    ('a', 'b'),
    {
      'accuracy': (np.array([[1.0, 2], [0, 1]]), np.full([2, 2], 2.0)),
      'loss': (np.array([[1.0, 2], [np.inf, 1]]), np.full([2, 2], 2.0)),
      'diverged': np.array([[0, 1], [0, 0]]),
    },
  )
  assert metrics.names == ('accuracy', 'loss')
  np.testing.assert_array_equal(
    metrics.values['accuracy'], [[0.5, np.nan], [0, 0.5]]
  )
  np.testing.assert_array_equal(
    metrics.values['loss'], [[0.5, np.nan], [np.nan, 0.5]]
  )
  assert metrics.weights['accuracy'].tolist() == [2, 2]
  everybody = np.array([True, True])
  assert metrics.pooled('accuracy', everybody, np.array([0, 1])) == 0.5
  assert np.isnan(metrics.pooled('accuracy', everybody, np.array([1, 1])))


def test_whatever_comes_of_a_training_that_diverged_is_no_number(result):
  algorithm = _build()
  trained = dataclasses.replace(_trained(algorithm), diverged=True)
  diverged = evaluation.evaluate(algorithm, trained, _task(), _OPTIONS)
  assert diverged.test.client_ids == result.test.client_ids
  for metrics in (diverged.validation, diverged.test):
    assert np.isnan(metrics.values[_METRIC]).all()


def test_a_metric_weighs_by_the_examples_it_is_the_mean_over(result):
  assert set(result.test.weights) == {_METRIC, 'loss'}
  assert result.validation.weights[_METRIC].tolist() == [3, 2, 1]
  assert result.test.weights[_METRIC].tolist() == [6, 1, 2, 5, 3]


def test_clients_that_lack_examples_are_named(result):
  assert result.skipped == ('v1', 't2', 't3')


def test_the_global_model_is_one_candidate():
  result = _evaluate(_build('fedavg'))
  assert [str(candidate) for candidate in result.candidates] == ['global']
  expected = _evaluate_by_hand(_task().test, _TEST)['evaluation']
  _assert_close(result.test.values[_METRIC], np.array(expected)[:, :1])


def test_cross_silo_judges_a_model_by_both_sets_of_its_client():
  task = _cross_silo_task()
  assert measurements.evaluation_sets(task) == ('validation', 'test')
  result = _evaluate(task=task)
  client_ids = ('c0', 'c1', 'c3')
  sets = dict(
    personalization=task.test.sets['personalization'],
    validation=task.validation.sets['evaluation'],
    test=task.test.sets['evaluation'],
  )
  expected = _evaluate_by_hand(
    populations.Population(client_ids, sets),
    client_ids,
    ('validation', 'test'),
  )
  for name in ('validation', 'test'):
    metrics = getattr(result, name)
    assert metrics.client_ids == client_ids
    _assert_close(metrics.values[_METRIC], expected[name])
  assert result.validation.weights[_METRIC].tolist() == [3, 2, 1]
  assert result.test.weights[_METRIC].tolist() == [2, 4, 3]
  assert result.skipped == ('c2',)


def test_cross_silo_personalizes_each_client_once():
  task = _cross_silo_task()
  algorithm, cohorts = _recording(_build(sets=('validation', 'test')))
  _evaluate(algorithm, task)
  assert [len(clients) for clients in cohorts] == [3]


@pytest.mark.parametrize('make', [_task, _cross_silo_task])
def test_validation_clients_alone_are_as_with_the_others(make):
  task = make()
  method = _build(sets=measurements.evaluation_sets(task))
  done: list[int] = []
  found = evaluation.validate(
    method,
    _trained(method),
    task,
    _OPTIONS,
    done.append,
    evaluation.prepare(task),
  )
  expected = _evaluate(method, task).validation
  for metrics in (found.validation, found.test):
    assert metrics.client_ids == expected.client_ids
    np.testing.assert_array_equal(
      metrics.values[_METRIC], expected.values[_METRIC]
    )
  assert sum(done) == len(expected.client_ids)


@pytest.mark.parametrize('cohort_size', [1, 3])
def test_the_size_of_a_cohort_changes_nothing(result, monkeypatch, cohort_size):
  monkeypatch.setattr(evaluation, '_COHORT', cohort_size)
  sizes = []
  other = _evaluate(on_cohort=sizes.append)
  # The last cohort of three has two clients, and one that stands in.
  assert sizes == ([3, 3, 2] if cohort_size == 3 else [1] * 8)
  assert (other.candidates, other.baseline, other.skipped) == (
    result.candidates,
    result.baseline,
    result.skipped,
  )
  for a, b in (
    (other.validation, result.validation),
    (other.test, result.test),
  ):
    assert a.client_ids == b.client_ids
    tree.map_structure(_assert_close, dict(a.values), dict(b.values))
    tree.map_structure(_assert_close, dict(a.weights), dict(b.weights))


def test_cohorts_by_size_change_nothing(monkeypatch):
  monkeypatch.setattr(evaluation, '_COHORT', 3)
  sizes = _sizes('t', [(40, 9), (2, 1), (3, 2), (5, 5), (1, 7), (4, 2)])
  task = _task(test=_population(sizes, seed=2))
  algorithm, seen = _recording(_build())
  _evaluate(algorithm, task)
  assert len({clients['personalization'].mask.shape for clients in seen}) > 1
  by_size = _evaluate(task=task)
  monkeypatch.setattr('personalization.rounds.cohorts._TIMES_LESS', 1000)
  other = _evaluate(task=task)
  assert by_size.test.client_ids == other.test.client_ids == tuple(sizes)
  tree.map_structure(
    _assert_close, dict(by_size.test.values), dict(other.test.values)
  )
  np.testing.assert_array_equal(
    by_size.num_personalization, [n['personalization'] for n in sizes.values()]
  )


@pytest.mark.parametrize(('padded', 'last'), [(True, 3), (False, 2)])
def test_clients_stand_in_only_where_cohorts_are_padded(
  monkeypatch, padded, last
):
  monkeypatch.setattr(evaluation, '_COHORT', 3)
  algorithm, sizes = _build(), []
  original = algorithm.trace(algorithm).personalize

  def personalize(*arguments):
    *_, clients = arguments
    sizes.append(len(clients))
    return original(*arguments)

  _evaluate(
    computations.exchange(algorithm, personalize=personalize),
    _task(padded=padded),
  )
  assert sizes == [3, 3, last]


def test_the_next_cohort_is_prepared_meanwhile(result, monkeypatch):
  monkeypatch.setattr(evaluation, '_COHORT', 1)
  asked = {f't{k}': threading.Event() for k in (0, 1, 4, 5, 6)}
  task = _task()
  load = task.test.sets['personalization']

  def remembering(client_id):
    if client_id in asked:
      asked[client_id].set()
    return load(client_id)

  populations = evaluation.prepare(
    dataclasses.replace(
      task,
      test=dataclasses.replace(
        task.test, sets=task.test.sets | {'personalization': remembering}
      ),
    )
  )
  for event in asked.values():
    event.clear()
  # Three clients to choose by come first.
  following = iter([None, None, None, *list(asked.values())[1:], None])

  def on_cohort(_):
    # It would wait for ever if the next were made when it is asked for.
    coming = next(following)
    assert coming is None or coming.wait(60)

  other = _evaluate(task=task, populations=populations, on_cohort=on_cohort)
  _assert_close(other.test.values[_METRIC], result.test.values[_METRIC])


def test_an_error_in_what_is_prepared_is_raised():
  task = _task()

  def broken(client_id):
    raise MemoryError(client_id)

  sizes = {name: np.full(7, 10) for name in task.test.sets}
  sets = task.test.sets | {'personalization': broken}
  test = populations.Population(task.test.client_ids, sets, sizes)
  with pytest.raises(MemoryError, match='t0'):
    _evaluate(task=dataclasses.replace(task, test=test))
  assert not [t for t in threading.enumerate() if t.name.startswith('prefetch')]


def test_padding_changes_nothing(result):
  other = _evaluate(task=_task(padded=False))
  assert other.test.client_ids == result.test.client_ids
  _assert_close(
    other.validation.values[_METRIC], result.validation.values[_METRIC]
  )
  _assert_close(other.test.values[_METRIC], result.test.values[_METRIC])


def test_the_other_clients_change_nothing(result):
  """A test client is judged the same, whoever else there is."""
  alone = _population(_sizes('t', [(4, 6)]), seed=2)
  other = _evaluate(task=_task(test=alone, validation=alone))
  _assert_close(other.test.values[_METRIC][0], result.test.values[_METRIC][0])


def test_batches_that_are_not_full_can_be_left_out():
  options = dataclasses.replace(_OPTIONS, drop_partial_batches=True)
  result = _evaluate(options=options)
  population = _task().test
  # 't5' has two full batches, and 't6' has one, and two more examples.
  whole = _evaluate_by_hand(population, ['t5'])['evaluation'][0]
  _assert_close(result.test.values[_METRIC][3], whole)

  def first_batch(client_id):
    load = population.sets['personalization']
    return {name: values[:4] for name, values in load(client_id).items()}

  cut = populations.Population(
    ('t6',), population.sets | dict(personalization=first_batch)
  )
  expected = _evaluate_by_hand(cut, ['t6'])['evaluation'][0]
  _assert_close(result.test.values[_METRIC][4], expected)
  # All that a client is judged by still counts.
  assert result.test.weights[_METRIC].tolist() == [6, 1, 2, 5, 3]


@pytest.mark.parametrize('takes_steps', [True, False])
def test_only_steps_leave_out_batches_that_are_not_full(takes_steps):
  options = dataclasses.replace(_OPTIONS, drop_partial_batches=True)
  # kNN-Per takes no steps.
  algorithm, cohorts = _recording(
    _build('finetuning' if takes_steps else 'knn_per')
  )
  _evaluate(algorithm, options=options)
  seen = cohorts[1]['personalization'].mask.sum(axis=(1, 2))
  # Of 4, 11, 2, 8 and 6 examples, in batches of 4.
  assert seen.tolist() == ([4, 8, 2, 8, 4] if takes_steps else [4, 11, 2, 8, 6])


@pytest.mark.parametrize('batch_size', [4, 0])
def test_the_size_of_a_batch_is_the_tasks_unless_it_is_set(batch_size):
  options = dataclasses.replace(_OPTIONS, batch_size=batch_size)
  algorithm, cohorts = _recording(_build())
  _evaluate(algorithm, _task(batch_size=2), options)
  indices = cohorts[0]['personalization'].indices
  assert indices.shape[2] == (batch_size or 2)


def _recording(algorithm):
  """`algorithm` that only records the cohorts that it is to personalize."""
  cohorts = []

  def personalize(*arguments):
    *_, clients = arguments
    cohorts.append(_Stacked(clients.stacked._asdict()))
    total = np.ones([len(clients), len(algorithm.candidates)], np.float32)
    metrics = {_METRIC: (total, total), 'loss': (total, total)}
    return values.StackedClients(
      {name: metrics for name in clients.stacked.evaluation}, len(clients)
    )

  recording = computations.exchange(algorithm, personalize=personalize)
  return recording, cohorts


class _Stacked(dict):
  """What a cohort's clients bring, by part."""

  def __len__(self):
    return len(self['seed'])


@tff.tensorflow.computation(tff.TensorType(np.int32, [2]))
def _initialize_client(seed):
  return collections.OrderedDict(seed=seed)


class TestWhatACohortIsGiven:
  def cohorts(self, monkeypatch, task=None, trained=None, algorithm=None):
    monkeypatch.setattr(evaluation, '_COHORT', 3)
    algorithm, cohorts = _recording(algorithm or _build())
    evaluation.evaluate(
      algorithm,
      trained or _trained(algorithm),
      task or _task(),
      _OPTIONS,
    )
    return cohorts

  def test_all_have_the_same_shapes(self, monkeypatch):
    shapes = [
      tree.map_structure(lambda leaf: tuple(leaf.shape), dict(clients))
      for clients in self.cohorts(monkeypatch)
    ]
    assert len(shapes) == 3
    assert shapes.count(shapes[0]) == 3

  def test_each_client_has_a_seed_of_its_own(self, monkeypatch):
    first, second = (
      clients['seed'] for clients in self.cohorts(monkeypatch)[1:]
    )
    seeds = [*map(tuple, first), *map(tuple, second[:2])]
    assert len(set(seeds)) == 5

  def test_examples_are_in_their_own_order(self, monkeypatch):
    for clients in self.cohorts(monkeypatch):
      evaluation = clients['evaluation']['evaluation']
      for data in (clients['personalization'], evaluation):
        for indices, weights in zip(data.indices, data.mask):
          used = indices[weights > 0]
          assert used.tolist() == list(range(len(used)))

  def test_epochs_are_shuffled_where_a_method_asks_for_it(self, monkeypatch):
    algorithm = _build(finetuning_shuffle=True, finetuning_epochs=4)
    cohorts = self.cohorts(monkeypatch, algorithm=algorithm)
    again = self.cohorts(monkeypatch, algorithm=algorithm)
    for clients, same in zip(cohorts, again):
      data = clients['personalization']
      np.testing.assert_array_equal(
        data.indices, same['personalization'].indices
      )
    # Of 't1' with 11 examples.
    data = cohorts[1]['personalization']
    orders = [
      tuple(indices[weights > 0])
      for indices, weights in zip(
        np.split(data.indices[1], 4), np.split(data.mask[1], 4)
      )
    ]
    assert len(set(orders)) == 4
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(11))}

  def test_a_client_brings_the_state_that_it_has(self, monkeypatch):
    task = _cross_silo_task()
    algorithm = computations.exchange(
      _build(sets=('validation', 'test')),
      initialize_client=_initialize_client,
    )
    # 'c3' has no state, as it had no examples to train on.
    states = training.make_client_states(
      algorithm, ('c2', 'c1', 'c0'), _OPTIONS.seed
    )
    seeds = np.array([[2, 2], [1, 1], [0, 0]], np.int32)
    states.write(range(3), collections.OrderedDict(seed=seeds), 1)
    trained = _trained(algorithm, states=states)
    (clients,) = self.cohorts(monkeypatch, task, trained, algorithm=algorithm)
    # Three have been trained, and two come before it here.
    new = [_OPTIONS.seed, 3 + 2]
    np.testing.assert_array_equal(
      clients['state']['seed'], [[0, 0], [1, 1], new]
    )

  def test_a_client_that_was_held_out_starts_by_its_row(self, monkeypatch):
    algorithm = computations.exchange(
      _build(), initialize_client=_initialize_client
    )
    states = training.make_client_states(algorithm, 'ab', _OPTIONS.seed)
    nothing = np.zeros([2, 2], np.int32)
    states.write(range(2), collections.OrderedDict(seed=nothing), 1)
    trained = _trained(algorithm, states=states)
    cohorts = self.cohorts(monkeypatch, trained=trained, algorithm=algorithm)
    seeds = [clients['state']['seed'].tolist() for clients in cohorts]
    # Two were trained. In the last cohort one client stands in for another.
    rows = [[0, 1, 2], [0, 1, 2], [3, 4, 4]]
    assert seeds == [
      [[_OPTIONS.seed, 2 + row] for row in of_cohort] for of_cohort in rows
    ]


def test_clients_in_whose_examples_nothing_counts_are_left_out():
  """As one that has only sentences in which no word counts."""

  class SomeCount(linear.LinearRegression):
    def judge_scores(self, scores, batch):
      totals, _ = super().judge_scores(scores, batch)[_METRIC]
      counts = tf.cast(batch['x'][:, 0] < 1e3, tf.float32)
      return collections.OrderedDict({_METRIC: (counts * totals, counts)})

  task = _task(model=SomeCount(3))
  load = task.test.sets['evaluation']

  def nothing_counts(client_id):
    examples = load(client_id)
    if client_id == 't4':
      examples = examples | {'x': np.full_like(examples['x'], 1e4)}
    return examples

  test = populations.Population(
    task.test.client_ids, task.test.sets | dict(evaluation=nothing_counts)
  )
  algorithm = algorithm_registry.build(
    'fedavg',
    task.model,
    algorithm_registry.make_settings('fedavg', {}),
    tff.aggregators.MeanFactory(),
    ('evaluation',),
  )
  result = _evaluate(algorithm, dataclasses.replace(task, test=test))
  assert result.test.client_ids == ('t0', 't1', 't5', 't6')
  assert result.skipped == ('v1', 't2', 't3', 't4')
  for metric in result.test.values.values():
    assert metric.shape == (4, 1)
    assert np.all(np.isfinite(metric))
  assert result.test.weights[_METRIC].tolist() == [6, 1, 5, 3]


@pytest.mark.parametrize('part', ['validation', 'test'])
def test_nobody_to_evaluate(part):
  nobody = _population(_sizes('n', [(0, 1), (3, 0)]))
  with pytest.raises(errors.UserError, match=f'no clients for {part}'):
    _evaluate(task=_task(**{part: nobody}))


def test_nobody_in_whose_examples_something_counts():
  class NoneCount(linear.LinearRegression):
    def judge_scores(self, scores, batch):
      del scores
      nothing = tf.zeros_like(batch['y'])
      return collections.OrderedDict({_METRIC: (nothing, nothing)})

  algorithm = algorithm_registry.build(
    'fedavg',
    NoneCount(3),
    algorithm_registry.make_settings('fedavg', {}),
    _MEAN,
    ('evaluation',),
  )
  with pytest.raises(errors.UserError, match=f'on which {_METRIC} can be'):
    _evaluate(algorithm, _task(model=NoneCount(3)))


_MEASURED = measurements.MeasurementSettings(
  ood_examples=1000,  # More than there are.
  evaluation_fractions=(0.5,),
  personalization_fractions=(0.25, 1.0),
  acceptance_margin=0.0,
  acceptance_fraction=0.4,
)


def _measure(task=None, measurement=_MEASURED, options=_OPTIONS):
  task = task or _task()
  algorithm = _build(sets=measurements.evaluation_sets(task, measurement))
  return _evaluate(algorithm, task, options, measurement=measurement)


@pytest.fixture(name='measured', scope='module')
def _measured(cohort_context) -> evaluation.Evaluation:
  del cohort_context
  return _measure()


@pytest.fixture(name='measured_silos', scope='module')
def _measured_silos() -> evaluation.Evaluation:
  # Few clients take longer to compile than to compute.
  context = cohort.create_cohort_context(stack=False)
  with tff.framework.get_context_stack().install(context):
    return _measure(_cross_silo_task(padded=False))


class TestWhatElseIsMeasured:
  def test_it_changes_nothing_else(self, result, measured):
    assert (measured.skipped, measured.candidates) == (
      result.skipped,
      result.candidates,
    )
    for name in ('validation', 'test'):
      one, other = getattr(measured, name), getattr(result, name)
      assert one.client_ids == other.client_ids
      tree.map_structure(_assert_close, dict(one.values), dict(other.values))
      tree.map_structure(_assert_close, dict(one.weights), dict(other.weights))
    assert set(measured.further) == {'part_0.5', 'ood'}
    assert set(measured.partly_personalized) == {0.25, 0.6}

  def test_how_many_examples_clients_adapt_to(self, measured):
    assert measured.num_personalization.tolist() == [4, 11, 2, 8, 6]

  def evaluate_by_hand(self, task, **parts):
    """Errors by hand, of sets that are cut as `parts` say: {set: errors}."""
    population = task.test

    def cut(load, first, last):
      def load_part(client_id):
        examples = load(client_id)
        n = len(examples['y'])
        rows = slice(int(np.ceil(first * n)), int(np.ceil(last * n)))
        return {name: values[rows] for name, values in examples.items()}

      return load_part

    sets = dict(population.sets)
    for name, (source, first, last) in parts.items():
      sets[name] = cut(population.sets[source], first, last)
    return _evaluate_by_hand(
      populations.Population(_TEST, sets),
      _TEST,
      [name for name in sets if name != 'personalization'],
    )

  def test_part_of_each_evaluation_set(self, measured):
    errors_ = self.evaluate_by_hand(_task(), part=('evaluation', 0, 0.5))
    metrics = measured.further['part_0.5']
    _assert_close(metrics.values[_METRIC], errors_['part'])
    # Of 6, 1, 2, 5 and 3.
    assert metrics.weights[_METRIC].tolist() == [3, 1, 1, 3, 2]

  @pytest.mark.parametrize('part', [0.25, 0.6])
  @pytest.mark.parametrize('padded', [True, False])
  def test_personalization_on_part_of_each_set(self, measured, part, padded):
    if not padded:
      measured = _measure(_task(padded=False))
    less = measured.partly_personalized[part]
    errors_ = self.evaluate_by_hand(
      _task(), personalization=('personalization', 0, part)
    )
    assert less.test.client_ids == _TEST
    _assert_close(less.test.values[_METRIC], errors_['evaluation'])
    assert less.test.weights[_METRIC].tolist() == [6, 1, 2, 5, 3]

  def test_what_silos_hold_out(self, measured_silos):
    further = measured_silos.further
    sizes = {
      name: further[name].weights[_METRIC].tolist()
      for name in ('not_held_out', 'held_out')
    }
    # Of 3, 2 and 1 validation examples; the client without test examples is
    # left out.
    assert sizes == {'not_held_out': [2, 2, 1], 'held_out': [1, 0, 0]}

  def test_what_is_held_out(self, measured):
    less = measured.partly_personalized[0.6]
    errors_ = self.evaluate_by_hand(
      _task(),
      personalization=('personalization', 0, 0.6),
      held_out=('personalization', 0.6, 1),
    )
    metrics = less.further['held_out']
    # Of 4, 11, 2, 8 and 6: the third has nothing left, and no number.
    assert metrics.weights[_METRIC].tolist() == [1, 4, 0, 3, 2]
    _assert_close(metrics.values[_METRIC], errors_['held_out'])
    assert np.all(np.isnan(metrics.values[_METRIC][2]))

  def test_out_of_distribution_is_the_examples_of_all_test_clients(
    self, measured
  ):
    load = _task().test.sets['evaluation']
    everything = {
      name: np.concatenate([load(client_id)[name] for client_id in _TEST])
      for name in ('x', 'y')
    }
    population = populations.Population(
      _TEST, _task().test.sets | dict(ood=lambda _: everything)
    )
    metrics = measured.further['ood']
    expected = _evaluate_by_hand(population, _TEST, ['ood'])['ood']
    _assert_close(metrics.values[_METRIC], expected)
    assert set(metrics.weights[_METRIC]) == {6 + 1 + 2 + 5 + 3}

  def test_out_of_distribution_in_silos_is_of_test_examples(
    self, measured_silos
  ):
    weights = measured_silos.further['ood'].weights[_METRIC]
    assert set(weights) == {2 + 4 + 3}

  def test_the_sample_follows_from_the_seed(self):
    few = measurements.MeasurementSettings(ood_examples=5)
    first, again, other = (
      evaluation.prepare(_task(), measurement=few, seed=seed)['test',]
      .examples(measurements.OOD, np.arange(5))['y']
      .numpy()
      for seed in (5, 5, 6)
    )
    # The same five for each of five clients.
    assert first.shape == (5, 5)
    assert set(map(tuple, first)) == {tuple(first[0])}
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)

  @pytest.mark.parametrize('name', ['fedavg', 'knn_per'])
  def test_methods_without_steps_can_be_measured(self, name):
    """Such methods pick a model, or keep the examples themselves."""
    sets = measurements.evaluation_sets(_task(), _MEASURED)
    # Few clients take longer to compile than to compute.
    context = cohort.create_cohort_context(stack=False)
    with tff.framework.get_context_stack().install(context):
      result = _evaluate(
        _build(name, sets), _task(padded=False), measurement=_MEASURED
      )
    assert set(result.further) == {'part_0.5', 'ood'}
    assert np.all(np.isfinite(result.further['ood'].values[_METRIC]))


# As presets/school.toml has them, and the error they lead to.
_SCHOOL = {
  'fedavg': (dict(client_learning_rate=0.03), 0.0130),
  'local': (
    dict(
      finetuning_epochs=500,
      finetuning_learning_rates=[0.03],
      finetuning_shuffle=True,
    ),
    0.0121,
  ),
  'finetuning': (
    dict(
      client_learning_rate=0.03,
      finetuning_epochs=100,
      finetuning_learning_rates=[0.03],
      finetuning_shuffle=True,
    ),
    0.0116,
  ),
}


_SCHOOL_OPTIONS = schedules.TrainingSettings(
  total_rounds=500,
  clients_per_round=0,
  batch_size=32,
  drop_partial_batches=True,
  seed=100,
)


@pytest.fixture(name='school', scope='module')
def _school(cohort_context):
  """The task, and a function that trains once for methods that share it."""
  del cohort_context
  folder = test_data.path('school/school.mat').parents[1]
  task = task_registry.load('school', data_dir=str(folder), seed=100)
  done = {}

  def train(method):
    if method.training_key not in done:
      trained = training.train(method, task, _SCHOOL_OPTIONS)
      done[method.training_key] = trained
    return done[method.training_key]

  return task, train


@pytest.mark.parametrize('name', _SCHOOL)
def test_school(name, school):
  """Motley's errors on School, table 5, and its split."""
  task, train = school
  settings, expected = _SCHOOL[name]
  algorithm = algorithm_registry.build(
    name,
    task.model,
    algorithm_registry.make_settings(name, settings),
    _MEAN,
    measurements.evaluation_sets(task),
  )
  trained = train(algorithm)
  result = evaluation.evaluate(algorithm, trained, task, _SCHOOL_OPTIONS)
  summary = outcomes.Outcome(result, task).test.summary
  assert summary.num_clients == 139
  assert summary.mean == pytest.approx(expected, abs=0.0006)
