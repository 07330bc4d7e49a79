"""PerFedAvg against the gradient of its objective on quadratics."""

import numpy as np
import pytest

from base import errors
from tests.algorithms import helpers

_ALPHA, _BETA = 0.1, 0.05
_W = np.array([0.3, -0.2, 0.5, 1.0])


def _build(**values):
  return helpers.build(
    'perfedavg', client_learning_rate=_BETA, inner_rate=_ALPHA, **values
  )


def _begin(method, w=_W):
  return helpers.replace_server(
    method.initial_state([0, 1]), model=helpers.weights(w)
  )


def test_a_step_is_the_gradient_of_the_loss_after_one_step():
  # F(w) = f(w - alpha grad f(w)), differentiated by finite differences.
  data = helpers.data(0, 10, batch_size=10)
  a, b = helpers.quadratic(data)

  def objective(w):
    w = w - _ALPHA * (a @ w - b)
    return 0.5 * w @ a @ w - b @ w

  h = 1e-5
  slopes = [
    (objective(_W + h * e) - objective(_W - h * e)) / (2 * h) for e in np.eye(4)
  ]
  method = _build(form='hessian_vector')
  clients = helpers.make_clients(method, [data])
  after = helpers.run(method, 1, clients, _begin(method)).state
  np.testing.assert_allclose(
    (_W - helpers.vector(after.server.model)) / _BETA, slopes, rtol=1e-4
  )


def test_slots_cannot_be_kept():
  with pytest.raises(errors.UserError, match='client_slots must be new'):
    _build(client_slots='kept')
