"""GPFL: its rounds, its conditions, and what it refuses."""

import numpy as np
import pytest

from base import errors
from tests import toys
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem
from tests.reference import split_models

_MODEL = helpers.CLASS_MODEL


def _relu(x):
  return np.where(np.real(x) > 0, x, 0)


def _under(v, c, z):
  """z_c, by the conditional valve."""

  def net(name):
    x = _relu(c @ v[f'{name}_kernel'] + v[f'{name}_bias'])
    x = x - np.mean(x)
    x = x / np.sqrt(np.mean(x**2) + 1e-5)
    return x * v[f'{name}_scale'] + v[f'{name}_offset']

  return _relu((net('gamma') + 1) * z + net('beta'))


def _norm(x):
  """The norm of each row, with that of a row of zeros just above zero."""
  square = np.sum(x**2, axis=1, keepdims=True)
  return np.sqrt(np.where(np.real(square) > 1e-12, square, 1e-12))


def _normalized(x):
  return x / _norm(x)


def _gpfl(p):
  """Zhang et al. 2023c, algorithm 1."""
  s, own, last = p.s, p.model.has('head'), p.model.has('condition')
  w, server, heads = p.w, problem.server_steps(p.s), {}
  num_classes = p.model.shapes['bias'][0]

  def receive(k):
    y = np.concatenate([batch['y'] for batch in p.clients[k].batches])
    shares = np.bincount(y, minlength=num_classes) / len(y)
    received = np.where(own, heads.get(k, w), w)
    received[last] = shares @ p.model.unpack(w)['classes']
    return received

  def objective(u, batch, g, p_k, chat):
    v, y = p.model.unpack(u), batch['y']
    z = split_models.encode(v, batch)
    scores = _under(v, p_k, z) @ v['kernel'] + v['bias']
    z_g = _under(v, g, z)
    cosines = _normalized(z_g) @ _normalized(v['classes']).T
    norms = [
      sum(np.sum(v[name] ** 2) for name in p.model.parts[part])
      for part in ('valve', 'classes')
    ]
    if s.decay_form == 'norm':
      norms = np.sqrt(norms)
    else:
      norms = [0.5 * square for square in norms]
    return (
      problem.cross_entropy(scores, y)
      + s.angle * problem.cross_entropy(cosines, y)
      + s.magnitude * np.mean(_norm(z_g - chat[y]))
      + s.decay * sum(norms)
    )

  for cohort in p.cohorts:
    updates, chat = {}, p.model.unpack(w)['classes']
    for k in cohort:
      steps, received = problem.client_steps(s), receive(k)
      v, p_k = received, received[last]
      for batch in p.clients[k].batches:
        slope = problem.gradient(
          lambda u: objective(u, batch, chat.mean(axis=0), p_k, chat),  # noqa: B023
          v,
        )
        v = steps(v, ~last * slope)
      heads[k], updates[k] = v, np.where(own | last, 0, received - v)
    w = server(w, p.mean(updates))
  return problem.Trained(receive)


def _case(**values):
  values = dict(client_learning_rate=0.05) | values
  return cases.Case('gpfl', _gpfl, values, toys.TypedModel(types=3))


def test_rounds_are_those_of_the_paper():
  cases.check(
    _case(
      magnitude=0.5,
      angle=2.0,
      client_optimizer='momentum',
      server_optimizer='momentum',
    )
  )


def test_penalties_are_those_of_the_code():
  case = _case(decay_form='square', decay=0.5)
  difference, moved = cases.compare(case, 'partial', epochs=1)
  assert difference < cases.LARGEST_DIFFERENCE < moved


def test_without_gamma_and_beta_a_representation_is_its_positive_part():
  model = helpers.build('gpfl', _MODEL).trainer.model
  w = model.init([0, 1])
  for net in 'gamma', 'beta':
    w[f'{net}_scale'] *= 0
  z = np.float32([[1, -1, 2, 0]])
  np.testing.assert_array_equal(model.under(w, w['condition'], z), _relu(z))
  batch = helpers.data(0, 4).examples
  positive = _relu(model.encode(w, batch).numpy())
  np.testing.assert_allclose(
    model.scores(w, batch), positive @ w['kernel'] + w['bias'], rtol=1e-5
  )


def test_a_new_client_has_the_condition_of_its_classes_and_the_initial_head():
  method = helpers.build('gpfl+as_trained', _MODEL)
  after = helpers.run(method, 3)
  (client, *_) = helpers.make_held_out(method)
  (loss,) = method.personalize(after.state, [client])[0]['evaluation']['loss'][
    0
  ]
  w = dict(after.state.server.model)
  y = _MODEL.target(client.personalization.examples)
  share = np.mean(y)
  w['condition'] = (1 - share) * w['classes'][0] + share * w['classes'][1]
  initial = method.initial_state([0, 1]).server.model
  helpers.assert_equal(w['kernel'], initial['kernel'])
  examples = client.evaluation['evaluation'].examples
  losses = method.trainer.model.loss(w, examples)
  assert loss == pytest.approx(np.sum(losses), rel=1e-4)


def test_refuses_what_has_no_classes_or_no_representation():
  for model in helpers.MODEL, helpers.VECTOR_MODEL:
    with pytest.raises(errors.UserError, match='gpfl needs a classifier'):
      helpers.build('gpfl', model)
