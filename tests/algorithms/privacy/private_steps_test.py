"""Private gradients against a loop, their bound, and the noise."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from algorithms import client_work
from algorithms import optimizers
from algorithms.privacy import private_steps
from tasks.models import cnn
from tasks.models import layers
from tasks.models import linear
from tasks.models import protections
from tests.algorithms import helpers

_START = tf.nest.map_structure(
  tf.constant, helpers.weights([1.0, -2.0, 0.5, 3.0])
)
_SEED = np.array([3, 4], np.int32)


class _InTurns(linear.LinearRegression):
  """The same model, whose gradients are taken one after another."""

  example_gradients = 'in turns'


class _ByNorms(linear.LinearRegression):
  """The same model, made of a layer that tells norms."""

  example_gradients = 'by norms'

  def decide(self, weights, features):
    output = {f'output_{name}': leaf for name, leaf in weights.items()}
    output['output_kernel'] = output['output_kernel'][:, tf.newaxis]
    return layers.dense(output, 'output', features)[:, 0]


_MODELS = {
  model.example_gradients: model
  for model in (linear.LinearRegression(3), _InTurns(3), _ByNorms(3))
}
each_way = pytest.mark.parametrize('model', _MODELS.values(), ids=_MODELS)


def _protect(model, clip=1.0, noise=0.0, batch_size=5.0, seed=_SEED):
  protection = protections.Protection(clip, noise, batch_size, seed=seed)
  return dataclasses.replace(model, protection=protection)


def _batch(num_examples=5):
  data = helpers.data(0, num_examples)
  return tf.nest.map_structure(tf.constant, dict(data.examples))


def _gradient(model, examples=None, mask=None, **values):
  examples = _batch() if examples is None else examples
  mask = tf.ones(tf.shape(examples['y'])) if mask is None else mask
  slopes, loss = client_work.gradient(model, _START, examples, mask, **values)
  return helpers.vector(slopes), float(loss)


def _example_gradients(examples, pull=0.0):
  """The gradient of each example, as computed with NumPy."""
  x = np.insert(examples['x'].numpy(), 3, 1, axis=1)
  start = helpers.vector(_START)
  return (x @ start - examples['y'].numpy())[:, None] * x + pull * start


def _clip(gradients, norm):
  norms = np.linalg.norm(gradients, axis=1, keepdims=True)
  return gradients * np.minimum(1, norm / norms)


@each_way
def test_sums_the_clipped_gradients_of_a_loop(model):
  expected = _clip(_example_gradients(_batch()), 2.5).sum(0) / 5
  found, _ = _gradient(_protect(model, clip=2.5))
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  # Some are clipped and some are not.
  norms = np.linalg.norm(_example_gradients(_batch()), axis=1)
  assert norms.min() < 2.5 < norms.max()


@each_way
def test_without_clip_and_noise_it_is_the_plain_gradient(model):
  plain, plain_loss = _gradient(model)
  found, loss = _gradient(_protect(model, clip=np.inf))
  np.testing.assert_allclose(found, plain, rtol=1e-5)
  assert loss == pytest.approx(plain_loss, rel=1e-5)


@each_way
def test_clips_the_regularizer_with_the_loss(model):
  expected = _clip(_example_gradients(_batch(), pull=0.7), 2.5).sum(0) / 5
  pull = client_work.pull(tf.nest.map_structure(tf.zeros_like, _START), 0.7)
  found, _ = _gradient(_protect(model, clip=2.5), regularizer=pull)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@each_way
def test_clips_only_what_is_trained(model):
  kernel = _example_gradients(_batch())[:, :3]
  slopes, _ = client_work.gradient(
    _protect(model, clip=2.5), _START, _batch(), tf.ones([5]), only=('kernel',)
  )
  assert list(slopes) == ['kernel']
  expected = _clip(kernel, 2.5).sum(0) / 5
  np.testing.assert_allclose(slopes['kernel'], expected, rtol=1e-5)


@each_way
@pytest.mark.parametrize('value', [1e30, np.nan, np.inf])
def test_one_example_moves_the_sum_by_no_more_than_twice_the_clip(model, value):
  examples = _batch()
  others = dict(examples, x=tf.concat([examples['x'][:4], [[value] * 3]], 0))
  near = dict(examples, x=tf.concat([examples['x'][:4], [[-9.0] * 3]], 0))
  protected = _protect(model, batch_size=1.0)
  first, _ = _gradient(protected, examples)
  without, _ = _gradient(protected, examples, tf.constant([1.0, 1, 1, 1, 0]))
  assert np.linalg.norm(without - first) <= 1 + 1e-5
  for changed in (others, near):
    assert np.linalg.norm(_gradient(protected, changed)[0] - first) <= 2 + 1e-5


class _CifarInTurns(cnn.Cifar10Cnn):
  """The same model, whose gradients are taken one after another."""

  example_gradients = 'in turns'


class _WakewordInTurns(cnn.WakewordCnn):
  """The same model, whose gradients are taken one after another."""

  example_gradients = 'in turns'


@pytest.mark.parametrize(
  'by_norms, in_turns',
  [
    (cnn.Cifar10Cnn(), _CifarInTurns()),
    # Unlike that one, with padding.
    (
      cnn.WakewordCnn(8, 6, (3, 4), 0.1),
      _WakewordInTurns(8, 6, (3, 4), 0.1),
    ),
  ],
  ids=['valid', 'same'],
)
@pytest.mark.parametrize('part', ['all', 'encoder'])
def test_convolutions_tell_the_norms_of_gradients(by_norms, in_turns, part):
  rng = np.random.default_rng(0)
  shape = by_norms.example_spec['x'].shape
  x = rng.normal(size=[4, *shape]) * np.array([1, 3, 0.1, 2]).reshape(
    4, 1, 1, 1
  )
  examples = {'x': tf.constant(x, tf.float32), 'y': tf.constant([0, 1, 1, 0])}
  weights = by_norms.init(_SEED)
  only = None if part == 'all' else by_norms.parts[part]
  first, second = (
    client_work.gradient(
      _protect(model, clip=5.0), weights, examples, tf.ones([4]), only=only
    )
    for model in (by_norms, in_turns)
  )
  helpers.assert_close(first, second, rtol=1e-3, atol=1e-5)
  assert list(first[0]) == list(weights if only is None else only)


def test_norms_that_no_layer_tells_are_not_taken_for_zero():
  class Untold(linear.LinearRegression):
    example_gradients = 'by norms'

  with pytest.raises(ValueError, match='kernel_probe'):
    _gradient(_protect(Untold(3)))


@each_way
def test_padding_changes_nothing(model):
  examples = _batch()
  padded = {
    name: tf.pad(leaf, [[2, 1]] + [[0, 0]] * (leaf.shape.rank - 1))
    for name, leaf in examples.items()
  }
  protected = _protect(model, noise=1.0)
  mask = tf.constant([0.0, 0, 1, 1, 1, 1, 1, 0])
  np.testing.assert_allclose(
    _gradient(protected, padded, mask)[0], _gradient(protected)[0], rtol=1e-5
  )


@each_way
def test_a_batch_of_padding_has_no_gradient_and_no_noise(model):
  found, loss = _gradient(_protect(model, noise=1.0), mask=tf.zeros([5]))
  np.testing.assert_array_equal(found, np.zeros(4))
  assert loss == 0


def test_the_noise_has_the_deviation_of_clip_and_multiplier():
  model = linear.LinearRegression(20_000)
  weights = model.init(_SEED)
  examples = {'x': tf.zeros([2, 20_000]), 'y': tf.zeros([2])}
  protected = _protect(model, clip=0.5, noise=3.0, batch_size=4.0)
  slopes, _ = client_work.gradient(protected, weights, examples, tf.ones([2]))
  noise = slopes['kernel'].numpy()
  # Of 20,000 numbers the deviation is known to half a percent.
  assert noise.std() == pytest.approx(0.5 * 3 / 4, rel=0.02)
  assert abs(noise.mean()) < 0.01


def test_each_part_and_step_has_noise_of_its_own():
  protected = _protect(_MODELS['at once'], noise=1.0)
  drawn = {
    tuple(_gradient(private_steps.mark(protected, part=part, step=step))[0])
    for part in range(3)
    for step in range(3)
  }
  assert len(drawn) == 9


def _choices(losses, times=2000):
  """How often each of some models is chosen, by the sums of their losses."""
  model = _protect(_MODELS['at once'])
  chosen = []
  for seed in range(times):
    protection = dataclasses.replace(
      model.protection, choice_noise=2.0, seed=np.array([7, seed], np.int32)
    )
    noised = private_steps.add_choice_noise(
      dataclasses.replace(model, protection=protection), tf.constant(losses)
    )
    chosen.append(int(tf.argmin(noised)))
  return np.bincount(chosen, minlength=len(losses)) / times


def test_choices_are_those_of_the_exponential_mechanism():
  losses = [1.0, 0.0, 3.0]
  expected = np.exp(-np.array(losses) / 2)
  # Of 2,000 choices a share is known to .011 (one standard deviation).
  np.testing.assert_allclose(
    _choices(losses), expected / expected.sum(), atol=0.045
  )


def test_no_example_has_more_than_the_largest_loss_in_a_choice():
  protection = protections.Protection(most_loss=0.3)
  model = dataclasses.replace(_MODELS['at once'], protection=protection)
  examples = {'x': tf.zeros([4, 3]), 'y': tf.constant([3.1, 9e30, np.nan, 0])}
  losses = private_steps.total_loss(model, _START, examples, tf.ones([4]))
  assert float(losses) == pytest.approx(0.5 * 0.1**2 + 3 * 0.3, rel=1e-4)


def test_training_draws_noise_for_each_step():
  # With no gradient at all, what moves the weights is the noise.
  data = helpers.make_batches(
    {'x': np.zeros([12, 3], 'f4'), 'y': np.zeros(12, 'f4')}
  )
  data = tf.nest.map_structure(tf.constant, data)
  protected = _protect(_MODELS['at once'], noise=1.0, batch_size=1.0)
  sgd = optimizers.Optimizer('sgd', 1.0)
  start = sgd.start(tf.nest.map_structure(tf.zeros_like, _START))
  found = helpers.vector(
    client_work.train(protected, start, data, sgd)[0].weights
  )
  empty = {'x': tf.zeros([1, 3]), 'y': tf.zeros([1])}
  noise = [
    _gradient(private_steps.mark(protected, step=step), empty, tf.ones([1]))[0]
    - _gradient(_protect(_MODELS['at once'], batch_size=1.0), empty)[0]
    for step in range(3)
  ]
  assert np.linalg.norm(noise[0] - noise[1]) > 0.1
  # The bias alone has a gradient, which is that of the noise before.
  np.testing.assert_allclose(found[:3], -np.sum(noise, 0)[:3], atol=1e-5)
