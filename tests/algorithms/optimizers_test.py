"""Each optimizer against its formula in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from algorithms import optimizers
from tests.algorithms import helpers

_START = np.array([1.0, -2.0, 0.5, 3.0])
# Gradients of several steps, some of them zero.
_GRADIENTS = np.random.default_rng(0).normal(size=[6, 4]) * [1, 0.1, 5, 0]
_NUMBERS = dict(
  learning_rate=0.05, momentum=0.7, beta_1=0.8, beta_2=0.95, epsilon=1e-2
)


def _sgd(learning_rate, **others):
  del others
  return lambda gradient: learning_rate * gradient


def _momentum(learning_rate, momentum, damping=1.0, **others):
  del others
  m = np.zeros(4)

  def step(gradient):
    nonlocal m
    m = momentum * m + damping * gradient
    return learning_rate * m

  return step


def _damped_momentum(learning_rate, momentum, **others):
  """Motley's: m <- momentum m + (1 - momentum) gradient."""
  return _momentum(learning_rate, momentum, damping=1 - momentum, **others)


def _adam(learning_rate, momentum, **others):
  del momentum
  return helpers.NumpyAdam(learning_rate, **others)


def _yogi(learning_rate, momentum, beta_1, beta_2, epsilon):
  """Zaheer et al. 2018, with the correction of the moments' bias."""
  del momentum
  m, v, t = np.zeros(4), np.full(4, 1e-6), 0

  def step(gradient):
    nonlocal m, v, t
    t += 1
    m = beta_1 * m + (1 - beta_1) * gradient
    square = gradient**2
    v = v - (1 - beta_2) * np.sign(v - square) * square
    rate = learning_rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
    return rate * m / (np.sqrt(v) + epsilon)

  return step


_FORMULAS = {
  'sgd': _sgd,
  'momentum': _momentum,
  'damped_momentum': _damped_momentum,
  'adam': _adam,
  'yogi': _yogi,
}


def _expected(step, gradients=_GRADIENTS):
  weights = _START
  for gradient in gradients:
    weights = weights - step(gradient)
  return weights


def _steps(optimizer, learner, gradients=_GRADIENTS):
  for gradient in gradients:
    learner = optimizer.step(learner, helpers.weights(gradient))
  return learner


def _start():
  return tf.nest.map_structure(tf.constant, helpers.weights(_START))


def test_every_name_has_its_formula_here():
  assert tuple(_FORMULAS) == optimizers.NAMES


@pytest.mark.parametrize('name', optimizers.NAMES)
def test_steps_are_those_of_the_formula(name):
  optimizer = optimizers.Optimizer(name, **_NUMBERS)
  learner = _steps(optimizer, optimizer.start(_start()))
  np.testing.assert_allclose(
    helpers.vector(learner.weights),
    _expected(_FORMULAS[name](**_NUMBERS)),
    rtol=1e-5,
  )


@pytest.mark.parametrize('name', optimizers.NAMES)
def test_numbers_may_be_inputs_of_a_program(name):
  @tf.function
  def run(numbers):
    optimizer = optimizers.Optimizer(name, **numbers)
    return _steps(optimizer, optimizer.start(_start())).weights

  weights = run({key: tf.constant(value) for key, value in _NUMBERS.items()})
  np.testing.assert_allclose(
    helpers.vector(weights),
    _expected(_FORMULAS[name](**_NUMBERS)),
    rtol=1e-5,
  )


def _kingma_and_ba(gradients, learning_rate, beta_1, beta_2, epsilon):
  """Returns the weights after steps of algorithm 1, as in PyTorch."""
  weights, m, v = _START, 0, 0
  for t, gradient in enumerate(gradients, 1):
    m = beta_1 * m + (1 - beta_1) * gradient
    v = beta_2 * v + (1 - beta_2) * gradient**2
    root = np.sqrt(v / (1 - beta_2**t))
    weights = weights - learning_rate * m / (1 - beta_1**t) / (root + epsilon)
  return weights


def test_adam_can_have_the_form_of_pytorch():
  @tf.function
  def run(numbers):
    optimizer = optimizers.Optimizer('adam', **numbers, adam_form='pytorch')
    half = _steps(optimizer, optimizer.start(_start()), _GRADIENTS[:3])
    kept = half._replace(slots=optimizer.set_numbers(half.slots))
    return _steps(optimizer, kept, _GRADIENTS[3:]).weights

  numbers = {key: n for key, n in _NUMBERS.items() if key != 'momentum'}
  expected = _kingma_and_ba(_GRADIENTS, **numbers)
  for run_numbers in (
    numbers,
    {key: tf.constant(n) for key, n in numbers.items()},
  ):
    found = helpers.vector(run(run_numbers))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
  of_tff = _expected(_adam(**_NUMBERS))
  assert np.max(np.abs(of_tff - expected)) > 1e-3


@pytest.mark.parametrize('name', optimizers.NAMES)
def test_defaults_are_the_usual_ones(name):
  optimizer = optimizers.Optimizer(name, 0.1)
  usual = dict(momentum=0.9, beta_1=0.9, beta_2=0.999, epsilon=1e-7)
  learner = _steps(optimizer, optimizer.start(_start()))
  np.testing.assert_allclose(
    helpers.vector(learner.weights),
    _expected(_FORMULAS[name](0.1, **usual)),
    rtol=1e-4,
  )


@pytest.mark.parametrize('name', optimizers.NAMES)
def test_slots_that_are_kept_go_on_with_our_numbers(name):
  others = {key: value / 2 for key, value in _NUMBERS.items()}
  # All but the numbers is kept of the slots.
  kept = optimizers.Optimizer(name, **others).slots(_start())
  optimizer = optimizers.Optimizer(name, **_NUMBERS)
  learner = optimizers.Learner(_start(), optimizer.set_numbers(kept))
  for part in np.split(_GRADIENTS, 3):
    learner = _steps(optimizer, learner, part)
    learner = learner._replace(slots=optimizer.set_numbers(learner.slots))
  np.testing.assert_allclose(
    helpers.vector(learner.weights),
    _expected(_FORMULAS[name](**_NUMBERS)),
    rtol=1e-5,
  )


def test_damped_momentum_is_momentum_with_a_smaller_rate():
  damped = optimizers.Optimizer('damped_momentum', 1.0, momentum=0.9)
  plain = optimizers.Optimizer('momentum', 0.1, momentum=0.9)
  first, second = (
    _steps(optimizer, optimizer.start(_start())).weights
    for optimizer in (damped, plain)
  )
  np.testing.assert_allclose(
    helpers.vector(first), helpers.vector(second), rtol=1e-5
  )


@pytest.mark.parametrize('name', optimizers.NAMES)
def test_says_whether_a_step_depends_on_those_before(name):
  optimizer = optimizers.Optimizer(name, **_NUMBERS)
  last = _GRADIENTS[-1:]
  anew, later = (
    _steps(optimizer, optimizers.Learner(_start(), slots), last).weights
    for slots in (
      optimizer.slots(_start()),
      _steps(optimizer, optimizer.start(_start())).slots,
    )
  )
  depends = not np.array_equal(helpers.vector(anew), helpers.vector(later))
  assert optimizer.has_slots == depends


def test_the_clients_settings_make_their_optimizer():
  settings = optimizers.ClientOptimizerSettings(
    client_optimizer='yogi',
    client_learning_rate=0.3,
    client_momentum=0.1,
    client_beta_1=0.2,
    client_beta_2=0.4,
    client_epsilon=0.5,
    adam_form='pytorch',
  )
  assert settings.client_optimizer_at(0.7) == optimizers.Optimizer(
    'yogi',
    learning_rate=0.7,
    momentum=0.1,
    beta_1=0.2,
    beta_2=0.4,
    epsilon=0.5,
    adam_form='pytorch',
  )
