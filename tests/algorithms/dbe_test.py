"""DBE: its rounds, the mean of all clients, and what its vectors learn."""

import numpy as np
import pytest

from base import errors
from tasks.models import linear
from tests import toys
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem
from tests.reference import split_models


def _encode(weights, batch):
  is_linear = 'hidden_kernel' not in weights
  return batch['x'] if is_linear else split_models.encode(weights, batch)


def _dbe(p):
  """Zhang et al. 2023b; the first round only finds zbar."""
  s, own, mu = p.s, p.model.has('shift'), p.s.mean_momentum
  w, server, v, zbar = p.w, problem.server_steps(s), {}, None

  def step_mean(w_i, batch, a):
    z = _encode(p.model.unpack(w_i), batch)
    return (1 - mu) * a + mu * z.mean(axis=0)

  def objective(w_i, batch, a):
    weights = p.model.unpack(w_i)
    shifted = _encode(weights, batch) + weights['shift']
    residual = shifted @ weights['kernel'] + weights['bias'] - batch['y']
    loss = 0.5 * np.mean(residual**2)
    if zbar is None:
      return loss
    pull = np.mean(0.5 * (step_mean(w_i, batch, a) - zbar) ** 2)
    return loss + s.mean_regularization * pull

  def descend(i):
    steps, w_i, a = problem.client_steps(s), np.where(own, v.get(i, w), w), 0
    for batch in p.clients[i].batches:
      slope = problem.gradient(lambda u: objective(u, batch, a), w_i)  # noqa: B023
      a = step_mean(w_i, batch, a)
      shift = w_i - s.shift_rate * s.client_learning_rate * slope
      after = steps(w_i, ~own * slope)
      w_i = np.where(own, w_i if zbar is None else shift, after)
    return w_i, a

  for cohort in p.cohorts:
    after = {i: descend(i) for i in cohort}
    if zbar is None:
      zbar = p.mean({i: a for i, (_, a) in after.items()})
      continue
    v |= {i: w_i for i, (w_i, _) in after.items()}
    updates = {i: np.where(own, 0, w - w_i) for i, (w_i, _) in after.items()}
    w = server(w, p.mean(updates))
  return problem.Trained(lambda i: np.where(own, v.get(i, w), w), w)


@pytest.mark.parametrize(
  'values, model',
  [
    (dict(mean_regularization=3.0), helpers.VECTOR_MODEL),
    (
      dict(mean_momentum=0.3, client_optimizer='momentum', shift_rate=0.5),
      helpers.VECTOR_MODEL,
    ),
    (dict(mean_regularization=1.0, client_weighting='uniform'), helpers.MODEL),
  ],
)
def test_rounds_are_those_of_the_paper(values, model):
  values = dict(client_learning_rate=0.05) | values
  cases.check(cases.Case('dbe', _dbe, values, model))


def test_the_first_round_finds_the_mean_of_all_and_nothing_else():
  method = helpers.build('dbe')
  data = helpers.all_data(batch_size=100)
  before = method.initial_state([0, 1]).server
  first = helpers.run(method, 1, helpers.make_clients(method, data))
  # A linear model represents an example by itself.
  mean = np.concatenate([d.examples['x'] for d in data]).mean(axis=0)
  helpers.assert_close(first.state.server.mean, mean)
  helpers.assert_equal(first.state.server.model, before.model)
  later = helpers.run(method, 2, first.clients, first.state)
  helpers.assert_equal(later.state.server.mean, first.state.server.mean)


def test_the_mean_may_be_of_frozen_representations():
  model = toys.FrozenModel()
  method = helpers.build('dbe', model)
  data = helpers.all_data(batch_size=100)
  first = helpers.run(method, 1, helpers.make_clients(method, data))
  x = np.concatenate([d.examples['x'] for d in data])
  mean = np.mean(model.encode({}, {'x': x}), axis=0)
  helpers.assert_close(first.state.server.mean, mean)


def test_where_all_are_dropped_the_next_round_finds_the_mean():
  method = helpers.build('dbe')
  bad = [helpers.corrupt(data, np.nan) for data in helpers.all_data()]
  after = helpers.run(method, 1, helpers.make_clients(method, bad))
  assert after.state.server.has_mean == 0
  good = helpers.run(method, 1, state=after.state)
  expected = helpers.run(method, 1)
  helpers.assert_equal(good.state.server, expected.state.server)


def test_vectors_learn_how_frequent_classes_are():
  # x is +1 or -1, and alike given y: log p(y=1|x) / p(y=0|x) of client i is
  # x log 2 + log p_i(1) / p_i(0), with p_i(1) .1 and .9.
  x = np.float32([1] * 18 + [-1] * 9 + [1, -1, -1])[:, np.newaxis]
  y = np.int32([0] * 27 + [1] * 3)
  both = [dict(x=x, y=y), dict(x=-x, y=1 - y)]
  method = helpers.build(
    'dbe',
    linear.LogisticRegression(1, 2, initial_stddev=1.0),
    mean_regularization=0.0,
    client_learning_rate=0.5,
  )
  clients = helpers.make_clients(
    method, [helpers.make_batches(examples, 30) for examples in both]
  )
  after = helpers.run(method, 600, clients)
  w = after.state.server.model
  slope = w['kernel'][0, 1] - w['kernel'][0, 0]
  first, second = (
    slope * float(client.state.personal['shift'][0]) for client in after.clients
  )
  assert second - first == pytest.approx(2 * np.log(9), rel=1e-3)


def test_new_clients_fit_their_vector_and_nothing_else():
  method = helpers.build('dbe', helpers.VECTOR_MODEL, finetuning_epochs=3)
  after = helpers.run(method, 3)
  w = after.state.server.model
  (client, *_) = helpers.make_held_out(method)
  losses = method.personalize(after.state, [client])[0]['evaluation']['loss'][0]
  shift = w['shift']
  for epoch in range(4):
    examples = client.evaluation['evaluation'].examples
    of_epoch = {**w, 'shift': shift}
    expected = np.sum(method.trainer.model.loss(of_epoch, examples))
    assert losses[epoch] == pytest.approx(expected, rel=1e-4)
    for indices in client.personalization.indices:
      batch = {
        n: v[indices] for n, v in client.personalization.examples.items()
      }
      z = method.trainer.model.encode(w, batch).numpy() + shift
      residual = z @ w['kernel'] + w['bias'] - batch['y']
      shift = shift - 0.1 * np.mean(residual) * w['kernel']


def test_without_such_a_vector_it_cannot_be_fitted():
  with pytest.raises(errors.UserError, match='adds a vector'):
    helpers.build('fedavg+shift_finetuning')
