"""FedExP, and that a method of one's own has all that others have."""

import numpy as np
import pytest

from algorithms import aggregation
from algorithms import as_trained
from algorithms import methods
from examples import fedexp
from tests.algorithms import helpers


@pytest.fixture(autouse=True)
def _runtime():
  with helpers.use_runtime('cohort'):
    yield


def _method(**values):
  values = dict(client_learning_rate=0.1) | values
  trainer = fedexp.FedExp(helpers.MODEL, fedexp.FedExpSettings(**values))
  personalizer = as_trained.AsTrained(trainer, as_trained.AsTrainedSettings())
  return methods.Method(personalizer, aggregation.mean(), helpers.SETS)


def _updates():
  """The clients' first updates from a model of zeros, by hand."""
  return np.array(
    [-0.1 * helpers.quadratic(data)[1] for data in _data()], np.float64
  )


def _data():
  return helpers.all_data(batch_size=100)


@pytest.mark.parametrize('epsilon', [1e-3, 5.0])
def test_a_round_is_the_equation(epsilon):
  method = _method(epsilon=epsilon)
  clients = helpers.make_clients(
    method, [helpers.padded(d, rows=12, places=12, steps=1) for d in _data()]
  )
  after = helpers.run(method, 1, clients)
  deltas = _updates()
  delta = deltas.mean(axis=0)
  eta = np.sum(deltas**2) / (2 * len(deltas) * (delta @ delta + epsilon))
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model),
    -max(1, eta) * delta,
    rtol=1e-4,
    atol=1e-6,
  )


def test_where_clients_agree_it_is_fedavg():
  fedavg = helpers.build(
    'fedavg', client_learning_rate=0.1, client_weighting='uniform'
  )
  models = [
    helpers.run(
      method, 3, helpers.make_clients(method, [helpers.data(0, 8)] * 3)
    ).state.server.model
    for method in (_method(), fedavg)
  ]
  helpers.assert_close(*models)


def test_a_round_of_which_nobody_is_left_changes_nothing():
  method = _method()
  before = helpers.run(method, 1).state
  bad = [
    helpers.corrupt(client_data, np.nan) for client_data in helpers.all_data()
  ]
  after = helpers.run(method, 1, helpers.make_clients(method, bad), before)
  helpers.assert_equal(after.state, before)
