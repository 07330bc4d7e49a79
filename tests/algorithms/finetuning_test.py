"""Fine-tuning against the same steps taken one by one."""

from absl.testing import absltest
import numpy as np

from algorithms import finetuning
from algorithms import local
from tests.algorithms import helpers

_RATES = (0.05, 0.2)


def _errors(own, weights):
  x, y = own.examples['x'], own.examples['y']
  return np.sum(0.5 * (x @ weights[:3] + weights[3] - y) ** 2)


def _epoch(own, weights, rate):
  for indices, mask in zip(own.indices, own.mask):
    x = np.insert(own.examples['x'][indices[mask > 0]], 3, 1, axis=1)
    residual = x @ weights - own.examples['y'][indices[mask > 0]]
    weights = weights - rate * x.T @ residual / len(residual)
  return weights


def _build(module=finetuning, **hyperparameters):
  hyperparameters = (
    dict(finetuning_epochs=3, finetuning_learning_rates=_RATES)
    | hyperparameters
  )
  return module.build(
    helpers.MODEL,
    module.Hyperparameters(**hyperparameters),
    helpers.mean(),
    helpers.SETS,
  )


def _personalize(algorithm, state, clients=None):
  clients = clients or helpers.held_out_clients(algorithm)
  return [
    result['evaluation']['half_squared_error'][0]
    for result in algorithm.personalize(state, clients)
  ]


class FinetuningTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    helpers.use('cohort')

  def test_each_candidate_is_what_its_steps_lead_to(self):
    algorithm = _build()
    state, _ = helpers.run(algorithm)
    start = state['server']['model']
    start = np.append(start['kernel'], start['bias'])
    clients = helpers.held_out_clients(algorithm)
    for client, totals in zip(clients, _personalize(algorithm, state)):
      evaluation = client['evaluation']['evaluation']
      expected = [_errors(evaluation, start)]
      for rate in _RATES:
        weights = start
        for _ in range(3):
          weights = _epoch(client['personalization'], weights, rate)
          expected.append(_errors(evaluation, weights))
      np.testing.assert_allclose(totals, expected, rtol=1e-3)

  def test_names_of_the_candidates(self):
    method = _build(finetuning_epochs=1, finetuning_layers=('all', 'last'))
    self.assertEqual(
      tuple(map(str, method.candidates)),
      (
        '0 epochs',
        '1 epochs, all layers, rate 0.05',
        '1 epochs, all layers, rate 0.2',
        '1 epochs, last layer, rate 0.05',
        '1 epochs, last layer, rate 0.2',
      ),
    )

  def test_the_last_layer_of_a_linear_model_is_all_of_it(self):
    one, other = (
      _build(finetuning_layers=(layers,)) for layers in ('all', 'last')
    )
    state, _ = helpers.run(one)
    np.testing.assert_allclose(
      _personalize(one, state), _personalize(other, state), rtol=1e-6
    )

  def test_shuffled_epochs_are_taken_one_after_another(self):
    epochs = 3
    algorithm = _build(finetuning_epochs=epochs, finetuning_shuffle=True)
    self.assertEqual(algorithm.shuffled_epochs, epochs)
    plain = _build(finetuning_epochs=epochs)
    state, _ = helpers.run(plain)
    clients = helpers.held_out_clients(plain)
    repeated = helpers.held_out_clients(plain)
    for client in repeated:
      own = client['personalization']
      client['personalization'] = own._replace(
        indices=np.tile(own.indices, [epochs, 1]),
        mask=np.tile(own.mask, [epochs, 1]),
      )
    np.testing.assert_allclose(
      _personalize(algorithm, state, repeated),
      _personalize(plain, state, clients),
      rtol=1e-6,
    )

  def test_training_is_that_of_fedavg(self):
    state, _ = helpers.run(_build())
    other, _ = helpers.run(_build(finetuning_epochs=1))
    np.testing.assert_array_equal(
      state['server']['model']['kernel'], other['server']['model']['kernel']
    )


class LocalTest(absltest.TestCase):
  def test_is_fine_tuning_of_the_initial_model(self):
    helpers.use('cohort')
    algorithm, finetuned = _build(local), _build()
    self.assertFalse(algorithm.trains)
    self.assertIsNone(algorithm.baseline)
    np.testing.assert_array_equal(
      _personalize(algorithm, algorithm.initial_state([0, 1])),
      _personalize(finetuned, finetuned.initial_state([0, 1])),
    )
