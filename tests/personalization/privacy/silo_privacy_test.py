"""The protection of silos: what is drawn, what is paid, and what is refused."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from algorithms import registry
from algorithms import runtime_inputs
from algorithms import self_fl
from algorithms import trainers
from algorithms.privacy import private_steps
from base import errors
from personalization.judgement import evaluation
from personalization.privacy import silo_accounting
from personalization.privacy import silo_privacy
from personalization.privacy import ways
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import synthetic
from tasks import task as tasks
from tasks.data import silos
from tasks.models import linear
from tasks.models import protections
from tests import toys
from tests.algorithms import helpers

_SIZES = (9, 4, 30)


@pytest.fixture(autouse=True)
def _context():
  with helpers.use_runtime('cohort'):
    yield


_EPSILON = ways.ExampleSettings(epsilon=6.0, delta=1e-3)


# The examples of which a gradient was taken, by their first feature, each with
# whether that was to be clipped.
_taken: list[tuple[float, bool]] = []
_clipping: list[bool] = []


@tf.custom_gradient
def _watch(losses, x):
  def gradient(upstream):
    _taken.extend((value, bool(_clipping)) for value in x[:, 0].numpy())
    return upstream, None

  return tf.identity(losses), gradient


class _Watched:
  """A model that is watched. Untraced, gradients are fast one by one."""

  example_gradients = 'in turns'

  def score_loss(self, scores, batch):
    return _watch(super().score_loss(scores, batch), batch['x'])


class _WatchedVectors(_Watched, toys.VectorModel):
  """A watched model of all parts."""


class _WatchedClassifier(_Watched, linear.LogisticRegression):
  """A watched model of classes."""


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
  usual = dict(total_rounds=3, clients_per_round=0, drop_partial_batches=True)
  return schedules.TrainingSettings(**usual | values)


def _method(name, settings=_EPSILON, task=None, how=None, **values):
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
  return silo_privacy.make_example(settings, method, task, how or _how())


@pytest.fixture(name='drawn')
def _drawn(monkeypatch):
  """Lists the places in the random numbers that noise is drawn from."""
  drawn = {'steps': [], 'choices': []}
  _taken.clear()

  def spy(name, kind, place):
    function = getattr(private_steps, name)

    def call(first, *rest):
      protection = place(first)
      if protection is not None:
        found = protection.part if kind == 'steps' else -1
        drawn[kind].append(
          (*map(int, protection.seed), int(found), int(protection.step))
        )
      return function(first, *rest)

    monkeypatch.setattr(private_steps, name, call)

  spy('_normal', 'steps', lambda protection: protection)
  spy('add_choice_noise', 'choices', lambda model: model.protection)
  clipped_sum = private_steps.clipped_sum

  def clip(*arguments):
    _clipping.append(True)
    result = clipped_sum(*arguments)
    _clipping.clear()
    return result

  monkeypatch.setattr(private_steps, 'clipped_sum', clip)
  return drawn


def _work(method, client_data, num_rounds=2, **numbers):
  """Does all of a client's work, without TFF, so that it can be watched.

  Args:
    method: The method.
    client_data: The client's examples.
    num_rounds: The number of rounds.
    **numbers: Those of the client's protection that are not the method's.

  Returns:
    What leaves the client, its states and personal models.
  """
  of_settings = runtime_inputs.numbers(method.trainer.settings)
  trainer = method.trainer.bind(tf.nest.map_structure(tf.constant, of_settings))
  server = trainer.initialize(tf.constant([0, 1]))
  if hasattr(server, 'uncertainty'):
    # That of a round in which there were others.
    uncertainty = self_fl.Uncertainty(0.1, 0.1, 10.0, 2.0)
    server = server._replace(
      uncertainty=tf.nest.map_structure(tf.constant, uncertainty)
    )
  data = tf.nest.map_structure(tf.constant, client_data)
  size = np.array([len(client_data.examples['y'])])
  state = trainer.initialize_client(tf.constant([0, 1]))
  attributes = {tasks.SIZE: tf.constant(int(size[0])), tasks.GROUP: 0}
  if method.protections:
    of_size = method.protections.numbers(size)[0]
    for name, value in numbers.items():
      of_size[protections.NUMBERS.index(name)] = value
    attributes[tasks.PROTECTION] = tf.constant(of_size)
  released = []

  def client(seed):
    return trainers.Client(data, state, tf.constant([1, seed]), attributes)

  for round_num in range(num_rounds if method.trains else 0):
    if hasattr(server, 'round'):
      server = server._replace(round=tf.constant(round_num))
    bound = trainer.protect(client(round_num))
    result = bound.client(bound.message(server), client(round_num))
    state = state if result.state is None else result.state
    released.append((result.updates, state, result.measured))
  bound = trainer.protect(client(99))
  of_settings = runtime_inputs.numbers(method.personalizer.settings)
  personalizer = method.personalizer.bind(bound, of_settings)
  start = bound.start(bound.message(server), client(99))
  others = tf.nest.map_structure(tf.constant, _examples(9, method.trainer))
  metrics = personalizer.personalize(start, client(99), {'test': others})
  return tf.nest.flatten((released, start, metrics))


_QUICK = {
  'apfl': dict(mixture_learning_rate=0.1),
  'ditto': dict(personal_epochs=2),
  'fedbabu': dict(finetuning_epochs=2),
  'fedrep': dict(finetuning_epochs=2, head_epochs=2),
  'finetuning': dict(finetuning_epochs=2, finetuning_learning_rates=(0.1, 0.2)),
  'hypcluster': dict(warmstart_rounds=1.0, num_clusters=3),
  'hypcluster+finetuning': dict(finetuning_epochs=2),
  'local': dict(finetuning_epochs=3),
  'pfedme': dict(proximal_steps=2),
  'pfedme+finetuning': dict(proximal_steps=2, finetuning_epochs=2),
  'self_fl': dict(adaptive_steps=False),
  'self_fl_clusters': dict(adaptive_steps=False),
}
# Other settings, whose uses are other ones.
_ADAPTIVE = 'self_fl that adapts its steps'
_QUICK[_ADAPTIVE] = dict(most_steps=5, augmented_steps=3)
_CLASSIFIER = 'fedrod of classes'
_QUICK[_CLASSIFIER] = dict(balance=0.0)


def _model(name):
  if name == 'blup':  # It needs a linear model, and is refused with any.
    return helpers.MODEL
  is_of_classes = helpers.model_for(name) is helpers.CLASS_MODEL
  return helpers.CLASS_MODEL if is_of_classes else toys.VectorModel()


def _is_refused(name):
  method = helpers.build(
    name,
    _model(name),
    num_clients=len(_SIZES),
    **helpers.small(name),
  )
  try:
    silo_accounting.uses(method, 1, client_epochs=1)
  except errors.UserError:
    return True
  return False


_REFUSED = {*filter(_is_refused, registry.short_names())}
# Those whose clients do what others' do.
_LIKE_OTHERS = ('ensemble', 'fedadam', 'fedavgm')
_PROTECTED = sorted(
  {*registry.short_names(), *_QUICK} - _REFUSED - {*_LIKE_OTHERS}
)
_NOISELESS = dict(clip=np.inf, noise=0.0, most_loss=1e9, choice_noise=0.0)


def _watched(name, protected=True):
  """Builds a method of a watched model, with `_QUICK` settings."""
  is_classifier = name == _CLASSIFIER
  model = _WatchedClassifier(3, 2) if is_classifier else _WatchedVectors()
  values, name = _QUICK.get(name, {}), name.split()[0]
  values = {**helpers.small(name), **values}
  if not protected:
    return helpers.build_anew(name, model, num_clients=len(_SIZES), **values)
  # No example is in more than one batch of two.
  task = dataclasses.replace(_task(model=model), batch_size=2)
  return _method(name, task=task, how=_how(total_rounds=2), **values)


def _examples(seed, trainer):
  """Makes two batches."""
  data = helpers.data(seed, 4, batch_size=2)
  if isinstance(trainer.model, _WatchedClassifier):
    classes = np.int32(data.examples['y'] > 0)
    data = data._replace(examples=dict(data.examples, y=classes))
  return data


def test_methods_that_use_examples_otherwise_are_refused():
  assert {'fedembed_type', 'group', 'knn_per', 'pfedkm'} < _REFUSED
  assert _REFUSED.isdisjoint({'fedavg', 'ditto', 'finetuning', 'hypcluster'})


@pytest.mark.parametrize('name', sorted(_REFUSED))
def test_what_cannot_be_protected_is_refused(name):
  with pytest.raises(errors.UserError, match='cannot be protected'):
    _method(name, task=_task(model=_model(name)))


@pytest.mark.parametrize('name', _PROTECTED)
def test_all_that_examples_are_used_for_is_clipped_and_paid_for(name, drawn):
  method = _watched(name)
  data = _examples(0, method.trainer)
  _work(method, data)
  times = [
    sum(x == value for value, _ in _taken) for x in data.examples['x'][:, 0]
  ]
  paid = method.protections.gradients(4)
  assert all(is_clipped for _, is_clipped in _taken)
  assert sum(times) == len(_taken) == 2 * len(drawn['steps'])
  if name == _ADAPTIVE:
    # The bound of 5 steps and of 3 further ones, of two in a pass.
    assert 2 * 2 < max(times) <= paid == 2 * (3 + 2)
  else:
    assert times == [paid] * 4
  assert len(drawn['choices']) == method.protections.uses.choices
  everything = drawn['steps'] + drawn['choices']
  assert len(set(everything)) == len(everything)


@pytest.mark.parametrize('name', _PROTECTED)
def test_nothing_but_clipped_gradients_tells_of_examples(name):
  method = _watched(name)
  first, second = (_examples(seed, method.trainer) for seed in (0, 1))
  # All gradients and losses of examples are clipped to nothing.
  nothing = dict(clip=0.0, most_loss=0.0)
  helpers.assert_equal(
    _work(method, first, **nothing), _work(method, second, **nothing)
  )


@pytest.mark.parametrize('name', _PROTECTED)
def test_without_clip_and_noise_it_is_the_method_itself(name):
  method, plain = _watched(name), _watched(name, protected=False)
  data = _examples(0, method.trainer)
  helpers.assert_close(
    _work(method, data, **_NOISELESS), _work(plain, data), rtol=1e-3, atol=1e-5
  )


def test_trained_by_a_runtime_it_is_the_method_itself_without_noise():
  task, how = _task(), _how()
  settings = dataclasses.replace(_EPSILON, epsilon=None, noise=1e-9, clip=1e4)
  results = []
  for method in (_method('fedavg', settings), _unprotected('fedavg')):
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
  with helpers.use_runtime(runtime):
    trained = training.train(method, task, how)
  models = trained.client_states.read([0, 1, 2]).personal['kernel']
  z_8, _, z_40 = method.protections.numbers(np.array([8, 8, 40]))[:, 1]
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
    with helpers.use_runtime(runtime):
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
  settings = dataclasses.replace(_EPSILON, counted_as_poisson=True)
  method = _method('fedavg', settings, how=_how(total_rounds=50))
  guarantee = method.guarantee
  assert guarantee.epsilon > 6.5
  assert any('6 if batches were Poisson' in a for a in guarantee.assumptions)
  exact = _method('fedavg', how=_how(total_rounds=50))
  assert exact.guarantee.epsilon == pytest.approx(6, rel=1e-3)


def test_choices_on_validation_examples_are_said_to_be_outside():
  # What the candidates take of the training examples is paid for.
  method = _method('finetuning', **_QUICK['finetuning'])
  guarantee = method.guarantee
  assert guarantee.sampling.startswith('7 passes')  # 3 + 2 x 2.
  not_covered = ' '.join(guarantee.not_covered)
  for what in ('validation examples', 'candidates', 'metrics'):
    assert what in not_covered


def test_poisson_batches_are_amplified():
  how = _how(total_rounds=50, poisson_batches=True)
  poisson = _method('fedavg', how=how, client_weighting='size')
  shuffled = _method('fedavg', how=_how(total_rounds=50))
  assert poisson.protections.noise(30) < 0.85 * shuffled.protections.noise(30)
  assert poisson.guarantee.epsilon == pytest.approx(6, rel=2e-3)


class _Interrupted(Exception):
  pass


def test_training_on_poisson_batches_goes_on_with_the_same_noise(tmp_path):
  task, how = _task(), _how(poisson_batches=True, rounds_per_checkpoint=1)
  method = _method('mr_mtl', how=how)

  def interrupt(round_num, _):
    if round_num == 2:
      raise _Interrupted

  with pytest.raises(_Interrupted):
    training.train(
      method,
      task,
      how,
      checkpoint_dir=tmp_path,
      callbacks=training.Callbacks(on_round=interrupt),
    )
  states = [
    training.train(method, task, how, checkpoint_dir=folder).server_state
    for folder in (tmp_path, None)
  ]
  helpers.assert_equal(*states)
  assert np.isfinite(helpers.vector(states[0].server.model)).all()


@pytest.mark.parametrize(
  'changed, how, name, message',
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
    ({}, dict(poisson_batches=True), 'pfedme', 'poisson_batches'),
    ({}, dict(poisson_batches=True), 'self_fl', 'poisson_batches'),
  ],
)
def test_what_does_not_go_together_is_refused(changed, how, name, message):
  with pytest.raises(errors.UserError, match=message):
    _method(name, dataclasses.replace(_EPSILON, **changed), how=_how(**how))


def test_clients_that_are_no_silos_are_refused():
  task = synthetic.load(synthetic.SyntheticSettings(), None, 0)
  with pytest.raises(errors.UserError, match='not silos'):
    _method('fedavg', task=task)
