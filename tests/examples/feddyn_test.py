"""FedDyn on least squares, whose solution is known."""

import numpy as np
import pytest

from algorithms import aggregation
from algorithms import as_trained
from algorithms import methods
from examples import feddyn
from tests.algorithms import helpers


@pytest.fixture(autouse=True)
def _runtime():
  with helpers.use_runtime('cohort'):
    yield


def _method(**values):
  values = dict(client_learning_rate=0.1, num_clients=5) | values
  trainer = feddyn.FedDyn(helpers.MODEL, feddyn.FedDynSettings(**values))
  personalizer = as_trained.AsTrained(trainer, as_trained.AsTrainedSettings())
  return methods.Method(personalizer, aggregation.mean(), helpers.SETS)


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
  method = _method()
  after = helpers.run(method, 400, _clients(method, epochs=20))
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model), minimum, atol=1e-3
  )
  fedavg = helpers.build(
    'fedavg', client_learning_rate=0.1, client_weighting='uniform'
  )
  after = helpers.run(fedavg, 400, _clients(fedavg, epochs=20))
  distance = helpers.vector(after.state.server.model) - minimum
  assert np.abs(distance).max() > 0.05


def test_two_rounds_are_the_equations():
  method = _method(alpha=0.3)
  clients = _clients(method)
  after = helpers.run(method, 2, clients[:3])
  theta, h, g = np.zeros(4), np.zeros(4), np.zeros([3, 4])
  quadratics = [
    helpers.quadratic(client_data)
    for client_data in helpers.all_data(helpers.SIZES[:3], batch_size=100)
  ]
  for _ in range(2):
    # The regularizer's own gradient is zero at the start of the only step.
    thetas = np.array(
      [
        theta - 0.1 * (a @ theta - b - g_k)
        for (a, b), g_k in zip(quadratics, g)
      ]
    )
    g = g - 0.3 * (thetas - theta)
    h = h - 0.3 / 5 * np.sum(thetas - theta, axis=0)
    theta = thetas.mean(axis=0) - h / 0.3
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model), theta, rtol=1e-4, atol=1e-6
  )
  np.testing.assert_allclose(
    [helpers.vector(client.state) for client in after.clients],
    g,
    rtol=1e-4,
    atol=1e-6,
  )


def test_a_round_of_which_nobody_is_left_changes_nothing():
  method = _method()
  before = helpers.run(method, 1).state
  bad = [
    helpers.corrupt(client_data, np.nan) for client_data in helpers.all_data()
  ]
  after = helpers.run(method, 1, helpers.make_clients(method, bad), before)
  helpers.assert_equal(after.state, before)
