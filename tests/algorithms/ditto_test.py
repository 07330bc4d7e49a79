"""Ditto: who has which model, and what it personalizes."""

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


def _descend(data, v, w, learning_rate, lambda_, steps):
  """Gradient descent on h(v; w), in closed form."""
  a, b = helpers.quadratic(data)
  a, b = a + lambda_ * np.eye(4), b + lambda_ * w
  minimum = np.linalg.solve(a, b)
  shrink = np.linalg.matrix_power(np.eye(4) - learning_rate * a, steps)
  return minimum + shrink @ (v - minimum)


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
