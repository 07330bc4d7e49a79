"""Mocha against closed forms."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from scipy import linalg
import tensorflow as tf

from algorithms import mocha
from base import errors
from tests.algorithms import helpers

_NUM_CLIENTS = len(helpers.SIZES)
_NEVER = 10**6


@functools.cache
def _build(**hyperparameters):
  return mocha.build(
    helpers.MODEL,
    mocha.Hyperparameters(
      **dict(
        client_learning_rate=0.1,
        regularization=0.5,
        num_clients=_NUM_CLIENTS,
      )
      | hyperparameters
    ),
    helpers.mean(),
    helpers.SETS,
  )


def _all_data():
  """Clients' data in one batch, so that SGD is gradient descent."""
  return [
    helpers.data(k, size, batch_size=100)
    for k, size in enumerate(helpers.SIZES)
  ]


def _quadratic(own):
  """A and b of the mean loss 1/2 w.A w - b.w + c."""
  x = np.insert(own.examples['x'], 3, 1, axis=1).astype(np.float64)
  return x.T @ x / len(x), x.T @ own.examples['y'] / len(x)


def _sigma(seed=0):
  """Any relationship of the clients."""
  root = np.random.default_rng(seed).normal(size=[_NUM_CLIENTS, _NUM_CLIENTS])
  return root @ root.T / _NUM_CLIENTS


def _with(algorithm, relationship, **numbers):
  state = algorithm.initial_state([0, 1])
  state['server']['relationship'] = np.float32(relationship)
  for name, value in numbers.items():
    state['hyperparameters'][name] = np.float32(value)
  return state


class RelateTest(parameterized.TestCase):
  @parameterized.product(
    shape=((5, 30), (30, 5), (6, 6)), relationship=('sigma', 'inverse')
  )
  def test_is_the_root_over_its_trace(self, shape, relationship):
    w = np.random.default_rng(1).normal(size=shape)
    w[0] = w[1]  # So that there is always an eigenvalue that is too small.
    eigenvalues, vectors = linalg.eigh(w @ w.T)
    root = (vectors * np.sqrt(np.maximum(eigenvalues, 1e-8))) @ vectors.T
    expected = root / np.trace(root)
    if relationship == 'inverse':
      expected = linalg.inv(expected)
    actual = mocha.relate(tf.constant(w, tf.float32), relationship)
    # Of what is orthogonal to all models, 1e-8 is less than float32 can tell.
    np.testing.assert_allclose(
      actual, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max()
    )
    if relationship == 'sigma':
      np.testing.assert_allclose(actual, expected, atol=1e-5)
      self.assertAlmostEqual(np.trace(actual), 1, places=5)

  @parameterized.parameters('sigma', 'inverse')
  def test_models_that_are_all_zero(self, relationship):
    # All eigenvalues are raised to the same: the start.
    expected = np.eye(4) / 4 if relationship == 'sigma' else 4 * np.eye(4)
    np.testing.assert_allclose(
      mocha.relate(tf.zeros([4, 3]), relationship), expected, rtol=1e-5
    )


class MochaTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    helpers.use('cohort')

  def test_starts_with_tasks_that_are_not_related(self):
    for relationship, expected in (
      ('sigma', 1 / _NUM_CLIENTS),
      ('inverse', _NUM_CLIENTS),
    ):
      state = _build(relationship=relationship).initial_state([0, 1])
      np.testing.assert_allclose(
        state['server']['relationship'], expected * np.eye(_NUM_CLIENTS)
      )

  def test_reaches_the_analytic_minimum(self):
    # Of all models together, for a given relationship.
    sigma = _sigma()
    algorithm = _build(outer=_NEVER)
    state, _ = helpers.run(
      algorithm, 1000, all_data=_all_data(), state=_with(algorithm, sigma)
    )
    quadratics = [_quadratic(own) for own in _all_data()]
    system = linalg.block_diag(*(a for a, _ in quadratics))
    system += 0.5 * np.kron(sigma, np.eye(4))
    targets = np.concatenate([b for _, b in quadratics])
    expected = np.linalg.solve(system, targets)
    np.testing.assert_allclose(
      state['server']['models'].ravel(), expected, atol=1e-3
    )

  def test_all_step_against_the_others_last_iterate(self):
    sigma = _sigma()
    algorithm = _build(outer=_NEVER)
    state = _with(algorithm, sigma)
    w = np.zeros([_NUM_CLIENTS, 4])
    for _ in range(3):
      gradient = np.array(
        [a @ own - b for (a, b), own in zip(map(_quadratic, _all_data()), w)]
      )
      w = w - 0.1 * (gradient + 0.5 * sigma @ w)
    state, _ = helpers.run(algorithm, 3, all_data=_all_data(), state=state)
    np.testing.assert_allclose(
      state['server']['models'], w, rtol=1e-4, atol=1e-6
    )

  def test_without_regularization_it_is_local_training(self):
    algorithm = _build()
    state = _with(algorithm, _sigma(), regularization=0)
    state, _ = helpers.run(algorithm, 5, all_data=_all_data(), state=state)
    for own, w in zip(_all_data(), state['server']['models']):
      a, b = _quadratic(own)
      minimum = np.linalg.solve(a, b)
      shrink = np.linalg.matrix_power(np.eye(4) - 0.1 * a, 5)
      np.testing.assert_allclose(
        w, minimum - shrink @ minimum, rtol=1e-4, atol=1e-6
      )

  @parameterized.parameters('sigma', 'inverse')
  def test_the_relationship_changes_after_the_outer_passes(self, relationship):
    algorithm = _build(outer=2, relationship=relationship, regularization=1e-3)
    clients = helpers.train_clients(algorithm, _all_data())
    before = state = algorithm.initial_state([0, 1])
    for changes in (False, True, False, True):
      before = state
      state, _ = helpers.run(algorithm, 1, clients=clients, state=state)
      now = state['server']['relationship']
      if changes:
        np.testing.assert_allclose(
          now,
          mocha.relate(state['server']['models'], relationship),
          rtol=1e-3,
          atol=1e-3 * np.abs(now).max(),
        )
      else:
        np.testing.assert_array_equal(now, before['server']['relationship'])

  def test_who_does_not_take_part_keeps_its_model(self):
    algorithm = _build(outer=_NEVER)
    clients = helpers.train_clients(algorithm, _all_data())
    state, _ = helpers.run(algorithm, 2, clients=clients)
    after, _ = helpers.run(algorithm, 1, clients=clients[1:3], state=state)
    moved = np.any(after['server']['models'] != state['server']['models'], 1)
    np.testing.assert_array_equal(moved, [False, True, True, False, False])

  def test_each_client_is_evaluated_at_its_own_model(self):
    algorithm = _build()
    state, _ = helpers.run(algorithm)
    clients = helpers.held_out_clients(algorithm)
    results = algorithm.personalize(state, clients)
    for client, w, result in zip(clients, state['server']['models'], results):
      examples = client['evaluation']['evaluation'].examples
      x = np.insert(examples['x'], 3, 1, axis=1)
      np.testing.assert_allclose(
        result['evaluation']['half_squared_error'][0],
        [0.5 * np.sum((x @ w - examples['y']) ** 2)],
        rtol=1e-4,
      )

  def test_the_number_of_clients_must_be_known(self):
    with self.assertRaisesRegex(errors.UserError, 'num_clients'):
      _build(num_clients=0)

  def test_says_that_it_has_no_model_for_new_clients(self):
    self.assertFalse(_build().personalizes_new_clients)


if __name__ == '__main__':
  absltest.main()
