"""Methods: what they depend on, and what they share."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import as_trained
from algorithms import fedavg
from algorithms import finetuning
from algorithms import methods
from tasks.models import linear
from tests.algorithms import helpers

_SEED = [0, 1]
# Not the methods of other tests, whose programs may have been dropped from
# those that are shared.
_build = helpers.build_anew


def _finetuned(model=helpers.MODEL, aggregator=helpers.MEAN, **values):
  trainer = fedavg.FedAvg(model, fedavg.FedAvgSettings())
  settings = finetuning.FinetuningSettings(**values)
  return methods.Method(
    finetuning.Finetuning(trainer, settings), aggregator, helpers.SETS
  )


def _personalization(method):
  return method.trace_computations().personalize


def test_methods_of_equal_trainers_have_the_same_training_key():
  first, second = _build('fedavg'), _build('finetuning')
  assert first.training_key == second.training_key
  assert hash(first.training_key) == hash(second.training_key)


@pytest.mark.parametrize(
  'name, values',
  [
    ('fedavg', dict(client_learning_rate=0.2)),
    ('finetuning', dict(client_learning_rate=0.2)),
    ('fedavg', dict(client_weighting='uniform')),
    ('fedavg', dict(aggregator=aggregation.mean())),  # Another object.
    ('fedavg', dict(model=linear.LinearRegression(4))),
    ('fedadam', {}),
    ('ditto', {}),
  ],
)
def test_methods_that_train_differently_have_other_training_keys(name, values):
  first, other = _build('fedavg'), _build(name, **values)
  assert first.training_key != other.training_key


def test_the_training_key_does_not_depend_on_the_personalizer():
  first = _build('finetuning', finetuning_epochs=3)
  other = _build('finetuning', finetuning_epochs=5)
  assert first.training_key == other.training_key
  assert first.structure != other.structure


@pytest.mark.parametrize(
  'values',
  [
    dict(client_learning_rate=0.2),
    dict(server_learning_rate=0.2, server_momentum=0.1),
    dict(finetuning_learning_rates=(0.7,)),
  ],
)
def test_methods_that_differ_only_in_floats_share_all_programs(values):
  first = _build('finetuning', finetuning_epochs=3)
  other = _build('finetuning', finetuning_epochs=3, **values)
  assert first.structure == other.structure
  assert first.next is other.next
  assert first.initialize is other.initialize
  assert _personalization(first) is _personalization(other)


@pytest.mark.parametrize(
  'values',
  [
    dict(finetuning_layers=('last',)),
    dict(finetuning_epochs=4),
    dict(finetuning_optimizer='adam'),
    dict(finetuning_learning_rates=(0.1, 0.2)),  # Another number of them.
  ],
)
def test_programs_depend_on_what_is_no_float_of_the_personalizer(values):
  assert _finetuned().structure != _finetuned(**values).structure


def test_another_personalizer_has_programs_of_its_own_for_it_alone():
  first, other = _finetuned(), _finetuned(finetuning_layers=('last',))
  assert first.next is other.next
  assert _personalization(first) is not _personalization(other)


def test_methods_of_one_trainer_share_their_training():
  trained = [_build(name).next for name in ('fedavg', 'finetuning', 'knn_per')]
  assert all(next_round is trained[0] for next_round in trained)


@pytest.mark.parametrize(
  'values', [dict(client_weighting='uniform'), dict(client_optimizer='adam')]
)
def test_other_trainers_have_programs_of_their_own(values):
  first, other = _build('fedavg'), _build('fedavg', **values)
  assert first.structure != other.structure
  assert first.next is not other.next


def test_another_aggregator_has_programs_of_its_own():
  first = _finetuned()
  other = _finetuned(aggregator=tff.aggregators.UnweightedMeanFactory())
  assert first.structure != other.structure
  assert first.next is not other.next


def test_equal_models_that_were_made_twice_share_programs():
  first, second = (_finetuned(linear.LinearRegression(3)) for _ in range(2))
  assert first.trainer.model is not second.trainer.model
  assert first.structure == second.structure
  assert first.next is second.next
  assert _personalization(first) is _personalization(second)


def test_models_of_another_size_or_class_have_programs_of_their_own():
  structures = {
    _finetuned(model).structure
    for model in (
      linear.LinearRegression(3),
      linear.LinearRegression(4),
      linear.LinearRegression(3, initial_stddev=1.0),
      linear.SupportVectorMachine(3, l2=0.1),
      linear.SupportVectorMachine(3, l2=0.2),
    )
  }
  assert len(structures) == 5


def test_shared_programs_give_each_method_its_own_numbers():
  for rate in (0.01, 0.05):
    method = _build('finetuning', client_learning_rate=rate)
    model = helpers.vector(helpers.run(method, 1).state.server.model)
    updates = []
    for data in helpers.all_data():
      w = np.zeros(4)
      for a, b in helpers.batch_gradients(data):
        w = w - rate * (a @ w - b)
      updates.append(w)
    np.testing.assert_allclose(
      model, np.average(updates, axis=0, weights=helpers.SIZES), rtol=1e-4
    )


_FIRST = helpers.weights([1, -2, 3, 4])


def test_a_training_begins_with_the_first_models():
  method = dataclasses.replace(_finetuned(), first_models=(_FIRST,))
  state = method.initial_state(_SEED)
  helpers.assert_equal(dict(state.server.model), dict(_FIRST))
  expected = helpers.replace_server(
    _finetuned().initial_state(_SEED), model=_FIRST
  )
  helpers.assert_equal(
    helpers.run(method, 2).state,
    helpers.run(_finetuned(), 2, state=expected).state,
  )


def test_first_models_change_no_program():
  method = dataclasses.replace(_finetuned(), first_models=(_FIRST,))
  assert method.structure == _finetuned().structure
  assert method.next is _finetuned().next


def test_each_cluster_can_begin_with_a_model_of_its_own():
  others = helpers.weights([5, 6, 7, 8])
  method = dataclasses.replace(
    _build('hypcluster'), first_models=(_FIRST, others)
  )
  assert method.model_places == (
    ('server', 'models', 0),
    ('server', 'models', 1),
  )
  state = method.initial_state(_SEED)
  helpers.assert_equal(list(map(dict, state.server.models)), [_FIRST, others])


def test_computations_are_traced_when_they_are_needed_and_once():
  traced = []

  def trace(method):
    traced.append(method)
    return method.trace_computations()

  method = dataclasses.replace(_finetuned(), trace=trace)
  assert len(method.candidates) == 21
  assert not traced
  assert method.next is _finetuned().next
  assert method.initialize is _finetuned().initialize
  assert traced == [method]


def test_computations_can_be_exchanged():
  computations = _finetuned().trace_computations()
  changed = dataclasses.replace(
    computations, personalize=lambda *arguments: arguments
  )
  method = dataclasses.replace(_finetuned(), trace=lambda _: changed)
  state = method.initial_state(_SEED)
  server, numbers, own_numbers, clients = method.personalize(state, 'clients')
  assert server is state.server
  assert numbers is state.numbers
  assert clients == 'clients'
  np.testing.assert_array_equal(
    own_numbers['finetuning_learning_rates'], np.float32([0.1])
  )


def test_tells_what_its_halves_tell():
  method = _build('finetuning', finetuning_epochs=3)
  assert method.trainer is method.personalizer.trainer
  assert method.candidates == method.personalizer.candidates
  assert method.baseline == method.personalizer.baseline == 0
  assert method.trains
  assert method.personalizes_new_clients
  assert method.takes_steps
  assert method.shuffled_epochs == 0
  assert list(method.needs) == []


@pytest.mark.parametrize(
  'name, takes_steps',
  [
    ('fedavg', False),
    ('knn_per', False),
    ('finetuning', True),
    ('ditto', True),
    ('local', True),
  ],
)
def test_tells_whether_personalization_takes_steps(name, takes_steps):
  assert _build(name).takes_steps == takes_steps


@pytest.mark.parametrize(
  'name, candidate, baseline',
  [('fedavg', 'global', 0), ('hypcluster', 'picked cluster', None)],
)
def test_a_method_as_it_was_trained_has_one_candidate(
  name, candidate, baseline
):
  method = _build(name)
  assert isinstance(method.personalizer, as_trained.AsTrained)
  assert list(map(str, method.candidates)) == [candidate]
  # A model of a client's own is not one that it could be compared with.
  assert method.baseline == baseline


def test_a_seed_makes_the_initial_state():
  model = linear.LinearRegression(3, initial_stddev=1.0)
  first, same, other = (
    _finetuned(model).initial_state(seed).server.model['kernel']
    for seed in ([0, 1], [0, 1], [0, 2])
  )
  np.testing.assert_allclose(first, model.init([0, 1])['kernel'], rtol=1e-6)
  np.testing.assert_array_equal(first, same)
  assert not np.any(first == other)


_ONES = np.ones([2, 3], np.float32)


def _digest(**frozen):
  model = dataclasses.replace(
    helpers.MODEL, frozen=collections.OrderedDict(frozen)
  )
  return model.frozen_digest


def test_equal_frozen_weights_have_the_same_digest():
  assert _digest(a=_ONES) == _digest(a=_ONES.copy())
  # Wherever they are in memory.
  assert _digest(a=_ONES) == _digest(a=np.ones([3, 2], np.float32).T)
  assert len(_digest(a=_ONES)) == 64


@pytest.mark.parametrize(
  'frozen',
  [
    dict(a=2 * _ONES),
    dict(b=_ONES),
    dict(a=_ONES.T),
    dict(a=_ONES.astype(np.float64)),
    dict(a=_ONES, b=_ONES),
  ],
)
def test_other_frozen_weights_have_another_digest(frozen):
  assert _digest(**frozen) != _digest(a=_ONES)


def test_no_frozen_weights_have_no_digest():
  assert _digest() is None
  assert _finetuned().constants == ()
