"""pFedMe on problems whose solution is known."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from algorithms import aggregation
from algorithms import as_trained
from algorithms import methods
from algorithms import pfedme
from algorithms import trainers
from base import errors
from tasks.data import batches
from tasks.models import linear
from tests import toys
from tests.algorithms import preferring

_EMPTY = collections.OrderedDict()


def _trainer(**settings):
  return pfedme.PFedMe(
    linear.LinearRegression(2), pfedme.PFedMeSettings(**settings)
  )


def _data(num_batches=1):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[6, 2]).astype(np.float32)
  y = rng.normal(size=6).astype(np.float32)
  indices, mask = batches.index_batches(6, 6 // num_batches)
  examples = collections.OrderedDict(x=x, y=y)
  return batches.ClientData(examples, indices, mask)


def _weights(w):
  return collections.OrderedDict(
    kernel=tf.constant(w[:2], tf.float32), bias=tf.constant(w[2], tf.float32)
  )


def _start(trainer, w, data, state=_EMPTY):
  client = trainers.Client(data, state, tf.constant([0, 0]), _EMPTY)
  start = trainer.start(_weights(w), client)
  return np.array([*start.weights['kernel'], start.weights['bias']])


def test_theta_is_the_minimum_of_the_proximal_problem():
  # F(theta) = 1/2 theta' A theta - b' theta + constant.
  data = _data()
  x = np.insert(data.examples['x'], 2, 1, axis=1)
  a, b = x.T @ x / 6, x.T @ data.examples['y'] / 6
  w, proximal = np.array([0.3, -0.2, 0.5]), 2.0
  trainer = _trainer(
    proximal=proximal, proximal_steps=200, client_learning_rate=0.2
  )
  expected = np.linalg.solve(a + proximal * np.eye(3), b + proximal * w)
  np.testing.assert_allclose(_start(trainer, w, data), expected, rtol=1e-4)


def test_a_client_follows_theta():
  # w_i - eta lambda (w_i - theta), and what is sent is w - w_i.
  trainer = _trainer(proximal=2.0, local_rate=0.1, client_learning_rate=0.2)
  w, data = np.array([0.3, -0.2, 0.5]), _data()
  theta = _start(trainer, w, data)
  client = trainers.Client(data, _EMPTY, tf.constant([0, 0]), _EMPTY)
  update = trainer.client(_weights(w), client).updates['model'].value
  np.testing.assert_allclose(
    np.array([*update['kernel'], update['bias']]),
    0.1 * 2.0 * (w - theta),
    rtol=1e-4,
  )


@pytest.mark.parametrize('personal_model', ['theta', 'local'])
def test_a_client_can_keep_the_model_of_its_last_round(personal_model):
  trainer = _trainer(
    personal_model=personal_model,
    proximal=2.0,
    proximal_steps=3,
    local_rate=0.1,
    client_learning_rate=0.2,
  )
  w, data = np.array([0.3, -0.2, 0.5]), _data(2)
  theta = w_i = w
  for rows in data.indices:
    x = np.insert(data.examples['x'][rows], 2, 1, axis=1)
    a, b = x.T @ x / 3, x.T @ data.examples['y'][rows] / 3
    for _ in range(3):
      theta = theta - 0.2 * (a @ theta - b + 2.0 * (theta - w_i))
    w_i = w_i - 0.1 * 2.0 * (w_i - theta)
  expected = theta if personal_model == 'theta' else w_i
  state = trainer.initialize_client(tf.constant([0, 0]))
  # A new client finds the same from w.
  found = _start(trainer, w, data, state)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  client = trainers.Client(data, state, tf.constant([0, 0]), _EMPTY)
  state = trainer.client(_weights(w), client).state
  later = _start(trainer, w + 1, data, state)
  np.testing.assert_allclose(later, expected, rtol=1e-5)


def test_with_a_large_lambda_it_is_sgd_of_rate_eta():
  # theta - w -> -grad F(w) / lambda, so that w_i steps by eta grad F(w).
  w, data = np.array([0.3, -0.2, 0.5]), _data()
  x = np.insert(data.examples['x'], 2, 1, axis=1)
  gradient = x.T @ (x @ w - data.examples['y']) / 6
  proximal = 1000.0
  trainer = _trainer(
    proximal=proximal,
    proximal_steps=50,
    client_learning_rate=0.5 / proximal,
  )
  theta = _start(trainer, w, data)
  np.testing.assert_allclose(proximal * (w - theta), gradient, rtol=0.02)


def test_learns_in_rounds_and_is_compared_with_the_global_model():
  trainer = _trainer(client_learning_rate=0.05, local_rate=0.05)
  personalizer = as_trained.AsTrained(trainer, as_trained.AsTrainedSettings())
  method = methods.Method(personalizer, aggregation.mean(), ('evaluation',))
  clients = [
    trainers.Client(_data(2), _EMPTY, np.array([0, k], np.int32), _EMPTY)
    for k in range(3)
  ]
  state, losses = method.initial_state([0, 1]), []
  for _ in range(20):
    state, _, metrics = method.next(state, clients)
    losses.append(metrics['loss'])
  assert losses[-1] < losses[0]
  assert list(map(str, method.candidates)) == ['global model', 'theta']
  assert method.baseline == 0


def _steps(trainer, w, data):
  """Returns what a client sends."""
  client = trainers.Client(data, _EMPTY, tf.constant([0, 0]), _EMPTY)
  return trainer.client(w, client).updates['model'].value


def test_only_the_head_follows_theta_if_it_alone_is_proximal():
  # One step of theta, and then one of the encoder at theta.
  model = toys.TypedModel()
  trainer = pfedme.PFedMe(
    model,
    pfedme.PFedMeSettings(
      proximal_parts=('head',),
      proximal_steps=1,
      proximal=2.0,
      local_rate=0.1,
      client_learning_rate=0.3,
      shared_optimizer='sgd',
      shared_learning_rate=0.05,
    ),
  )
  data = preferring.data(0, 0, batch_size=8)
  w = model.init(tf.constant([0, 1]))

  def slopes(weights):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = tf.reduce_mean(model.loss(weights, data.examples))
    return tape.gradient(loss, weights)

  head = model.parts['head']
  of_w = slopes(w)
  theta = {name: w[name] - 0.3 * of_w[name] for name in head}
  at_theta = slopes(collections.OrderedDict(w, **theta))
  sent = _steps(trainer, w, data)
  for name in w:
    expected = 0.05 * at_theta[name]
    if name in head:
      expected = 0.1 * 2.0 * (w[name] - theta[name])
    np.testing.assert_allclose(sent[name], expected, rtol=1e-4, atol=1e-7)


def test_a_client_is_judged_with_the_encoder_that_it_was_sent():
  model = toys.TypedModel()
  settings = pfedme.PFedMeSettings(proximal_parts=('head',), personal_passes=2)
  client = trainers.Client(
    preferring.data(0, 0), _EMPTY, tf.constant([0, 0]), _EMPTY
  )
  w = model.init(tf.constant([0, 1]))
  judged = pfedme.PFedMe(model, settings).start(w, client).weights
  for name in model.parts['encoder']:
    np.testing.assert_array_equal(judged[name], w[name])
  for name in model.parts['head']:
    assert not np.array_equal(judged[name], w[name])


def test_an_unknown_part_is_refused():
  with pytest.raises(errors.UserError, match='proximal_parts'):
    _trainer(proximal_parts=('heart',))
