"""PerFedAvg against the gradient of its objective on quadratics."""

import numpy as np
import pytest

from base import errors
from tests.algorithms import helpers

_ALPHA, _BETA = 0.1, 0.05
_W = np.array([0.3, -0.2, 0.5, 1.0])


def _build(**values):
  return helpers.build(
    'perfedavg', client_learning_rate=_BETA, inner_rate=_ALPHA, **values
  )


def _begin(method, w=_W):
  return helpers.with_server(
    method.initial_state([0, 1]), model=helpers.weights(w)
  )


def _step(w, first, second, form):
  """A step on batches D and D', whose gradients are A w - b."""
  (a, b), (a_2, b_2) = first, second
  slopes = a_2 @ (w - _ALPHA * (a @ w - b)) - b_2
  if form == 'hessian_vector':
    slopes = slopes - _ALPHA * a @ slopes
  return w - _BETA * slopes


@pytest.mark.parametrize('form', ['first_order', 'hessian_vector'])
def test_a_round_is_its_steps_on_pairs_of_batches(form):
  method = _build(form=form)
  data = helpers.data(0, 10)  # Batches of 4, 4 and 2 examples.
  clients = helpers.make_clients(method, [helpers.padded(data)])
  after = helpers.run(method, 1, clients, _begin(method)).state
  quadratics = helpers.batch_gradients(data)
  w = _W
  for first, second in zip(quadratics, [*quadratics[1:], quadratics[0]]):
    w = _step(w, first, second, form)
  np.testing.assert_allclose(
    helpers.vector(after.server.model), w, rtol=1e-5, atol=1e-6
  )


@pytest.mark.parametrize(
  'size, pairs', [(4, [(0, 0)]), (10, [(0, 1)]), (14, [(0, 1), (2, 3)])]
)
def test_a_batch_can_be_in_one_step_only(size, pairs):
  method = _build(separate_batches=True)
  data = helpers.data(0, size)
  clients = helpers.make_clients(method, [helpers.padded(data)])
  after = helpers.run(method, 1, clients, _begin(method))
  quadratics = helpers.batch_gradients(data)
  w, losses = _W, []
  for first, second in pairs:
    a, b = quadratics[first]
    used = data.indices[second][data.mask[second] > 0]
    judged = {name: leaf[used] for name, leaf in data.examples.items()}
    adapted = w - _ALPHA * (a @ w - b)
    losses += [helpers.total_error(data._replace(examples=judged), adapted)]
    w = _step(w, quadratics[first], quadratics[second], 'first_order')
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model), w, rtol=1e-5, atol=1e-6
  )
  of_examples = sum(losses) / sum(data.mask[k].sum() for _, k in pairs)
  np.testing.assert_allclose(after.metrics['loss'], of_examples, rtol=1e-5)


def test_a_step_is_the_gradient_of_the_loss_after_one_step():
  # F(w) = f(w - alpha grad f(w)), differentiated by finite differences.
  data = helpers.data(0, 10, batch_size=10)
  a, b = helpers.quadratic(data)

  def objective(w):
    w = w - _ALPHA * (a @ w - b)
    return 0.5 * w @ a @ w - b @ w

  h = 1e-5
  slopes = [
    (objective(_W + h * e) - objective(_W - h * e)) / (2 * h) for e in np.eye(4)
  ]
  method = _build(form='hessian_vector')
  clients = helpers.make_clients(method, [data])
  after = helpers.run(method, 1, clients, _begin(method)).state
  np.testing.assert_allclose(
    (_W - helpers.vector(after.server.model)) / _BETA, slopes, rtol=1e-4
  )


def test_all_clients_count_the_same():
  method = _build()
  data = helpers.all_data(batch_size=100)
  after = helpers.run(
    method, 1, helpers.make_clients(method, data), _begin(method)
  ).state
  quadratics = map(helpers.quadratic, data)
  expected = np.mean(
    [_step(_W, q, q, 'first_order') for q in quadratics], axis=0
  )
  np.testing.assert_allclose(
    helpers.vector(after.server.model), expected, rtol=1e-5, atol=1e-6
  )


def test_a_client_is_judged_after_one_step_on_all_it_has():
  method = _build()
  assert list(map(str, method.candidates)) == ['global model', 'after a step']
  assert method.baseline == 0
  clients = helpers.make_held_out(method)
  results = method.personalize(_begin(method), clients)
  for client, result in zip(clients, results):
    a, b = helpers.quadratic(client.personalization)
    evaluation = client.evaluation['evaluation']
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0],
      [
        helpers.total_error(evaluation, w)
        for w in (_W, _W - _ALPHA * (a @ _W - b))
      ],
      rtol=1e-4,
    )


def test_without_an_inner_step_it_is_fedavg_on_the_next_batches():
  method = helpers.build(
    'perfedavg',
    client_learning_rate=_BETA,
    inner_rate=0.0,
    client_weighting='examples',
  )
  fedavg = helpers.build('fedavg', client_learning_rate=_BETA)
  after, expected = (
    helpers.run(
      trained,
      3,
      helpers.make_clients(trained, helpers.all_data(batch_size=100)),
    )
    for trained in (method, fedavg)
  )
  np.testing.assert_allclose(
    helpers.vector(after.state.server.model),
    helpers.vector(expected.state.server.model),
    rtol=1e-5,
    atol=1e-6,
  )
  np.testing.assert_allclose(after.metrics['loss'], expected.metrics['loss'])


def test_slots_cannot_be_kept():
  with pytest.raises(errors.UserError, match='client_slots must be new'):
    _build(client_slots='kept')
