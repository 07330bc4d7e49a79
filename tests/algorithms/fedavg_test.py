"""FedAvg against the same computed with NumPy."""

from absl.testing import parameterized
import numpy as np
import tensorflow_federated as tff

from algorithms import fedavg
from tests.algorithms import helpers

_CLIENT_RATE = 0.05


def _local_sgd(weights, own):
  """One epoch of SGD on half the squared error."""
  kernel, bias = weights
  for indices, mask in zip(own.indices, own.mask):
    x = own.examples['x'][indices[mask > 0]]
    y = own.examples['y'][indices[mask > 0]]
    residual = x @ kernel + bias - y
    kernel = kernel - _CLIENT_RATE * x.T @ residual / len(y)
    bias = bias - _CLIENT_RATE * residual.mean()
  return np.append(kernel, bias)


def _mean_update(model, all_data, counts):
  updates = [model - _local_sgd((model[:3], model[3]), own) for own in all_data]
  return np.average(updates, axis=0, weights=counts)


def _rounds(server_step, num_rounds=3, counts=helpers.SIZES):
  """The model after some rounds; `server_step` gives what to subtract."""
  all_data = [helpers.data(k, n) for k, n in enumerate(helpers.SIZES)]
  model = np.zeros(4)
  for _ in range(num_rounds):
    model = model - server_step(_mean_update(model, all_data, counts))
  return model


class _Momentum:
  """m <- .9 m + scale * update; steps by lr * m."""

  def __init__(self, learning_rate, scale):
    self._learning_rate, self._scale = learning_rate, scale
    self._m = 0.0

  def __call__(self, update):
    self._m = 0.9 * self._m + self._scale * update
    return self._learning_rate * self._m


class _Adam:
  """Kingma and Ba 2015, with the correction of the bias of the moments."""

  def __init__(self, learning_rate, beta_1, beta_2, epsilon):
    self._hyperparameters = learning_rate, beta_1, beta_2, epsilon
    self._m = self._v = 0.0
    self._t = 0

  def __call__(self, update):
    learning_rate, beta_1, beta_2, epsilon = self._hyperparameters
    self._t += 1
    self._m = beta_1 * self._m + (1 - beta_1) * update
    self._v = beta_2 * self._v + (1 - beta_2) * update**2
    corrected = learning_rate * np.sqrt(1 - beta_2**self._t)
    corrected /= 1 - beta_1**self._t
    return corrected * self._m / (np.sqrt(self._v) + epsilon)


_CASES = {
  'fedavg': (dict(), lambda: lambda update: update),
  'server_learning_rate': (
    dict(server_learning_rate=0.5),
    lambda: lambda update: 0.5 * update,
  ),
  'fedavgm': (
    dict(server_optimizer='momentum', server_learning_rate=0.3),
    lambda: _Momentum(0.3, 1.0),
  ),
  'motleys_damped_fedavgm': (
    dict(server_optimizer='damped_momentum', server_learning_rate=3.0),
    lambda: _Momentum(3.0, 0.1),
  ),
  'fedadam': (
    dict(
      server_optimizer='adam',
      server_learning_rate=0.1,
      server_beta_2=0.95,
      server_epsilon=0.01,
    ),
    lambda: _Adam(0.1, 0.9, 0.95, 0.01),
  ),
}


def _model(state):
  weights = state['server']['model']
  return np.append(weights['kernel'], weights['bias'])


def _build(**hyperparameters):
  return fedavg.build(
    helpers.MODEL,
    fedavg.Hyperparameters(
      client_learning_rate=_CLIENT_RATE, **hyperparameters
    ),
    helpers.mean(),
    helpers.SETS,
  )


class FedAvgTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    helpers.use('cohort')

  @parameterized.named_parameters(
    (name, *case) for name, case in _CASES.items()
  )
  def test_three_rounds(self, hyperparameters, server_step):
    state, _ = helpers.run(_build(**hyperparameters))
    np.testing.assert_allclose(
      _model(state), _rounds(server_step()), rtol=1e-4, atol=1e-6
    )

  def test_uniform_weighting_counts_clients(self):
    state, _ = helpers.run(_build(client_weighting='uniform'))
    expected = _rounds(lambda update: update, counts=[1] * 5)
    np.testing.assert_allclose(_model(state), expected, rtol=1e-4, atol=1e-6)

  def test_the_hyperparameters_in_the_state_are_what_counts(self):
    algorithm = _build()
    state = algorithm.initial_state([0, 1])
    state['hyperparameters']['client_learning_rate'] = np.float32(0)
    state, _, metrics = algorithm.next(state, helpers.train_clients(algorithm))
    np.testing.assert_array_equal(_model(state), 0)
    self.assertGreater(metrics['loss'], 0)

  def test_training_metrics(self):
    _, metrics = helpers.run(_build(), rounds=1)
    self.assertEqual(metrics['num_clients'], len(helpers.SIZES))
    self.assertEqual(metrics['num_examples'], sum(helpers.SIZES))
    self.assertEqual(metrics['dropped_clients'], 0)

  def test_a_robust_aggregator_zeroes_what_is_far_off(self):
    # Clients' updates of norm above this are taken for zero.
    aggregator = tff.aggregators.zeroing_factory(1e-6, helpers.mean())
    algorithm = fedavg.build(
      helpers.MODEL, fedavg.Hyperparameters(), aggregator, helpers.SETS
    )
    state, metrics = helpers.run(algorithm, rounds=1)
    np.testing.assert_array_equal(_model(state), 0)
    self.assertEqual(metrics['num_clients'], len(helpers.SIZES))

  def test_an_aggregator_that_does_not_weight_counts_clients(self):
    algorithm = fedavg.build(
      helpers.MODEL,
      fedavg.Hyperparameters(client_learning_rate=_CLIENT_RATE),
      tff.aggregators.UnweightedMeanFactory(),
      helpers.SETS,
    )
    state, _ = helpers.run(algorithm)
    expected = _rounds(lambda update: update, counts=[1] * 5)
    np.testing.assert_allclose(_model(state), expected, rtol=1e-4, atol=1e-6)

  def test_every_client_is_evaluated_at_the_global_model(self):
    algorithm = _build()
    state, _ = helpers.run(algorithm)
    clients = helpers.held_out_clients(algorithm)
    results = algorithm.personalize(state, clients)
    model = _model(state)
    for client, result in zip(clients, results):
      examples = client['evaluation']['evaluation'].examples
      errors = examples['x'] @ model[:3] + model[3] - examples['y']
      total, weight = result['evaluation']['half_squared_error']
      self.assertEqual(weight, [6])
      np.testing.assert_allclose(total, [0.5 * np.sum(errors**2)], rtol=1e-4)
