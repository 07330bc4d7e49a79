"""Tests of the convolutional network."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import cnn

_SEED = tf.constant([1, 2])


def _batch(size=3):
  rng = np.random.default_rng(0)
  # Discrete, so that windows with several maxima are among them.
  images = rng.integers(0, 2, (size, 28, 28, 1))
  return {
    'x': tf.constant(images, tf.float32),
    'y': tf.constant(rng.integers(0, 62, size), tf.int32),
  }


def _keras_model():
  """Makes TFF's `create_conv_dropout_model` without dropout and softmax."""
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      layers.Conv2D(32, 3, activation='relu', input_shape=(28, 28, 1)),
      layers.Conv2D(64, 3, activation='relu'),
      layers.MaxPool2D(2),
      layers.Flatten(),
      layers.Dense(128, activation='relu'),
      layers.Dense(62),
    ]
  )


def _weights(model):
  """Makes weights whose biases are not zero."""
  weights = model.init(_SEED)
  for name in weights:
    if name.endswith('bias'):
      weights[name] += 0.01
  return weights


def _plain_loss(weights, batch):
  """Computes the loss of each image with TensorFlow's own gradients."""
  x = tf.nn.conv2d(batch['x'], weights['conv1_kernel'], 1, 'VALID')
  x = tf.nn.relu(x + weights['conv1_bias'])
  x = tf.nn.conv2d(x, weights['conv2_kernel'], 1, 'VALID')
  x = tf.nn.relu(x + weights['conv2_bias'])
  x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, 'VALID'), [-1, 9216])
  x = tf.nn.relu(x @ weights['dense_kernel'] + weights['dense_bias'])
  logits = x @ weights['output_kernel'] + weights['output_bias']
  return tf.nn.sparse_softmax_cross_entropy_with_logits(batch['y'], logits)


@tf.function
def _gradient(loss, weights, batch):
  with tf.GradientTape() as tape:
    tape.watch(weights)
    value = tf.reduce_mean(loss(weights, batch))
  return value, tape.gradient(value, weights)


@tf.function
def _hessian_product(loss, weights, batch):
  """Multiplies the Hessian with the weights themselves."""
  with tf.GradientTape() as outer:
    outer.watch(weights)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      value = tf.reduce_mean(loss(weights, batch))
    gradient = tape.gradient(value, weights)
    product = tf.add_n(
      [
        tf.reduce_sum(gradient[name] * tf.stop_gradient(weight))
        for name, weight in weights.items()
      ]
    )
  return outer.gradient(product, weights)


def _assert_close(actual, expected, tolerance=1e-4):
  for name, value in expected.items():
    scale = np.abs(value).max()
    np.testing.assert_allclose(
      actual[name], value, atol=tolerance * scale, rtol=0, err_msg=name
    )


@pytest.fixture(name='model')
def _fixture_model():
  return cnn.EmnistCnn()


def test_has_the_size_of_tffs(model):
  weights = model.init(_SEED)
  sizes = [weight.shape.num_elements() for weight in weights.values()]
  assert sum(sizes) == 1_206_590


def test_seed_decides_the_weights(model):
  first, again = model.init(_SEED), model.init(_SEED)
  other = model.init(tf.constant([1, 3]))
  for name in first:
    np.testing.assert_array_equal(first[name], again[name])
  assert not np.array_equal(first['conv1_kernel'], other['conv1_kernel'])


def test_starts_in_keras_range(model):
  for name, weight in model.init(_SEED).items():
    largest = np.abs(weight).max()
    if name.endswith('bias'):
      assert largest == 0
    else:
      keras = tf.keras.initializers.GlorotUniform(0)(weight.shape)
      assert largest / np.abs(keras).max() == pytest.approx(1, rel=0, abs=0.05)


def test_loss_is_keras_loss(model):
  keras = _keras_model()
  weights, batch = _weights(model), _batch()
  keras.set_weights(list(weights.values()))
  np.testing.assert_allclose(
    model.loss(weights, batch),
    tf.keras.losses.sparse_categorical_crossentropy(
      batch['y'], keras(batch['x']), from_logits=True
    ),
    rtol=1e-4,
  )


def test_gradient_is_tensorflows(model):
  weights = _weights(model)
  rng = np.random.default_rng(0)
  batch = _batch()
  batch['x'] = tf.constant(rng.random((3, 28, 28, 1)), tf.float32)
  loss, gradient = _gradient(model.loss, weights, batch)
  plain_loss, plain_gradient = _gradient(_plain_loss, weights, batch)
  np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
  _assert_close(gradient, plain_gradient)


def test_gradient_is_the_same_in_a_loop(model):
  weights, batch = _weights(model), _batch()

  @tf.function
  def last_of_a_loop():
    return tf.while_loop(
      lambda i, _: i < 2,
      lambda i, _: (i + 1, _gradient(model.loss, weights, batch)[1]),
      (0, weights),
    )[1]

  _, expected = _gradient(model.loss, weights, batch)
  _assert_close(last_of_a_loop(), expected)


def test_gradient_of_blank_images_is_tensorflows(model):
  # Where the maximum is in several places, it is in the same surroundings.
  weights, batch = _weights(model), _batch()
  batch['x'] = tf.ones([3, 28, 28, 1])
  _, gradient = _gradient(model.loss, weights, batch)
  _, plain_gradient = _gradient(_plain_loss, weights, batch)
  _assert_close(gradient, plain_gradient)


def test_second_derivative_is_tensorflows(model):
  weights = _weights(model)
  rng = np.random.default_rng(0)
  batch = _batch()
  batch['x'] = tf.constant(rng.random((3, 28, 28, 1)), tf.float32)
  product = _hessian_product(model.loss, weights, batch)
  plain_product = _hessian_product(_plain_loss, weights, batch)
  _assert_close(product, plain_product, 1e-3)


def test_representation_is_what_the_head_sees(model):
  weights, batch = _weights(model), _batch()
  features = model.encode(weights, batch)
  assert features.shape == [3, 128]
  logits = features @ weights['output_kernel'] + weights['output_bias']
  np.testing.assert_allclose(
    model.loss(weights, batch),
    tf.nn.sparse_softmax_cross_entropy_with_logits(batch['y'], logits),
    rtol=1e-5,
  )
  assert set(model.parts['head']) == {'output_kernel', 'output_bias'}


def test_accuracy_counts_the_likeliest_class(model):
  weights = collections.OrderedDict(
    (name, tf.zeros_like(weight)) for name, weight in model.init(_SEED).items()
  )
  weights['output_bias'] = tf.one_hot(7, 62)
  batch = {'x': tf.zeros([3, 28, 28, 1]), 'y': tf.constant([7, 1, 7])}
  correct, weight = model.statistics(weights, batch)['accuracy']
  np.testing.assert_array_equal(correct, [1, 0, 1])
  np.testing.assert_array_equal(weight, [1, 1, 1])
