"""Small users who like one type of examples, for the tests of FedEmbed."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from algorithms import fedembed
from algorithms import registry
from algorithms import trainers
from tests import toys
from tests.algorithms import helpers

MODEL = toys.TypedModel(types=3)
# Of users, the types that they like.
LIKES = (0, 1, 2, 0, 1, 1)


def data(seed, k, num_types=3, size=8, batch_size=4):
  """Makes the data of a user of type k, who likes half of the examples."""
  rng = np.random.default_rng(seed)
  liked = np.arange(size) % 2 == 0
  others = (k + rng.integers(1, max(num_types, 2), size)) % num_types
  types = np.where(liked, k, others).astype(np.int32)
  x = rng.normal(size=[size, 3]).astype(np.float32)
  x += np.eye(3, dtype=np.float32)[types % 3]
  return helpers.make_batches(
    {'x': x, 'y': liked.astype(np.int32), 'type': types}, batch_size
  )


def all_data(likes=LIKES, **how):
  """Makes the data of several users."""
  return [data(u, k, **how) for u, k in enumerate(likes)]


def build(name, model=MODEL, sgd=True, **values):
  """Builds a method, by default with plain steps of SGD on both sides."""
  plain = dict(
    client_optimizer='sgd',
    client_learning_rate=0.1,
    server_optimizer='sgd',
  )
  if 'embedding_learning_rate' in registry.settings_names(name):
    plain['embedding_learning_rate'] = 0.1
  return helpers.build(
    name,
    model,
    known_groups=model.num_types or 3,
    **{**(plain if sgd else {}), **values},
  )


def clients(method, users=None, attributes=None):
  """Makes the clients of a first round."""
  users = all_data() if users is None else users
  attributes = attributes or [{}] * len(users)
  return [
    trainers.Client(
      data=client_data,
      state=method.trainer.initialize_client(tf.constant([0, u])),
      seed=tf.constant([1, u]),
      attributes=collections.OrderedDict(known),
    )
    for u, (client_data, known) in enumerate(zip(users, attributes))
  ]


def set_embeddings(users, vectors):
  """Returns clients with these embeddings."""
  return [
    user._replace(
      state=user.state._replace(
        e=collections.OrderedDict(vector=np.float32(vector))
      )
    )
    for user, vector in zip(users, vectors)
  ]


def update(method, user, server):
  """Returns the result of a client's work in a round."""
  return _work(method.trainer)(server, user)


def check_noise(build_with, change):
  """Checks that users' changes are clipped, and then have noise.

  Args:
    build_with: Builds a method with some settings.
    change: From a method and a user to the user's change in a round, a vector.
  """
  users, found, clip = all_data([0] * 40, size=4), {}, 0.1
  for noise in (0.0, 1e-6, 0.5):
    method = build_with(
      own_noise=noise, own_clip=clip, client_learning_rate=5.0
    )
    found[noise] = np.stack(
      [change(method, user) for user in clients(method, users)]
    )
  norms = np.linalg.norm(found[0.0], axis=1, keepdims=True)
  clipped = found[0.0] * np.minimum(clip / norms, 1)
  assert np.any(norms > clip)
  np.testing.assert_allclose(found[1e-6], clipped, atol=1e-5)
  assert (found[0.5] - clipped).std() == pytest.approx(0.5 * clip, rel=0.1)


@functools.cache
def _work(trainer):
  """Makes the work of a client as a function, which is traced once."""

  @functools.partial(tf.function, autograph=False)
  def work(server, user):
    return trainer.client(trainer.message(server), user)

  def call(server, user):
    # As tensors, so that other users trace nothing anew.
    return work(*tf.nest.map_structure(tf.constant, (server, user)))

  return call


def aggregate(factory, sent):
  """Aggregates a part, given that all users count the same."""
  if factory is None or isinstance(factory, tff.aggregators.MeanFactory):
    sent = [s for s in sent if s.weight > 0] or sent
    combine = lambda *values: sum(values) / len(values)  # noqa: E731
  elif isinstance(factory, tff.aggregators.SumFactory):
    combine = lambda *values: sum(values)  # noqa: E731
  else:
    best = np.argmax([s.weight for s in sent])
    return sent[best].value
  return tf.nest.map_structure(combine, *[s.value for s in sent])


def run(method, rounds=3, users=None, model=None, state=None):
  """Runs rounds of all users by the functions of the trainer alone, not by TFF.

  That the computations of TFF do the same is a fact of every method.

  Args:
    method: The method.
    rounds: The number of rounds.
    users: The clients; by default those of `all_data`.
    model: The weights to begin with, if not those of `initialize`.
    state: The state to begin with, as `start` makes it.

  Returns:
    As `helpers.run`, but for the metrics, with the trainer's S as the state.
  """
  trainer = method.trainer
  server = state or start(method, model)
  users = clients(method) if users is None else users
  for _ in range(rounds):
    results = [update(method, user, server) for user in users]
    aggregated = {
      part: aggregate(factory, [result.updates[part] for result in results])
      for part, factory in trainer.parts.items()
    }
    server = trainer.server(server, aggregated, None)
    users = [
      user if result.state is None else user._replace(state=result.state)
      for user, result in zip(users, results)
    ]
  return helpers.AfterRounds(server, users, None)


def start(method, model=None):
  """Makes S, with other weights if they are given."""
  server = method.trainer.initialize(tf.constant([0, 1]))
  if model is None:
    return server
  weights = collections.OrderedDict(
    (name, tf.constant(model[name])) for name in server.model
  )
  return server._replace(model=weights)


def local(e, trainer):
  """Returns the work of a client with this embedding, before its first step."""
  weights = collections.OrderedDict(vector=e)
  learner = trainer.embedding_steps.start(weights)
  nothing = trainer.settings.client_steps.start(collections.OrderedDict())
  return fedembed.LocalWork(
    nothing, learner, learner.slots, tf.constant(0.0), 0
  )
