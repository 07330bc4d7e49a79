"""FedPC with embeddings that are generated: its rounds, and its test."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from tests.algorithms import helpers
from tests.algorithms import prompting

_MODEL = prompting.GENERATED
_RATE, _PULL = 0.05, 0.7


@pytest.fixture(name='method', scope='module')
def _method():
  return helpers.build(
    'fedpc_generated',
    _MODEL,
    client_optimizer='sgd',
    client_learning_rate=_RATE,
    proximal=_PULL,
    adaptation_examples=(1, 2, 0),
  )


@pytest.fixture(name='after', scope='module')
def _train(method):
  """Returns the state and the clients after two rounds."""
  with helpers.use_runtime('cohort'):
    clients = helpers.make_clients(method, prompting.all_data())
    return helpers.run(method, 2, clients)


def _mean_of_last(w, batch):
  return np.mean(_MODEL.generate(w, batch)['psi'], axis=0)


def _weights(after, client):
  return collections.OrderedDict(after.state.server.model) | dict(
    client.state.personal
  )


def test_rounds_are_those_of_algorithm_2(method, after):
  """With steps of SGD, and the pull of FedProx."""
  names = _MODEL.parts['encoder']
  shared = dict(method.initial_state([0, 1]).server.model)
  psi = [
    client.state.personal['psi']
    for client in helpers.make_clients(method, prompting.all_data())
  ]
  for _ in range(2):
    sent = []
    for d, data in enumerate(prompting.all_data()):
      w = {name: tf.constant(leaf) for name, leaf in shared.items()}
      for step in range(len(data.indices)):
        batch = prompting.batch(data, step)
        w['psi'] = tf.constant(psi[d])
        with tf.GradientTape() as tape:
          tape.watch(w)
          loss = _MODEL.mean_loss(w, batch, tf.ones(len(batch['x'])))
        slopes = tape.gradient(loss, {name: w[name] for name in names})
        # Under the weights from before the step.
        psi[d] = _mean_of_last(w, batch)
        for name in names:
          pulled = slopes[name] + _PULL * (w[name] - shared[name])
          w[name] -= _RATE * pulled
      sent.append(w)
    shared |= {name: np.mean([w[name] for w in sent], 0) for name in names}
  helpers.assert_close(
    dict(after.state.server.model), shared, rtol=1e-3, atol=1e-4
  )
  for client, expected in zip(after.clients, psi):
    np.testing.assert_allclose(
      client.state.personal['psi'], expected, rtol=1e-3, atol=1e-3
    )


def test_the_vectors_of_contexts_and_of_the_server_stay(method, after):
  before = method.initial_state([0, 1]).server.model
  for name in ('phi', 'psi'):
    np.testing.assert_array_equal(after.state.server.model[name], before[name])


def test_only_the_generators_are_sent(method, after):
  weights = _MODEL.init(tf.constant([0, 1]))
  size = sum(
    weights[name].shape.num_elements() for name in _MODEL.parts['encoder']
  )
  assert method.parameters_up == size
  width = _MODEL.language_model.width
  received = after.metrics['share_received'] * method.parameters_down
  assert received == pytest.approx(size + prompting.CONTEXTS * width)


def test_there_is_a_candidate_for_each_number_of_examples(method, after):
  by_default = helpers.build('fedpc_generated', _MODEL).candidates
  assert [candidate.name for candidate in by_default] == [
    'pretrained',
    '1 example',
    '5 examples',
    '15 examples',
    'all examples',
  ]
  results = prompting.personalize(method, after.state, after.clients)
  for data, result in zip(prompting.all_data(seed=1), results):
    expected = prompting.loss(_MODEL.pretrained_models['pretrained'], {}, data)
    np.testing.assert_allclose(result['loss'][0][0], expected, rtol=1e-4)


@pytest.mark.parametrize('known', [True, False], ids=['known', 'new'])
def test_a_client_passes_once_over_its_examples(method, after, known):
  """From its own vector, or from the random one of a new client."""
  clients = after.clients
  if not known:
    clients = helpers.make_clients(method, prompting.all_data())
  results = prompting.personalize(method, after.state, clients)
  for client, data, result in zip(clients, prompting.all_data(seed=1), results):
    first = prompting.batch(client.data, 0)
    for candidate, batches in (
      (1, [{name: f[:1] for name, f in first.items()}]),
      (2, [{name: f[:2] for name, f in first.items()}]),
      (3, [first, prompting.batch(client.data, 1)]),
    ):
      w = _weights(after, client)
      for batch in batches:
        w['psi'] = _mean_of_last(w, batch)
      np.testing.assert_allclose(
        result['loss'][0][candidate],
        prompting.loss(_MODEL, w, data),
        rtol=1e-3,
      )


def test_the_evaluation_of_an_utterance_depends_on_no_other(method, after):
  """Each begins at the vector that was stored, whatever came before it."""
  mirrored = [
    data._replace(
      examples=collections.OrderedDict(
        (name, feature[::-1].copy()) for name, feature in data.examples.items()
      )
    )
    for data in prompting.all_data(seed=1)
  ]
  clients = prompting.hold_out(after.clients, mirrored)
  for expected, result in zip(
    prompting.personalize(method, after.state, after.clients),
    method.personalize(after.state, clients),
  ):
    helpers.assert_close(result['evaluation'], expected)


def test_frozen_weights_stay_as_they_are(method, after):
  prompting.personalize(method, after.state, after.clients)
  assert prompting.digest(method) == _MODEL.frozen_digest


def test_a_model_that_generates_nothing_is_refused():
  with pytest.raises(errors.UserError, match='task.trained to generated'):
    helpers.build_anew('fedpc_generated', prompting.MODEL)


def test_only_the_vector_of_clients_is_generated():
  with pytest.raises(errors.UserError, match='personal_parts must be client'):
    helpers.build_anew(
      'fedpc_generated', _MODEL, personal_parts=('client', 'encoder')
    )
