"""Tests of FedDPA: its limits, and the weights of its mixtures."""

import numpy as np
import pytest

from tests.algorithms import helpers


@pytest.fixture(name='clients', scope='module')
def _clients():
  with helpers.use_runtime('cohort'):
    return helpers.make_clients(helpers.build('feddpa'))


def _metrics(name, clients, **settings):
  method = helpers.build(name, **settings)
  state = helpers.run(method, clients=clients).state
  results = method.personalize(state, helpers.hold_out(clients))
  return [result['evaluation'] for result in results]


def test_shares_of_0_and_1_are_fedavg_and_fine_tuning(clients):
  mixed = _metrics(
    'feddpa',
    clients,
    own_shares=(0.0, 1.0),
    own_epochs=2,
    own_optimizer='sgd',
    own_learning_rate=0.05,
  )
  tuned = _metrics(
    'finetuning',
    clients,
    finetuning_epochs=2,
    finetuning_epochs_per_candidate=2,
    finetuning_learning_rates=(0.05,),
  )
  for of_mixture, of_tuning in zip(mixed, tuned, strict=True):
    for first, second in zip(of_mixture['loss'], of_tuning['loss']):
      np.testing.assert_allclose(first, second, rtol=1e-6)


def test_a_share_between_them_is_between_their_weights(clients):
  """The loss of a linear model is convex on the way between two weights."""
  found = _metrics('feddpa', clients, own_shares=(0.0, 0.5, 1.0))
  for metrics in found:
    first, middle, last = metrics['loss'][0]
    assert middle <= (first + last) / 2
