"""FedEmbed's prototypes: equation (1), who is recovered, and who moves them."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from algorithms import registry
from tests import toys
from tests.algorithms import helpers
from tests.algorithms import preferring


def _method(**values):
  return preferring.build('fedembed_prototype', **values)


def _set_prototypes(method, p):
  return preferring.start(method)._replace(clusters=tf.constant(p, tf.float32))


def test_a_step_goes_down_the_triplet_loss():
  # Of two prototypes, the other one is the negative.
  trainer = _method(model=toys.TypedModel(types=2)).trainer
  p = tf.constant([[0.0, 1.0], [2.0, 0.5]])
  user = preferring.clients(_method())[3]._replace(seed=tf.constant([0, 1]))
  for e in ([0.4, 0.8], [1.0, 1.0], [-0.5, 1.0]):
    e = tf.constant(e)
    before = preferring.local(e, trainer)
    after = trainer.approach(p, before, user, tf.constant(0), tf.ones([4]))
    with tf.GradientTape() as tape:
      tape.watch(e)
      to_k, to_n = (tf.reduce_sum((e - p[k]) ** 2) for k in range(2))
      loss = tf.maximum(0.0, to_k - to_n + 1)
    expected = e - 0.1 * tape.gradient(loss, e)
    np.testing.assert_allclose(after.e.weights['vector'], expected, rtol=1e-5)


# The shares of users that are nearest to the prototype of their own type after
# so many steps of Adam at .001 (10 digits of size 28, 20 voices of size 200).
@pytest.mark.parametrize(
  'num_types, size, shares',
  [
    (10, 28, {55: 0.19, 200: 0.58, 400: 0.92, 550: 0.98}),
    (20, 200, {55: 0.18, 200: 0.80, 400: 0.99, 550: 1.00}),
  ],
)
def test_shares_of_users_that_are_recovered(num_types, size, shares):
  trainer = helpers.build_anew(
    'fedembed_prototype',
    toys.TypedModel(types=num_types, vector_size=size),
    known_groups=num_types,
  ).trainer
  users = 400

  client = preferring.clients(_method())[0]
  # No user is prototypical.
  client = client._replace(state=client.state._replace(number=users))

  @functools.partial(tf.function, jit_compile=True, autograph=False)
  def approach(user, p, local, until):
    seeded = client._replace(seed=tf.stack([3, user]))
    return tf.while_loop(
      lambda local: local.steps < until,
      lambda local: [
        trainer.approach(
          p, local, seeded, user % num_types, tf.ones([1])
        )._replace(steps=local.steps + 1)
      ],
      [local],
    )[0]

  rng = np.random.default_rng(0)
  found = []
  for user in range(users):
    if user % 10 == 0:  # Other prototypes make other shares.
      p = tf.constant(rng.random((num_types, size)), tf.float32)
    e = tf.constant(rng.random(size), tf.float32)
    local = tf.nest.map_structure(
      tf.convert_to_tensor, preferring.local(e, trainer)
    )
    nearest = []
    for until in shares:
      local = approach(tf.constant(user), p, local, tf.constant(until))
      head = trainer.head_of(p, local.e.weights['vector'], None)
      nearest.append(head == user % num_types)
    found.append(nearest)
  np.testing.assert_allclose(
    np.mean(found, axis=0), list(shares.values()), atol=0.05
  )


def test_the_head_is_that_of_the_nearest_prototype():
  trainer = _method().trainer
  rng = np.random.default_rng(0)
  p, e = rng.random((3, 2)), rng.random((20, 2))
  expected = np.argmin(np.linalg.norm(e[:, None] - p, axis=2), axis=1)
  found = [trainer.head_of(tf.constant(p), e_k, None) for e_k in e]
  np.testing.assert_array_equal(found, expected)


def test_the_first_users_are_the_prototypes():
  method = _method(embedding_loss='own')
  p = [[0.1, 0.9], [0.5, 0.5], [0.9, 0.2]]
  state = _set_prototypes(method, p)
  users = preferring.clients(method)
  # They start at the prototypes.
  first = [
    method.trainer.begin(method.trainer.message(state), u) for u in users
  ]
  for user in range(3):
    np.testing.assert_allclose(first[user].e.weights['vector'], p[user])
  for user in range(3, len(users)):
    helpers.assert_equal(first[user].e.weights, users[user].state.e)
  after = preferring.run(method, 1, users, state=state)
  sent = [user.state.e['vector'] for user in after.clients]
  np.testing.assert_allclose(after.state.clusters, sent[:3], rtol=1e-6)
  assert not np.any(np.isclose(after.state.clusters, p).all(axis=1))
  # Who takes no part stays, and so does its prototype.
  again = preferring.run(
    method, 1, after.clients[1:], state=after.state
  ).state.clusters
  np.testing.assert_array_equal(again[0], after.state.clusters[0])
  assert not np.array_equal(again[1], after.state.clusters[1])


def test_prototypical_users_take_no_triplet_steps():
  method = _method()
  trainer, p = method.trainer, tf.constant([[0.0, 1], [2, 0], [1, 1]])
  for user, moves in zip(preferring.clients(method), [0, 0, 0, 1, 1, 1]):
    before = preferring.local(tf.constant([0.5, 0.5]), trainer)
    k = trainer.type_of(user)
    after = trainer.approach(p, before, user, k, tf.ones([4]))
    moved = np.any(after.e.weights['vector'] != before.e.weights['vector'])
    assert moved == moves


def test_each_other_type_is_as_likely_the_negative():
  # Where e is at all prototypes but for one entry each, a step tells n.
  trainer = _method(model=toys.TypedModel(types=4, vector_size=4)).trainer
  user = preferring.clients(_method())[4]
  p, counts = tf.eye(4), np.zeros(4, int)
  for seed in range(60):
    seeded = user._replace(seed=tf.constant([seed, 1]))
    before = preferring.local(tf.zeros([4]), trainer)
    after = trainer.approach(p, before, seeded, tf.constant(1), tf.ones([1]))
    moved = after.e.weights['vector'] - before.e.weights['vector']
    assert moved[1] > 0
    counts[np.argmin(moved)] += 1
  assert counts[1] == 0
  assert np.delete(counts, 1).min() > 10


def test_defaults_are_the_papers():
  settings = registry.make_settings('fedembed_prototype', {}).trainer
  assert settings.client_optimizer == settings.server_optimizer == 'adam'
  assert settings.client_learning_rate == 0.001
  assert settings.server_learning_rate == 1.0
  assert settings.embedding_learning_rate == 0.001


def test_prototypes_that_stay_are_sent_by_nobody():
  method = _method(moving_prototypes=False)
  assert method.trainer.why_not_private is None
  assert set(method.trainer.parts) == {'model'}
  state = preferring.start(method)
  after = preferring.run(method, 2).state
  np.testing.assert_array_equal(after.clusters, state.clusters)
