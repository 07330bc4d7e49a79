"""Tests of finding the weights of clients' models."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.runs import personal_weights
from tasks.models import linear
from tasks.models import networks
from tasks.models import preference


@pytest.mark.parametrize(
  'model',
  [
    linear.LogisticRegression(3, num_classes=2),
    networks.NetworkRegressor((3,), hidden=(2,)).with_vector(4),
    # A field of it has a value that cannot be given.
    preference.DigitPreference(types=2, vector_size=28),
  ],
)
def test_the_weights_are_the_statistics_of_an_example(model):
  weights = model.random_init(tf.constant([1, 2]))
  revealing = personal_weights._with_weight_statistics(model)
  batch = model.blank_example()
  found = revealing.statistics(weights, batch).pop('weights')
  assert list(found) == list(weights)
  for name, weight in weights.items():
    np.testing.assert_array_equal(found[name], weight[tf.newaxis])
  assert (
    revealing.loss(weights, batch).numpy() == model.loss(weights, batch).numpy()
  )
