"""Ditto against closed forms, and at the limits of lambda."""

import functools

from absl.testing import absltest
import numpy as np

from algorithms import ditto
from algorithms import fedavg
from tests.algorithms import helpers

_SHARED = dict(client_learning_rate=0.1, server_learning_rate=0.5)


@functools.cache
def _build(**hyperparameters):
  return ditto.build(
    helpers.MODEL,
    ditto.Hyperparameters(**_SHARED, **hyperparameters),
    helpers.mean(),
    helpers.SETS,
  )


def _with(algorithm, state, **numbers):
  """The state with other numbers, as one program serves them all."""
  for name, value in numbers.items():
    state['hyperparameters'][name] = np.float32(value)
  return state


def _vector(weights):
  return np.append(weights['kernel'], weights['bias'])


def _personal(client):
  return _vector(client['state']['personal'])


def _full_batches(client):
  """A client's data in one batch, so that SGD is gradient descent."""
  return helpers.data(client, helpers.SIZES[client], batch_size=100)


def _quadratic(own):
  """A and b of the mean loss 1/2 v.A v - b.v + c."""
  x = np.insert(own.examples['x'], 3, 1, axis=1).astype(np.float64)
  return x.T @ x / len(x), x.T @ own.examples['y'] / len(x)


def _descend(own, v, w, learning_rate, lambda_, steps):
  """Gradient descent on h(v; w), in closed form."""
  a, b = _quadratic(own)
  a, b = a + lambda_ * np.eye(4), b + lambda_ * w
  minimum = np.linalg.solve(a, b)
  shrink = np.linalg.matrix_power(np.eye(4) - learning_rate * a, steps)
  return minimum + shrink @ (v - minimum)


class DittoTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    helpers.use('cohort')
    self.algorithm = _build(personal_epochs=3)
    self.all_data = [_full_batches(k) for k in range(len(helpers.SIZES))]

  def state(self, **numbers):
    return _with(
      self.algorithm, self.algorithm.initial_state([0, 1]), **numbers
    )

  def test_personal_models_reach_the_analytic_minimum(self):
    # The global model stands still, so that each problem is one quadratic.
    state = self.state(
      client_learning_rate=0, personal_learning_rate=0.2, regularization=0.3
    )
    w = np.array([1.0, -1.0, 0.5, 2.0])
    state['server']['model'].update(
      kernel=np.float32(w[:3]), bias=np.float32(w[3])
    )
    clients = helpers.train_clients(self.algorithm, self.all_data)
    helpers.run(self.algorithm, rounds=300, clients=clients, state=state)
    for client, own in zip(clients, self.all_data):
      a, b = _quadratic(own)
      expected = np.linalg.solve(a + 0.3 * np.eye(4), b + 0.3 * w)
      np.testing.assert_allclose(_personal(client), expected, atol=1e-3)

  def test_is_pulled_to_the_global_model_it_received(self):
    numbers = dict(personal_learning_rate=0.2, regularization=0.7)
    clients = helpers.train_clients(self.algorithm, self.all_data)
    state = self.state(**numbers)
    expected = [np.zeros(4)] * len(clients)
    for _ in range(3):
      received = _vector(state['server']['model'])
      expected = [
        _descend(own, v, received, 0.2, 0.7, steps=1)
        for own, v in zip(self.all_data, expected)
      ]
      state, _ = helpers.run(
        self.algorithm, rounds=1, clients=clients, state=state
      )
    for client, v in zip(clients, expected):
      np.testing.assert_allclose(_personal(client), v, rtol=1e-4, atol=1e-6)

  def test_the_global_model_is_that_of_fedavg(self):
    state, _ = helpers.run(self.algorithm, state=self.state())
    expected, _ = helpers.run(
      fedavg.build(
        helpers.MODEL,
        fedavg.Hyperparameters(**_SHARED),
        helpers.mean(),
        helpers.SETS,
      )
    )
    np.testing.assert_allclose(
      _vector(state['server']['model']),
      _vector(expected['server']['model']),
      rtol=1e-5,
    )

  def test_without_a_pull_it_is_local_training(self):
    clients = helpers.train_clients(self.algorithm, self.all_data)
    state = self.state(personal_learning_rate=0.2, regularization=0)
    helpers.run(self.algorithm, rounds=5, clients=clients, state=state)
    for client, own in zip(clients, self.all_data):
      expected = _descend(own, np.zeros(4), np.zeros(4), 0.2, 0, steps=5)
      np.testing.assert_allclose(
        _personal(client), expected, rtol=1e-4, atol=1e-6
      )

  def test_with_an_infinite_pull_it_is_fedavg(self):
    clients = helpers.train_clients(self.algorithm, self.all_data)
    state = self.state(personal_learning_rate=1e-6, regularization=1e6)
    state, _ = helpers.run(
      self.algorithm, rounds=4, clients=clients, state=state
    )
    received = _vector(state['server']['model'])
    helpers.run(self.algorithm, rounds=1, clients=clients, state=state)
    for client in clients:
      np.testing.assert_allclose(_personal(client), received, atol=1e-4)

  def test_held_out_clients_train_from_the_global_model(self):
    state, _ = helpers.run(self.algorithm, state=self.state())
    w = _vector(state['server']['model'])
    clients = helpers.held_out_clients(self.algorithm, self.all_data)
    results = self.algorithm.personalize(state, clients)
    for client, result in zip(clients, results):
      models = [w] + [
        _descend(client['personalization'], w, w, 0.1, 0.1, steps)
        for steps in range(4)
      ]
      examples = client['evaluation']['evaluation'].examples
      x = np.insert(examples['x'], 3, 1, axis=1)
      expected = [0.5 * np.sum((x @ v - examples['y']) ** 2) for v in models]
      np.testing.assert_allclose(
        result['evaluation']['half_squared_error'][0], expected, rtol=1e-3
      )

  def test_clients_that_were_trained_are_evaluated_at_their_own_model(self):
    clients = helpers.train_clients(self.algorithm, self.all_data)
    state, _ = helpers.run(self.algorithm, clients=clients, state=self.state())
    held_out = helpers.held_out_clients(self.algorithm, self.all_data)
    for client, evaluated in zip(clients, held_out):
      evaluated['state'] = client['state']
    results = self.algorithm.personalize(state, held_out)
    for client, result in zip(held_out, results):
      examples = client['evaluation']['evaluation'].examples
      x = np.insert(examples['x'], 3, 1, axis=1)
      np.testing.assert_allclose(
        result['evaluation']['half_squared_error'][0][1],
        0.5 * np.sum((x @ _personal(client) - examples['y']) ** 2),
        rtol=1e-3,
      )


if __name__ == '__main__':
  absltest.main()
