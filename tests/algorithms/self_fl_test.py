"""Self-FL against the two-level Gaussian model, whose optima are known."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from algorithms import self_fl
from base import errors
from tasks import gaussian
from tasks.models import gaussian as gaussian_model
from tests.algorithms import helpers

_MODEL = gaussian_model.GaussianMean()
# More than any equation asks for.
_NO_LIMIT = 10**6


def _federation(num_clients=8, seed=0, **values):
  values = dict(min_examples=5, max_examples=5) | values
  return gaussian.draw(
    gaussian.GaussianSettings(num_clients=num_clients, **values), seed
  )


def _clients(method, federation):
  """Clients with all their numbers in one batch."""
  largest = max(map(len, federation.numbers))
  data = [
    helpers.padded(
      helpers.make_batches(
        {
          'parent': np.full(len(y), federation.parent, np.float32),
          'variance': np.full(len(y), variance, np.float32),
          'y': y,
        },
        batch_size=largest,
      ),
      rows=largest,
      places=largest,
      steps=1,
    )
    for y, variance in zip(federation.numbers, federation.variances)
  ]
  return helpers.make_clients(method, data)


def _known(federation, **values):
  """Self-FL that knows the variances; all numbers have variance 0.1."""
  values = (
    dict(most_steps=_NO_LIMIT, num_clients=len(federation.numbers)) | values
  )
  return helpers.build(
    'self_fl',
    model=_MODEL,
    variances='known',
    inter_variance=federation.inter_variance,
    example_variance=0.1,
    **values,
  )


def _personal(after):
  return np.array([c.state.personal['mean'][0] for c in after.clients])


def _others(federation):
  """S_m, the sum of w_k over k other than m."""
  w = 1 / (federation.inter_variance + federation.variances)
  return w, w.sum() - w


def _rate(federation, steps, posterior='paper'):
  """The rate at which equation (8) is solved by so many steps exactly."""
  _, others = _others(federation)
  if posterior == 'hierarchical':
    others = 1 / (federation.inter_variance + 1 / others)
  variance = federation.variances
  shrink = others / (1 / variance + others)
  return (variance * (1 - shrink ** (1 / steps))).tolist()


def _limit(federation):
  """The fixed point of equations (8), (10) and (11), derived by hand.

  theta_m (sigma_m^-2 + W) = sigma_m^-2 theta_m(L) + W theta, where W is the sum
  of all w; and theta is their weighted mean.
  """
  w, _ = _others(federation)
  local = federation.local_posterior.mean[:, 0]
  precisions = 1 / federation.variances
  share = w * precisions / (precisions + w.sum())
  theta = share @ local / share.sum()
  personal = (precisions * local + w.sum() * theta) / (precisions + w.sum())
  return theta, personal


class TestKnownVariances:
  def test_reaches_the_optimum_of_both_models(self):
    # The second term of proposition 3.1 is below 1e-5 where sigma_m^2 is the
    # same for all clients, and much smaller than sigma_0^2.
    federation = _federation(
      inter_variance=1.0, min_examples=1000, max_examples=1000
    )
    (rate, *_) = _rate(federation, steps=3)
    method = _known(federation, client_learning_rate=rate)
    after = helpers.run(method, 12, _clients(method, federation))
    np.testing.assert_allclose(
      after.state.server.model['mean'][0],
      federation.global_posterior.mean,
      atol=1e-5,
    )
    np.testing.assert_allclose(
      _personal(after), federation.federated_posterior.mean[:, 0], atol=1e-5
    )

  @pytest.mark.parametrize('inter_variance', [0.001, 0.1])
  def test_error_shrinks_by_q_in_each_round(self, inter_variance):
    # Proposition 3.1, without its second term: towards the fixed point.
    federation = _federation(inter_variance=inter_variance)
    (rate, *_) = _rate(federation, steps=3)
    method = _known(federation, client_learning_rate=rate)
    w, others = _others(federation)
    q = np.max(others / (1 / federation.variances + others))
    theta, personal = _limit(federation)
    after = helpers.run(method, 1, _clients(method, federation))
    first = np.abs(_personal(after) - personal).max()
    for t in range(1, 7):
      after = helpers.run(method, 2, after.clients, after.state)
      bound = first * q ** (2 * t) + 1e-5
      assert np.abs(_personal(after) - personal).max() <= bound
      assert abs(after.state.server.model['mean'][0] - theta) <= bound
    assert first > 100 * 1e-5

  @pytest.mark.parametrize('posterior', ['paper', 'hierarchical'])
  @pytest.mark.parametrize('client', [0, 3])
  def test_one_round_reaches_the_optimum_if_others_are_there(
    self, client, posterior
  ):
    # (7) is (10) with theta(G) and theta_m(L), and (8) tells the steps.
    federation = _federation(inter_variance=0.05, max_examples=30)
    rate = _rate(federation, 4, posterior)[client]
    method = _known(federation, client_learning_rate=rate, posterior=posterior)
    after = helpers.run(method, 1, _clients(method, federation))
    state = helpers.replace_server(
      after.state, model={'mean': np.float32(federation.global_posterior.mean)}
    )
    clients = [
      c._replace(state=c.state._replace(personal={'mean': np.float32([mean])}))
      for c, mean in zip(after.clients, federation.local_posterior.mean[:, 0])
    ]
    after = helpers.run(method, 1, clients, state)
    assert after.clients[client].state.steps == 4
    optimum = (
      federation.federated_posterior
      if posterior == 'paper'
      else federation.hierarchical_posterior
    )
    np.testing.assert_allclose(
      _personal(after)[client], optimum.mean[client, 0], atol=1e-5
    )

  def test_of_clients_that_have_nothing_in_common_it_is_local(self):
    federation = dataclasses.replace(
      _federation(inter_variance=1.0, max_examples=30), inter_variance=1e12
    )
    method = _known(federation, client_learning_rate=1e-3, most_steps=2000)
    after = helpers.run(method, 3, _clients(method, federation))
    local = federation.local_posterior.mean[:, 0]
    np.testing.assert_allclose(_personal(after), local, atol=1e-5)
    # All clients count the same.
    np.testing.assert_allclose(
      after.state.server.model['mean'][0], local.mean(), atol=1e-5
    )

  def test_of_clients_that_are_alike_it_is_weighted_by_precision(self):
    federation = _federation(inter_variance=0.0, max_examples=30)
    method = _known(federation, client_learning_rate=1e-3)
    after = helpers.run(method, 4, _clients(method, federation))
    theta_m = _personal(after)
    assert np.ptp(theta_m) > 1e-3
    np.testing.assert_allclose(
      after.state.server.model['mean'][0],
      np.average(theta_m, weights=1 / federation.variances),
      atol=1e-6,
    )


class TestEstimatedVariances:
  """With helpers' least squares, in batches of four."""

  def _rounds(self, number, sizes=helpers.SIZES, **values):
    """Yields what there is before and after each round."""
    method = helpers.build('self_fl', client_learning_rate=0.05, **values)
    data = [
      helpers.padded(client_data) for client_data in helpers.all_data(sizes)
    ]
    before = helpers.AfterRounds(
      method.initial_state([0, 1]), helpers.make_clients(method, data), None
    )
    for _ in range(number):
      after = helpers.run(method, 1, before.clients, before.state)
      yield before, after
      before = after

  def _vectors(self, after):
    return np.array(
      [helpers.vector(client.state.personal) for client in after.clients]
    )

  def test_running_variance_is_that_of_all_models(self):
    models = []
    for _, after in self._rounds(6):
      models.append(self._vectors(after))
      expected = np.var(models, axis=0).sum(axis=-1)
      actual = [client.state.running.variance for client in after.clients]
      np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-7)
    assert expected.min() > 0

  def test_what_is_sent_is_the_variance_of_the_rounds_before(self):
    *_, (before, after) = self._rounds(4)
    np.testing.assert_array_equal(
      [client.state.sent for client in after.clients],
      [client.state.running.variance for client in before.clients],
    )


def _one_pass(**values):
  return helpers.build(
    'self_fl', client_learning_rate=0.05, one_pass=True, **values
  )


def _one_pass_rounds(number):
  """Yields what there is before and after each round."""
  method = _one_pass()
  data = [helpers.padded(client_data) for client_data in helpers.all_data()]
  before = helpers.AfterRounds(
    method.initial_state([0, 1]), helpers.make_clients(method, data), None
  )
  for _ in range(number):
    if before.state.server.round == 2:
      before = before._replace(clients=_set_variances(before))
    after = helpers.run(method, 1, before.clients, before.state)
    yield before, after
    before = after


def _set_variances(before):
  """The clients, with variances that differ much."""
  variances = before.state.server.uncertainty.inter_variance * np.linspace(
    0.2, 2, 5, dtype=np.float32
  )
  return [
    client._replace(
      state=client.state._replace(
        running=client.state.running._replace(variance=variance)
      )
    )
    for client, variance in zip(before.clients, variances)
  ]


def _squares(vectors):
  return np.sum(np.square(vectors), axis=-1)


class TestOnePass:
  """Sums alone, with the uncertainties of the round before."""

  def test_follows_its_equations(self):
    for t, (before, after) in enumerate(_one_pass_rounds(5), 1):
      old, new = (x.state.server.uncertainty for x in (before, after))
      variances = [
        client.state.running.variance_or_zero for client in before.clients
      ]
      s = old.inter_variance + old.mean_variance
      w = np.ones(5)
      if t > 2:  # A variance is one of two models.
        assert np.min(variances) > 0
        w = np.minimum(s / (old.inter_variance + np.array(variances)), 2)
        assert np.ptp(w) > 0.1
      theta_m = np.array(
        [helpers.vector(client.state.personal) for client in after.clients]
      )
      theta = np.average(theta_m, axis=0, weights=w)
      np.testing.assert_allclose(
        helpers.vector(after.state.server.model), theta, rtol=1e-4, atol=1e-5
      )
      from_theta = theta_m - helpers.vector(before.state.server.model)
      np.testing.assert_allclose(
        new.inter_variance,
        np.mean(_squares(from_theta))
        - _squares(np.average(from_theta, axis=0, weights=w)),
        rtol=1e-3,
      )
      np.testing.assert_allclose(new.weight, w.sum() / s if s else 0, rtol=1e-4)
      # What would give all clients the mean of the weights.
      np.testing.assert_allclose(
        new.mean_variance, s / w.mean() - old.inter_variance, atol=1e-4
      )
      sent = [client.state.sent for client in after.clients]
      np.testing.assert_allclose(sent, w / s if s else 0 * w, rtol=1e-4)

  def test_in_the_first_round_sigma_0_is_the_variance_of_the_models(self):
    ((_, after),) = _one_pass_rounds(1)
    theta_m = [
      helpers.vector(client.state.personal) for client in after.clients
    ]
    np.testing.assert_allclose(
      after.state.server.uncertainty.inter_variance,
      np.var(theta_m, axis=0).sum(),
      rtol=1e-4,
    )

  def test_noise_does_not_look_like_a_mean_that_moved(self):
    # The models differ by 3 squared and moved by 4, all in one direction; the
    # noise is ten times as long.
    rng = np.random.default_rng(0)
    noise = 0.5 * rng.normal(size=10_000)
    delta = np.float32(noise)
    delta[0] += 4
    totals = self_fl.Totals(5.0, 5 * (3.0**2 + 4.0**2), 0.5)
    _, uncertainty = _one_pass().trainer._finish_one_pass(
      self_fl.Uncertainty(0.0, 0.0, 0.0, 0.0),
      {'model': {'w': tf.constant(delta)}, 'sums': totals},
      5.0,
    )
    # 16 of the mean, give or take the deviation of the square of the noise.
    off = 0.25 * np.sqrt(2 * 10_000) + 4
    assert abs(uncertainty.inter_variance - 9) < off < 0.02 * _squares(delta)

  @pytest.mark.parametrize(
    'values', [dict(variances='known'), dict(augmented_steps=3)]
  )
  def test_needs_estimated_variances_of_one_model(self, values):
    with pytest.raises(errors.UserError, match='with one_pass'):
      _one_pass(**values)

  def test_is_not_for_clusters(self):
    with pytest.raises(errors.UserError, match='one_pass must be false'):
      helpers.build('self_fl_clusters', one_pass=True)


@pytest.mark.parametrize(
  'variance, others, rate, most, expected',
  [
    (0.1, 90.0, 0.01, 40, 1),  # log(.9) / log(.9)
    (0.1, 10.0, 0.01, 40, 7),  # log(1/2) / log(.9) = 6.58
    (0.1, 10.0, 0.01, 5, 5),
    (0.1, 1e-9, 0.09, 40, 10),  # log(1e-10) / log(.1)
    (0.1, 1e6, 0.01, 40, 1),
    (0.1, 10.0, 0.1, 40, 1),  # The rate is the variance,
    (0.1, 10.0, 0.7, 40, 1),  # or above it.
    (0.1, 10.0, 0.0, 40, 40),
  ],
)
def test_number_of_steps(variance, others, rate, most, expected):
  steps = self_fl.num_steps(
    tf.constant(variance), tf.constant(others), tf.constant(rate), most
  )
  assert steps == expected


@pytest.mark.parametrize(
  ('name', 'values'),
  [('self_fl', {}), ('self_fl', {'one_pass': True}), ('self_fl_clusters', {})],
)
def test_where_all_take_part_smoothing_changes_no_bit(name, values):
  smoothed, not_smoothed = (
    helpers.run(helpers.build(name, smoothed=smoothed, **values), 4)
    for smoothed in (True, False)
  )
  helpers.assert_equal(smoothed, not_smoothed)


@pytest.mark.parametrize(
  ('values', 'diverges'),
  [
    ({}, False),
    (dict(smoothed=False, all_others=True), False),
    (dict(smoothed=False), True),
  ],
)
def test_one_client_a_round_diverges_only_without_smoothing(values, diverges):
  federation, rng = _federation(num_clients=10), np.random.default_rng(0)
  method = _known(
    federation, client_learning_rate=1e-3, adaptive_steps=False, **values
  )
  state, clients = method.initial_state([0, 1]), _clients(method, federation)
  for row in rng.choice(10, 60):
    after = helpers.run(method, 1, [clients[row]], state)
    state, (clients[row],) = after.state, after.clients
  largest = max(abs(client.state.personal['mean'][0]) for client in clients)
  assert largest > 1e3 if diverges else largest < 3


def test_slots_cannot_be_kept():
  with pytest.raises(errors.UserError, match='client_slots must be new'):
    helpers.build('self_fl', client_slots='kept')


def test_a_client_that_was_never_trained_starts_from_the_global_model():
  method = helpers.build('self_fl')
  state = helpers.run(method).state
  clients = helpers.make_held_out(method)
  for client, result in zip(clients, method.personalize(state, clients)):
    global_error, own_error = result['evaluation']['half_squared_error'][0]
    assert global_error == own_error
    np.testing.assert_allclose(
      global_error,
      helpers.total_error(
        client.evaluation['evaluation'], helpers.vector(state.server.model)
      ),
      rtol=1e-3,
    )
