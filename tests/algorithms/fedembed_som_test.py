"""FedEmbed's map against NumPy, scikit-learn and SciPy."""

import numpy as np
import pytest
from scipy import optimize
from sklearn import cluster
import tensorflow as tf

from algorithms import fedembed
from algorithms import fedembed_som
from algorithms import vectors
from tests.algorithms import helpers
from tests.algorithms import preferring

_RATE, _RADIUS, _ROUNDS = 0.5, 1.0, 10.0


def _method(winner='node', **values):
  return preferring.build(
    'fedembed_som', som_winner=winner, som_rounds=_ROUNDS, **values
  )


def _maps(seed, round_num=0):
  rng = np.random.default_rng(seed)
  w, next_w = rng.random((2, 3, 2)).astype(np.float32)
  return fedembed_som.Maps(
    tf.constant(w), tf.constant(next_w), tf.constant(round_num)
  )


def _embeddings(number=12):
  return np.random.default_rng(9).random((number, 2)).astype(np.float32)


def _moved(method, maps, es):
  """Has the map moved by users with these embeddings."""
  trainer = method.trainer
  sent = [
    trainer.cluster_updates(maps, None, {'vector': tf.constant(e)}) for e in es
  ]
  aggregate = {
    part: preferring.aggregate(factory, [update[part] for update in sent])
    for part, factory in trainer.parts.items()
    if part != 'model'
  }
  return trainer.next_map(maps, aggregate).numpy(), aggregate


def _move_by_hand(maps, es, winner, rate=_RATE, radius=_RADIUS):
  """Kohonen's update of the next map."""
  w = maps.next_w.numpy().astype(np.float64)
  decay = 1 + 2 * float(maps.round) / _ROUNDS
  distances = np.linalg.norm(es[:, None] - w, axis=2)
  j = distances.argmin(axis=1)
  nodes = np.arange(len(w))
  h = np.exp(-((nodes - j[:, None]) ** 2) / (2 * (radius / decay) ** 2))
  towards = h[:, :, None] * (es[:, None] - w)
  if winner == 'mean':
    return w + rate / decay * towards.sum(0) / h.sum(0)[:, None]
  if winner == 'node':
    best = distances.argmin(axis=0)
  else:
    best = [distances.min(axis=1).argmin()] * len(w)
  return w + rate / decay * towards[best, nodes]


@pytest.mark.parametrize('round_num', [0, 5])
@pytest.mark.parametrize('winner', ['node', 'all', 'mean'])
def test_the_map_moves_as_kohonens(winner, round_num):
  maps, es = _maps(0, round_num), _embeddings()
  moved, _ = _moved(_method(winner), maps, es)
  np.testing.assert_allclose(moved, _move_by_hand(maps, es, winner), rtol=1e-4)


def test_a_mean_without_radius_is_a_step_of_k_means():
  method = _method('mean', som_radius=0.0, som_rate=1.0)
  maps, es = _maps(0), _embeddings()
  moved, _ = _moved(method, maps, es)
  k_means = cluster.KMeans(
    3, init=maps.next_w.numpy(), n_init=1, max_iter=1
  ).fit(es)
  np.testing.assert_allclose(moved, k_means.cluster_centers_, rtol=1e-4)


def test_the_head_is_that_of_the_nearest_node():
  maps, es = _maps(0), _embeddings(50)
  k_means = cluster.KMeans(3, init=maps.w.numpy(), n_init=1, max_iter=1)
  k_means.fit(es)
  k_means.cluster_centers_ = maps.w.numpy()
  found = [fedembed.nearest(e, maps.w) for e in es]
  np.testing.assert_array_equal(found, k_means.predict(es))


def test_users_tell_their_nodes_on_both_maps():
  maps, es = _maps(0), _embeddings()
  _, aggregate = _moved(_method(), maps, es)
  before, after = (
    np.linalg.norm(es[:, None] - w, axis=2).argmin(axis=1)
    for w in (maps.w.numpy(), maps.next_w.numpy())
  )
  expected = np.zeros([3, 3], int)
  np.add.at(expected, (before, after), 1)
  np.testing.assert_array_equal(aggregate['overlaps'], expected)


def test_heads_are_matched_by_the_largest_overlaps():
  match = tf.function(fedembed_som.match, autograph=False)
  rng = np.random.default_rng(0)
  for most in (3, 100):
    for _ in range(20):
      overlaps = rng.integers(0, most, (6, 6)).astype(np.int32)
      rows = match(tf.constant(overlaps)).numpy()
      assert sorted(rows) == list(range(6))
      best = optimize.linear_sum_assignment(overlaps, maximize=True)
      assert overlaps[rows, range(6)].sum() == overlaps[best].sum()


def test_heads_stay_if_the_map_does():
  for counts in ([5, 0, 3, 0], [0] * 4, [1] * 4):
    overlaps = tf.linalg.diag(tf.constant(counts))
    np.testing.assert_array_equal(fedembed_som.match(overlaps), range(4))


def test_heads_follow_their_users_with_the_slots_of_their_optimizer():
  method = _method(sgd=False)
  server = preferring.start(method)
  maps = _maps(0)
  server = server._replace(clusters=maps)
  update = tf.nest.map_structure(
    lambda leaf: tf.random.stateless_normal(leaf.shape, [0, 1]), server.model
  )
  aggregate = {
    'model': update,
    'overlaps': tf.constant([[0, 4, 0], [0, 0, 4], [4, 0, 0]]),
    **{f'node_{i}': tf.constant([0.1, 0.2]) for i in range(3)},
  }
  after = method.trainer.server(server, aggregate, None)
  aggregate['overlaps'] = tf.eye(3, dtype=tf.int32)
  stayed = method.trainer.server(server, aggregate, None)
  order = [2, 0, 1]  # Node 1 has the users that had head 0.

  def renumber(learned):
    return {
      name: np.array(leaf)[order] if name.startswith('phi_') else leaf
      for name, leaf in learned.items()
    }

  helpers.assert_equal(dict(after.model), renumber(stayed.model))
  for slot in ('preconditioner', 'accumulator'):
    helpers.assert_equal(
      dict(after.optimizer[slot]), renumber(stayed.optimizer[slot])
    )
  np.testing.assert_array_equal(after.clusters.w, maps.next_w)
  np.testing.assert_allclose(
    after.clusters.next_w, maps.next_w + [0.1, 0.2], rtol=1e-6
  )


def test_cannot_be_private():
  assert 'reveals its embedding' in _method().trainer.why_not_private


def test_noise_is_on_all_that_is_changed_of_the_model():
  def change(method, user):
    sent = preferring.update(method, user, preferring.start(method))
    return vectors.join(sent.updates['model'].value.values())

  preferring.check_noise(_method, change)
