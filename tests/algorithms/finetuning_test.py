"""Fine-tuning against the same steps taken one by one."""

import numpy as np
import pytest
import tree

from base import errors
from tasks.models import linear
from tests.algorithms import helpers

_RATES = (0.05, 0.2)


def _epoch(data, weights, step):
  for a, b in helpers.batch_gradients(data):
    weights = weights - step(a @ weights - b)
  return weights


def _build(name='finetuning', **values):
  defaults = dict(finetuning_epochs=3, finetuning_learning_rates=_RATES)
  return helpers.build(name, **defaults | values)


def _personalize(method, state, clients=None):
  clients = clients or helpers.make_held_out(method)
  return [
    result['evaluation']['half_squared_error'][0]
    for result in method.personalize(state, clients)
  ]


# For each optimizer, what makes its steps of one learning rate.
_OPTIMIZERS = {
  'sgd': lambda rate: lambda gradient: rate * gradient,
  # The optimizer's own defaults; its moments go on from epoch to epoch.
  'adam': helpers.NumpyAdam,
}


@pytest.mark.parametrize('optimizer', _OPTIMIZERS)
def test_each_candidate_is_what_its_steps_lead_to(optimizer):
  method = _build(finetuning_optimizer=optimizer)
  state = helpers.run(method).state
  start = helpers.vector(state.server.model)
  clients = helpers.make_held_out(method)
  for client, totals in zip(clients, _personalize(method, state)):
    evaluation = client.evaluation['evaluation']
    expected = [helpers.total_error(evaluation, start)]
    for rate in _RATES:
      weights, step = start, _OPTIMIZERS[optimizer](rate)
      for _ in range(3):
        weights = _epoch(client.personalization, weights, step)
        expected.append(helpers.total_error(evaluation, weights))
    np.testing.assert_allclose(totals, expected, rtol=1e-3)


def test_any_trainers_start_is_fine_tuned():
  # Here the model of the cluster that a client picked.
  method = _build('hypcluster+finetuning', finetuning_learning_rates=_RATES[:1])
  state = helpers.run(method).state
  models = [helpers.vector(weights) for weights in state.server.models]
  clients = helpers.make_held_out(method)
  for client, totals in zip(clients, _personalize(method, state)):
    personalization = client.personalization
    evaluation = client.evaluation['evaluation']
    weights = min(models, key=lambda w: helpers.total_error(personalization, w))  # noqa: B023
    expected = [helpers.total_error(evaluation, weights)]
    for _ in range(3):
      weights = _epoch(
        personalization, weights, lambda gradient: _RATES[0] * gradient
      )
      expected.append(helpers.total_error(evaluation, weights))
    np.testing.assert_allclose(totals, expected, rtol=1e-3)


def test_names_of_the_candidates():
  method = _build(finetuning_epochs=1, finetuning_layers=('all', 'last'))
  assert [str(candidate) for candidate in method.candidates] == [
    '0 epochs',
    '1 epoch, all layers, rate 0.05',
    '1 epoch, all layers, rate 0.2',
    '1 epoch, last layer, rate 0.05',
    '1 epoch, last layer, rate 0.2',
  ]


def test_candidates_tell_their_epochs():
  assert [candidate.value for candidate in _build().candidates] == [
    *range(4),
    *range(1, 4),
  ]


def test_the_baseline_is_the_model_as_it_was():
  method = _build()
  assert str(method.candidates[method.baseline]) == '0 epochs'


def test_the_last_layer_of_a_linear_model_is_all_of_it():
  one, other = (
    _build(finetuning_layers=(layers,), finetuning_learning_rates=_RATES[:1])
    for layers in ('all', 'last')
  )
  state = helpers.run(one).state
  np.testing.assert_allclose(
    _personalize(one, state), _personalize(other, state), rtol=1e-6
  )


def test_only_the_last_layer_is_fine_tuned_if_that_is_asked_for():
  class OnlyBias(linear.LinearRegression):
    parts = {'encoder': ('kernel',), 'head': ('bias',)}

  method = _build(
    model=OnlyBias(3),
    finetuning_layers=('last',),
    finetuning_learning_rates=_RATES[:1],
  )
  state = helpers.run(method).state
  start = helpers.vector(state.server.model)
  clients = helpers.make_held_out(method)
  for client, totals in zip(clients, _personalize(method, state, clients)):
    weights, expected = start, []
    for _ in range(3):
      weights = _epoch(
        client.personalization, weights, lambda g: _RATES[0] * g * [0, 0, 0, 1]
      )
      expected.append(
        helpers.total_error(client.evaluation['evaluation'], weights)
      )
    np.testing.assert_allclose(totals[1:], expected, rtol=1e-3)


def test_shuffled_epochs_are_taken_one_after_another():
  epochs = 3
  method = _build(finetuning_shuffle=True, finetuning_learning_rates=_RATES[:1])
  assert method.shuffled_epochs == epochs
  plain = _build(finetuning_learning_rates=_RATES[:1])
  state = helpers.run(plain).state
  clients = helpers.make_held_out(plain)
  repeated = [
    client._replace(
      personalization=client.personalization._replace(
        indices=np.tile(client.personalization.indices, [epochs, 1]),
        mask=np.tile(client.personalization.mask, [epochs, 1]),
      )
    )
    for client in clients
  ]
  np.testing.assert_allclose(
    _personalize(method, state, repeated),
    _personalize(plain, state, clients),
    rtol=1e-6,
  )


def test_epochs_of_another_order_are_those_that_are_taken():
  method = _build(finetuning_shuffle=True, finetuning_learning_rates=_RATES[:1])
  state = helpers.run(method).state
  (client,) = helpers.make_held_out(method, [helpers.data(0, 12)])
  data = client.personalization
  backwards = data._replace(indices=data.indices[::-1, ::-1])
  epochs = (data, backwards, data)
  all_epochs = data._replace(
    indices=np.concatenate([epoch.indices for epoch in epochs]),
    mask=np.concatenate([epoch.mask for epoch in epochs]),
  )
  weights, expected = helpers.vector(state.server.model), []
  for epoch in epochs:
    weights = _epoch(epoch, weights, lambda g: _RATES[0] * g)
    evaluation = client.evaluation['evaluation']
    expected.append(helpers.total_error(evaluation, weights))
  (totals,) = _personalize(
    method, state, [client._replace(personalization=all_epochs)]
  )
  np.testing.assert_allclose(totals[1:], expected, rtol=1e-3)


def test_training_is_that_of_fedavg():
  method, fedavg = _build(), helpers.build('fedavg')
  helpers.assert_equal(helpers.run(method).state, helpers.run(fedavg).state)


def test_the_number_of_epochs_does_not_change_the_training():
  state = helpers.run(_build()).state
  other = helpers.run(_build(finetuning_epochs=1)).state
  helpers.assert_equal(state, other)


def test_tries_only_some_of_the_epochs():
  every, some = (
    helpers.build(
      'finetuning',
      finetuning_epochs=6,
      finetuning_shuffle=True,
      finetuning_epochs_per_candidate=step,
    )
    for step in (1, 3)
  )
  assert [c.value for c in some.candidates] == [0, 3, 6]
  # Six epochs of the same batches.
  data = helpers.data(0, 9)
  shuffled = data._replace(
    indices=np.tile(data.indices, [6, 1]), mask=np.tile(data.mask, [6, 1])
  )
  results = [
    method.personalize(
      method.initial_state([0, 1]), helpers.make_held_out(method, [shuffled])
    )[0]
    for method in (every, some)
  ]
  helpers.assert_close(
    [leaf[::3] for leaf in tree.flatten(results[0])], tree.flatten(results[1])
  )


def test_the_epochs_that_are_tried_must_divide_all():
  with pytest.raises(errors.UserError, match='must divide'):
    helpers.build_anew(
      'finetuning', finetuning_epochs=5, finetuning_epochs_per_candidate=2
    )
