"""PFedKM against scikit-learn's k-means, and FedAvg with one cluster."""

import collections
import functools

import numpy as np
from sklearn import cluster
import tensorflow as tf

from tests.algorithms import helpers
from tests.algorithms import preferring


def _updates(method, server, users):
  """Returns the updates of all users as vectors."""
  trainer = method.trainer
  message = trainer.message(server)
  return np.stack([trainer._work(message, user).update for user in users])


def test_a_round_is_a_step_of_k_means_from_the_last_centres():
  method = preferring.build('pfedkm')
  users = preferring.clients(method)
  after = preferring.run(method, 2, users)
  updates = _updates(method, after.state, after.clients)
  centers = after.state.centers.numpy()
  k_means = cluster.KMeans(3, init=centers, n_init=1, max_iter=1).fit(updates)
  members = np.linalg.norm(updates[:, None] - centers, axis=2).argmin(axis=1)
  found = preferring.run(method, 1, after.clients, state=after.state)
  assert [int(user.state.cluster) for user in found.clients] == list(members)
  present = np.unique(members)
  assert len(present) > 1
  expected = [updates[members == k].mean(axis=0) for k in present]
  np.testing.assert_allclose(
    found.state.centers.numpy()[present], expected, rtol=1e-4, atol=1e-6
  )
  if len(present) == 3:  # It moves centres that nobody is at.
    np.testing.assert_allclose(
      found.state.centers, k_means.cluster_centers_, rtol=1e-4, atol=1e-6
    )


def test_a_head_moves_to_the_mean_of_its_members():
  method = preferring.build('pfedkm')
  before = preferring.run(method, 1, preferring.clients(method))
  trainer = method.trainer
  message = trainer.message(before.state)
  works = [trainer._work(message, user) for user in before.clients]
  after = preferring.run(method, 1, before.clients, state=before.state)
  for k, head in enumerate(after.state.heads):
    members = [work.w for work in works if work.cluster == k]
    expected = {
      name: np.mean([w[name] for w in members], axis=0)
      if members
      else before.state.heads[k].weights[name]
      for name in head.weights
    }
    helpers.assert_close(dict(head.weights), expected)
  theta = {
    name: np.mean([work.w[name] for work in works], axis=0)
    for name in after.state.theta.weights
  }
  helpers.assert_close(dict(after.state.theta.weights), theta)


def test_with_one_cluster_it_is_fedavg():
  method = preferring.build('pfedkm', num_groups=1)
  fedavg = preferring.build('fedavg', client_weighting='uniform')
  after = preferring.run(method, 3).state
  other = preferring.run(fedavg, 3, preferring.clients(fedavg)).state
  together = {**after.theta.weights, **after.heads[0].weights}
  helpers.assert_close(together, dict(other.model))


def test_a_new_client_has_the_cluster_of_its_update():
  method = preferring.build('pfedkm')
  trainer = method.trainer
  server = preferring.run(method, 2).state
  message = trainer.message(server)
  for user in preferring.clients(method):
    start = trainer.start(message, user)
    update = trainer._work(message, user).update
    away = np.linalg.norm(server.centers - update, axis=1)
    assert start.measured['cluster'] == away.argmin()
    # One that took part keeps its own.
    state = user.state._replace(cluster=tf.constant(2), rounds=tf.constant(1))
    kept = trainer.start(message, user._replace(state=state))
    assert kept.measured['cluster'] == 2
    helpers.assert_equal(
      collections.OrderedDict(
        (name, kept.weights[name]) for name in trainer.model.parts['head']
      ),
      server.heads[2].weights,
    )


def test_noise_is_on_the_whole_update():
  preferring.check_noise(
    functools.partial(preferring.build, 'pfedkm'),
    lambda method, user: _updates(method, preferring.start(method), [user])[0],
  )
