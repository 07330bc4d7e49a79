"""Tests of the layers that models share; those of models test them further."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import layers

_SEED = tf.constant([1, 2])


def _random(*shape):
  rng = np.random.default_rng(0)
  return tf.constant(rng.normal(size=shape), tf.float32)


def test_tied_maxima_share_the_gradient():
  x = tf.constant([[1.0, 3], [3, 0]])[tf.newaxis, :, :, tf.newaxis]
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = 5 * layers.relu_and_max_pool(x)
  assert y.numpy().item() == 15
  np.testing.assert_array_equal(
    tape.gradient(y, x)[0, :, :, 0], [[0, 2.5], [2.5, 0]]
  )


def test_negative_windows_have_no_gradient():
  x = -tf.ones([1, 2, 2, 1])
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = layers.relu_and_max_pool(x)
  np.testing.assert_array_equal(tape.gradient(y, x), tf.zeros_like(x))


def test_gradient_of_a_convolution_is_tensorflows():
  x = _random(2, 5, 5, 3)
  weights = collections.OrderedDict(
    c_kernel=_random(3, 3, 3, 4), c_bias=_random(4)
  )

  def plain(weights, layer, x, padding):
    y = tf.nn.conv2d(x, weights[f'{layer}_kernel'], 1, padding)
    return y + weights[f'{layer}_bias']

  results = []
  for function in (layers.convolution, plain):
    with tf.GradientTape() as tape:
      tape.watch((weights, x))
      y = function(weights, 'c', x, 'SAME')
      loss = tf.reduce_sum(y**2)
    results.append((y, tape.gradient(loss, (weights, x))))
  for actual, expected in zip(*map(tf.nest.flatten, results), strict=True):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_convolution_and_means_of_windows_are_one_convolution():
  x, kernel, bias = _random(2, 20, 24, 3), _random(3, 5, 3, 4), _random(4)

  def one_by_one(kernel, bias, x, strides, window):
    y = tf.nn.conv2d(x, kernel, strides, 'VALID') + bias
    return tf.nn.avg_pool2d(y, window, window, 'VALID')

  results = []
  for function in (layers.convolve_and_average, one_by_one):
    with tf.GradientTape() as tape:
      tape.watch((kernel, bias, x))
      y = function(kernel, bias, x, (2, 3), (3, 2))
      loss = tf.reduce_sum(y**2)
    results.append((y, tape.gradient(loss, (kernel, bias, x))))
  for actual, expected in zip(*map(tf.nest.flatten, results), strict=True):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_gradient_of_a_look_up_is_tensorflows_but_dense():
  table, rows = _random(4, 3), tf.constant([2, 0, 2])
  gradients = []
  for function in (layers.look_up, tf.gather):
    with tf.GradientTape() as tape:
      tape.watch(table)
      loss = tf.reduce_sum(function(table, rows) ** 2)
    gradients.append(tape.gradient(loss, table))
  assert isinstance(gradients[0], tf.Tensor)
  np.testing.assert_allclose(
    gradients[0], tf.convert_to_tensor(gradients[1]), rtol=1e-6
  )


@pytest.mark.parametrize('shape', [(7, 5), (3, 3, 7, 5)])
def test_a_kernel_starts_in_kerass_range(shape):
  kernel = layers.glorot_uniform(_SEED, shape)
  limit = np.sqrt(6 / (np.prod(shape[:-2]) * (shape[-2] + shape[-1])))
  assert kernel.shape == shape
  assert 0.8 * limit < np.abs(kernel).max() <= limit


def test_an_orthogonal_kernel_has_orthonormal_rows():
  kernel = layers.orthogonal(_SEED, 3, 8)
  np.testing.assert_allclose(
    kernel @ tf.transpose(kernel), np.eye(3), atol=1e-6
  )


def _normalization(channels):
  return {'n_scale': tf.ones([channels]), 'n_offset': tf.zeros([channels])}


def test_layer_norm_standardizes_each_row():
  x = 3 + 2 * _random(5, 6)
  y = layers.layer_norm(_normalization(6), 'n', x, 0.0)
  np.testing.assert_allclose(tf.reduce_mean(y, 1), np.zeros(5), atol=1e-5)
  np.testing.assert_allclose(tf.math.reduce_std(y, 1), np.ones(5), rtol=1e-4)


def test_bytes_become_numbers_from_minus_one_to_one():
  every = np.arange(256, dtype=np.uint8)
  scaled = layers.scale_bytes(every)
  np.testing.assert_allclose(scaled, np.linspace(-1, 1, 256), atol=2e-7)


def test_group_norm_standardizes_each_group_of_each_image():
  x = 3 + 2 * _random(2, 4, 4, 6)
  y = layers.group_norm(_normalization(6), 'n', x, 3, 0.0).numpy()
  groups = y.reshape(2, 16, 3, 2)
  np.testing.assert_allclose(groups.mean((1, 3)), np.zeros([2, 3]), atol=1e-5)
  np.testing.assert_allclose(groups.std((1, 3)), np.ones([2, 3]), rtol=1e-4)


def test_both_gradients_of_a_layer_norm_are_right():
  rng = np.random.default_rng(0)
  x, direction, upstream, scale, offset = (
    tf.constant(rng.standard_normal(shape), tf.float32)
    for shape in ([3, 5, 4], [3, 5, 4], [3, 5, 4], [4], [4])
  )

  def by_hand(x):
    away = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(away), -1, keepdims=True)
    return away / tf.sqrt(variance + 1e-3) * scale + offset

  def layer(x):
    weights = {'norm_scale': scale, 'norm_offset': offset}
    return layers.layer_norm(weights, 'norm', x, 1e-3)

  def gradients(normalize):
    with tf.GradientTape() as outer:
      outer.watch(x)
      with tf.GradientTape() as inner:
        inner.watch(x)
        y = tf.reduce_sum(upstream * tf.sin(normalize(x)))
      first = inner.gradient(y, x)
      along = tf.reduce_sum(first * direction)
    return first, outer.gradient(along, x)

  for ours, expected in zip(gradients(layer), gradients(by_hand)):
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
