"""Local training: fine-tuning of the initial model, without rounds."""

import numpy as np

from tests.algorithms import helpers

_VALUES = dict(finetuning_epochs=3, finetuning_learning_rates=(0.05, 0.2))


def test_is_fine_tuning_of_the_initial_model():
  results = []
  for name in ('local', 'finetuning'):
    method = helpers.build(name, **_VALUES)
    results.append(
      list(
        method.personalize(
          method.initial_state([0, 1]), helpers.make_held_out(method)
        )
      )
    )
  helpers.assert_equal(*results)


def test_says_that_it_trains_nothing_and_has_no_baseline():
  method = helpers.build('local', **_VALUES)
  assert not method.trains
  assert method.baseline is None


def test_rounds_leave_the_model_as_it_was():
  method = helpers.build('local', **_VALUES)
  before = helpers.replace_server(
    method.initial_state([0, 1]), model=helpers.weights([1, -2, 3, 4])
  )
  after = helpers.run(method, state=before)
  helpers.assert_equal(after.state, before)
  assert after.metrics['num_clients'] == len(helpers.SIZES)


def test_no_training_begins_with_a_model_that_is_not_trained():
  assert helpers.build('local', **_VALUES).model_places == ()


def test_every_client_starts_from_the_same_model():
  method = helpers.build('local', **_VALUES)
  model = np.array([1.0, -2.0, 3.0, 4.0])
  state = helpers.replace_server(
    method.initial_state([0, 1]), model=helpers.weights(model)
  )
  clients = helpers.make_held_out(method)
  for client, result in zip(clients, method.personalize(state, clients)):
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0][0],
      helpers.total_error(client.evaluation['evaluation'], model),
      rtol=1e-4,
    )
