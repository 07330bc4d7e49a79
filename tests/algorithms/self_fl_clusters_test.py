"""Self-FL that aggregates over clusters."""

import numpy as np
import pytest

from base import errors
from tests.algorithms import helpers

_CLUSTERS = np.array([0, 1, 0, 2, 2])
_KNOWN = dict(variances='known', inter_variance=0.3, example_variance=0.5)


def _build(**values):
  return helpers.build(
    'self_fl_clusters', known_groups=3, client_learning_rate=0.05, **values
  )


def _clients(method):
  return helpers.make_clients(
    method,
    [helpers.padded(data) for data in helpers.all_data()],
    [{'group': cluster} for cluster in _CLUSTERS.tolist()],
  )


def _vectors(clients):
  return np.array([helpers.vector(c.state.personal) for c in clients])


def _cluster_models(state):
  models = state.server.clusters.models
  return np.column_stack([models['kernel'], models['bias']])


def _means(vectors):
  """The mean of each cluster, by the number of examples."""
  weights = np.array(helpers.SIZES)
  return np.array(
    [
      np.average(
        vectors[_CLUSTERS == c], axis=0, weights=weights[_CLUSTERS == c]
      )
      for c in range(3)
    ]
  )


def test_aggregates_the_means_of_clusters_by_their_precision():
  method = _build(**_KNOWN)
  after = helpers.run(method, 2, _clients(method))
  means = _means(_vectors(after.clients))
  np.testing.assert_allclose(_cluster_models(after.state), means, rtol=1e-4)
  spread = 0.3 + 0.5 / np.array(helpers.SIZES)
  w = 1 / np.array([spread[_CLUSTERS == c].mean() for c in range(3)])
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model),
    np.average(means, axis=0, weights=w),
    rtol=1e-4,
    atol=1e-6,
  )
  np.testing.assert_allclose(
    after.state.server.uncertainty.weight, w.sum(), rtol=1e-5
  )


def test_a_cluster_without_clients_in_the_round_keeps_its_model():
  method = _build(smoothed=False, **_KNOWN)
  before = helpers.run(method, 2, _clients(method))
  after = helpers.run(method, 1, before.clients[:3], before.state)
  moved = np.any(
    _cluster_models(after.state) != _cluster_models(before.state), axis=1
  )
  assert moved.tolist() == [True, True, False]
  # And it counts in the global model.
  spread = 0.3 + 0.5 / np.array(helpers.SIZES)
  w = 1 / np.array([spread[_CLUSTERS == c].mean() for c in range(3)])
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model),
    np.average(_cluster_models(after.state), axis=0, weights=w),
    rtol=1e-4,
    atol=1e-6,
  )


def test_a_cluster_that_was_never_seen_does_not_count():
  method = _build(**_KNOWN)
  after = helpers.run(method, 1, _clients(method)[:3])
  assert after.state.server.clusters.seen.tolist() == [1, 1, 0]
  assert after.state.server.uncertainty.number == 2


def test_sigma_0_is_the_variance_of_the_models_of_all_clusters():
  method = _build()
  before = helpers.run(method, 2, _clients(method))
  after = helpers.run(method, 1, before.clients[:1], before.state)
  np.testing.assert_allclose(
    after.state.server.uncertainty.inter_variance,
    np.var(_cluster_models(after.state), axis=0).sum(),
    rtol=1e-4,
  )


def test_with_a_cluster_for_each_client_it_is_self_fl():
  values = dict(client_learning_rate=0.05, posterior='hierarchical', **_KNOWN)
  clusters = helpers.build('self_fl_clusters', known_groups=5, **values)
  alone = helpers.build('self_fl', **values)
  data = [helpers.padded(client_data) for client_data in helpers.all_data()]
  after, expected = (
    helpers.run(method, 4, helpers.make_clients(method, data, attributes))
    for method, attributes in (
      (clusters, [{'group': k} for k in range(5)]),
      (alone, None),
    )
  )
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model),
    helpers.vector(expected.state.server.model),
    rtol=1e-4,
    atol=1e-6,
  )
  np.testing.assert_allclose(
    _vectors(after.clients), _vectors(expected.clients), rtol=1e-4, atol=1e-6
  )


def test_sums_are_over_all_clusters_already():
  with pytest.raises(errors.UserError, match='all_others must be false'):
    _build(all_others=True)


def test_must_know_the_number_of_clusters():
  with pytest.raises(errors.UserError, match='num_groups'):
    helpers.build('self_fl_clusters', known_groups=0)
