"""Tests of `algorithms.vectors`."""

import numpy as np
import tensorflow as tf

from algorithms import vectors
from tests.algorithms import helpers


def test_split_weights_have_their_names_and_shapes_back():
  weights = dict(
    kernel=tf.reshape(tf.range(6.0), [2, 3]), bias=tf.constant(7.0)
  )
  vector = vectors.join(weights.values())
  np.testing.assert_array_equal(vector, [0, 1, 2, 3, 4, 5, 7])
  assert vectors.count(weights.values()) == 7
  helpers.assert_equal(dict(vectors.split_weights(vector, weights)), weights)
