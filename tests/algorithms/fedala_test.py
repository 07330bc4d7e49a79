"""FedALA: what clients mix, how long they learn it, and its limits."""

import collections

import numpy as np
import pytest
import tree

from algorithms import fedala
from base import errors
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem

_RATE = 0.05
_W = np.array([1.0, -1.0, 0.5, 2.0])
_W_I = np.array([0.0, 0.5, 0.8, 1.0])


def _fedala(p):
  """Zhang et al. 2023: theta_i + (theta - theta_i) W_i, with a learned W_i."""
  s, theta, server = p.s, p.w, problem.server_steps(p.s)
  is_mixed = p.model.has(*s.mixing_parts)
  own, shares, rounds = {}, {}, collections.Counter()

  def first(k):
    left = round(s.mixing_examples * len(p.clients[k].examples['y']))
    for batch in p.clients[k].batches:
      yield {name: values[:left] for name, values in batch.items()}
      left -= len(batch['y'])
      if left <= 0:
        return

  def mix(k):
    if k not in own:
      return theta, np.ones_like(theta)
    away = np.where(is_mixed, theta - own[k], 0)
    w, losses = shares[k], []
    while True:
      of_batches, sizes = [], []
      for batch in first(k):
        mixed = theta - away + away * w
        of_batches.append(p.model.loss(mixed, batch))
        sizes.append(len(batch['y']))
        slope = p.gradient(mixed, batch)
        w = np.clip(w - s.mixing_rate * slope * away, 0, 1)
      mean = np.average(of_batches, weights=sizes)
      losses.append(of_batches[-1] if s.mixing_loss == 'last' else mean)
      converged = (
        len(losses) >= 10 and np.std(losses[-10:]) < s.mixing_threshold
      )
      if rounds[k] > 1 or converged or len(losses) == s.mixing_passes:
        return theta - away + away * w, w

  for cohort in p.cohorts:
    for k in cohort:
      start, shares[k] = mix(k)
      own[k] = p.descend(k, start)
    rounds.update(cohort)
    theta = server(theta, p.mean({k: theta - own[k] for k in cohort}))
  return problem.Trained(lambda k: mix(k)[0], theta)


@pytest.mark.parametrize(
  'values',
  [
    {},
    dict(mixing_loss='last', mixing_threshold=0.1),
    dict(mixing_passes=3, mixing_examples=1.0),
    dict(mixing_threshold=0.0, mixing_passes=12),
  ],
)
def test_rounds_are_those_of_the_paper(values):
  cases.check(cases.Case('fedala', _fedala, values))


@pytest.mark.parametrize('parts', [('head',), ('encoder', 'head')])
def test_only_some_parts_are_mixed(parts):
  values = dict(mixing_parts=parts, mixing_passes=2)
  cases.check(cases.Case('fedala', _fedala, values, helpers.VECTOR_MODEL))


def _build(**values):
  values = dict(client_learning_rate=_RATE, mixing_examples=1.0) | values
  return helpers.build('fedala', **values)


def _padded(sizes=helpers.SIZES, batch_size=4):
  return [
    helpers.padded(data, places=16)
    for data in helpers.all_data(sizes, batch_size)
  ]


def _receive(method, w, w_i, rounds=1, batch_size=16):
  """Returns the states of clients after rounds that mix w with w_i."""
  state = helpers.replace_server(
    method.initial_state([0, 1]), model=helpers.weights(w)
  )
  clients = [
    client._replace(
      state=client.state._replace(
        personal=helpers.weights(w_i), rounds=np.int32(rounds)
      )
    )
    for client in helpers.make_clients(method, _padded(batch_size=batch_size))
  ]
  return helpers.run(method, 1, clients, state)


def _assert_same_candidates(of_fedala, of_fedavg):
  """Asserts that the global model and the mixture are FedAvg's model."""
  for k in range(2):
    of_one = tree.map_structure(lambda v, k=k: v[k : k + 1], list(of_fedala))
    helpers.assert_equal(of_one, list(of_fedavg))


def test_new_clients_have_the_global_model():
  method, fedavg = _build(), helpers.build('fedavg')
  state = helpers.run(method).state
  of_fedavg = fedavg.initial_state([0, 1])._replace(server=state.server)
  _assert_same_candidates(
    method.personalize(state, helpers.make_held_out(method)),
    fedavg.personalize(of_fedavg, helpers.make_held_out(fedavg)),
  )


def test_a_client_whose_model_is_the_global_one_learns_nothing():
  after = _receive(_build(), _W, _W)
  fedavg = helpers.build('fedavg', client_learning_rate=_RATE)
  state = helpers.replace_server(
    fedavg.initial_state([0, 1]), model=helpers.weights(_W)
  )
  clients = helpers.make_clients(fedavg, _padded(batch_size=16))
  expected = helpers.run(fedavg, 1, clients, state)
  helpers.assert_equal(after.state.server, expected.state.server)
  for client in after.clients:
    np.testing.assert_array_equal(helpers.vector(client.state.mixture), 1)


def test_one_batch_takes_a_step_down_the_derivative_by_the_share():
  after = _receive(_build(mixing_passes=1, mixing_rate=0.3), _W, _W_I)
  clipped = []
  for client, data in zip(after.clients, helpers.all_data()):
    a, b = helpers.quadratic(data)
    w = 1 - 0.3 * (a @ _W - b) * (_W - _W_I)
    mixed = _W_I + (_W - _W_I) * np.clip(w, 0, 1)
    clipped.extend(np.not_equal(w, np.clip(w, 0, 1)))
    helpers.assert_close(helpers.vector(client.state.mixture), np.clip(w, 0, 1))
    helpers.assert_close(
      helpers.vector(client.state.personal), mixed - _RATE * (a @ mixed - b)
    )
  assert any(clipped) and not all(clipped)


@pytest.mark.parametrize(
  'rounds, values, passes',
  [
    (0, {}, 0),
    # As soon as there are ten losses; never.
    (1, dict(mixing_threshold=1e6), 10),
    (1, dict(mixing_threshold=0.0, mixing_passes=17), 17),
    (2, dict(mixing_threshold=0.0), 1),
  ],
)
@pytest.mark.parametrize('epochs', [1, 3])
def test_counts_the_passes_that_it_takes(rounds, values, passes, epochs):
  method = _build(mixing_examples=0.5, **values)
  # Each epoch has all examples; two of four are those to learn W from.
  data = helpers.data(0, 4)
  data = data._replace(
    indices=data.indices.repeat(epochs, 0), mask=data.mask.repeat(epochs, 0)
  )
  (client,) = helpers.make_clients(method, [data])
  client = client._replace(state=client.state._replace(rounds=np.int32(rounds)))
  metrics = helpers.run(method, 1, [client]).metrics
  counted = epochs * metrics['passes'] * method.trainer.passes(1).gradients
  assert counted == pytest.approx(epochs + 0.5 * passes)
  assert method.trainer.start_passes == (0.5, 0)


@pytest.mark.parametrize('size, taken', [(1, 1), (9, 7), (10, 8), (12, 10)])
def test_learns_from_the_first_examples_of_the_first_epoch(size, taken):
  data = helpers.data(0, size)
  data = data._replace(
    indices=data.indices.repeat(2, 0), mask=data.mask.repeat(2, 0)
  )
  mask = fedala.take_share(helpers.padded(data, steps=8), 0.8).mask.numpy()
  assert mask.sum() == taken
  np.testing.assert_array_equal(mask[mask > 0], 1)
  first = helpers.padded(data, steps=8).mask.ravel() > 0
  np.testing.assert_array_equal(
    np.flatnonzero(mask), np.flatnonzero(first)[:taken]
  )


def test_silos_are_private_if_their_passes_do_not_depend_on_losses():
  with pytest.raises(errors.UserError, match='mixing_passes to at most 10'):
    _build().trainer.example_uses(5)
  method = _build(mixing_passes=10)
  # When it first mixes it takes ten passes, and then one, at last in `start`.
  for rounds, learns in (0, 0), (1, 10), (2, 11), (5, 14):
    walks = method.trainer.example_uses(rounds).walks
    at_end = method.trainer.start_passes.gradients if rounds else 0
    assert sum(w.times for w in walks) + at_end == rounds + learns


def test_refuses_parts_that_the_model_does_not_have():
  with pytest.raises(errors.UserError, match="Did you mean 'head'"):
    _build(mixing_parts=('heads',))
  with pytest.raises(errors.UserError, match='no weights in encoder'):
    _build(mixing_parts=('encoder',))
