"""Mocha against closed forms."""

import numpy as np
import pytest
from scipy import linalg
import tensorflow as tf

from algorithms import mocha
from algorithms import trainers
from base import errors
from tests.algorithms import helpers

_NUM_CLIENTS = len(helpers.SIZES)
_NEVER = 10**6


def _build(**values):
  defaults = dict(client_learning_rate=0.1, regularization=0.5)
  return helpers.build('mocha', **defaults | values)


def _all_data():
  """Clients' data in one batch, so that SGD is gradient descent."""
  return helpers.all_data(batch_size=100)


def _make_clients(method):
  """Clients of the same shapes, which are stacked: that is faster."""
  return helpers.make_clients(
    method,
    [helpers.padded(data, rows=12, places=12, steps=1) for data in _all_data()],
  )


def _sigma(seed=0):
  """Any relationship of the clients."""
  root = np.random.default_rng(seed).normal(size=[_NUM_CLIENTS, _NUM_CLIENTS])
  return root @ root.T / _NUM_CLIENTS


def _relate(method, relationship):
  """The initial state, with another relationship."""
  return helpers.replace_server(
    method.initial_state([0, 1]), relationship=np.float32(relationship)
  )


def _run(method, rounds, state=None):
  """The server's state after some rounds on `_all_data`."""
  clients = _make_clients(method)
  return helpers.run(method, rounds, clients, state).state.server


# Of the module, so that matrices of one shape share a program.
@pytest.fixture(name='relate', params=[False, True], scope='module')
def _relate_models(request):
  return tf.function(mocha.relate, jit_compile=request.param, autograph=False)


@pytest.mark.parametrize('shape', [(5, 30), (30, 5), (6, 6)])
@pytest.mark.parametrize('spread', [1.0, 1e-3, 0.0])
@pytest.mark.parametrize('relationship', ['sigma', 'inverse'])
def test_relate_is_the_root_over_its_trace(shape, spread, relationship, relate):
  # Models are alike, and two are the same, so that there are eigenvalues near
  # the smallest one, and always one that is too small.
  rng = np.random.default_rng(1)
  w = (rng.normal(size=shape[1]) + spread * rng.normal(size=shape)).astype('f4')
  w[0] = w[1]
  eigenvalues, vectors = linalg.eigh(w.astype('f8') @ w.T.astype('f8'))
  roots = np.sqrt(np.maximum(eigenvalues, 1e-8))
  if relationship == 'inverse':
    expected = (vectors / roots) @ vectors.T * roots.sum()
  else:
    expected = (vectors * roots) @ vectors.T / roots.sum()
  actual = relate(tf.constant(w), relationship)
  np.testing.assert_allclose(
    actual, expected, atol=1e-5 * np.abs(expected).max()
  )
  if relationship == 'sigma':
    np.testing.assert_allclose(np.trace(actual), 1, atol=1e-6)


@pytest.mark.parametrize(
  'relationship, expected',
  [('sigma', np.eye(4) / 4), ('inverse', 4 * np.eye(4))],
)
def test_relate_takes_models_that_are_all_zero_for_the_start(
  relationship, expected
):
  # All eigenvalues are raised to the same.
  np.testing.assert_allclose(
    mocha.relate(tf.zeros([4, 3]), relationship), expected, rtol=1e-5
  )


@pytest.mark.parametrize(
  'relationship, expected',
  [('sigma', 1 / _NUM_CLIENTS), ('inverse', _NUM_CLIENTS)],
)
def test_starts_with_tasks_that_are_not_related(relationship, expected):
  state = _build(relationship=relationship).initial_state([0, 1])
  np.testing.assert_allclose(
    state.server.relationship, expected * np.eye(_NUM_CLIENTS)
  )


def test_reaches_the_analytic_minimum():
  # Of all models together, for a given relationship.
  sigma = _sigma()
  method = _build(outer=_NEVER)
  after = _run(method, 1000, _relate(method, sigma))
  quadratics = [helpers.quadratic(data) for data in _all_data()]
  system = linalg.block_diag(*(a for a, _ in quadratics))
  system += 0.5 * np.kron(sigma, np.eye(4))
  targets = np.concatenate([b for _, b in quadratics])
  expected = np.linalg.solve(system, targets)
  np.testing.assert_allclose(after.models.ravel(), expected, atol=1e-3)


def test_all_step_against_the_others_last_iterate():
  sigma = _sigma()
  method = _build(outer=_NEVER)
  quadratics = [helpers.quadratic(data) for data in _all_data()]
  w = np.zeros([_NUM_CLIENTS, 4])
  for _ in range(3):
    gradient = np.array([a @ w_k - b for (a, b), w_k in zip(quadratics, w)])
    w = w - 0.1 * (gradient + 0.5 * sigma @ w)
  after = _run(method, 3, _relate(method, sigma))
  np.testing.assert_allclose(after.models, w, rtol=1e-4, atol=1e-6)


def test_without_regularization_it_is_local_training():
  method = _build(regularization=0)
  after = _run(method, 5, _relate(method, _sigma()))
  for data, w in zip(_all_data(), after.models):
    a, b = helpers.quadratic(data)
    minimum = np.linalg.solve(a, b)
    shrink = np.linalg.matrix_power(np.eye(4) - 0.1 * a, 5)
    np.testing.assert_allclose(
      w, minimum - shrink @ minimum, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize('relationship', ['sigma', 'inverse'])
def test_the_relationship_changes_after_the_outer_passes(relationship):
  method = _build(outer=2, relationship=relationship, regularization=1e-3)
  clients = _make_clients(method)
  state = method.initial_state([0, 1])
  for changes in (False, True, False, True):
    before = state.server.relationship
    state, clients, _ = helpers.run(method, 1, clients, state)
    now = state.server.relationship
    if changes:
      np.testing.assert_allclose(
        now,
        mocha.relate(state.server.models, relationship),
        rtol=1e-3,
        atol=1e-3 * np.abs(now).max(),
      )
    else:
      np.testing.assert_array_equal(now, before)


def test_who_does_not_take_part_keeps_its_model():
  method = _build(outer=_NEVER)
  clients = _make_clients(method)
  state, clients, _ = helpers.run(method, 2, clients)
  after = helpers.run(method, 1, clients[1:3], state).state
  moved = np.any(after.server.models != state.server.models, 1)
  np.testing.assert_array_equal(moved, [False, True, True, False, False])


def test_each_client_is_evaluated_at_its_own_model():
  method = _build()
  state = helpers.run(method).state
  clients = helpers.make_held_out(method)
  results = method.personalize(state, clients)
  for client, w, result in zip(clients, state.server.models, results):
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0],
      [helpers.total_error(client.evaluation['evaluation'], w)],
      rtol=1e-4,
    )


@pytest.mark.parametrize(
  'values, name',
  [(dict(num_clients=0), 'num_clients'), (dict(client_slots='kept'), 'slots')],
)
def test_refuses_what_it_cannot_be_built_with(values, name):
  with pytest.raises(errors.UserError, match=name):
    _build(**values)


def test_has_no_model_for_new_clients_and_says_so():
  method = _build()
  assert not method.personalizes_new_clients
  trainer = method.trainer
  message = trainer.message(trainer.initialize(tf.constant([0, 1])))
  # The number of the first client that is not among those trained on.
  state = trainer.initialize_client(tf.constant([0, _NUM_CLIENTS]))
  new = trainers.Client(helpers.data(0, 4), state, tf.constant([0, 1]), {})
  with tf.device('CPU'), pytest.raises(tf.errors.InvalidArgumentError):
    trainer.start(message, new)
