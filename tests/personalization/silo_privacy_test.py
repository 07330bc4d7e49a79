"""The protection of silos: what is drawn, what is paid, and what is refused."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from algorithms import private_steps
from algorithms import registry
from algorithms import runtime_inputs
from algorithms import trainers
from base import errors
from personalization import evaluation
from personalization import privacy
from personalization import schedules
from personalization import silo_privacy
from personalization import training
from tasks import synthetic
from tasks import task as tasks
from tasks.data import silos
from tasks.models import linear
from tests.algorithms import helpers

_SIZES = (9, 4, 30)


@pytest.fixture(autouse=True)
def _context():
  with helpers.on('cohort'):
    yield


_EPSILON = privacy.ExampleSettings(epsilon=6.0, delta=1e-3)


class _InTurns(linear.LinearRegression):
  """A model whose gradients are taken one by one, which is fast untraced."""

  has_small_gradients = False


def _task(sizes=_SIZES, model=helpers.MODEL):
  """A cross-silo task, of which all parts of a silo are the same examples."""
  clients = {
    f'silo_{k}': {
      part: helpers.data(k, size).examples
      for part in ('train', 'validation', 'test')
    }
    for k, size in enumerate(sizes)
  }
  return tasks.Task(
    name='toy',
    model=model,
    metric='half_squared_error',
    higher_is_better=False,
    batch_size=4,
    padded=True,
    **silos.make_populations(clients),
  )


def _how(**values):
  own = dict(total_rounds=3, clients_per_round=0, drop_partial_batches=True)
  return schedules.TrainingSettings(**own | values)


def _method(name, own=_EPSILON, task=None, how=None, **values):
  task = task or _task()
  method = registry.build(
    name,
    task.model,
    registry.make_settings(name, values),
    helpers.MEAN,
    ('validation', 'test'),
    num_clients=len(_SIZES),
    num_groups=2,
  )
  return silo_privacy.make_example(own, method, task, how or _how())


@pytest.fixture(name='drawn')
def _drawn(monkeypatch):
  """Lists the places in the random numbers that noise is drawn from."""
  drawn = {'steps': [], 'choices': []}

  def spy(name, kind, place):
    function = getattr(private_steps, name)

    def call(first, *rest):
      own = place(first)
      if own is not None:
        found = own.part if kind == 'steps' else -1
        drawn[kind].append((*map(int, own.seed), int(found), int(own.step)))
      return function(first, *rest)

    monkeypatch.setattr(private_steps, name, call)

  spy('_normal', 'steps', lambda own: own)
  spy('with_noise_of_choice', 'choices', lambda model: model.protection)
  return drawn


def _work(method, own, num_rounds):
  """Does all of a client's work, without TFF, so that it can be watched."""
  numbers = runtime_inputs.numbers(method.trainer.settings)
  trainer = method.trainer.bind(tf.nest.map_structure(tf.constant, numbers))
  server = trainer.initialize(tf.constant([0, 1]))
  data = tf.nest.map_structure(tf.constant, own)
  size = np.array([len(own.examples['y'])])
  state = trainer.initialize_client(tf.constant([0, 1]))
  attributes = {
    tasks.SIZE: tf.constant(int(size[0])),
    tasks.PROTECTION: tf.constant(method.protections.of_sizes(size)[0]),
  }

  def client(seed):
    return trainers.Client(data, state, tf.constant([1, seed]), attributes)

  for round_num in range(num_rounds if method.trains else 0):
    if hasattr(server, 'round'):
      server = server._replace(round=tf.constant(round_num))
    bound = trainer.protect(client(round_num))
    result = bound.client(bound.message(server), client(round_num))
    state = state if result.state is None else result.state
  bound = trainer.protect(client(99))
  numbers = runtime_inputs.numbers(method.personalizer.settings)
  personalizer = method.personalizer.bind(bound, numbers)
  start = bound.start(bound.message(server), client(99))
  personalizer.personalize(start, client(99), {'test': data})


_QUICK = {
  'ditto': dict(personal_epochs=2),
  'finetuning': dict(finetuning_epochs=2, finetuning_learning_rates=(0.1, 0.2)),
  'hypcluster': dict(warmstart_rounds=1.0, num_clusters=3),
  'hypcluster+finetuning': dict(finetuning_epochs=2),
  'local': dict(finetuning_epochs=3),
}
_NAMES = (*registry.short_names(), 'hypcluster+finetuning')
_PROTECTED = (
  'ditto',
  'ensemble',
  'fedadam',
  'fedavg',
  'fedavgm',
  'fedprox',
  'finetuning',
  'hypcluster',
  'hypcluster+finetuning',
  'local',
  'mocha',
  'mr_mtl',
)


@pytest.mark.parametrize('name', _PROTECTED)
def test_all_noise_is_drawn_once_and_paid_for(name, drawn):
  task = _task(model=_InTurns(3))
  method = _method(name, task=task, **_QUICK.get(name, {}))
  own = helpers.data(0, 8)  # Two batches.
  _work(method, own, 3)
  uses = method.protections.uses
  assert len(drawn['steps']) == 2 * uses.passes
  assert len(drawn['choices']) == uses.choices
  everything = drawn['steps'] + drawn['choices']
  assert len(set(everything)) == len(everything)
  assert uses.passes > 0


@pytest.mark.parametrize('name', sorted({*_NAMES} - {*_PROTECTED}))
def test_a_method_with_unknown_uses_is_refused(name):
  with pytest.raises(errors.UserError):
    _method(name)


@pytest.mark.parametrize('name', ['fedavg', 'ditto', 'mr_mtl', 'mocha'])
def test_without_clip_and_noise_it_is_the_method_itself(name):
  task, how = _task(), _how()
  own = dataclasses.replace(_EPSILON, epsilon=None, noise=1e-9, clip=1e4)
  results = []
  for method in (_method(name, own), _unprotected(name)):
    trained = training.train(method, task, how)
    evaluated = evaluation.evaluate(method, trained, task, how)
    results.append(evaluated.test.values['half_squared_error'])
  np.testing.assert_allclose(*results, rtol=2e-3)


def _unprotected(name):
  return registry.build(
    name,
    helpers.MODEL,
    registry.make_settings(name, {}),
    helpers.MEAN,
    ('validation', 'test'),
    num_clients=len(_SIZES),
  )


@pytest.mark.parametrize('runtime', ['cohort', 'native'])
def test_each_silo_has_noise_of_its_size(runtime):
  # Labels and features of zero have no gradient: what moves a model is noise.
  task = _task([8, 8, 40], linear.LinearRegression(3))
  zero = dict(x=np.zeros([40, 500], 'f4'), y=np.zeros(40, 'f4'))
  clients = {
    f'silo_{k}': {
      part: {name: leaf[:size] for name, leaf in zero.items()}
      for part in ('train', 'validation', 'test')
    }
    for k, size in enumerate((8, 8, 40))
  }
  task = dataclasses.replace(
    task,
    model=linear.LinearRegression(500),
    **silos.make_populations(clients),
  )
  how = _how(total_rounds=1)
  method = _method(
    'mr_mtl', task=task, how=how, client_learning_rate=1.0, regularization=0.0
  )
  with helpers.on(runtime):
    trained = training.train(method, task, how)
  models = trained.client_states.read([0, 1, 2]).personal['kernel']
  z_8, _, z_40 = method.protections.of_sizes(np.array([8, 8, 40]))[:, 1]
  deviations = np.asarray(models).std(axis=1)
  # Two steps, or ten, each of z S / B_k.
  expected = [z_8 / 4 * 2**0.5] * 2 + [z_40 / 4 * 10**0.5]
  np.testing.assert_allclose(deviations, expected, rtol=0.1)
  assert np.abs(np.corrcoef(models) - np.eye(3)).max() < 0.2


def test_both_runtimes_draw_the_same_noise():
  task, how = _task(), _how()
  states = []
  for runtime in ('cohort', 'native'):
    method = _method('hypcluster')
    with helpers.on(runtime):
      states.append(
        training.train(method, task, how).server_state.server.models
      )
  helpers.assert_close(*states)


def test_one_program_serves_all_noises():
  keys = {
    _method('fedavg', dataclasses.replace(_EPSILON, epsilon=e)).structure
    for e in (1.0, 6.0)
  }
  assert len(keys) == 1


def test_methods_with_other_noise_have_other_trainings():
  methods = [_method('fedavg'), _method('finetuning'), _method('fedavg')]
  first, second, third = (method.training_key for method in methods)
  assert first == third != second


def test_the_guarantee_is_that_of_the_worst_silo_as_run():
  own = dataclasses.replace(_EPSILON, counted_as_poisson=True)
  method = _method('fedavg', own, how=_how(total_rounds=50))
  guarantee = method.guarantee
  assert guarantee.epsilon > 6.5
  assert any('6 if batches were Poisson' in a for a in guarantee.assumptions)
  exact = _method('fedavg', how=_how(total_rounds=50))
  assert exact.guarantee.epsilon == pytest.approx(6, rel=1e-3)


def test_poisson_batches_are_amplified():
  how = _how(total_rounds=50, poisson_batches=True)
  poisson = _method('fedavg', how=how, client_weighting='size')
  shuffled = _method('fedavg', how=_how(total_rounds=50))
  assert poisson.protections.noise(30) < 0.85 * shuffled.protections.noise(30)
  assert poisson.guarantee.epsilon == pytest.approx(6, rel=2e-3)


def test_training_runs_on_poisson_batches():
  task, how = _task(), _how(poisson_batches=True)
  method = _method('mr_mtl', how=how)
  state = training.train(method, task, how).server_state
  assert np.isfinite(helpers.vector(state.server.model)).all()


@pytest.mark.parametrize(
  'own, how, name, message',
  [
    (dict(delta=0.1), {}, 'fedavg', 'largest silo'),
    (
      dict(epsilon=None, noise=1.0, counted_as_poisson=True),
      {},
      'fedavg',
      'counted_as_poisson',
    ),
    ({}, dict(client_steps=3), 'fedavg', 'client_steps'),
    ({}, dict(total_epochs=3), 'fedavg', 'total_epochs'),
    ({}, dict(poisson_batches=True), 'fedavg', 'client_weighting'),
    ({}, dict(poisson_batches=True), 'local', 'finetuning_shuffle'),
    (dict(epsilon=None, noise=1.0), {}, 'hypcluster', 'choice_epsilon'),
    ({}, {}, 'knn_per', 'KnnPer'),
  ],
)
def test_what_does_not_go_together_is_refused(own, how, name, message):
  with pytest.raises(errors.UserError, match=message):
    _method(name, dataclasses.replace(_EPSILON, **own), how=_how(**how))


def test_clients_that_are_no_silos_are_refused():
  task = synthetic.load(synthetic.SyntheticSettings(), None, 0)
  with pytest.raises(errors.UserError, match='not silos'):
    _method('fedavg', task=task)
