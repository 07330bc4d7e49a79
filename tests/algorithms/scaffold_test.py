"""SCAFFOLD where FedAvg drifts."""

import numpy as np
import pytest

from algorithms import registry
from base import errors
from tests.algorithms import helpers

_RATE = 0.05


def _build(name='scaffold', **values):
  return helpers.build(name, **dict(client_learning_rate=_RATE) | values)


def _model(state):
  return helpers.vector(state.server.model)


def _control(client):
  return helpers.vector(client.state.control)


def _full_batches(data, steps):
  """A number of steps on all examples."""
  return data._replace(
    indices=np.tile(data.indices, [steps, 1]),
    mask=np.tile(data.mask, [steps, 1]),
  )


def test_reaches_the_optimum_of_two_quadratics_where_fedavg_does_not():
  quadratics = [helpers.data(k, 12, batch_size=12) for k in range(2)]
  a, b = (sum(terms) for terms in zip(*map(helpers.quadratic, quadratics)))
  optimum = np.linalg.solve(a, b)
  distances = []
  for name, values in (('scaffold', dict(num_clients=2)), ('fedavg', {})):
    method = _build(name, client_learning_rate=0.1, **values)
    clients = helpers.make_clients(
      method, [_full_batches(data, 10) for data in quadratics]
    )
    model = _model(helpers.run(method, 300, clients).state)
    distances.append(np.linalg.norm(model - optimum))
  assert distances[0] < 1e-4
  assert distances[1] > 0.05


def test_without_a_step_a_client_keeps_its_control():
  clients = helpers.run(_build(), 1).clients
  method = _build(client_learning_rate=0)
  after = helpers.run(method, 1, clients)
  helpers.assert_equal(
    list(map(_control, after.clients)), list(map(_control, clients))
  )


@pytest.mark.parametrize(
  'values, message',
  [
    (dict(num_clients=0), 'num_clients'),
    (dict(client_slots='kept'), 'client_slots'),
    (dict(client_optimizer='adam'), 'client_optimizer must be sgd'),
  ],
)
def test_refuses(values, message):
  settings = registry.make_settings('scaffold', {'num_clients': 5} | values)
  with pytest.raises(errors.UserError, match=message):
    registry.build(
      'scaffold', helpers.MODEL, settings, helpers.MEAN, helpers.SETS
    )
