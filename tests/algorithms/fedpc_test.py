"""FedPC and the adaptation by updates: equations, counts, new clients."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import gpt2
from tasks.models import prompted
from tests.algorithms import helpers
from tests.algorithms import prompting

_MODEL = prompting.MODEL
_RATE = 0.05


def _build(name='fedpc', model=_MODEL, **values):
  quick = dict(
    client_learning_rate=_RATE,
    adaptation_learning_rate=_RATE,
    adaptation_updates=4,
    adaptation_examples=(1, 2, 0),
  )
  return helpers.build(name, model, **quick | values)


def _run(method, rounds=2):
  return helpers.run(
    method, rounds, helpers.make_clients(method, prompting.all_data())
  )


def _slopes(w, batch, model=_MODEL):
  w = {name: tf.constant(leaf) for name, leaf in w.items()}
  with tf.GradientTape() as tape:
    tape.watch(w)
    loss = model.mean_loss(w, batch, tf.ones(len(batch['x'])))
  return {name: np.array(g) for name, g in tape.gradient(loss, w).items()}


def test_rounds_are_those_of_numpy():
  """Algorithm 1 with Adam that begins anew, and with the pull of FedProx."""
  method = _build(proximal=0.7)
  clients = helpers.make_clients(method, prompting.all_data())
  state = method.initial_state([0, 1])
  phi = np.array(state.server.model['phi'])
  psi = [np.array(client.state.personal['psi']) for client in clients]
  for _ in range(2):
    after = []
    for d, data in enumerate(prompting.all_data()):
      w = {'psi': psi[d], 'phi': phi}
      adam = {n: helpers.NumpyAdam(_RATE, epsilon=1e-8) for n in w}
      for step in range(len(data.indices)):
        slopes = _slopes(w, prompting.batch(data, step))
        slopes['phi'] = slopes['phi'] + 0.7 * (w['phi'] - phi)
        w = {n: w[n] - adam[n](slopes[n]) for n in w}
      psi[d] = w['psi']
      after.append(w['phi'])
    phi = np.mean(after, axis=0)
  actual = helpers.run(method, 2, clients, state)
  model = actual.state.server.model
  helpers.assert_close(model['phi'], phi, rtol=1e-3, atol=1e-4)
  helpers.assert_close(model['psi'], np.mean(psi, 0), rtol=1e-3, atol=1e-4)
  for client, expected in zip(actual.clients, psi):
    kept = client.state.personal['psi']
    helpers.assert_close(kept, expected, rtol=1e-3, atol=1e-4)


def test_one_step_of_sgd_is_gradient_descent_on_the_mean_loss():
  method = _build(client_optimizer='sgd', adaptation_examples=(0,))
  data = [prompting.data(k, 3, c) for k, c in enumerate(prompting.OF_CLIENTS)]
  clients = helpers.make_clients(method, data)
  state = method.initial_state([0, 1])
  phi = state.server.model['phi']
  slopes = [
    _slopes(
      {'psi': client.state.personal['psi'], 'phi': phi}, prompting.batch(d, 0)
    )
    for client, d in zip(clients, data)
  ]
  after = helpers.run(method, 1, clients, state).state.server.model['phi']
  expected = phi - _RATE * np.mean([s['phi'] for s in slopes], axis=0)
  np.testing.assert_allclose(after, expected, atol=1e-5)


def test_only_the_contexts_of_a_client_change():
  method = _build()
  state = method.initial_state([0, 1])
  clients = helpers.make_clients(method, prompting.all_data())[1:2]
  after = helpers.run(method, 1, clients, state).state.server.model['phi']
  changed = np.any(after != state.server.model['phi'], axis=1)
  np.testing.assert_array_equal(changed, [True, False, True])


def test_clients_start_at_vectors_of_their_own():
  clients = helpers.make_clients(_build(), prompting.all_data())
  psi = [client.state.personal['psi'] for client in clients]
  assert len(np.unique(psi)) == np.size(psi)
  assert 0 <= np.min(psi) < np.max(psi) < 1


def test_nothing_of_a_clients_own_vector_is_sent_unless_it_is_averaged():
  method = _build(average_personal=False)
  state = method.initial_state([0, 1])
  before = np.array(state.server.model['psi'])
  clients = helpers.make_clients(method, prompting.all_data())
  after = helpers.run(method, 2, clients, state)
  np.testing.assert_array_equal(after.state.server.model['psi'], before)
  width = _MODEL.language_model.width
  assert method.parameters_up == prompting.CONTEXTS * width
  assert _build().parameters_up == (prompting.CONTEXTS + 1) * width


@pytest.mark.parametrize(
  'name, model, values, number',
  [
    (
      'fedpc',
      prompted.PromptedModel,
      dict(average_personal=False),
      43_776,  # 57 contexts, 171.0 KiB.
    ),
    ('fedprox+adaptation', prompted.ModelWithHead, {}, 38_597_376),
  ],
)
def test_the_numbers_of_the_paper_are_sent(name, model, values, number):
  # No weight takes memory, as nothing is computed.
  sizes = dataclasses.replace(gpt2.DISTILGPT2, num_blocks=1)
  frozen = collections.OrderedDict(
    (name, np.broadcast_to(np.float32(0), shape))
    for name, shape in sizes.shapes.items()
  )
  made = model(sizes, 57, frozen=frozen)
  assert helpers.build_anew(name, made, **values).parameters_up == number


@pytest.mark.parametrize('average, shared', [(False, 0), (True, 1)])
def test_the_share_of_own_contexts_is_measured(average, shared):
  metrics = _run(_build(average_personal=average)).metrics
  # One, two and one of three contexts; and the mean of what clients keep.
  sent = np.mean([1, 2, 1]) + shared
  expected = sent / (prompting.CONTEXTS + shared)
  np.testing.assert_allclose(metrics['share_sent'], expected, rtol=1e-6)


def test_split_learning_trains_own_heads_and_those_of_own_contexts():
  model = prompting.WITH_TWO_HEADS
  method = _build('fedpc', model, average_personal=False, proximal=0.0)
  before = prompting.digest(method)
  data = prompting.all_data()[:2]  # Of the contexts 0, and 0 and 2.
  clients = helpers.make_clients(method, data)
  first = helpers.run(method, 1, clients)
  after = helpers.run(method, 4, first.clients, first.state)
  assert after.metrics['loss'] < first.metrics['loss']
  heads = after.state.server.model['context_heads']
  changed = np.any(heads != 0, axis=(1, 2))
  np.testing.assert_array_equal(changed, [True, False, True])
  own_heads = [client.state.personal['own_head'] for client in after.clients]
  assert np.any(own_heads[0] != own_heads[1])
  np.testing.assert_array_equal(after.state.server.model['own_head'], 0)
  # One and two of three heads.
  assert method.parameters_up == prompting.CONTEXTS * own_heads[0].size
  np.testing.assert_allclose(after.metrics['share_sent'], 1.5 / 3, rtol=1e-6)
  assert prompting.digest(method) == before


def test_steps_on_the_heads_of_own_contexts_alone_are_steps_on_all():
  # Two of three heads, of which the first and the last client have one.
  results = []
  for most in (None, 2):
    model = dataclasses.replace(prompting.WITH_TWO_HEADS, most_contexts=most)
    method = _build('fedpc', model, average_personal=False, proximal=0.7)
    after = _run(method)
    results.append(
      (
        after.state,
        after.clients,
        prompting.personalize(method, after.state, after.clients),
      )
    )
  helpers.assert_equal(*results)


def test_a_client_that_was_trained_goes_on_from_its_own_vector():
  method = _build()
  after = _run(method)
  at_once = prompting.personalize(method, after.state, after.clients)
  for client, data, result in zip(
    after.clients, prompting.all_data(seed=1), at_once
  ):
    w = dict(after.state.server.model) | dict(client.state.personal)
    total, _ = result['loss']
    np.testing.assert_allclose(
      total[1], prompting.loss(_MODEL, w, data), rtol=1e-4
    )


def test_a_new_client_starts_at_the_noisy_mean():
  after = _run(_build())
  new = helpers.make_clients(_build(), prompting.all_data())
  found = []
  for noise in (0.0, 0.3):
    method = _build(new_client_noise=noise)
    numbers = method.initial_state([0, 1]).numbers
    state = after.state._replace(numbers=numbers)
    results = prompting.personalize(method, state, new)
    found.append([result['loss'][0][1] for result in results])
  w = after.state.server.model
  expected = [
    prompting.loss(_MODEL, w, data) for data in prompting.all_data(seed=1)
  ]
  np.testing.assert_allclose(found[0], expected, rtol=1e-4)
  assert np.all(np.abs(np.subtract(*found)) > 1e-3)


def test_a_new_client_starts_at_random_where_there_is_no_mean():
  method = _build(average_personal=False)
  after = _run(method)
  new = helpers.make_clients(method, prompting.all_data())
  results = prompting.personalize(method, after.state, new)
  for client, data, result in zip(new, prompting.all_data(seed=1), results):
    w = dict(after.state.server.model) | dict(client.state.personal)
    np.testing.assert_allclose(
      result['loss'][0][1], prompting.loss(_MODEL, w, data), rtol=1e-4
    )


def test_the_first_candidate_is_the_frozen_model():
  method = _build()
  after = _run(method)
  assert [c.name for c in method.candidates] == [
    'pretrained',
    '0 updates',
    '4 updates, 1 example',
    '4 updates, 2 examples',
    '4 updates, all examples',
  ]
  assert not method.candidates_compete
  assert method.baseline is None
  results = prompting.personalize(method, after.state, after.clients)
  for data, result in zip(prompting.all_data(seed=1), results):
    expected = prompting.loss(_MODEL.pretrained_models['pretrained'], {}, data)
    np.testing.assert_allclose(result['loss'][0][0], expected, rtol=1e-4)


def test_updates_are_those_of_adam_on_the_first_examples():
  method = _build()
  after = _run(method)
  results = prompting.personalize(method, after.state, after.clients)
  for client, data, result in zip(
    after.clients, prompting.all_data(seed=1), results
  ):
    # Two examples, and all of them in batches of three.
    for candidate, batches in (
      (3, [{n: f[:2] for n, f in prompting.batch(client.data, 0).items()}] * 4),
      (4, [prompting.batch(client.data, i) for i in range(2)] * 2),
    ):
      w = dict(after.state.server.model) | dict(client.state.personal)
      adam = {n: helpers.NumpyAdam(_RATE, epsilon=1e-8) for n in w}
      for batch in batches:
        slopes = _slopes(w, batch)
        w = {n: np.float32(w[n] - adam[n](slopes[n])) for n in w}
      np.testing.assert_allclose(
        result['loss'][0][candidate], prompting.loss(_MODEL, w, data), rtol=1e-3
      )


def test_updates_can_be_those_of_the_adam_of_pytorch():
  # With gradients so small that epsilon counts: the first step divides by
  # |g| + epsilon.
  method = helpers.build(
    'fedavg+adaptation',
    adaptation_updates=1,
    adaptation_learning_rate=_RATE,
    adaptation_adam_form='pytorch',
  )
  data = helpers.data(0, 4)
  for feature in data.examples.values():
    feature *= 1e-4
  w = tf.nest.map_structure(tf.constant, helpers.weights(np.zeros(4)))
  adapted = method.personalizer.adapt(w, data)
  _, b = helpers.quadratic(data)
  expected = _RATE * b / (np.abs(b) + 1e-8)
  np.testing.assert_allclose(helpers.vector(adapted), expected, rtol=1e-4)


def test_personalization_leaves_everything_else_as_it_was():
  method = _build()
  before = prompting.digest(method)
  after = _run(method)
  kept = helpers.tree.map_structure(np.array, (after.state, after.clients))
  first = prompting.personalize(method, after.state, after.clients)
  helpers.assert_equal((after.state, after.clients), kept)
  helpers.assert_equal(
    prompting.personalize(method, after.state, after.clients), first
  )
  assert prompting.digest(method) == before == _MODEL.frozen_digest


def test_frozen_is_equal_for_all_that_a_user_has_to_adapt_to():
  method = _build()
  after = _run(method)
  others = [
    client._replace(data=data)
    for client, data in zip(after.clients, prompting.all_data(seed=2))
  ]
  frozen, adapted = [], []
  for clients in (after.clients, others):
    results = prompting.personalize(method, after.state, clients)
    totals = np.array([result['loss'][0] for result in results])
    frozen.append(totals[:, 1])  # '0 updates'.
    adapted.append(totals[:, 2:])
  np.testing.assert_array_equal(*frozen)
  assert not np.isclose(*adapted).any()


def test_frozen_weights_are_in_no_state():
  method = _build()
  after = _run(method, rounds=1)
  sizes = [np.size(leaf) for leaf in helpers.tree.flatten(after.state)]
  assert max(sizes) == prompting.CONTEXTS * _MODEL.language_model.width


def test_meta_learning_trains_the_head():
  method = _build(
    'fedprox+adaptation', prompting.WITH_HEAD, adaptation_examples=(0,)
  )
  after = _run(method, rounds=3)
  results = method.personalize(
    after.state, prompting.hold_out(after.clients, prompting.all_data())
  )
  totals = [result['evaluation']['loss'][0] for result in results]
  # By rounds of training, and again by the client's own updates.
  pretrained, trained, adapted = np.sum(totals, axis=0)
  assert adapted < trained < pretrained
