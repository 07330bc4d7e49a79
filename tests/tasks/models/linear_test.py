"""Tests of the linear models."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import linear

_SEED = tf.constant([1, 2])


def _regression_batch():
  rng = np.random.default_rng(0)
  return {
    'x': tf.constant(rng.normal(size=(5, 3)), tf.float32),
    'y': tf.constant(rng.normal(size=5), tf.float32),
  }


def _classification_batch():
  rng = np.random.default_rng(0)
  return {
    'x': tf.constant(rng.normal(size=(5, 3)), tf.float32),
    'y': tf.constant([0, 3, 1, 1, 2]),
  }


def test_regression_starts_at_zero():
  weights = linear.LinearRegression(3).init(_SEED)
  assert list(weights) == ['kernel', 'bias']
  np.testing.assert_array_equal(weights['kernel'], np.zeros(3))
  np.testing.assert_array_equal(weights['bias'], 0)


def test_regression_starts_at_random_if_told_to():
  model = linear.LinearRegression(3, initial_stddev=0.1)
  first, again = model.init(_SEED), model.init(_SEED)
  other = model.init(tf.constant([1, 3]))
  np.testing.assert_array_equal(first['kernel'], again['kernel'])
  assert np.abs(first['kernel'] - other['kernel']).min() > 0


def test_regression_loss_and_metric_are_half_the_squared_error():
  model = linear.LinearRegression(3)
  batch = _regression_batch()
  weights = {'kernel': tf.constant([1.0, -2, 3]), 'bias': tf.constant(4.0)}
  prediction = batch['x'].numpy() @ [1, -2, 3] + 4
  expected = (prediction - batch['y'].numpy()) ** 2 / 2
  np.testing.assert_allclose(model.loss(weights, batch), expected, rtol=1e-5)
  total, weight = model.statistics(weights, batch)['half_squared_error']
  np.testing.assert_allclose(total, expected, rtol=1e-5)
  np.testing.assert_array_equal(weight, np.ones(5))


def test_masked_examples_do_not_count():
  model = linear.LinearRegression(3)
  batch = _regression_batch()
  weights = model.init(_SEED)
  mean = model.mean_loss(weights, batch, tf.constant([1.0, 0, 1, 0, 0]))
  expected = (batch['y'][0] ** 2 + batch['y'][2] ** 2) / 4
  np.testing.assert_allclose(mean, expected, rtol=1e-5)


def test_representation_is_the_features():
  model = linear.LinearRegression(3)
  batch = _regression_batch()
  features = model.encode(model.init(_SEED), batch)
  np.testing.assert_array_equal(features, batch['x'])


def test_classification_starts_at_zero():
  weights = linear.LogisticRegression(3, 4).init(_SEED)
  np.testing.assert_array_equal(weights['kernel'], np.zeros((3, 4)))
  np.testing.assert_array_equal(weights['bias'], np.zeros(4))


def test_classification_loss_is_the_cross_entropy():
  model = linear.LogisticRegression(3, 4, initial_stddev=1)
  batch = _classification_batch()
  weights = model.init(_SEED)
  logits = batch['x'] @ weights['kernel'] + weights['bias']
  expected = tf.keras.losses.sparse_categorical_crossentropy(
    batch['y'], logits, from_logits=True
  )
  np.testing.assert_allclose(model.loss(weights, batch), expected, rtol=1e-5)


def test_accuracy_counts_the_likeliest_class():
  model = linear.LogisticRegression(3, 4)
  weights = collections.OrderedDict(
    kernel=tf.zeros([3, 4]), bias=tf.constant([0.0, 1.0, 0.0, 0.0])
  )
  metrics = model.statistics(weights, _classification_batch())
  correct, weight = metrics['accuracy']
  np.testing.assert_array_equal(correct, [0, 0, 1, 1, 0])
  np.testing.assert_array_equal(weight, np.ones(5))


def test_models_that_must_differ_start_at_random():
  model = linear.LinearRegression(400)
  first, other = model.random_init(_SEED), model.random_init(_SEED + 1)
  assert np.abs(first['kernel'] - other['kernel']).min() > 0
  # Of the standard deviation 1 / sqrt(400), cut off at two of them.
  assert np.std(first['kernel']) == pytest.approx(0.05, rel=0.2)
  assert np.abs(first['kernel']).max() <= 0.1
  assert first['bias'] == 0


def test_svm_adds_half_the_square_of_all_weights_to_the_hinge_loss():
  plain = linear.SupportVectorMachine(3, l2=0)
  model = linear.SupportVectorMachine(3, l2=0.1)
  batch = _regression_batch() | {'y': tf.constant([1.0, -1, 1, -1, 1])}
  weights = {'kernel': tf.constant([1.0, -2, 3]), 'bias': tf.constant(4.0)}
  margin = batch['y'] * (tf.linalg.matvec(batch['x'], weights['kernel']) + 4)
  hinge = np.maximum(0, 1 - margin)
  np.testing.assert_allclose(plain.loss(weights, batch), hinge, rtol=1e-5)
  np.testing.assert_allclose(
    model.loss(weights, batch), hinge + 0.1 / 2 * (1 + 4 + 9 + 16), rtol=1e-5
  )


def test_svm_predicts_the_sign():
  model = linear.SupportVectorMachine(3, l2=0.1)
  batch = {'y': tf.constant([1.0, -1, 1])}
  correct, weight = model.prediction_statistics(
    tf.constant([0.3, 2, -0.1]), batch
  )['accuracy']
  np.testing.assert_array_equal(correct, [1, 0, 0])
  np.testing.assert_array_equal(weight, [1, 1, 1])
