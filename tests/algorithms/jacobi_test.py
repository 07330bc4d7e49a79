"""Singular values by Jacobi's method against LAPACK's, compiled and not."""

import numpy as np
import pytest
import tensorflow as tf

from algorithms import jacobi


# Of the module, so that matrices of one shape share a program.
@pytest.fixture(name='left_singular', params=[False, True], scope='module')
def _left_singular(request):
  return tf.function(
    jacobi.left_singular, jit_compile=request.param, autograph=False
  )


@pytest.mark.parametrize(
  'shape', [(1, 1), (1, 4), (4, 1), (2, 2), (5, 4), (7, 5), (5, 30)]
)
@pytest.mark.parametrize('spread', [1.0, 1e-3, 1e-6, 0.0])
def test_small_ones_are_as_precise_as_large_ones(left_singular, shape, spread):
  rng = np.random.default_rng(0)
  # Rows that are nearly the same: all singular values but one are small.
  matrix = rng.normal(size=shape[1]) + spread * rng.normal(size=shape)
  found = left_singular(tf.constant(matrix)).numpy()
  u, values, _ = np.linalg.svd(matrix, full_matrices=False)
  lengths = np.linalg.norm(found, axis=0)
  order = np.argsort(-lengths)[: len(values)]
  np.testing.assert_allclose(lengths[order], values, rtol=1e-7, atol=1e-13)
  for j, value in zip(order, values):
    if value > 1e-12:
      cosine = np.abs(found[:, j] @ u / lengths[j]).max()
      assert cosine == pytest.approx(1, abs=1e-9)


def test_of_zeros_there_are_none(left_singular):
  np.testing.assert_array_equal(left_singular(tf.zeros([4, 3], tf.float64)), 0)
