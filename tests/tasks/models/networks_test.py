"""Tests of networks of any sizes."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import layers
from tasks.models import linear
from tasks.models import models
from tasks.models import networks

_SEED = tf.constant([1, 2])


def _batch(model, size=5):
  rng = np.random.default_rng(0)
  batch = {
    'x': tf.constant(rng.normal(size=(size, *model.shape)), tf.float32),
    'y': tf.constant(rng.integers(0, 2, size), model.example_spec['y'].dtype),
  }
  for name in set(model.example_spec) - set(batch):
    batch[name] = tf.constant(rng.integers(0, 2, size), tf.int32)
  return batch


@pytest.mark.parametrize(
  ('network', 'other'),
  [
    (networks.NetworkRegressor((3,)), linear.LinearRegression(3)),
    (networks.NetworkClassifier((3,), 2), linear.LogisticRegression(3, 2)),
  ],
  ids=['regression', 'classification'],
)
def test_a_network_without_layers_is_a_linear_model(network, other):
  batch, start = _batch(network), network.init(_SEED)
  assert not any(np.any(weight) for weight in start.values())
  weights = network.random_init(_SEED)
  same = dict(zip(('kernel', 'bias'), weights.values()))
  if isinstance(network, networks.NetworkRegressor):
    same = {'kernel': same['kernel'][:, 0], 'bias': same['bias'][0]}
  np.testing.assert_allclose(
    network.loss(weights, batch), other.loss(same, batch), rtol=1e-5
  )


def test_a_dense_network_has_the_layers_that_are_asked_for():
  model = networks.NetworkClassifier((3,), 2, hidden=(4, 5))
  weights, x = model.init(_SEED), _batch(model)['x']
  for layer in ('dense1', 'dense2'):
    x = tf.nn.relu(layers.dense(weights, layer, x))
  np.testing.assert_allclose(
    model.scores(weights, _batch(model)), layers.dense(weights, 'output', x)
  )


def test_an_image_may_have_any_size():
  model = networks.NetworkClassifier((9, 5, 3), 2, filters=(4, 6), hidden=(7,))
  assert model.init(_SEED)['dense1_kernel'].shape == (2 * 1 * 6, 7)
  assert model.scores(model.init(_SEED), _batch(model)).shape == (5, 2)


def test_what_a_context_adds_is_the_product_of_two_vectors():
  model = networks.NetworkRegressor((3,), num_contexts=2)
  weights, batch = model.random_init(_SEED), _batch(model)
  e = weights['psi'] * tf.gather(weights['phi'], batch['context'])
  np.testing.assert_allclose(
    model.encode(weights, batch), tf.concat([batch['x'], e], axis=1)
  )
  assert model.parts[models.CLIENT] == ('psi',)
  assert model.context_names == ('phi',)


def test_only_layers_tell_the_norms_of_gradients():
  assert networks.NetworkRegressor((3,)).example_gradients == 'by norms'
  with_vectors = networks.NetworkRegressor((3,), num_contexts=2)
  assert with_vectors.example_gradients == 'in turns'
