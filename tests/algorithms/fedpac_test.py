"""FedPAC: its rounds, how heads are combined, and what it refuses."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from algorithms import fedpac
from base import errors
from tests import toys
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem
from tests.reference import split_models


def _minimum(q):
  """The shares a that minimize a q a, of all supports that it may have."""
  best = None
  for size in range(1, len(q) + 1):
    for support in itertools.combinations(range(len(q)), size):
      inner = np.ix_(support, support)
      found = np.linalg.lstsq(q[inner], np.ones(size), rcond=None)[0]
      a = np.zeros(len(q))
      a[list(support)] = found / found.sum()
      if np.all(a >= -1e-9) and (best is None or a @ q @ a < best @ q @ best):
        best = a
  return best


def _combine(h, v):
  """The shares of all clients, each from the definition of D."""
  rows = []
  for h_i in h:
    away = np.array([(h_i - h_j).ravel() for h_j in h])
    a = _minimum(np.diag(v) + away @ away.T)
    rows.append(np.where(a < 1e-3, 0, a))
  return np.array(rows) / np.sum(rows, axis=1, keepdims=True)


def _fedpac(p):
  """Xu et al. 2023, algorithm 1."""
  s, head = p.s, p.model.has('head')
  w, server, heads, prototypes = p.w, problem.server_steps(s), {}, {}
  classes = range(p.model.shapes['bias'][0])

  def encode(v, batch):
    return split_models.encode(p.model.unpack(v), batch)

  def describe(v, k):
    x = p.clients[k].examples
    z, n = encode(v, x), len(x['y'])
    of_class = [z[x['y'] == c] for c in classes]
    p_c = [len(rows) / n for rows in of_class]
    mu = [rows.mean(axis=0) if len(rows) else 0 * z[0] for rows in of_class]
    v_k = sum(
      p * np.mean(np.sum(rows**2, axis=1)) - p**2 * np.sum(m**2)
      for p, m, rows in zip(p_c, mu, of_class)
      if len(rows)
    )
    return np.array([p * m for p, m in zip(p_c, mu)]), v_k / n

  def pull(v, batch):
    away = [
      np.mean((z - prototypes[y]) ** 2)
      for z, y in zip(encode(v, batch), batch['y'])
      if y in prototypes
    ]
    return s.prototype_pull * sum(away) / len(batch['y'])

  for cohort in p.cohorts:
    updates, sent, trained, described = {}, {}, {}, {}
    for k in cohort:
      received = v = np.where(head, heads.get(k, w), w)
      described[k] = describe(v, k)
      steps = problem.client_steps(s, s.head_learning_rate)
      for batch in p.clients[k].batches * s.head_epochs:
        v = np.where(head, steps(v, head * p.gradient(v, batch)), v)
      steps = problem.client_steps(s)
      for batch in p.clients[k].batches * s.encoder_epochs:
        slope = p.gradient(v, batch)
        slope = slope + problem.gradient(lambda u: pull(u, batch), v)  # noqa: B023
        v = np.where(head, v, steps(v, ~head * slope))
      updates[k], trained[k] = np.where(head, 0, received - v), v
      x = p.clients[k].examples
      for c in set(x['y']):
        rows = encode(v, x)[x['y'] == c]
        sent.setdefault(c, []).append((len(rows), rows.mean(axis=0)))
    w = server(w, p.mean(updates))
    prototypes |= {
      c: sum(n * z for n, z in of_c) / sum(n for n, _ in of_c)
      for c, of_c in sent.items()
    }
    h, variances = zip(*described.values())
    shares = _combine(h, variances)
    for k, a in zip(trained, shares):
      heads[k] = sum(x * v for x, v in zip(a, trained.values()))
  return problem.Trained(lambda k: np.where(head, heads.get(k, w), w))


def test_rounds_are_those_of_the_paper():
  values = dict(
    client_learning_rate=0.05,
    client_optimizer='momentum',
    server_optimizer='momentum',
    prototype_pull=4.0,
    head_epochs=2,
    encoder_epochs=2,
  )
  model = toys.TypedModel(types=3)
  cases.check(cases.Case('fedpac', _fedpac, values, model))


@pytest.mark.parametrize('seed', range(4))
def test_heads_are_combined_by_the_minimum(seed):
  rng = np.random.default_rng(seed)
  h = rng.normal(size=[5, 6]) * 10 ** rng.uniform(-1.5, 0.5)
  v = 10 ** rng.uniform(-2, 0, 5)
  found = fedpac.combine(h, v, np.ones(5, bool))
  np.testing.assert_allclose(found, _combine(h, v), atol=1e-5)


def test_clients_that_are_alike_count_by_their_certainty():
  h, v = np.ones([4, 3]), np.array([1.0, 2.0, 4.0, 4.0])
  found = fedpac.combine(h, v, np.ones(4, bool))
  expected = (1 / v) / sum(1 / v)
  np.testing.assert_allclose(found, np.tile(expected, [4, 1]), atol=1e-5)


def test_clients_that_are_far_apart_keep_their_heads():
  h, v = 100 * np.eye(4), np.ones(4)
  found = fedpac.combine(h, v, np.ones(4, bool))
  np.testing.assert_array_equal(found, np.eye(4))


def test_clients_that_are_not_there_have_no_share():
  h, v = np.ones([4, 3]), np.array([1.0, 1.0, 0.0, 0.0])
  present = np.array([True, True, False, False])
  found = fedpac.combine(h, v, present)
  np.testing.assert_allclose(found, np.tile(0.5 * present, [4, 1]), atol=1e-5)
  assert tf.math.is_finite(fedpac.combine(0 * h, 0 * v, present)).numpy().all()


def test_refuses_what_has_no_classes_or_no_representation():
  for model in helpers.MODEL, helpers.VECTOR_MODEL:
    with pytest.raises(errors.UserError, match='fedpac needs a classifier'):
      helpers.build('fedpac', model)
  with pytest.raises(errors.UserError, match='fedpac needs the number'):
    helpers.build('fedpac', helpers.CLASS_MODEL, num_clients=0)
