"""Tests of the process around trainers and personalizers, on each runtime."""

import collections
from collections.abc import Mapping
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from algorithms import aggregation
from algorithms import as_trained
from algorithms import candidates
from algorithms import client_work
from algorithms import clusters
from algorithms import fedavg
from algorithms import finetuning
from algorithms import methods
from algorithms import optimizers
from algorithms import personalizers
from algorithms import process
from algorithms import trainers
from base import settings
from tasks.models import linear
from tests.algorithms import helpers


@dataclasses.dataclass(frozen=True)
class ProbeSettings(settings.Settings):
  """The settings of a trainer whose every result is easily told."""

  scale: float = settings.field(2.0, 'What updates are multiplied by.')
  shift: float = settings.field(0.0, 'What is added to the message.')


class ProbeState(NamedTuple):
  """The arguments of the server in its last round."""

  model: Any
  given: Any
  round: Any


@dataclasses.dataclass(frozen=True)
class Probe(trainers.Trainer):
  """Sends sums of the features and the group; keeps the sum of the labels."""

  settings: ProbeSettings
  needs = ('group',)

  def initialize(self, seed):
    zero = tf.constant(0.0)
    sums = trainers.RoundSums(zero, zero, {'group': zero}, zero, zero)
    return ProbeState(self.model.init(seed), sums, 0)

  def initialize_client(self, seed):
    return collections.OrderedDict(number=seed[1], labels=0.0)

  def message(self, server):
    return collections.OrderedDict(
      kernel=server.model['kernel'] + self.settings.shift, round=server.round
    )

  def client(self, message, client):
    num_examples = client_work.num_examples(client.data)
    sums = client_work.sum_over_batches(
      client.data,
      lambda examples, mask: client_work.sum_statistics(
        {name: examples[name] for name in 'xy'}, tf.zeros_like(mask), mask
      ),
    )
    features, labels = sums['x'], sums['y']
    group = tf.cast(client.attributes['group'], tf.float32)
    update = collections.OrderedDict(
      kernel=self.settings.scale * features + message['kernel'], bias=group
    )
    return trainers.ClientResult(
      updates={'model': aggregation.Update(update, num_examples)},
      state=collections.OrderedDict(
        number=client.state['number'], labels=client.state['labels'] + labels
      ),
      loss=3.0 * num_examples,
      measured={'group': group},
    )

  def server(self, server, aggregate, sums):
    return ProbeState(aggregate['model'], sums, server.round + 1)

  def start(self, message, client):
    weights = self.model.init(client.seed)
    weights['kernel'] += message['kernel']
    return trainers.Start(
      weights, measured={'start': client.attributes['group'] + 100}
    )


@dataclasses.dataclass(frozen=True)
class ProbePersonalizerSettings(settings.Settings):
  """The setting of the personalizer."""

  factors: tuple[float, ...] = settings.field((1.0, 10.0), 'Some factors.')


@dataclasses.dataclass(frozen=True)
class ProbePersonalizer(personalizers.Personalizer):
  """Reports what a client has, times each factor."""

  settings: ProbePersonalizerSettings
  needs = ('context',)

  @property
  def candidates(self):
    return tuple(
      candidates.Candidate(k, 'factor') for k in range(len(self._factors))
    )

  @property
  def _factors(self):
    return self.settings.factors

  def personalize(self, start, client, evaluation):
    factors = tf.stack(self._factors)
    reported = {
      'group': client.attributes['group'],
      'context': client.attributes['context'],
      'seed': client.seed[1],
      'number': client.state['number'],
      'personalization': client_work.num_examples(client.data),
      'kernel': tf.reduce_sum(start.weights['kernel']),
    }
    return collections.OrderedDict(
      (
        name,
        collections.OrderedDict(
          (key, factors * tf.cast(value, tf.float32))
          for key, value in reported.items()
        ),
      )
      for name in evaluation
    )


_GROUPS = (0, 1, 1, 0, 3)
_CONTEXTS = (7, 8, 9, 10, 11)
_SEED = [0, 1]


def _probe(**values):
  trainer = Probe(helpers.MODEL, ProbeSettings(**values))
  personalizer = ProbePersonalizer(trainer, ProbePersonalizerSettings())
  return methods.Method(personalizer, helpers.MEAN, helpers.SETS)


def _all_data():
  """Data of the same shapes, so that clients can be stacked."""
  return [helpers.padded(data) for data in helpers.all_data()]


def _clients(method, data_of_clients=None):
  return helpers.make_clients(
    method,
    _all_data() if data_of_clients is None else data_of_clients,
    [{'group': group} for group in _GROUPS],
  )


def _run(method, data_of_clients=None, rounds=1):
  return helpers.run(method, rounds, _clients(method, data_of_clients))


def _features(k):
  return helpers.data(k, helpers.SIZES[k]).examples['x'].sum(axis=0)


def _labels(k):
  return helpers.data(k, helpers.SIZES[k]).examples['y'].sum()


def _corrupt(*broken):
  """The data of all clients, of which some make an update infinite."""
  return [
    helpers.corrupt(data, np.inf) if k in broken else data
    for k, data in enumerate(_all_data())
  ]


def test_the_aggregate_is_of_what_clients_sent(runtime):
  del runtime
  model = _run(_probe()).state.server.model
  updates = [[*2 * _features(k), _GROUPS[k]] for k in range(5)]
  expected = np.average(updates, axis=0, weights=helpers.SIZES)
  np.testing.assert_allclose(helpers.vector(model), expected, rtol=1e-4)


def test_the_server_is_given_the_clients_sums(runtime):
  del runtime
  given = _run(_probe()).state.server.given
  helpers.assert_close(
    given,
    trainers.RoundSums(
      loss=3 * sum(helpers.SIZES),
      num_examples=sum(helpers.SIZES),
      measured=collections.OrderedDict(group=sum(_GROUPS)),
      num_clients=5,
      dropped_clients=0,
    ),
  )


def test_training_metrics_are_means_of_the_sums(runtime):
  del runtime
  helpers.assert_close(
    dict(_run(_probe()).metrics),
    {
      'loss': 3,
      'num_examples': sum(helpers.SIZES),
      'num_clients': 5,
      'dropped_clients': 0,
      'group': np.mean(_GROUPS),
    },
  )


def test_each_client_keeps_its_own_state(runtime):
  del runtime
  after = _run(_probe(), rounds=2)
  for k, client in enumerate(after.clients):
    assert client.state['number'] == k
    np.testing.assert_allclose(
      client.state['labels'], 2 * _labels(k), rtol=1e-4
    )


def test_a_client_whose_update_is_not_finite_counts_nowhere(runtime):
  del runtime
  after = _run(_probe(), _corrupt(1, 4))
  kept = [0, 2, 3]
  sizes = [helpers.SIZES[k] for k in kept]
  updates = [[*2 * _features(k), _GROUPS[k]] for k in kept]
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model),
    np.average(updates, axis=0, weights=sizes),
    rtol=1e-4,
  )
  helpers.assert_close(
    after.state.server.given,
    trainers.RoundSums(
      loss=3 * sum(sizes),
      num_examples=sum(sizes),
      measured=collections.OrderedDict(group=1),
      num_clients=3,
      dropped_clients=2,
    ),
  )
  helpers.assert_close(
    dict(after.metrics),
    {
      'loss': 3,
      'num_examples': sum(sizes),
      'num_clients': 3,
      'dropped_clients': 2,
      'group': 1 / 3,
    },
  )


def test_a_client_whose_update_is_not_finite_forgets_the_round(runtime):
  del runtime
  after = _run(_probe(), _corrupt(1))
  labels = [client.state['labels'] for client in after.clients]
  expected = [0 if k == 1 else _labels(k) for k in range(5)]
  np.testing.assert_allclose(labels, expected, rtol=1e-4)


def test_a_client_whose_state_is_not_finite_is_dropped(runtime):
  del runtime
  data_of_clients = _all_data()
  data_of_clients[2].examples['y'][0] = np.nan
  after = _run(_probe(), data_of_clients)
  assert after.metrics['dropped_clients'] == 1
  assert after.clients[2].state['labels'] == 0


def test_without_clients_left_all_sums_and_means_are_zero(runtime):
  del runtime
  after = _run(_probe(), _corrupt(*range(5)))
  np.testing.assert_array_equal(
    helpers.vector(after.state.server.model), np.zeros(4)
  )
  assert dict(after.metrics) == {
    'loss': 0,
    'num_examples': 0,
    'num_clients': 0,
    'dropped_clients': 5,
    'group': 0,
  }


def test_floats_of_the_settings_reach_message_and_client(runtime):
  del runtime
  method = _probe(scale=-1.0, shift=5.0)
  assert method.next is _probe().next
  kernel = _run(method).state.server.model['kernel']
  updates = [-_features(k) + 5 for k in range(5)]
  np.testing.assert_allclose(
    kernel, np.average(updates, axis=0, weights=helpers.SIZES), rtol=1e-4
  )


def test_the_state_has_the_numbers_of_the_settings():
  state = _probe(scale=-1.0).initial_state(_SEED)
  assert dict(state.numbers) == {'scale': -1, 'shift': 0}


def test_only_floats_of_messages_and_updates_are_parameters():
  # The message has a kernel and the number of the round.
  assert (_probe().parameters_down, _probe().parameters_up) == (3, 4)


def test_integers_are_no_parameters():
  counted = tff.to_type([(np.float32, [2, 3]), np.int32, np.float32])
  assert process.count_parameters(counted) == 7


def _held_out(method):
  return [
    client._replace(
      attributes=collections.OrderedDict(
        context=_CONTEXTS[k], group=_GROUPS[k]
      ),
      evaluation=collections.OrderedDict(
        evaluation=helpers.padded(helpers.data(k + 100, 6))
      ),
    )
    for k, client in enumerate(helpers.hold_out(_clients(method)))
  ]


def test_a_method_needs_the_attributes_of_both_halves():
  assert _probe().needs == ['context', 'group']


def test_what_a_client_has_reaches_the_personalizer(runtime):
  del runtime
  method = _probe(shift=5.0)
  results = method.personalize(method.initial_state(_SEED), _held_out(method))
  for k, result in enumerate(results):
    reported = dict(result['evaluation'])
    measured = reported.pop('start')
    helpers.assert_close(
      reported,
      {
        name: np.array([value, 10 * value])
        for name, value in {
          'group': _GROUPS[k],
          'context': _CONTEXTS[k],
          'seed': k,
          'number': k,
          'personalization': helpers.SIZES[k],
          'kernel': 15,
        }.items()
      },
    )
    # A metric that every one of the 6 examples has, for each candidate.
    helpers.assert_close(
      measured, (np.full(2, 6 * (100.0 + _GROUPS[k])), np.full(2, 6.0))
    )


def test_floats_of_the_personalizer_are_inputs():
  method = _probe()
  other = dataclasses.replace(
    method,
    personalizer=ProbePersonalizer(
      method.trainer, ProbePersonalizerSettings(factors=(3.0, 5.0))
    ),
  )
  assert (
    other.trace_computations().personalize
    is method.trace_computations().personalize
  )
  results = other.personalize(other.initial_state(_SEED), _held_out(other))
  np.testing.assert_array_equal(
    results[0]['evaluation']['personalization'], [27, 45]
  )


class GroupState(NamedTuple):
  """The model of each group, and the slots of its optimizer."""

  models: Any
  optimizers: Any


@dataclasses.dataclass(frozen=True)
class GroupModels(fedavg.FedAvg):
  """Trains a model for each of two groups, which clients know."""

  settings: fedavg.FedAvgSettings
  needs = ('group',)
  start_name = "the group's model"
  start_is_shared = False

  @property
  def parts(self) -> Mapping[str, Any]:
    return {'group_0': None, 'group_1': None}

  @property
  def model_places(self):
    return (('models', 0), ('models', 1))

  def initialize(self, seed):
    states = [super(GroupModels, self).initialize(seed) for _ in self.parts]
    return GroupState(*map(tuple, zip(*states)))

  def message(self, server):
    return tf.nest.map_structure(
      lambda *leaves: tf.stack(leaves), *server.models
    )

  def client(self, message, client):
    group = client.attributes['group']
    result = super().client(clusters.pick(message, group), client)
    update, weight = result.updates['model']
    one_hot = tf.one_hot(group, 2)
    return result._replace(
      updates={
        f'group_{g}': aggregation.Update(update, one_hot[g] * weight)
        for g in range(2)
      }
    )

  def server(self, server, aggregate, sums):
    del sums
    steps = self.settings.server_steps
    return GroupState(
      *zip(
        *(
          steps.step(optimizers.Learner(*state), aggregate[part])
          for part, *state in zip(self.parts, *server)
        )
      )
    )

  def start(self, message, client):
    return trainers.Start(clusters.pick(message, client.attributes['group']))


_SHARED = dict(client_learning_rate=0.05, server_learning_rate=0.5)


def _group_models(personalizer_class, personalizer_settings):
  trainer = GroupModels(helpers.MODEL, fedavg.FedAvgSettings(**_SHARED))
  return methods.Method(
    personalizer_class(trainer, personalizer_settings),
    helpers.MEAN,
    helpers.SETS,
  )


def test_a_model_for_each_given_group_is_fedavg_on_that_group(runtime):
  del runtime
  method = _group_models(as_trained.AsTrained, as_trained.AsTrainedSettings())
  groups = (0, 1, 1, 0, 1)
  clients = helpers.make_clients(
    method, _all_data(), [{'group': group} for group in groups]
  )
  after = helpers.run(method, 3, clients)
  plain = helpers.build('fedavg', **_SHARED)
  vectors = []
  for group, weights in enumerate(after.state.server.models):
    members = [
      client._replace(attributes={})
      for client, of_client in zip(clients, groups)
      if of_client == group
    ]
    with helpers.use_runtime('cohort'):
      expected = helpers.run(plain, 3, members).state.server.model
    helpers.assert_close(weights, expected)
    vectors.append(helpers.vector(weights))

  held_out = helpers.hold_out(clients)
  results = method.personalize(after.state, held_out)
  for client, group, result in zip(held_out, groups, results):
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0],
      [helpers.total_error(client.evaluation['evaluation'], vectors[group])],
      rtol=1e-3,
    )


def test_the_model_of_a_clients_group_can_be_fine_tuned():
  finetuning_settings = finetuning.FinetuningSettings(
    finetuning_epochs=1, finetuning_learning_rates=(0.1,)
  )
  method = _group_models(finetuning.Finetuning, finetuning_settings)
  vectors = np.array([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 2.0, 1.0]])
  state = helpers.replace_server(
    method.initial_state(_SEED), models=tuple(map(helpers.weights, vectors))
  )
  attributes = [{'group': group} for group in (1, 0)]
  data_of_clients = helpers.all_data([4, 3])
  clients = helpers.hold_out(
    helpers.make_clients(method, data_of_clients, attributes)
  )
  for client, start, result in zip(
    clients, vectors[::-1], method.personalize(state, clients)
  ):
    a, b = helpers.quadratic(client.personalization)
    expected = [
      helpers.total_error(client.evaluation['evaluation'], w)
      for w in (start, start - 0.1 * (a @ start - b))
    ]
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0], expected, rtol=1e-3
    )


@dataclasses.dataclass(frozen=True)
class FrozenScale(linear.LinearRegression):
  """A linear model of features that frozen weights scale."""

  def encode(self, weights, batch):
    return batch['x'] * self.frozen['scale']


_SCALE = np.array([2.0, -1.0, 0.5], np.float32)


def _frozen(scale=_SCALE):
  model = FrozenScale(3, frozen=collections.OrderedDict(scale=scale))
  trainer = fedavg.FedAvg(model, fedavg.FedAvgSettings(**_SHARED))
  finetuning_settings = finetuning.FinetuningSettings(finetuning_epochs=2)
  return methods.Method(
    finetuning.Finetuning(trainer, finetuning_settings),
    helpers.MEAN,
    helpers.SETS,
  )


def _scaled(data):
  x = data.examples['x'] * _SCALE
  return data._replace(examples=collections.OrderedDict(data.examples, x=x))


@pytest.mark.parametrize('runtime', ['cohort', 'native'], indirect=True)
def test_frozen_weights_are_an_argument_of_rounds_and_personalization(runtime):
  del runtime
  frozen = _frozen()
  clients = helpers.make_clients(frozen, _all_data())
  after = helpers.run(frozen, 3, clients)
  plain = helpers.build('finetuning', finetuning_epochs=2, **_SHARED)
  with helpers.use_runtime('cohort'):
    expected_clients = helpers.make_clients(plain, map(_scaled, _all_data()))
    expected = helpers.run(plain, 3, expected_clients)
  helpers.assert_close(after.state, expected.state)
  held_out = helpers.hold_out(clients)
  scaled = [
    client._replace(
      personalization=_scaled(client.personalization),
      evaluation={'evaluation': _scaled(client.evaluation['evaluation'])},
    )
    for client in held_out
  ]
  with helpers.use_runtime('cohort'):
    expected_results = list(plain.personalize(expected.state, scaled))
  helpers.assert_close(
    list(frozen.personalize(after.state, held_out)),
    expected_results,
    rtol=1e-3,
  )


def test_frozen_weights_are_in_no_state_and_no_message():
  method = _frozen()
  state = helpers.run(method, 1).state
  plain = helpers.build('fedavg', **_SHARED).initial_state(_SEED)
  assert [path for path, _ in tree.flatten_with_path(state)] == [
    path for path, _ in tree.flatten_with_path(plain)
  ]
  assert (method.parameters_down, method.parameters_up) == (4, 4)


def test_programs_do_not_depend_on_the_values_of_frozen_weights():
  method, other = _frozen(), _frozen(np.ones(3, np.float32))
  assert method.next is other.next
  clients = helpers.make_clients(other)
  plain = helpers.build('fedavg', **_SHARED)
  helpers.assert_close(
    helpers.run(other, 1, clients).state,
    helpers.run(plain, 1, helpers.make_clients(plain)).state,
  )


def test_methods_of_other_frozen_weights_train_differently():
  assert _frozen().training_key == _frozen(_SCALE.copy()).training_key
  assert _frozen().training_key != _frozen(2 * _SCALE).training_key


@pytest.mark.parametrize(
  'value, finite',
  [
    (1.0, True),
    (np.inf, False),
    (-np.inf, False),
    (np.nan, False),
  ],
)
def test_every_float_of_a_structure_must_be_finite(value, finite):
  structure = {'a': tf.constant([[1.0, value]]), 'b': (3, tf.constant(2.0))}
  assert process.is_finite(structure) == finite


@pytest.mark.parametrize('structure', [{}, {'a': 3}, [tf.constant([1, 2])]])
def test_what_has_no_floats_is_finite(structure):
  assert process.is_finite(structure)


class _Undeclared(fedavg.FedAvg):
  """Sends a part that it does not declare."""

  def client(self, message, client):
    result = super().client(message, client)
    extra = aggregation.Update(tf.constant(1.0))
    return result._replace(updates={**result.updates, 'extra': extra})


def test_a_part_that_is_not_declared_is_told_by_name():
  plain = helpers.build('fedavg')
  trainer = _Undeclared(plain.trainer.model, plain.trainer.settings)
  method = dataclasses.replace(
    plain,
    personalizer=dataclasses.replace(plain.personalizer, trainer=trainer),
  )
  message = 'clients of _Undeclared send the parts model, extra .* declares mod'
  with pytest.raises(ValueError, match=message):
    _ = method.next
