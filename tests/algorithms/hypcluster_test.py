"""HypCluster on planted clusters, and at the limits of its settings."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from algorithms import hypcluster
from algorithms import runtime_inputs
from base import errors
from tests.algorithms import helpers

_SHARED = dict(
  client_learning_rate=0.1,
  server_optimizer='momentum',
  server_learning_rate=0.3,
)
# One object each, as programs are shared by methods of the same aggregator.
_ROBUST = tff.learning.robust_aggregator()
_UNWEIGHTED = tff.aggregators.UnweightedMeanFactory()


def _build(name='hypcluster', **values):
  return helpers.build(name, **_SHARED, **values)


def _fedavg_from(weights, rounds, aggregator=helpers.MEAN):
  """FedAvg after some rounds from given weights."""
  method = _build('fedavg', aggregator=aggregator)
  state = helpers.replace_server(method.initial_state([0, 1]), model=weights)
  return helpers.run(method, rounds, state=state)


def _assert_same_weights(first, second):
  np.testing.assert_allclose(
    helpers.vector(first), helpers.vector(second), rtol=1e-5
  )


# Two groups of clients, each of a linear function of its own.
_PLANTED = np.array([[1.0, -2.0, 0.5, 1.0], [-1.5, 1.0, 2.0, -1.0]])


def _planted(client):
  data = helpers.data(client, 20)
  data.examples['y'] = np.float32(helpers.features(data) @ _PLANTED[client % 2])
  return data


@functools.cache
def _run_planted():
  """The method, the clients and what there is after rounds on two groups."""
  method = _build()
  clients = helpers.make_clients(method, [_planted(k) for k in range(8)])
  return method, clients, helpers.run(method, 200, clients)


def test_recovers_planted_clusters():
  _, _, after = _run_planted()
  models = np.array([helpers.vector(w) for w in after.state.server.models])
  if models[0, 0] < 0:
    models = models[::-1]
  np.testing.assert_allclose(models, _PLANTED, atol=1e-3)
  assert after.metrics['cluster_0'] == 0.5
  assert after.metrics['cluster_1'] == 0.5


def test_held_out_clients_pick_the_cluster_of_their_group():
  method, clients, after = _run_planted()
  held_out = [
    client._replace(evaluation={'evaluation': _planted(k)})
    for k, client in enumerate(helpers.hold_out(clients))
  ]
  results = [
    result['evaluation'] for result in method.personalize(after.state, held_out)
  ]
  picked = [total[0] / 20 for total, _ in (r['cluster'] for r in results)]
  assert picked in ([0, 1] * 4, [1, 0] * 4)
  for result in results:
    assert result['half_squared_error'][0] < 1e-4


@pytest.mark.parametrize('warmstart_rounds', [0.0, 2.0, 1e9])
def test_both_runtimes_give_the_same_with_the_robust_aggregator(
  warmstart_rounds,
):
  method = _build(aggregator=_ROBUST, warmstart_rounds=warmstart_rounds)
  results = []
  for runtime in ('native', 'cohort'):
    with helpers.use_runtime(runtime):
      after = helpers.run(method, rounds=4)
      results.append((after.state, after.metrics))
  helpers.assert_close(*results)


def test_each_model_of_an_ensemble_is_clipped_as_it_is_alone():
  ensemble = _build(aggregator=_ROBUST, warmstart_rounds=1e9)
  begin = ensemble.initial_state([0, 1])
  for weights in begin.server.models:
    weights['bias'] = np.float32(50)  # Far enough for a long update.
  after = helpers.run(ensemble, state=begin)
  for j, first in enumerate(begin.server.models):
    expected = _fedavg_from(first, 3, _ROBUST).state.server.model
    _assert_same_weights(after.state.server.models[j], expected)
    plain = _fedavg_from(first, 3).state.server.model
    assert expected['bias'] > plain['bias'] + 1


def test_starts_at_random():
  first, second = _build().initial_state([0, 1]).server.models
  assert np.abs(first['kernel'] - second['kernel']).min() > 0


def test_each_cluster_starts_as_the_models_random_start_with_its_own_seed():
  models = _build(num_clusters=3).initial_state([0, 1]).server.models
  seeds = tf.random.experimental.stateless_split([0, 1], 3)
  for seed, weights in zip(seeds, models):
    expected = helpers.MODEL.random_init(seed)
    np.testing.assert_allclose(
      helpers.vector(weights), helpers.vector(expected), rtol=1e-6
    )


@pytest.mark.parametrize(
  'aggregator', [helpers.MEAN, _UNWEIGHTED], ids=['weighted', 'unweighted']
)
def test_a_cluster_that_nobody_picked_stays_as_it_is(aggregator):
  method = _build(aggregator=aggregator, num_clusters=3)
  state = helpers.run(method, rounds=2).state
  # Nobody's best, though with momentum to drift on.
  state.server.models[1]['bias'] = np.float32(1000)
  state.server.optimizers[1]['accumulator']['bias'] = np.float32(5)
  after = helpers.run(method, rounds=1, state=state)
  assert after.metrics['cluster_1'] == 0
  for before, now in (
    (state.server.models, after.state.server.models),
    (state.server.optimizers, after.state.server.optimizers),
  ):
    helpers.assert_equal(now[1], before[1])


def test_a_cluster_that_diverged_is_picked_by_nobody():
  method = _build()
  state = method.initial_state([0, 1])
  state.server.models[0]['bias'] = np.float32(np.nan)
  metrics = helpers.run(method, rounds=1, state=state).metrics
  assert metrics['cluster_1'] == 1
  assert metrics['dropped_clients'] == 0


def test_of_clusters_that_tie_the_first_is_picked():
  method = _build()
  state = method.initial_state([0, 1])
  same = helpers.weights([1, 2, 3, 4])
  state = helpers.replace_server(state, models=(same, same))
  metrics = helpers.run(method, rounds=1, state=state).metrics
  assert metrics['cluster_0'] == 1


def test_the_warm_start_is_an_input_of_the_program():
  assert 'warmstart_rounds' in runtime_inputs.numbers(
    hypcluster.HypClusterSettings()
  )
  first, other = (
    helpers.build_anew('hypcluster', warmstart_rounds=rounds)
    for rounds in (2.0, 7.0)
  )
  assert first.next is other.next


def test_clients_keep_no_slots_as_they_may_change_their_cluster():
  with pytest.raises(errors.UserError, match='client_slots must be new'):
    _build(client_slots='kept')


def test_an_ensemble_takes_the_best_of_its_models():
  method = _build('ensemble')
  state = helpers.run(method, rounds=1).state
  clients = helpers.make_held_out(method)
  models = [helpers.vector(weights) for weights in state.server.models]
  for client, result in zip(clients, method.personalize(state, clients)):
    personalization = client.personalization
    evaluation = client.evaluation['evaluation']
    best = np.argmin([helpers.total_error(personalization, w) for w in models])
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0],
      [helpers.total_error(evaluation, models[best])],
      rtol=1e-4,
    )


def test_an_ensemble_is_hypcluster_in_an_endless_warm_start():
  ensemble, hypcluster_ = _build('ensemble'), _build(warmstart_rounds=1e9)
  assert ensemble.training_key == hypcluster_.training_key
