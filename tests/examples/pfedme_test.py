"""pFedMe on problems whose solution is known."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import as_trained
from algorithms import methods
from algorithms import trainers
from examples import pfedme
from tasks.data import batches
from tasks.models import linear
from tff_runtimes import cohort

_EMPTY = collections.OrderedDict()


@pytest.fixture(autouse=True, scope='module')
def _runtime():
  tff.framework.set_default_context(
    cohort.create_cohort_context(trust_xla=True)
  )


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


def _start(trainer, w, data):
  weights = collections.OrderedDict(
    kernel=tf.constant(w[:2], tf.float32), bias=tf.constant(w[2], tf.float32)
  )
  client = trainers.Client(data, _EMPTY, tf.constant([0, 0]), _EMPTY)
  start = trainer.start(weights, client)
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
  weights = collections.OrderedDict(
    kernel=tf.constant(w[:2], tf.float32), bias=tf.constant(w[2], tf.float32)
  )
  client = trainers.Client(data, _EMPTY, tf.constant([0, 0]), _EMPTY)
  update = trainer.client(weights, client).updates['model'].value
  np.testing.assert_allclose(
    np.array([*update['kernel'], update['bias']]),
    0.1 * 2.0 * (w - theta),
    rtol=1e-4,
  )


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
