"""FedAvg against the same computed with NumPy."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms import helpers

_CLIENT_RATE = 0.05


def _local_sgd(model, data):
  """Takes an epoch of SGD on half the squared error."""
  for a, b in helpers.batch_gradients(data):
    model = model - _CLIENT_RATE * (a @ model - b)
  return model


def _rounds(server_step, num_rounds=3, counts=helpers.SIZES):
  """The model after some rounds; `server_step` gives what to subtract."""
  model = np.zeros(4)
  for _ in range(num_rounds):
    updates = [model - _local_sgd(model, data) for data in helpers.all_data()]
    model = model - server_step(np.average(updates, axis=0, weights=counts))
  return model


# Others are compared by `tests/reference`.
_CASES = {
  'server_learning_rate': (
    dict(server_learning_rate=0.5),
    lambda: lambda update: 0.5 * update,
  ),
  'fedadam': (
    dict(
      server_optimizer='adam',
      server_learning_rate=0.1,
      server_beta_2=0.95,
      server_epsilon=0.01,
    ),
    lambda: helpers.NumpyAdam(0.1, 0.9, 0.95, 0.01),
  ),
}


def _build(**values):
  return helpers.build(
    'fedavg', **dict(client_learning_rate=_CLIENT_RATE) | values
  )


def _model(state):
  return helpers.vector(state.server.model)


@pytest.mark.parametrize('case', _CASES)
def test_three_rounds_are_those_of_numpy(case):
  values, server_step = _CASES[case]
  state = helpers.run(_build(**values)).state
  np.testing.assert_allclose(
    _model(state), _rounds(server_step()), rtol=1e-4, atol=1e-6
  )


def test_size_weighting_counts_what_clients_say_they_have():
  method, sizes = _build(client_weighting='size'), [0, 1, 0, 1, 0]
  clients = helpers.make_clients(
    method, attributes=[{'size': size} for size in sizes]
  )
  state = helpers.run(method, clients=clients).state
  expected = _rounds(lambda update: update, counts=sizes)
  np.testing.assert_allclose(_model(state), expected, rtol=1e-4, atol=1e-6)


def test_uniform_weighting_counts_clients():
  state = helpers.run(_build(client_weighting='uniform')).state
  expected = _rounds(lambda update: update, counts=[1] * 5)
  np.testing.assert_allclose(_model(state), expected, rtol=1e-4, atol=1e-6)


def test_the_numbers_in_the_state_are_what_counts():
  method = _build()
  state = method.initial_state([0, 1])
  state.numbers['client_learning_rate'] = np.float32(0)
  state, _, metrics = helpers.run(method, rounds=1, state=state)
  np.testing.assert_array_equal(_model(state), 0)
  # The loss of the model of zeros.
  losses = [0.5 * data.examples['y'] ** 2 for data in helpers.all_data()]
  np.testing.assert_allclose(
    metrics['loss'], np.concatenate(losses).mean(), rtol=1e-5
  )


def test_the_loss_is_that_of_each_example_before_the_step_that_used_it():
  total = 0.0
  for data in helpers.all_data():
    model = np.zeros(4)
    for (a, b), indices, mask in zip(
      helpers.batch_gradients(data), data.indices, data.mask
    ):
      used = indices[mask > 0]
      errors = (helpers.features(data) @ model - data.examples['y'])[used]
      total += 0.5 * np.sum(errors**2)
      model = model - _CLIENT_RATE * (a @ model - b)
  metrics = helpers.run(_build(), rounds=1).metrics
  np.testing.assert_allclose(
    metrics['loss'], total / sum(helpers.SIZES), rtol=1e-5
  )


def test_training_metrics_count_clients_and_examples():
  metrics = helpers.run(_build(), rounds=1).metrics
  assert metrics['num_clients'] == len(helpers.SIZES)
  assert metrics['num_examples'] == sum(helpers.SIZES)
  assert metrics['dropped_clients'] == 0


def test_a_robust_aggregator_zeroes_what_is_far_off():
  # Clients' updates of norm above this are taken for zero.
  aggregator = tff.aggregators.zeroing_factory(1e-6, helpers.MEAN)
  after = helpers.run(_build(aggregator=aggregator), rounds=1)
  np.testing.assert_array_equal(_model(after.state), 0)
  assert after.metrics['num_clients'] == len(helpers.SIZES)


def test_an_aggregator_that_does_not_weight_counts_clients():
  method = _build(aggregator=tff.aggregators.UnweightedMeanFactory())
  expected = _rounds(lambda update: update, counts=[1] * 5)
  np.testing.assert_allclose(
    _model(helpers.run(method).state), expected, rtol=1e-4, atol=1e-6
  )


def test_every_client_is_evaluated_at_the_global_model():
  method = _build()
  state = helpers.run(method).state
  clients = helpers.make_held_out(method)
  for client, result in zip(clients, method.personalize(state, clients)):
    total, weight = result['evaluation']['half_squared_error']
    expected = helpers.total_error(
      client.evaluation['evaluation'], _model(state)
    )
    assert weight == [6]
    np.testing.assert_allclose(total, [expected], rtol=1e-4)


# The data of one client in two rounds.
_ROUNDS = (helpers.data(0, 11), helpers.data(1, 11))


def _one_client(client_slots):
  """The model of a single client after `_ROUNDS`, by its own Adam."""
  method = _build(
    client_optimizer='adam', client_slots=client_slots, client_epsilon=1e-3
  )
  state = method.initial_state([0, 1])
  clients = helpers.make_clients(method, _ROUNDS[:1])
  for data in _ROUNDS:
    clients = [clients[0]._replace(data=data)]
    state, clients, _ = helpers.run(method, 1, clients, state)
  return _model(state)


def _adam(anew):
  """The same with NumPy, with new moments in each round or not."""
  model, adam = np.zeros(4), None
  for data in _ROUNDS:
    if anew or adam is None:
      adam = helpers.NumpyAdam(_CLIENT_RATE, epsilon=1e-3)
    for a, b in helpers.batch_gradients(data):
      model = model - adam(a @ model - b)
  return model


@pytest.mark.parametrize('client_slots', ['kept', 'new'])
def test_a_clients_adam_goes_on_in_its_next_round_if_kept(client_slots):
  expected = _adam(anew=client_slots == 'new')
  np.testing.assert_allclose(
    _one_client(client_slots), expected, rtol=0, atol=1e-6
  )


def test_new_moments_make_a_difference():
  assert np.abs(_one_client('kept') - _one_client('new')).min() > 1e-3


def test_kept_moments_are_stepped_with_the_rate_of_the_state():
  # One program serves all rates, and a client's state has none that counts.
  first = _build(client_optimizer='adam', client_slots='kept')
  other = _build(
    client_optimizer='adam', client_slots='kept', client_learning_rate=0.5
  )
  assert first.next is other.next
  clients = helpers.make_clients(other, _ROUNDS[:1])
  model, adam = np.zeros(4), helpers.NumpyAdam(0.5)
  for a, b in helpers.batch_gradients(_ROUNDS[0]):
    model = model - adam(a @ model - b)
  np.testing.assert_allclose(
    _model(helpers.run(other, 1, clients).state), model, rtol=1e-4, atol=1e-6
  )
