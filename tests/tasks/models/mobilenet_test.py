"""Tests of the network for photos."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated.python.simulation.models import mobilenet_v2 as tffs

from tasks.models import mobilenet

_SEED = tf.constant([1, 2])
_CLASSES = 5


def _batch(size):
  rng = np.random.default_rng(0)
  return {
    'x': tf.constant(rng.integers(0, 256, (3, size, size, 3)), tf.uint8),
    'y': tf.constant(rng.integers(0, _CLASSES, 3), tf.int32),
  }


def _weights(model):
  """Makes weights that differ from channel to channel."""
  rng = np.random.default_rng(0)
  return collections.OrderedDict(
    (name, weight + tf.constant(rng.normal(0, 0.1, weight.shape), tf.float32))
    if name.endswith(('scale', 'offset', 'bias'))
    else (name, weight)
    for name, weight in model.init(_SEED).items()
  )


def test_has_the_size_of_keras():
  init = tf.function(mobilenet.MobileNetV2(2028).init)
  shapes = init.get_concrete_function(tf.TensorSpec([2], tf.int32))
  size = sum(s.num_elements() for s in shapes.output_shapes.values())
  assert size == 4_821_740
  # Its batch normalization has as many weights as group normalization.
  keras = tf.keras.applications.MobileNetV2(
    [128, 128, 3], include_top=False, weights=None, pooling='avg'
  )
  of_layers = sum(np.size(weight) for weight in keras.trainable_weights)
  assert size == of_layers + 1280 * 2028 + 2028


@pytest.mark.parametrize('size, groups', [(32, 8), (45, 2)])
def test_loss_and_gradient_are_those_of_tffs_keras_model(size, groups):
  model = mobilenet.MobileNetV2(_CLASSES, size, groups)
  weights, batch = _weights(model), _batch(size)
  keras = tffs.create_mobilenet_v2(
    (size, size, 3), num_groups=groups, num_classes=_CLASSES
  )
  keras.set_weights(list(weights.values()))
  with tf.GradientTape() as tape:
    keras_loss = tf.keras.losses.sparse_categorical_crossentropy(
      batch['y'], keras(tf.cast(batch['x'], tf.float32) / 127.5 - 1)
    )
  keras_gradient = tape.gradient(keras_loss, keras.trainable_weights)

  @tf.function
  def loss_and_gradient(weights):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = model.loss(weights, batch)
    return loss, tape.gradient(loss, weights)

  loss, gradient = loss_and_gradient(weights)
  np.testing.assert_allclose(loss, keras_loss, rtol=1e-4)
  for name, expected in zip(weights, keras_gradient, strict=True):
    np.testing.assert_allclose(
      gradient[name],
      expected,
      rtol=0,
      atol=1e-3 * np.abs(expected).max(),
      err_msg=name,
    )


def test_starts_in_keras_range():
  weights = mobilenet.MobileNetV2(_CLASSES, 32).init(_SEED)
  keras = tffs.create_mobilenet_v2((32, 32, 3), num_classes=_CLASSES)
  for weight, expected in zip(weights.values(), keras.get_weights()):
    assert weight.shape == expected.shape
    # Uniform numbers of one limit have similar maxima; so have ones, and zeros.
    assert (
      0.9 * np.abs(expected).max()
      <= np.abs(weight).max()
      <= 1.1 * np.abs(expected).max()
    )


def test_seed_decides_the_weights():
  init = mobilenet.MobileNetV2(_CLASSES, 32).init
  first, again, other = init(_SEED), init(_SEED), init(tf.constant([1, 3]))
  for name in first:
    np.testing.assert_array_equal(first[name], again[name])
  assert not np.array_equal(first['last_kernel'], other['last_kernel'])


def test_representation_is_what_the_head_sees():
  model = mobilenet.MobileNetV2(_CLASSES, 32)
  weights, batch = _weights(model), _batch(32)
  features = model.encode(weights, batch)
  assert features.shape == [3, 1280]
  assert set(model.parts['head']) == {'output_kernel', 'output_bias'}
  logits = features @ weights['output_kernel'] + weights['output_bias']
  np.testing.assert_allclose(
    model.predict_softly(model.scores(weights, batch)),
    tf.nn.softmax(logits),
    rtol=1e-5,
  )
  correct, weight = model.statistics(weights, batch)['accuracy']
  np.testing.assert_array_equal(
    correct, np.argmax(logits, axis=1) == batch['y'].numpy()
  )
  np.testing.assert_array_equal(weight, np.ones(3))
