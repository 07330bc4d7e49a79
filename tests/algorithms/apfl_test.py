"""APFL against NumPy, and at alpha = 0 and 1."""

import numpy as np
import pytest

from base import errors
from tests.algorithms import helpers

_RATE = 0.05


def _build(**values):
  return helpers.build('apfl', **dict(client_learning_rate=_RATE) | values)


def _rounds(alpha, alpha_rate, adapts='all', decay=0, num_rounds=3):
  """w, and v and alpha of each client, as computed with NumPy."""
  num_clients = len(helpers.SIZES)
  w, v = np.zeros(4), np.zeros([num_clients, 4])
  alphas = np.full(num_clients, alpha)
  for _ in range(num_rounds):
    after = []
    for i, data in enumerate(helpers.all_data()):
      w_i = w
      for number, (a, b) in enumerate(helpers.batch_gradients(data)):
        of_w = a @ w_i - b
        of_mixed = a @ (alphas[i] * v[i] + (1 - alphas[i]) * w_i) - b
        step = alpha_rate * ((v[i] - w_i) @ of_mixed + decay * alphas[i])
        if number and adapts == 'first':
          step = 0
        w_i, v[i], alphas[i] = (
          w_i - _RATE * of_w,
          v[i] - _RATE * alphas[i] * of_mixed,
          np.clip(alphas[i] - step, 0, 1),
        )
      after.append(w_i)
    w = np.average(after, axis=0, weights=helpers.SIZES)
  return w, v, alphas


def _own_models(after):
  return [helpers.vector(client.state.personal) for client in after.clients]


def _errors(method, after):
  """The sums of errors of each client: of the global model and its own."""
  results = method.personalize(after.state, helpers.hold_out(after.clients))
  return [result['evaluation']['half_squared_error'][0] for result in results]


def _expected_errors(models):
  return [
    helpers.total_error(helpers.data(k + 100, 6), model)
    for k, model in enumerate(models)
  ]


@pytest.mark.parametrize(
  'alpha_rate, adapts, decay',
  [(0, 'all', 0), (0.5, 'all', 0), (0.5, 'first', 0.02), (0.5, 'all', 1)],
)
def test_three_rounds_are_those_of_numpy(alpha_rate, adapts, decay):
  method = _build(
    mixture=0.3,
    mixture_learning_rate=alpha_rate,
    mixture_batches=adapts,
    mixture_decay=decay,
  )
  # Padding is not the first batch, and adapts nothing.
  data = [
    batches._replace(
      indices=np.roll(batches.indices, 1, 0), mask=np.roll(batches.mask, 1, 0)
    )
    for batches in map(helpers.padded, helpers.all_data())
  ]
  after = helpers.run(method, clients=helpers.make_clients(method, data))
  w, v, alphas = _rounds(0.3, alpha_rate, adapts, decay)
  found = [client.state.alpha for client in after.clients]
  assert (np.ptp(alphas) > 0.01) == (alpha_rate > 0)
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model), w, rtol=1e-4, atol=1e-6
  )
  np.testing.assert_allclose(_own_models(after), v, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(found, alphas, rtol=1e-4)
  mixed = alphas[:, np.newaxis] * v + (1 - alphas)[:, np.newaxis] * w
  np.testing.assert_allclose(
    np.array(_errors(method, after))[:, 1], _expected_errors(mixed), rtol=1e-3
  )


def test_alpha_0_is_fedavg():
  method, fedavg = (
    _build(mixture=0),
    helpers.build('fedavg', client_learning_rate=_RATE),
  )
  after, of_fedavg = helpers.run(method), helpers.run(fedavg)
  of_global, of_mixed = np.transpose(_errors(method, after))
  expected = np.ravel(_errors(fedavg, of_fedavg))
  np.testing.assert_allclose(of_global, expected, rtol=1e-5)
  np.testing.assert_allclose(of_mixed, expected, rtol=1e-5)


def test_alpha_1_is_local_training():
  method = _build(mixture=1)
  models = []
  for data in helpers.all_data():
    v = np.zeros(4)
    for a, b in helpers.batch_gradients(data) * 3:
      v = v - _RATE * (a @ v - b)
    models.append(v)
  np.testing.assert_allclose(
    np.array(_errors(method, helpers.run(method)))[:, 1],
    _expected_errors(models),
    rtol=1e-3,
  )


def test_alpha_stays_a_share():
  after = helpers.run(_build(mixture_learning_rate=100))
  alphas = [float(client.state.alpha) for client in after.clients]
  assert min(alphas) >= 0 and max(alphas) <= 1
  assert {0, 1} & set(alphas)


def test_a_client_that_was_never_trained_has_the_global_model():
  method = _build(mixture=0.7)
  after = helpers.run(method)
  held_out = after._replace(clients=helpers.make_clients(method))
  of_global, of_mixed = np.transpose(_errors(method, held_out))
  np.testing.assert_allclose(of_mixed, of_global, rtol=1e-6)


def test_refuses_slots_that_are_kept():
  with pytest.raises(errors.UserError, match='apfl: client_slots must be new'):
    _build(client_slots='kept')
