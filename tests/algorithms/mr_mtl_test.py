"""MR-MTL at its closed form, and what its clients keep."""

import numpy as np

from tests.algorithms import helpers

_RATE = 0.05


def _build(**values):
  return helpers.build(
    'mr_mtl', **dict(client_learning_rate=_RATE, regularization=0.7) | values
  )


def _rounds(lambda_, num_rounds=3, weights=None):
  """The models of all clients, as computed with NumPy."""
  models = [np.zeros(4) for _ in helpers.SIZES]
  for _ in range(num_rounds):
    w_bar = np.average(models, axis=0, weights=weights)
    for k, data in enumerate(helpers.all_data()):
      for a, b in helpers.batch_gradients(data):
        slope = a @ models[k] - b + lambda_ * (models[k] - w_bar)
        models[k] = models[k] - _RATE * slope
  return models


def _models(after):
  return [helpers.vector(client.state.personal) for client in after.clients]


def test_the_mean_of_sizes_is_that_of_all_models_by_their_sizes():
  # Batches that are not full are dropped, and count in the sizes all the same.
  method = _build(client_weighting='size')
  sizes = [2 * size + 1 for size in helpers.SIZES]
  clients = helpers.make_clients(
    method, attributes=[{'size': size} for size in sizes]
  )
  after, expected = helpers.run(method, 3, clients), _rounds(0.7, 3, sizes)
  helpers.assert_close(_models(after), expected)
  helpers.assert_close(
    helpers.vector(after.state.server.model),
    np.average(expected, axis=0, weights=sizes),
  )


def test_reaches_the_minimum_of_all_losses_and_pulls():
  # Of which w_bar is a variable as well: all are one linear system.
  method = _build(client_learning_rate=0.2)
  clients = helpers.make_clients(
    method,
    [
      helpers.padded(data, rows=12, places=12, steps=1)
      for data in helpers.all_data(batch_size=100)
    ],
  )
  eye, num_clients = np.eye(4), len(clients)
  matrix = np.zeros([num_clients + 1, 4, num_clients + 1, 4])
  right = np.zeros([num_clients + 1, 4])
  for k, data in enumerate(helpers.all_data()):
    a, right[k] = helpers.quadratic(data)
    matrix[k, :, k] = a + 0.7 * eye
    matrix[k, :, -1] = -0.7 * eye
    matrix[-1, :, k] = eye / num_clients
  matrix[-1, :, -1] = -eye
  size = 4 * (num_clients + 1)
  expected = np.linalg.solve(matrix.reshape(size, size), right.ravel())
  after = helpers.run(method, 1000, clients)
  np.testing.assert_allclose(
    [*_models(after), helpers.vector(after.state.server.model)],
    expected.reshape(-1, 4),
    atol=1e-3,
  )


def test_a_clients_momentum_goes_on_if_kept():
  method = _build(
    client_optimizer='momentum', client_slots='kept', regularization=0
  )
  data = helpers.data(0, 9)
  clients = helpers.run(method, 2, helpers.make_clients(method, [data])).clients
  v, m = np.zeros(4), np.zeros(4)
  for a, b in helpers.batch_gradients(data) * 2:
    m = 0.9 * m + a @ v - b
    v = v - _RATE * m
  np.testing.assert_allclose(
    helpers.vector(clients[0].state.personal), v, rtol=1e-4, atol=1e-6
  )
