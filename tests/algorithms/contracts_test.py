"""Tests of the contracts with models and trainers that no method has yet."""

import collections
from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from algorithms import aggregation
from algorithms import as_trained
from algorithms import client_work
from algorithms import fedavg
from algorithms import finetuning
from algorithms import methods
from algorithms import process
from algorithms import trainers
from tasks.data import batches
from tasks.models import models
from tests import toys
from tff_runtimes import cohort
from tff_runtimes import native

_CONTEXTS = {}
# One object, so that the runtimes share what is traced.
_MEAN = aggregation.mean()
_RATE = 0.05


@pytest.fixture(params=['native', 'cohort', 'stacked'])
def runtime(request):
  """Each way to run: TFF's own, ours client by client, ours stacked."""
  if not _CONTEXTS:
    _CONTEXTS['native'] = native.create_native_context(allow_exposed=True)
    _CONTEXTS['cohort'] = cohort.create_cohort_context(stack=False)
    _CONTEXTS['stacked'] = cohort.create_cohort_context(
      stack=True, trust_xla=True
    )
  tff.framework.set_default_context(_CONTEXTS[request.param])
  return request.param


def _data(seed, labels=None):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[8, 3]).astype(np.float32)
  y = (x @ rng.normal(size=3)).astype(np.float32)
  if labels:
    y = (y > 0).astype(np.int32)
  examples = collections.OrderedDict(x=x, y=y)
  return batches.ClientData(examples, *batches.index_batches(8, 4))


def _method(trainer, personalizer=None):
  personalizer = personalizer or as_trained.AsTrained(
    trainer, as_trained.AsTrainedSettings()
  )
  return methods.Method(personalizer, _MEAN, ('evaluation',))


def _fedavg(model):
  return fedavg.FedAvg(model, fedavg.FedAvgSettings(client_learning_rate=_RATE))


def _clients(method, num_clients=4, attributes=lambda k: {}, **data):
  return [
    trainers.Client(
      _data(k, **data),
      method.initialize_client(np.array([0, k], np.int32)),
      np.array([1, k], np.int32),
      collections.OrderedDict(
        (name, np.int32(value)) for name, value in attributes(k).items()
      ),
    )
    for k in range(num_clients)
  ]


def _train(method, clients, rounds=3):
  state = method.initial_state([0, 1])
  metrics = []
  for _ in range(rounds):
    state, client_states, measured = method.next(
      state, clients, *method.constants
    )
    clients = [
      client._replace(state=client_state)
      for client, client_state in zip(clients, client_states)
    ]
    metrics.append(measured)
  return state, clients, metrics


def _evaluate(method, state, clients):
  held_out = [
    process.EvaluatedClient(
      client.data,
      collections.OrderedDict(evaluation=client.data),
      client.state,
      client.seed,
      client.attributes,
    )
    for client in clients
  ]
  return [
    result['evaluation'] for result in method.personalize(state, held_out)
  ]


class TestFrozenWeights:
  def test_are_trained_on_and_stay(self, runtime):
    model = toys.FrozenModel()
    before = tree.map_structure(np.copy, dict(model.frozen))
    method = _method(_fedavg(model))
    _, _, metrics = _train(method, _clients(method, 1), rounds=20)
    assert metrics[-1]['loss'] < 0.7 * metrics[0]['loss']
    tree.map_structure(
      np.testing.assert_array_equal, dict(model.frozen), before
    )

  def test_give_what_a_model_gives_whose_features_they_made(self, runtime):
    model = toys.FrozenModel()
    method = _method(_fedavg(model))
    clients = _clients(method)
    state, clients, _ = _train(method, clients)
    w = _fedavg_by_hand(model, clients, rounds=3)
    np.testing.assert_allclose(
      np.concatenate([np.ravel(v) for v in state.server.model.values()]),
      w,
      rtol=1e-4,
      atol=1e-6,
    )
    # And in personalization: the loss of each client at the trained model.
    for client, metrics in zip(clients, _evaluate(method, state, clients)):
      x, y = _features(model, client), client.data.examples['y']
      expected = 0.5 * np.sum((x @ w - y) ** 2)
      np.testing.assert_allclose(metrics['loss'][0][0], expected, rtol=1e-3)

  def test_are_in_no_state_message_or_graph(self, runtime):
    model = toys.FrozenModel()
    names = set(model.frozen)
    method = _method(_fedavg(model))
    state, _, _ = _train(method, _clients(method), rounds=1)
    assert names.isdisjoint(str(tree.flatten_with_path(state)))
    assert method.parameters_down == method.parameters_up == 5
    for computation in (method.next, method.initialize):
      proto = tff.framework.serialize_computation(
        computation
      ).SerializeToString()
      kernel = model.frozen['pretrained_kernel']
      assert kernel.tobytes() not in proto

  def test_others_are_another_training_and_the_same_program(self):
    one, other = toys.FrozenModel(), toys.FrozenModel()
    for weight in other.frozen.values():
      weight += 1
    first, second = (_method(_fedavg(model)) for model in (one, other))
    assert first.training_key != second.training_key
    assert first.next is second.next


def _features(model, client):
  examples = client.data.examples
  features = np.asarray(model.encode({}, examples))
  return np.insert(features, features.shape[1], 1, axis=1)


def _fedavg_by_hand(model, clients, rounds):
  w = np.zeros(5)
  for _ in range(rounds):
    after = []
    for client in clients:
      w_k, x = w, _features(model, client)
      for indices in client.data.indices:
        residual = x[indices] @ w_k - client.data.examples['y'][indices]
        w_k = w_k - _RATE * x[indices].T @ residual / len(indices)
      after.append(w_k)
    w = np.mean(after, axis=0)
  return w


@dataclasses.dataclass(frozen=True)
class PartlyPersonalFedAvg(fedavg.FedAvg):
  """FedAvg of all parts of a model but one, which stays on the client."""

  personal_part: str = 'client'
  start_is_shared = False

  def _names(self) -> tuple[str, ...]:
    return self.model.parts[self.personal_part]

  def initialize_client(self, seed: tf.Tensor) -> Any:
    return client_work.select(self.model.init(seed), self._names())

  def client(self, message: Any, client: trainers.Client) -> Any:
    w = client_work.merge(message, client.state)
    result = super().client(w, client._replace(state=collections.OrderedDict()))
    delta = result.updates['model']
    shared = [name for name in w if name not in self._names()]
    personal = client_work.difference(
      client.state, client_work.select(delta.value, self._names())
    )
    return result._replace(
      updates={
        'model': delta._replace(value=client_work.select(delta.value, shared))
      },
      state=personal,
    )

  def message(self, server: Any) -> Any:
    shared = [name for name in server.model if name not in self._names()]
    return client_work.select(server.model, shared)

  def server(self, server: Any, aggregate: Mapping[str, Any], sums: Any) -> Any:
    # In the order of the model's weights, of which the personal ones stay.
    zeros = tf.nest.map_structure(tf.zeros_like, server.model)
    update = client_work.merge(zeros, aggregate['model'])
    return super().server(server, {'model': update}, sums)

  def start(self, message: Any, client: trainers.Client) -> trainers.Start:
    return trainers.Start(client_work.merge(message, client.state))


class TestParts:
  def _method(self):
    model = toys.VectorModel()
    settings = fedavg.FedAvgSettings(client_learning_rate=_RATE)
    return _method(PartlyPersonalFedAvg(model, settings))

  def test_a_part_stays_on_the_client(self, runtime):
    method = self._method()
    clients = _clients(method)
    initial = [client.state['vector'] for client in clients]
    state, clients, metrics = _train(method, clients, rounds=5)
    vectors = [client.state['vector'] for client in clients]
    # Each client's vector has moved its own way.
    assert not np.any(np.isclose(vectors, initial))
    assert len({tuple(vector) for vector in vectors}) == len(clients)
    size = sum(np.size(w) for w in state.server.model.values())
    assert method.parameters_up == method.parameters_down == size - 2
    assert metrics[-1]['loss'] < metrics[0]['loss']

  def test_a_model_is_evaluated_with_the_clients_own_part(self, runtime):
    method = self._method()
    state, clients, _ = _train(method, _clients(method))
    for client, metrics in zip(clients, _evaluate(method, state, clients)):
      w = {**state.server.model, 'vector': client.state['vector']}
      losses = toys.VectorModel().loss(w, client.data.examples)
      np.testing.assert_allclose(metrics['loss'][0][0], sum(losses), rtol=1e-4)

  def test_last_layer_is_the_head(self, runtime):
    trainer = _fedavg(toys.VectorModel())
    settings = finetuning.FinetuningSettings(
      finetuning_layers=('last',), finetuning_epochs=1
    )
    method = _method(trainer, finetuning.Finetuning(trainer, settings))
    clients = _clients(method)
    state = method.initial_state([0, 1])
    metrics = _evaluate(method, state, clients)
    for client, found in zip(clients, metrics):
      model, w = trainer.model, dict(state.server.model)
      for indices in client.data.indices:
        batch = {
          name: tf.constant(feature[indices])
          for name, feature in client.data.examples.items()
        }
        head = {name: tf.constant(w[name]) for name in model.parts['head']}
        with tf.GradientTape() as tape:
          tape.watch(head)
          loss = tf.reduce_mean(model.loss({**w, **head}, batch))
        slopes = tape.gradient(loss, head)
        w |= {name: head[name] - 0.1 * slopes[name] for name in head}
      expected = sum(model.loss(w, client.data.examples))
      np.testing.assert_allclose(found['loss'][0][1], expected, rtol=1e-4)


@dataclasses.dataclass(frozen=True)
class GroupFedAvg(fedavg.FedAvg):
  """FedAvg of one model for each of two groups, which clients know."""

  needs = ('group',)
  start_is_shared = False

  @property
  def parts(self) -> Mapping[str, Any]:
    # The largest group number of the clients is kept, as an example of a part
    # with an aggregator of its own.
    return {
      'group_0': None,
      'group_1': None,
      'latest': aggregation.best(),
      'count': aggregation.total(),
    }

  def initialize(self, seed: tf.Tensor) -> Any:
    w = self.model.init(seed)
    return collections.OrderedDict(
      models=(w, w), latest=tf.constant(-1.0), count=tf.constant(0.0)
    )

  def message(self, server: Any) -> Any:
    return server['models']

  def client(self, message: Any, client: trainers.Client) -> Any:
    start = self.start(message, client)
    result = super().client(start.weights, client)
    delta, weight = result.updates['model']
    group = client.attributes['group']
    updates = {
      f'group_{j}': aggregation.Update(
        delta, weight * tf.cast(tf.equal(group, j), tf.float32)
      )
      for j in range(2)
    }
    number = tf.cast(client.seed[1], tf.float32)
    updates['latest'] = aggregation.Update(number, 1 + number)
    updates['count'] = aggregation.Update(tf.constant(1.0))
    return result._replace(updates=updates)

  def server(self, server: Any, aggregate: Mapping[str, Any], sums: Any) -> Any:
    del sums
    return collections.OrderedDict(
      models=tuple(
        client_work.difference(w, aggregate[f'group_{j}'])
        for j, w in enumerate(server['models'])
      ),
      latest=aggregate['latest'],
      count=aggregate['count'],
    )

  def start(self, message: Any, client: trainers.Client) -> trainers.Start:
    group = client.attributes['group']
    weights = tf.nest.map_structure(
      lambda *of_groups: tf.gather(tf.stack(of_groups), group), *message
    )
    return trainers.Start(weights, measured={'group_number': group})


class TestAttributesAndParts:
  def _method(self):
    settings = fedavg.FedAvgSettings(client_learning_rate=_RATE)
    return _method(GroupFedAvg(toys.FrozenModel(), settings))

  def test_each_group_trains_by_itself(self, runtime):
    method = self._method()
    clients = _clients(method, attributes=lambda k: {'group': k % 2})
    state, clients, _ = _train(method, clients)
    for group in range(2):
      w = _fedavg_by_hand(toys.FrozenModel(), clients[group::2], rounds=3)
      np.testing.assert_allclose(
        np.concatenate(
          [np.ravel(v) for v in state.server['models'][group].values()]
        ),
        w,
        rtol=1e-4,
        atol=1e-6,
      )
    found = [
      metrics['group_number'][0][0] / metrics['group_number'][1][0]
      for metrics in _evaluate(method, state, clients)
    ]
    assert found == [0, 1, 0, 1]

  def test_parts_have_aggregators_of_their_own(self, runtime):
    method = self._method()
    clients = _clients(method, attributes=lambda k: {'group': 0})
    state, _, _ = _train(method, clients, rounds=1)
    assert state.server['latest'] == 3
    assert state.server['count'] == 4


def test_statistics_may_be_matrices(runtime):
  method = _method(_fedavg(toys.F1Model()))
  clients = _clients(method, labels=True)
  state, clients, _ = _train(method, clients, rounds=10)
  model = toys.F1Model()
  for client, metrics in zip(clients, _evaluate(method, state, clients)):
    counts = metrics['macro_f1']
    assert counts.shape == (1, 2, 2)
    assert counts.sum() == 8
    w = {name: tf.constant(v) for name, v in state.server.model.items()}
    expected = tf.reduce_sum(
      model.statistics(w, client.data.examples)['macro_f1'], 0
    )
    np.testing.assert_array_equal(counts[0], expected)
    assert models.Model.metrics is not model.metrics
    assert 0 < model.metrics['macro_f1'].value(counts)[0] <= 1
