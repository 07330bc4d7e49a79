"""Groups: one of all clients is FedAdam, and an empty one stays."""

import dataclasses

import numpy as np
import pytest
import tree

from algorithms import registry
from base import errors
from tests.algorithms import helpers

_SHARED = dict(client_learning_rate=0.1)


def _build(name='group', **values):
  return helpers.build(name, **_SHARED, **values)


def _begun(method):
  """The method with a model that it begins with, in each group."""
  model = helpers.weights([1, 2, -1, 0.5])
  return dataclasses.replace(
    method, first_models=[model] * len(method.model_places)
  )


def _clients(method, groups):
  return helpers.make_clients(method, attributes=[{'group': g} for g in groups])


def test_one_group_of_all_clients_is_fedadam_continued_to_the_bit():
  group = _begun(_build(known_groups=1))
  fedadam = _begun(_build('fedadam'))
  grouped = helpers.run(group, clients=_clients(group, [0] * 5))
  alone = helpers.run(fedadam)
  helpers.assert_equal(
    (grouped.state.server.models[0], grouped.state.server.optimizers[0]),
    (alone.state.server.model, alone.state.server.optimizer),
  )
  assert grouped.metrics['loss'] == alone.metrics['loss']


def test_a_group_without_clients_in_a_round_stays_to_the_bit():
  method = _begun(_build(known_groups=3))
  before = method.initial_state([0, 1]).server
  after = helpers.run(method, clients=_clients(method, [0, 2, 0, 2, 2]))
  for old, new in (
    (before.models, after.state.server.models),
    (before.optimizers, after.state.server.optimizers),
  ):
    helpers.assert_equal(new[1], old[1])
    assert not np.array_equal(
      tree.flatten(new[0])[-1], tree.flatten(old[0])[-1]
    )


def test_fine_tuning_begins_with_the_model_of_the_clients_group():
  method = _build('group+finetuning', finetuning_epochs=1)
  first = [helpers.weights([k, 1, 2, 3]) for k in (1, -4)]
  begun = dataclasses.replace(method, first_models=first)
  clients = helpers.hold_out(_clients(begun, [1, 0, 0, 1, 1]))
  results = begun.personalize(begun.initial_state([0, 1]), clients)
  for client, result in zip(clients, results):
    vector = helpers.vector(first[client.attributes['group']])
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0][0],
      helpers.total_error(client.evaluation['evaluation'], vector),
      rtol=1e-5,
    )


def test_it_begins_with_the_fedadam_of_the_same_settings():
  assert _build().predecessor.training_key == _build('fedadam').training_key
  assert _build('group+finetuning').training_key == _build().training_key
  other = _build('fedadam', server_learning_rate=0.5)
  assert _build().predecessor.training_key != other.training_key


def test_it_takes_its_groups_from_the_hypcluster_of_the_same_settings():
  settings = dict(server_optimizer='adam', server_learning_rate=0.03)
  method = _build(groups='hypcluster', num_groups=3, warmstart_rounds=2.0)
  expected = _build(
    'hypcluster', num_clusters=3, warmstart_rounds=2.0, **settings
  )
  hypcluster = method.replace_trainer(method.trainer.hypcluster)
  assert hypcluster.training_key == expected.training_key


def test_how_many_groups_are_to_be_found_must_be_said():
  with pytest.raises(errors.UserError, match='num_groups must be set'):
    registry.make_settings('group', {'groups': 'inferred'})


def test_clients_keep_no_slots():
  with pytest.raises(errors.UserError, match='client_slots must be new'):
    _build(client_slots='kept')
