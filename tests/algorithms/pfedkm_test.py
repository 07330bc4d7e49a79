"""PFedKM against scikit-learn's k-means."""

import functools

import numpy as np
from sklearn import cluster

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


def test_noise_is_on_the_whole_update():
  preferring.check_noise(
    functools.partial(preferring.build, 'pfedkm'),
    lambda method, user: _updates(method, preferring.start(method), [user])[0],
  )
