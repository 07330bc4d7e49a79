"""Batch normalization: in training, in evaluation, and what it keeps."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import layers
from tasks.models import resnet

_SHAPE = (16, 16, 3)


def _batch(size=6, seed=0):
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    x=rng.integers(0, 256, (size, *_SHAPE), np.uint8),
    y=rng.integers(0, 10, size).astype(np.int32),
  )


def _model(**values):
  return resnet.ResNet(shape=_SHAPE, width=8, **values)


def _reference(x, scale, offset, axes, epsilon):
  mean, variance = tf.nn.moments(x, axes, keepdims=True)
  y = (x - mean) / tf.sqrt(variance + epsilon) * scale + offset
  return y, tf.squeeze(mean), tf.squeeze(variance)


def test_training_is_that_of_tensorflow():
  x = tf.random.stateless_normal([6, *_SHAPE], [0, 1], 2, 3)
  w = {
    'a_scale': tf.constant([1.0, 2, 3]),
    'a_offset': tf.constant([0.5, 0, 1]),
  }
  upstream = tf.random.stateless_normal(x.shape, [0, 1])
  found = {}
  for name in 'ours', 'theirs':
    with tf.GradientTape() as tape:
      tape.watch((x, w))
      if name == 'ours':
        y, (*kept, number) = layers.batch_norm(w, 'a', x, 1e-3)
        kept[1] *= (number - 1) / number
      else:
        axes = [0, 1, 2]
        y, *kept = _reference(x, w['a_scale'], w['a_offset'], axes, 1e-3)
    found[name] = y, *kept, tape.gradient(y, (x, w), upstream)
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
    tf.nest.flatten(found['ours']),
    tf.nest.flatten(found['theirs']),
  )


@pytest.mark.parametrize('norm', ['group', 'batch'])
def test_padding_and_another_order_change_neither_gradients_nor_statistics(
  norm,
):
  model, batch = _model(norm=norm), _batch()
  order = np.random.default_rng(1).permutation(6)
  padded = np.append(order, [0, 3, 3])
  ones, mask = np.ones(6, np.float32), np.float32(np.arange(9) < 6)
  w = model.init([0, 1])

  def results(rows, mask):
    examples = {name: tf.gather(v, rows) for name, v in batch.items()}
    with tf.GradientTape() as tape:
      tape.watch(w)
      loss, after = model.train_loss(w, examples, tf.constant(mask))
    return loss, after, tape.gradient(loss, w, unconnected_gradients='zero')

  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5),
    tf.nest.flatten(results(range(6), ones)),
    tf.nest.flatten(results(padded, mask)),
  )
  _, after, slopes = results(padded, 0 * mask)
  for name, value in after.items():
    np.testing.assert_array_equal(value, w[name])
  for slope in slopes.values():
    assert not np.any(slope)


def test_evaluation_reads_the_statistics_and_no_other_example():
  model, batch = _model(norm='batch'), _batch()
  w = model.init([0, 1])
  train_loss = tf.function(model.train_loss)
  for _ in range(100):
    loss, after = train_loss(w, batch, tf.ones([6]))
    w.update(after)
  # At last they are those of the batch, but for n / (n - 1).
  losses = model.loss(w, batch)
  np.testing.assert_allclose(losses.numpy().mean(), loss, rtol=0.1)
  alone = {name: v[2:3] for name, v in batch.items()}
  np.testing.assert_allclose(model.loss(w, alone), losses[2:3], rtol=1e-3)


def test_pooled_and_averaged_statistics_of_one_client_are_alike():
  batch, losses = _batch(), []
  for running in 'averaged', 'pooled':
    model = _model(norm='batch', running=running)
    w, train_loss = model.init([0, 1]), tf.function(model.train_loss)
    for _ in range(100):
      w.update(train_loss(w, batch, tf.ones([6]))[1])
    losses.append(model.loss(w, batch))
  np.testing.assert_allclose(*losses, rtol=1e-3)
