"""pFedHN: its rounds, its products, and how new clients find their vector."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from algorithms import pfedhn
from base import errors
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem

_SMALL = dict(hidden_layers=2, hidden_size=5, vector_size=3)


def _pfedhn(p):
  """Shamsian et al. 2021, algorithm 1, where clients compute the products."""
  s = p.s
  phi = {name: np.float64(leaf) for name, leaf in p.first.model.items()}
  server = problem.server_steps(s)
  vectors = {k: np.float64(c.state.v) for k, c in enumerate(p.clients)}

  def make(phi, v):
    for layer in range(1, s.hidden_layers + 1):
      x = v @ phi[f'hidden{layer}_kernel'] + phi[f'hidden{layer}_bias']
      v = np.where(np.real(x) > 0, x, 0)
    return v @ phi['output_kernel'] + phi['output_bias']

  def pack(of_each):
    return np.concatenate([np.ravel(leaf) for leaf in of_each.values()])

  def unpack(vector):
    sizes = np.cumsum([leaf.size for leaf in phi.values()])[:-1]
    return {
      name: piece.reshape(phi[name].shape)
      for name, piece in zip(phi, np.split(vector, sizes))
    }

  for cohort in p.cohorts:
    sent = {}
    for k in cohort:
      v, theta = vectors[k], make(phi, vectors[k])
      delta = theta - p.descend(k, theta)
      packed = pack(phi)
      g = problem.gradient(
        lambda both: make(unpack(both[len(v) :]), both[: len(v)]) @ delta,  # noqa: B023
        np.concatenate([v, packed]),
      )
      g = g * min(1, s.generator_clip / np.linalg.norm(g))
      sent[k] = g[len(v) :]
      step = g[: len(v)] + s.generator_decay * v
      vectors[k] = v - s.vector_rate * step
    slope = p.mean(sent) + s.generator_decay * pack(phi)
    phi = unpack(server(pack(phi), slope))
  return problem.Trained(lambda k: make(phi, vectors[k]))


@pytest.mark.parametrize(
  'values',
  [
    {},
    dict(
      generator_clip=0.5,
      generator_decay=0.1,
      vector_rate=0.5,
      server_optimizer='sgd',
      client_weighting='examples',
    ),
  ],
)
def test_rounds_are_those_of_the_paper(values):
  values = dict(client_learning_rate=0.1, server_learning_rate=0.1) | values
  cases.check(cases.Case('pfedhn', _pfedhn, _SMALL | values))


@pytest.mark.parametrize('hidden', [(), (4,), (4, 4, 4)])
def test_products_are_those_of_the_derivative(hidden):
  generator = pfedhn.Generator.create(3, hidden, 6)
  phi = generator.initialize(tf.constant([0, 1]))
  v = tf.constant([0.5, -1.0, 2.0])
  delta = tf.random.stateless_normal([6], [0, 2])
  with tf.GradientTape() as tape:
    tape.watch((phi, v))
    value = tf.reduce_sum(generator.make(phi, v) * delta)
  expected = tape.gradient(value, (phi, v))
  helpers.assert_close(generator.product(phi, v, delta), expected)


def test_the_size_of_vectors_follows_from_the_clients():
  for clients, size in (5, 2), (12, 4):
    method = helpers.build('pfedhn', num_clients=clients)
    assert len(helpers.make_clients(method)[0].state.v) == size
  with pytest.raises(errors.UserError, match='pfedhn needs the vector_size'):
    helpers.build('pfedhn', num_clients=0)


def test_a_new_client_fits_its_vector_to_its_examples():
  method = helpers.build(
    'pfedhn',
    **_SMALL,
    vector_epochs=30,
    vector_rate=0.5,
    client_learning_rate=0.1,
    server_learning_rate=0.1,
  )
  after = helpers.run(method, 30)
  # Those who were trained on have forgotten their vectors.
  new = [
    client._replace(
      evaluation=collections.OrderedDict(evaluation=client.personalization)
    )
    for client in helpers.make_held_out(method)
  ]
  results = method.personalize(after.state, new)
  losses = [result['evaluation']['loss'][0] for result in results]
  for client, of_epochs in zip(new, losses):
    theta = method.trainer.model_of(after.state.server.model, client.state.v)
    expected = helpers.MODEL.loss(theta, client.personalization.examples)
    assert of_epochs[0] == pytest.approx(np.sum(expected), rel=1e-4)
  total = np.sum(losses, axis=0)
  assert len(total) == 31
  assert total[-1] < 0.8 * total[0]


def test_fits_only_what_it_trained():
  with pytest.raises(errors.UserError, match='only what pfedhn trained'):
    helpers.build('fedavg+pfedhn')
