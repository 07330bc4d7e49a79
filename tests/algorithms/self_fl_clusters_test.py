"""Self-FL over clusters: what does not count."""

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


def test_a_cluster_that_was_never_seen_does_not_count():
  method = _build(**_KNOWN)
  after = helpers.run(method, 1, _clients(method)[:3])
  assert after.state.server.clusters.seen.tolist() == [1, 1, 0]
  assert after.state.server.uncertainty.number == 2


def test_sums_are_over_all_clusters_already():
  with pytest.raises(errors.UserError, match='all_others must be false'):
    _build(all_others=True)


def test_must_know_the_number_of_clusters():
  with pytest.raises(errors.UserError, match='num_groups'):
    helpers.build('self_fl_clusters', known_groups=0)
