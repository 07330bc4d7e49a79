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


def test_an_unknown_part_is_refused():
  with pytest.raises(errors.UserError, match='proximal_parts'):
    _trainer(proximal_parts=('heart',))
