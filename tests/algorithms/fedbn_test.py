"""FedBN, and what all methods do with the statistics of batches."""

import collections
import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
import tree

from algorithms import registry
from algorithms import trainers
from base import errors
from tests import toys
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem

_AVERAGED = toys.NormalizedModel()
_POOLED = toys.NormalizedModel(running='pooled')
_RECOMPUTED = toys.NormalizedModel(running='recomputed')


def _forward(w, x):
  """The scores of a batch, and the input of each normalization."""
  inputs = {}

  def normalize(layer, x):
    inputs[layer] = x
    away = x - x.mean(axis=0)
    y = away / np.sqrt((away**2).mean(axis=0) + 1e-5)
    return y * w[f'{layer}_scale'] + w[f'{layer}_offset']

  hidden = normalize('first', x) @ w['hidden_kernel']
  z = np.tanh(normalize('second', hidden))
  return z @ w['kernel'] + w['bias'], inputs


def _mean_loss(w, batch):
  scores, _ = _forward(w, batch['x'])
  return np.mean((scores - batch['y']) ** 2)


def _fedbn(p):
  """Li et al. 2021, with PyTorch's statistics."""
  p = dataclasses.replace(
    p, model=dataclasses.replace(p.model, mean_loss=_mean_loss)
  )
  own = p.model.has(*p.s.personal_parts)
  w, server, kept = p.w, problem.server_steps(p.s), {}

  def follow(w_k, batch):
    """The weights with the statistics after a batch."""
    after = p.model.unpack(w_k.copy())
    for layer, x in _forward(after, batch['x'])[1].items():
      mean, n = x.mean(axis=0), len(x)
      variance = x.var(axis=0) * n / max(n - 1, 1)
      after[f'{layer}_mean'] = 0.9 * after[f'{layer}_mean'] + 0.1 * mean
      second = f'{layer}_square', variance + mean**2
      if f'{layer}_variance' in after:
        second = f'{layer}_variance', variance
      after[second[0]] = 0.9 * after[second[0]] + 0.1 * second[1]
    return p.model.pack(after)

  def recompute(w_k, k):
    of_batches = collections.defaultdict(list)
    after = p.model.unpack(w_k.copy())
    for batch in p.clients[k].batches:
      for layer, x in _forward(after, batch['x'])[1].items():
        of_batches[layer].append(x)
    for layer, xs in of_batches.items():
      x = np.concatenate(xs)
      after[f'{layer}_mean'] = mean = x.mean(axis=0)
      variance = x.var(axis=0, ddof=1)
      if f'{layer}_variance' in after:
        after[f'{layer}_variance'] = variance
      else:
        after[f'{layer}_square'] = variance + mean**2
    return p.model.pack(after)

  def merge_own(k):
    return np.where(own, kept.get(k, w), w)

  is_statistic = p.model.has('statistics')
  for cohort in p.cohorts:
    updates = {}
    for k in cohort:
      w_k, steps = merge_own(k), problem.client_steps(p.s)
      for batch in p.clients[k].batches:
        stepped = steps(w_k, p.gradient(w_k, batch))
        w_k = np.where(is_statistic, follow(w_k, batch), stepped)
      kept[k], updates[k] = w_k, np.where(own, 0, w - w_k)
    mean = p.mean(updates)
    w = np.where(is_statistic, w - mean, server(w, mean))
  keeps_statistics = 'statistics' in p.s.personal_parts
  return problem.Trained(
    lambda k: (
      recompute(merge_own(k), k)
      if keeps_statistics and k not in kept
      else merge_own(k)
    )
  )


@pytest.mark.parametrize(
  ('model', 'values'),
  [
    (_AVERAGED, {}),
    (_AVERAGED, dict(personal_parts=('statistics',))),
    # Momentum moves no statistics.
    (
      _POOLED,
      dict(
        personal_parts=('norm',),
        client_optimizer='momentum',
        server_optimizer='momentum',
      ),
    ),
  ],
)
def test_rounds_are_those_of_the_paper(model, values):
  values = dict(client_learning_rate=0.02) | values
  case = cases.Case('fedbn', _fedbn, values, model)
  found = cases.compare(case, 'partial', 3)
  assert found.difference < cases.LARGEST_DIFFERENCE
  assert found.moved > 0.01


def test_without_normalization_it_is_fedavg():
  models = [
    helpers.run(helpers.build(name, client_learning_rate=0.05))
    for name in ('fedbn', 'fedavg')
  ]
  helpers.assert_equal(*(after.state.server.model for after in models))


@pytest.mark.parametrize('runtime', ['cohort', 'native'])
def test_padding_and_runtimes_change_nothing(runtime):
  method = helpers.build('fedbn', _AVERAGED)

  def run(data):
    after = helpers.run(method, clients=helpers.make_clients(method, data))
    # One of them was never trained.
    clients = [*after.clients[:4], *helpers.make_clients(method, data)[4:]]
    held_out = helpers.hold_out(clients)
    return after.state, list(method.personalize(after.state, held_out))

  with helpers.use_runtime('unstacked'):
    expected = run(helpers.all_data())
  with helpers.use_runtime(runtime):
    found = run(list(map(helpers.padded, helpers.all_data())))
  helpers.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def _constant(value, number=300):
  """The data of a client whose examples are all the same."""
  x = np.full([4, 3], value, np.float32)
  data = helpers.make_batches({'x': x, 'y': x[:, 0]})
  return data._replace(
    indices=np.repeat(data.indices, number, 0),
    mask=np.repeat(data.mask, number, 0),
  )


@pytest.mark.parametrize(('model', 'expected'), [(_AVERAGED, 0), (_POOLED, 4)])
def test_only_pooled_variances_see_that_means_differ(model, expected):
  method = helpers.build('fedavg', model)
  clients = helpers.make_clients(method, [_constant(1.0), _constant(5.0)])
  w = helpers.run(method, 1, clients).state.server.model
  np.testing.assert_allclose(w['first_mean'], [3] * 3, rtol=1e-5)
  second = w[f'first_{"square" if expected else "variance"}']
  variance = second - w['first_mean'] ** 2 if expected else second
  # (a - b)^2 / 4.
  np.testing.assert_allclose(variance, [expected] * 3, atol=1e-4)


@pytest.mark.parametrize('name', [*registry.TRAINERS])
def test_every_trainer_averages_statistics_or_refuses_them(name):
  """Where all clients have the same constant, every average is known."""
  try:
    method = helpers.build_anew(
      f'{name}+as_trained', _AVERAGED, **registry.TRAINERS[name].small
    )
    trainer = method.trainer
    server = trainer.initialize([0, 1])
    state = trainer.initialize_client(tf.constant([0, 0]))
    # Without a graph, which takes longer to make than to run.
    for _ in range(2):
      client = trainers.Client(
        tf.nest.map_structure(tf.constant, _constant(2.0, number=3)),
        state,
        tf.constant([1, 0]),
        {n: tf.constant(0) for n in method.needs},
      )
      result = trainer.client(trainer.message(server), client)
      state = client.state if result.state is None else result.state
      sums = trainers.RoundSums(
        result.loss, tf.constant(12.0), result.measured, 1.0, 0.0
      )
      aggregate = {n: update.value for n, update in result.updates.items()}
      if 'senders' in aggregate:
        aggregate['senders'] = tf.cast(aggregate['senders'], tf.float32)
      server = trainer.server(server, aggregate, sums)
  except errors.UserError as error:
    refusals = 'batch normalization|has weights only|[Uu]nknown part|needs a'
    assert re.search(refusals, str(error))
    return
  leaves = dict(tree.flatten_with_path(server))
  steps = np.array([0, 3, 6])
  for place in method.trainer.model_places:
    mean, variance = (
      leaves[*place, f'first_{name}'][0] for name in ('mean', 'variance')
    )
    t = np.abs(2 * (1 - 0.9**steps) - mean).argmin()
    np.testing.assert_allclose(
      [mean, variance], [2 * (1 - 0.9 ** steps[t]), 0.9 ** steps[t]], rtol=1e-4
    )


def test_statistics_are_recomputed_from_the_personalization_set():
  method = helpers.build('fedavg+as_trained', _RECOMPUTED)
  clients = helpers.make_clients(method)
  after = helpers.run(method, 1, clients)
  assert 'first_mean' not in after.state.server.model
  found = list(method.personalize(after.state, helpers.hold_out(clients)))
  w = {n: np.asarray(v) for n, v in after.state.server.model.items()}
  for k, (client, result) in enumerate(zip(clients, found)):
    batches = [
      _forward(w, client.data.examples['x'][i[m > 0]])[1]
      for i, m in zip(client.data.indices, client.data.mask)
    ]
    test = helpers.data(k + 100, 6)

    def normalize(layer, x):
      of_batches = np.concatenate([b[layer] for b in batches])  # noqa: B023
      deviation = np.sqrt(of_batches.var(axis=0, ddof=1) + 1e-5)
      y = (x - of_batches.mean(axis=0)) / deviation
      return y * w[f'{layer}_scale'] + w[f'{layer}_offset']

    hidden = normalize('first', test.examples['x']) @ w['hidden_kernel']
    scores = np.tanh(normalize('second', hidden)) @ w['kernel'] + w['bias']
    expected = ((scores - test.examples['y']) ** 2).sum()
    total, _ = result['evaluation']['squared_error']
    np.testing.assert_allclose(total[0], expected, rtol=1e-3)


def test_a_choice_of_models_in_training_needs_kept_statistics():
  method = helpers.build('hypcluster+as_trained', _RECOMPUTED)
  with pytest.raises(errors.UserError, match='while it trains'):
    helpers.run(method, 1)


@pytest.mark.parametrize(
  ('name', 'values', 'is_private'),
  [
    ('fedavg', {}, False),
    ('fedbn', {}, True),
    ('fedbn', dict(personal_parts=('norm',)), False),
  ],
)
def test_clients_are_private_if_they_keep_their_statistics(
  name, values, is_private
):
  reason = helpers.build(name, _AVERAGED, **values).trainer.why_not_private
  assert (reason is None) == is_private
