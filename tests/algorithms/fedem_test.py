"""FedEM: its rounds, the likelihood, and the mixtures of clients."""

import collections

import numpy as np
import pytest
import scipy.special

from base import errors
from tasks.models import linear
from tests.algorithms import helpers
from tests.algorithms import prompting
from tests.reference import cases
from tests.reference import problem


def _losses(w, batch):
  """The losses of all models, `[n, M]`."""
  scores = np.einsum('nd,md->nm', batch['x'], w['kernel']) + w['bias']
  return 0.5 * (scores - batch['y'][:, np.newaxis]) ** 2


def _expect(w, batch, pi):
  return scipy.special.softmax(np.log(pi) - _losses(w, batch), axis=1)


def _fedem(p):
  """Marfoq et al. 2021, of a regression."""
  own, w, kept = p.model.has('mixture'), p.w, {}
  server = problem.server_steps(p.s)

  def expect(w, k, pi):
    return [
      _expect(p.model.unpack(w), batch, pi) for batch in p.clients[k].batches
    ]

  def loss(v, batch, q):
    return np.sum(q * _losses(p.model.unpack(v), batch)) / len(q)

  for cohort in p.cohorts:
    updates = {}
    for k in cohort:
      q = expect(w, k, kept.get(k, w[own]))
      steps, w_k = problem.client_steps(p.s), w
      for batch, q_b in zip(p.clients[k].batches, q):
        slope = problem.gradient(lambda v: loss(v, batch, q_b), w_k)  # noqa: B023
        w_k = steps(w_k, ~own * slope)
      kept[k], updates[k] = np.concatenate(q).mean(axis=0), w - w_k
    w = server(w, p.mean(updates))

  def start(k):
    pi = kept.get(k, w[own])
    for _ in range(0 if k in kept else p.s.mixture_steps):
      pi = np.concatenate(expect(w, k, pi)).mean(axis=0)
    started = w.copy()
    started[own] = pi
    return started

  return problem.Trained(start, w)


@pytest.mark.parametrize(
  'values',
  [
    {},
    dict(num_models=2, client_optimizer='momentum', mixture_steps=1),
    dict(server_optimizer='adam', client_weighting='uniform'),
  ],
)
def test_rounds_are_those_of_the_paper(values):
  # A mixture to start from, where there are random weights otherwise.
  case = cases.Case('fedem', _fedem, dict(client_learning_rate=0.05) | values)
  size = case.method.trainer.settings.num_models
  (first,) = case.method.first_models
  first['mixture'] = np.float32(np.arange(1, size + 1) / sum(range(size + 1)))
  cases.check(case)


def _two_kinds(share, seed, size=40):
  """Examples of y = 3 x and of y = -3 x, with the share of the first."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[size, 3]).astype(np.float32)
  signs = np.where(np.arange(size) < share * size, 3, -3)
  return helpers.make_batches(
    {'x': x, 'y': (signs * x[:, 0]).astype(np.float32)}, batch_size=size
  )


def _likelihood(w, pi, data):
  losses = _losses(w, {n: np.float64(v) for n, v in data.examples.items()})
  return np.sum(scipy.special.logsumexp(np.log(pi) - losses, axis=1))


def test_the_likelihood_of_one_client_never_falls():
  method = helpers.build('fedem', num_clients=1, client_learning_rate=0.1)
  data = _two_kinds(0.7, 0)
  state, clients = None, helpers.make_clients(method, [data])
  found = []
  for _ in range(25):
    after = helpers.run(method, 1, clients, state)
    state, clients = after.state, after.clients
    pi = clients[0].state.personal['mixture']
    found.append(_likelihood(state.server.model, pi, data))
  assert np.all(np.diff(found) > -1e-4)
  assert found[-1] > found[0] + 10


def test_clients_find_their_shares_of_what_is_common():
  shares = 0.2, 0.5, 0.9
  method = helpers.build('fedem', num_models=2, client_learning_rate=0.2)
  clients = helpers.make_clients(
    method, [_two_kinds(share, k) for k, share in enumerate(shares)]
  )
  after = helpers.run(method, 60, clients)
  slopes = after.state.server.model['kernel'][:, 0]
  np.testing.assert_allclose(sorted(slopes), [-3, 3], atol=0.2)
  first = np.argmax(slopes)
  for share, client in zip(shares, after.clients):
    found = client.state.personal['mixture'][first]
    assert found == pytest.approx(share, abs=0.1)
  # A new client finds its share as well, and no more.
  data = _two_kinds(0.3, 9)
  new = helpers.make_held_out(method, [data])
  equal, own = method.personalize(after.state, new)[0]['evaluation']['loss'][0]
  examples = new[0].evaluation['evaluation'].examples
  w = after.state.server.model
  pi = np.full(2, 0.5)
  predicted = examples['x'] @ w['kernel'].T + w['bias']
  for loss, steps in (equal, 0), (own, 10):
    for _ in range(steps):
      pi = _expect(w, data.examples, pi).mean(axis=0)
    error = predicted @ pi - examples['y']
    assert loss == pytest.approx(0.5 * np.sum(error**2), rel=1e-3)


def test_models_that_start_alike_stay_alike():
  method = helpers.build('fedem')
  state = method.initial_state([0, 1])
  alike = collections.OrderedDict(
    (
      name,
      leaf
      if name == 'mixture'
      else np.tile(leaf[:1], [3] + [1] * (leaf.ndim - 1)),
    )
    for name, leaf in state.server.model.items()
  )
  state = helpers.replace_server(state, model=alike)
  after = helpers.run(method, 3, state=state)
  for client in after.clients:
    helpers.assert_close(client.state.personal['mixture'], np.full(3, 1 / 3))
  for leaf in after.state.server.model.values():
    helpers.assert_close(leaf, np.broadcast_to(leaf[:1], leaf.shape))


def test_predicts_mixed_probabilities():
  model = linear.LogisticRegression(3, 4)
  mixture = helpers.build('fedem', model).trainer.model
  w = mixture.init([0, 1])
  w['mixture'] = np.float32([0.2, 0.0, 0.8])
  x = np.random.default_rng(0).normal(size=[5, 3]).astype(np.float32)
  of_each = [
    scipy.special.softmax(x @ kernel + bias, axis=1)
    for kernel, bias in zip(w['kernel'].numpy(), w['bias'].numpy())
  ]
  expected = np.einsum('m,mnc->nc', w['mixture'], of_each)
  y = np.int32([0, 1, 2, 3, 0])
  losses = mixture.loss(w, {'x': x, 'y': y})
  np.testing.assert_allclose(np.exp(-losses), expected[range(5), y], rtol=1e-5)


def test_refuses_predictions_that_cannot_be_mixed():
  with pytest.raises(errors.UserError, match='fedem needs a model of classes'):
    helpers.build('fedem', prompting.MODEL)
