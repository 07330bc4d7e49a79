"""HypCluster on planted clusters, and at the limits of its parameters."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from algorithms import algorithm as algorithm_lib
from algorithms import fedavg
from algorithms import hypcluster
from tests.algorithms import helpers


@functools.cache
def _build(aggregator=helpers.mean, **hyperparameters):
  return hypcluster.build(
    helpers.MODEL,
    hypcluster.Hyperparameters(
      client_learning_rate=0.1,
      server_optimizer='momentum',
      server_learning_rate=0.3,
      **hyperparameters,
    ),
    aggregator(),
    helpers.SETS,
  )


@functools.cache
def _build_fedavg(aggregator=helpers.mean):
  return fedavg.build(
    helpers.MODEL,
    fedavg.Hyperparameters(
      client_learning_rate=0.1,
      server_optimizer='momentum',
      server_learning_rate=0.3,
    ),
    aggregator(),
    helpers.SETS,
  )


def _fedavg_from(weights, rounds, aggregator=helpers.mean):
  """FedAvg's state and metrics after some rounds from given weights."""
  algorithm = _build_fedavg(aggregator)
  state = algorithm.initial_state([0, 1])
  state['server']['model'] = weights
  return helpers.run(algorithm, rounds, state=state)


def _vector(weights):
  return np.append(weights['kernel'], weights['bias'])


def _assert_same_weights(first, second):
  np.testing.assert_allclose(_vector(first), _vector(second), rtol=1e-5)


# Two groups of clients, each of a linear function of its own.
_PLANTED = np.array([[1.0, -2.0, 0.5, 1.0], [-1.5, 1.0, 2.0, -1.0]])


def _planted(client):
  own = helpers.data(client, 20)
  kernel, bias = np.split(_PLANTED[client % 2], [3])
  own.examples['y'] = np.float32(own.examples['x'] @ kernel + bias)
  return own


class HypClusterTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    helpers.use('cohort')

  def test_recovers_planted_clusters(self):
    algorithm = _build()
    all_data = [_planted(k) for k in range(8)]
    state, metrics = helpers.run(algorithm, rounds=200, all_data=all_data)
    models = np.array([_vector(w) for w in state['server']['models']])
    if models[0, 0] < 0:
      models = models[::-1]
    np.testing.assert_allclose(models, _PLANTED, atol=1e-3)
    self.assertEqual(metrics['cluster_0'], 0.5)
    self.assertEqual(metrics['cluster_1'], 0.5)

    clients = helpers.held_out_clients(algorithm, all_data)
    for k, client in enumerate(clients):
      client['evaluation']['evaluation'] = _planted(k)
    results = [r['evaluation'] for r in algorithm.personalize(state, clients)]
    picked = [total[0] / 20 for total, _ in (r['cluster'] for r in results)]
    self.assertIn(picked, ([0, 1] * 4, [1, 0] * 4))
    for result in results:
      self.assertLess(result['half_squared_error'][0], 1e-4)

  @parameterized.parameters(0.0, 2.0, 1e9)
  def test_one_cluster_is_fedavg(self, warmstart_rounds):
    algorithm = _build(num_clusters=1, warmstart_rounds=warmstart_rounds)
    start = algorithm.initial_state([0, 1])['server']['models'][0]
    # The optimizer starts anew after two rounds of warm start.
    rounds = 2 if warmstart_rounds == 2 else 4
    state, metrics = helpers.run(algorithm, rounds)
    expected, expected_metrics = _fedavg_from(start, rounds)
    _assert_same_weights(
      state['server']['models'][0], expected['server']['model']
    )
    self.assertEqual(metrics['cluster_0'], 1)
    for name, value in expected_metrics.items():
      self.assertAlmostEqual(metrics[name], value, places=5)

  def test_the_warm_start_is_fedavg_for_each(self):
    algorithm = _build(num_clusters=3, warmstart_rounds=2.0)
    start = algorithm.initial_state([0, 1])['server']['models']
    state, _ = helpers.run(algorithm, rounds=2)
    for first, weights in zip(start, state['server']['models']):
      expected, _ = _fedavg_from(first, rounds=2)
      _assert_same_weights(weights, expected['server']['model'])

  def test_optimizers_start_anew_after_the_warm_start(self):
    algorithm = _build(warmstart_rounds=2.0)
    fresh = algorithm.initial_state([0, 1])['server']['optimizers']
    for rounds, anew in ((1, False), (2, True)):
      state, _ = helpers.run(algorithm, rounds)
      for first, now in zip(fresh, state['server']['optimizers']):
        first, now = tf.nest.flatten(first), tf.nest.flatten(now)
        same = all(map(np.array_equal, first, now))
        self.assertEqual(same, anew)

  @parameterized.parameters(0.0, 2.0, 1e9)
  def test_the_robust_aggregator_on_both_runtimes(self, warmstart_rounds):
    algorithm = _build(
      tff.learning.robust_aggregator, warmstart_rounds=warmstart_rounds
    )
    results = []
    for runtime in ('native', 'cohort'):
      helpers.use(runtime)
      results.append(helpers.run(algorithm, rounds=4))
    tree.map_structure(
      lambda *leaves: np.testing.assert_allclose(*leaves, rtol=1e-4, atol=1e-6),
      *results,
    )

  def test_each_model_of_an_ensemble_is_clipped_as_it_is_alone(self):
    ensemble = _build(tff.learning.robust_aggregator, warmstart_rounds=1e9)
    begin = ensemble.initial_state([0, 1])
    for weights in begin['server']['models']:
      weights['bias'] = np.float32(50)  # Far enough for a long update.
    state, _ = helpers.run(ensemble, state=begin)
    for j, first in enumerate(begin['server']['models']):
      expected, _ = _fedavg_from(first, 3, tff.learning.robust_aggregator)
      _assert_same_weights(
        state['server']['models'][j], expected['server']['model']
      )
      plain, _ = _fedavg_from(first, 3)
      self.assertGreater(
        expected['server']['model']['bias'],
        plain['server']['model']['bias'] + 1,
      )

  def test_starts_at_random(self):
    first, second = _build().initial_state([0, 1])['server']['models']
    self.assertGreater(np.abs(first['kernel'] - second['kernel']).min(), 0)

  @parameterized.parameters(
    helpers.mean, lambda: tff.aggregators.UnweightedMeanFactory()
  )
  def test_a_cluster_that_nobody_picked_stays_as_it_is(self, aggregator):
    algorithm = _build(aggregator, num_clusters=3)
    state, _ = helpers.run(algorithm, rounds=2)
    # Nobody's best, though with momentum to drift on.
    state['server']['models'][1]['bias'] = np.float32(1000)
    state['server']['optimizers'][1]['accumulator']['bias'] = np.float32(5)
    after, metrics = helpers.run(algorithm, rounds=1, state=state)
    self.assertEqual(metrics['cluster_1'], 0)
    for part in ('models', 'optimizers'):
      tf.nest.map_structure(
        np.testing.assert_array_equal,
        after['server'][part][1],
        state['server'][part][1],
      )

  def test_a_cluster_that_diverged_is_picked_by_nobody(self):
    algorithm = _build()
    state = algorithm.initial_state([0, 1])
    state['server']['models'][0]['bias'] = np.float32(np.nan)
    _, metrics = helpers.run(algorithm, rounds=1, state=state)
    self.assertEqual(metrics['cluster_1'], 1)
    self.assertEqual(metrics['dropped_clients'], 0)

  def test_the_warm_start_is_an_input_of_the_program(self):
    self.assertIn(
      'warmstart_rounds',
      algorithm_lib.numbers(hypcluster.Hyperparameters()),
    )

  def test_ensemble_takes_the_best_of_its_models(self):
    algorithm = _build(warmstart_rounds=1e9)
    state, _ = helpers.run(algorithm, rounds=1)
    clients = helpers.held_out_clients(algorithm)
    models = [_vector(weights) for weights in state['server']['models']]

    def error(own, weights):
      x, y = own.examples['x'], own.examples['y']
      return 0.5 * np.sum((x @ weights[:3] + weights[3] - y) ** 2)

    for client, result in zip(clients, algorithm.personalize(state, clients)):
      best = np.argmin([error(client['personalization'], w) for w in models])
      np.testing.assert_allclose(
        result['evaluation']['half_squared_error'][0],
        [error(client['evaluation']['evaluation'], models[best])],
        rtol=1e-4,
      )


if __name__ == '__main__':
  absltest.main()
