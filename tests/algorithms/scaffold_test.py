"""SCAFFOLD against NumPy, and where FedAvg drifts."""

import numpy as np
import pytest

from algorithms import registry
from base import errors
from tests.algorithms import helpers

_RATE = 0.05
_WEIGHTINGS = ('examples', 'uniform')


def _build(name='scaffold', **values):
  return helpers.build(name, **dict(client_learning_rate=_RATE) | values)


def _model(state):
  return helpers.vector(state.server.model)


def _control(client):
  return helpers.vector(client.state.control)


class _Numpy:
  """SCAFFOLD as its paper has it, for clients that count by `weights`."""

  def __init__(self, weights, server_rate=1.0):
    self.x = np.zeros(4)
    self.controls = np.zeros([len(weights), 4])
    self._weights = np.asarray(weights, np.float64)
    self._server_rate = server_rate

  @property
  def c(self):
    return np.average(self.controls, axis=0, weights=self._weights)

  def round(self, taking_part):
    after, controls, c = [], self.controls.copy(), self.c
    for i in taking_part:
      y, gradients = self.x, helpers.batch_gradients(helpers.all_data()[i])
      for a, b in gradients:
        y = y - _RATE * (a @ y - b - self.controls[i] + c)
      option_2 = (self.x - y) / (len(gradients) * _RATE)
      controls[i] = self.controls[i] - c + option_2
      after.append(y)
    mean = np.average(after, axis=0, weights=self._weights[taking_part])
    self.x = self.x + self._server_rate * (mean - self.x)
    self.controls = controls


@pytest.mark.parametrize('weighting', _WEIGHTINGS)
def test_the_first_round_is_fedavgs(weighting):
  values = dict(server_learning_rate=0.5, client_weighting=weighting)
  models = [
    _model(helpers.run(_build(name, **values), 1).state)
    for name in ('scaffold', 'fedavg')
  ]
  np.testing.assert_allclose(*models, rtol=1e-6)


@pytest.mark.parametrize('weighting', _WEIGHTINGS)
def test_rounds_of_some_clients_are_those_of_numpy(weighting):
  method = _build(server_learning_rate=0.5, client_weighting=weighting)
  numpy = _Numpy(
    helpers.SIZES if weighting == 'examples' else np.ones(5), server_rate=0.5
  )
  state, clients = method.initial_state([0, 1]), helpers.make_clients(method)
  # All are known after the first, so that all n_i are.
  for taking_part in ([0, 1, 2, 3, 4], [1, 4], [3, 4, 0], [2, 1]):
    after = helpers.run(method, 1, [clients[i] for i in taking_part], state)
    state = after.state
    for i, client in zip(taking_part, after.clients):
      clients[i] = client
    numpy.round(taking_part)
  np.testing.assert_allclose(_model(state), numpy.x, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(
    list(map(_control, clients)), numpy.controls, rtol=1e-4, atol=1e-6
  )


def test_a_client_that_was_in_no_round_counts_among_the_n():
  # A fifth of c_i, although no other is known.
  method = _build(client_weighting='uniform')
  numpy = _Numpy(np.ones(5))
  clients = helpers.make_clients(method)[:1]
  state = helpers.run(method, 3, clients).state
  for _ in range(3):
    numpy.round([0])
  np.testing.assert_allclose(_model(state), numpy.x, rtol=1e-4, atol=1e-6)


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
