"""FedDyn: its rounds, and that it ends at the minimum of all clients."""

import numpy as np
import pytest

from base import errors
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem


def _feddyn(p):
  """Acar et al. 2021: theta = mean theta_k - h / alpha."""
  alpha, theta, h = p.s.alpha, p.w, 0 * p.w
  g = {k: 0 * theta for k in range(p.num_trained)}
  for cohort in p.cohorts:
    after = {
      k: p.descend(k, theta, lambda v: alpha * (v - theta) - g[k])  # noqa: B023
      for k in cohort
    }
    for k, theta_k in after.items():
      g[k] = g[k] - alpha * (theta_k - theta)
    moved = sum(theta_k - theta for theta_k in after.values())
    h = h - alpha / p.num_trained * moved
    theta = np.mean(list(after.values()), axis=0) - h / alpha
  return problem.Trained(lambda k: theta)


@pytest.fixture(autouse=True)
def _runtime():
  with helpers.use_runtime('cohort'):
    yield


@pytest.mark.parametrize(
  'values',
  [
    dict(alpha=0.3, client_learning_rate=0.05),
    dict(alpha=0.1, client_learning_rate=0.05, client_optimizer='momentum'),
  ],
)
def test_rounds_are_those_of_the_paper(values):
  # It counts all clients alike.
  case = cases.Case('feddyn', _feddyn, values)
  cases.check(case)


def _build(**values):
  values = dict(client_learning_rate=0.1, alpha=0.1, num_clients=5) | values
  return helpers.build('feddyn', **values)


def _clients(method, epochs=1):
  """Clients with all their data in each batch, of which there are several."""
  data = [
    helpers.padded(client_data, rows=12, places=12, steps=1)
    for client_data in helpers.all_data(batch_size=100)
  ]
  repeated = [
    client_data._replace(
      indices=client_data.indices.repeat(epochs, 0),
      mask=client_data.mask.repeat(epochs, 0),
    )
    for client_data in data
  ]
  return helpers.make_clients(method, repeated)


def test_ends_at_the_minimum_of_all_clients_where_fedavg_does_not():
  quadratics = [
    helpers.quadratic(client_data)
    for client_data in helpers.all_data(batch_size=100)
  ]
  a, b = (np.mean(part, axis=0) for part in zip(*quadratics))
  minimum = np.linalg.solve(a, b)
  method = _build()
  after = helpers.run(method, 400, _clients(method, epochs=20))
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model), minimum, atol=1e-3
  )
  # There g_k is the gradient of F_k, and h is zero.
  for client, (a_k, b_k) in zip(after.clients, quadratics):
    np.testing.assert_allclose(
      helpers.vector(client.state), a_k @ minimum - b_k, atol=1e-3
    )
  np.testing.assert_allclose(helpers.vector(after.state.server.h), 0, atol=1e-3)
  fedavg = helpers.build(
    'fedavg', client_learning_rate=0.1, client_weighting='uniform'
  )
  after = helpers.run(fedavg, 400, _clients(fedavg, epochs=20))
  distance = helpers.vector(after.state.server.model) - minimum
  assert np.abs(distance).max() > 0.05


def test_needs_the_number_of_clients():
  with pytest.raises(errors.UserError, match='the number of clients'):
    helpers.build('feddyn', num_clients=0)
