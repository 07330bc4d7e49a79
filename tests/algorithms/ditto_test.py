"""Ditto against closed forms, and at the limits of lambda."""

import numpy as np

from algorithms import candidates
from tests.algorithms import helpers

_SHARED = dict(client_learning_rate=0.1, server_learning_rate=0.5)


def _build(**values):
  return helpers.build('ditto', personal_epochs=3, **_SHARED | values)


def _personal(client):
  return helpers.vector(client.state.personal)


def _clients(method):
  """Clients with all their data in one batch: SGD is gradient descent."""
  return helpers.make_clients(method, helpers.all_data(batch_size=100))


def _stacked_clients(method):
  """The same with padding to the same shapes, which is faster."""
  return helpers.make_clients(
    method,
    [
      helpers.padded(data, rows=12, places=12, steps=1)
      for data in helpers.all_data(batch_size=100)
    ],
  )


def _descend(data, v, w, learning_rate, lambda_, steps):
  """Gradient descent on h(v; w), in closed form."""
  a, b = helpers.quadratic(data)
  a, b = a + lambda_ * np.eye(4), b + lambda_ * w
  minimum = np.linalg.solve(a, b)
  shrink = np.linalg.matrix_power(np.eye(4) - learning_rate * a, steps)
  return minimum + shrink @ (v - minimum)


def test_personal_models_reach_the_analytic_minimum():
  # The global model stands still, so that each problem is one quadratic.
  method = _build(
    client_learning_rate=0, personal_learning_rate=0.2, regularization=0.3
  )
  w = np.array([1.0, -1.0, 0.5, 2.0])
  state = helpers.with_server(
    method.initial_state([0, 1]), model=helpers.weights(w)
  )
  after = helpers.run(method, 300, _stacked_clients(method), state)
  for client, data in zip(after.clients, helpers.all_data()):
    a, b = helpers.quadratic(data)
    expected = np.linalg.solve(a + 0.3 * np.eye(4), b + 0.3 * w)
    np.testing.assert_allclose(_personal(client), expected, atol=1e-3)


def test_is_pulled_to_the_global_model_it_received():
  method = _build(personal_learning_rate=0.2, regularization=0.7)
  state, clients = method.initial_state([0, 1]), _clients(method)
  expected = [np.zeros(4)] * len(clients)
  for _ in range(3):
    received = helpers.vector(state.server.model)
    expected = [
      _descend(client.data, v, received, 0.2, 0.7, steps=1)
      for client, v in zip(clients, expected)
    ]
    state, clients, _ = helpers.run(method, 1, clients, state)
  for client, v in zip(clients, expected):
    np.testing.assert_allclose(_personal(client), v, rtol=1e-4, atol=1e-6)


def test_begins_with_the_global_model_of_the_clients_first_round():
  method = _build(personal_learning_rate=0.2, regularization=0.7)
  state = helpers.run(method, 2, _clients(method)).state
  w = helpers.vector(state.server.model)
  after = helpers.run(method, 1, _clients(method), state)
  for client in after.clients:
    expected = _descend(client.data, w, w, 0.2, 0.7, steps=1)
    np.testing.assert_allclose(
      _personal(client), expected, rtol=1e-4, atol=1e-6
    )


def test_the_global_model_is_that_of_fedavg():
  state = helpers.run(_build()).state
  expected = helpers.run(helpers.build('fedavg', **_SHARED)).state
  np.testing.assert_allclose(
    helpers.vector(state.server.model),
    helpers.vector(expected.server.model),
    rtol=1e-5,
  )


def test_the_global_model_is_that_of_fedavg_when_clients_keep_slots():
  values = dict(client_optimizer='momentum', client_slots='kept')
  state = helpers.run(_build(**values)).state
  fedavg = helpers.build('fedavg', **_SHARED, **values)
  expected = helpers.run(fedavg).state
  np.testing.assert_allclose(
    helpers.vector(state.server.model),
    helpers.vector(expected.server.model),
    rtol=1e-5,
  )


def test_without_a_pull_it_is_local_training():
  method = _build(personal_learning_rate=0.2, regularization=0)
  for client in helpers.run(method, 5, _clients(method)).clients:
    expected = _descend(client.data, np.zeros(4), np.zeros(4), 0.2, 0, steps=5)
    np.testing.assert_allclose(
      _personal(client), expected, rtol=1e-4, atol=1e-6
    )


def test_with_an_infinite_pull_it_is_fedavg():
  method = _build(personal_learning_rate=1e-6, regularization=1e6)
  state, clients, _ = helpers.run(method, 4, _clients(method))
  received = helpers.vector(state.server.model)
  for client in helpers.run(method, 1, clients, state).clients:
    np.testing.assert_allclose(_personal(client), received, atol=1e-4)


def test_held_out_clients_train_from_the_global_model():
  method = _build()
  state = helpers.run(method).state
  w = helpers.vector(state.server.model)
  clients = helpers.hold_out(_clients(method))
  for client, result in zip(clients, method.personalize(state, clients)):
    models = [w] + [
      _descend(client.personalization, w, w, 0.1, 0.1, steps)
      for steps in range(4)
    ]
    evaluation = client.evaluation['evaluation']
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0],
      [helpers.total_error(evaluation, v) for v in models],
      rtol=1e-3,
    )


def test_clients_that_were_trained_are_evaluated_at_their_own_model():
  method = _build()
  state, clients, _ = helpers.run(method, clients=_clients(method))
  results = method.personalize(state, helpers.hold_out(clients))
  for k, (client, result) in enumerate(zip(clients, results)):
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0][1],
      helpers.total_error(helpers.data(k + 100, 6), _personal(client)),
      rtol=1e-3,
    )


def test_the_baseline_is_the_global_model():
  method = _build()
  assert method.candidates[method.baseline] == candidates.Candidate(
    text='global model'
  )


def test_fine_tuning_starts_from_the_personal_model():
  method = helpers.build('ditto+finetuning', finetuning_epochs=1, **_SHARED)
  state, clients, _ = helpers.run(method)
  results = method.personalize(state, helpers.hold_out(clients))
  for k, (client, result) in enumerate(zip(clients, results)):
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0][0],
      helpers.total_error(helpers.data(k + 100, 6), _personal(client)),
      rtol=1e-3,
    )
