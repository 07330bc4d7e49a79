"""Tests of BLUP: against REML, its closed forms, and published fits."""

import csv
import gzip

import numpy as np
import pytest
from scipy import optimize
import tensorflow as tf

from algorithms import blup
from base import errors
from base import settings
from tasks.models import linear
from tests import data
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem


def _blup(p):
  """EM for REML, with the matrices of all examples of a client."""
  random = [*p.s.own_slopes, -1]
  beta, covariance, noise = p.w.copy(), np.eye(len(random)), 1.0
  phi = np.zeros([len(beta)] * 2)

  def arrays(k):
    features = p.clients[k].examples['x']
    x = np.column_stack([features, np.ones(len(features))])
    return x, x[:, random], p.clients[k].examples['y']

  def effects(k, beta, covariance, noise):
    x, z, y = arrays(k)
    v = noise * np.eye(len(y)) + z @ covariance @ z.T
    return covariance @ z.T @ np.linalg.solve(v, y - x @ beta)

  for cohort in p.cohorts:
    precision, slope, squares, residual, number = 0, 0, [], 0, 0
    for k in cohort:
      x, z, y = arrays(k)
      v = np.linalg.inv(noise * np.eye(len(y)) + z @ covariance @ z.T)
      b = effects(k, beta, covariance, noise)
      gain = covariance @ z.T @ v
      # The covariance of b given beta, and that of beta.
      m = covariance - gain @ z @ covariance
      known = gain @ x
      squares.append(np.outer(b, b) + m + known @ phi @ known.T)
      left = x - z @ known
      residual += np.sum((y - x @ beta - z @ b) ** 2)
      residual += np.trace(z @ m @ z.T) + np.trace(left @ phi @ left.T)
      precision, slope = (
        precision + x.T @ v @ x,
        slope + x.T @ v @ (y - x @ beta),
      )
      number += len(y)
    phi = np.linalg.inv(precision)
    beta = beta + phi @ slope
    covariance, noise = np.mean(squares, axis=0), residual / number

  def start(k):
    own = np.zeros_like(beta)
    own[random] = effects(k, beta, covariance, noise)
    return beta + own

  return problem.Trained(start, shared=beta)


@pytest.mark.parametrize('slopes', [(), (1,), (0, 2)])
def test_rounds_are_those_of_the_formulas(slopes):
  cases.check(cases.Case('blup', _blup, dict(own_slopes=slopes)))


def _grouped(num_clients=30, seed=0):
  """Clients with an intercept and a slope of their own."""
  rng = np.random.default_rng(seed)
  made = []
  for _ in range(num_clients):
    x = rng.normal(size=[int(rng.integers(2, 12)), 3])
    own = rng.multivariate_normal([0, 0], [[0.5, 0.2], [0.2, 0.3]])
    y = x @ [1, -0.5, 0.2] + own[0] + own[1] * x[:, 0] + rng.normal(size=len(x))
    made.append((np.float32(x), np.float32(y)))
  return made


def _restricted_likelihood(parameters, arrays):
  """Minus the restricted log-likelihood, and beta, by its definition."""
  noise = np.exp(parameters[0])
  root = np.array([[parameters[1], 0], parameters[2:]])
  covariance, total, precision, slope = root @ root.T, 0, 0, 0
  inverses = []
  for x, y in arrays:
    x = np.column_stack([x, np.ones(len(x))]).astype(float)
    z = x[:, [0, -1]]
    v = noise * np.eye(len(y)) + z @ covariance @ z.T
    inverse = np.linalg.inv(v)
    precision, slope = precision + x.T @ inverse @ x, slope + x.T @ inverse @ y
    total += np.linalg.slogdet(v)[1]
    inverses.append((x, y, inverse))
  beta = np.linalg.solve(precision, slope)
  total += np.linalg.slogdet(precision)[1]
  total += sum((y - x @ beta) @ v @ (y - x @ beta) for x, y, v in inverses)
  return total / 2, beta, noise, covariance


def test_it_settles_at_restricted_maximum_likelihood():
  arrays = _grouped()
  best = optimize.minimize(
    lambda p: _restricted_likelihood(p, arrays)[0], [0, 1, 0, 1]
  )
  _, beta, noise, covariance = _restricted_likelihood(best.x, arrays)
  method = helpers.build('blup', own_slopes=(0,))
  datas = [
    helpers.padded(helpers.make_batches(dict(x=x, y=y)), 12, 4, 3)
    for x, y in arrays
  ]
  clients = helpers.make_clients(method, datas)
  server = helpers.run(method, 150, clients).state.server
  found = [*server.model['kernel'], server.model['bias']]
  np.testing.assert_allclose(found, beta, atol=1e-3)
  np.testing.assert_allclose(server.noise, noise, rtol=2e-3)
  np.testing.assert_allclose(server.covariance, covariance, atol=5e-3)


def test_a_pull_to_all_is_blup_if_it_is_the_ratio_of_the_variances():
  """The pull to the effects of all by sigma^2 / (n_i tau^2) of each client."""
  model = helpers.MODEL
  trainer = blup.Blup(model, blup.BlupSettings())
  rng = np.random.default_rng(0)
  noise, variance = 0.7, 0.2
  message = blup.BlupState(
    helpers.weights([1.0, -1.0, 0.5, 0.3]),
    tf.constant([[variance]]),
    tf.constant(noise),
    tf.zeros([4, 4]),
  )
  for number in (1, 4, 30):
    examples = dict(
      x=np.float32(rng.normal(size=[number, 3])),
      y=np.float32(rng.normal(size=number)),
    )
    client = helpers.make_batches(examples)
    mean = trainer.find_effects(message, client).mean.numpy()[0]
    residual = examples['y'] - model.scores(message.model, examples).numpy()
    pull = noise / (number * variance)
    # The minimum of mean (residual - b)^2 / 2 + pull b^2 / 2.
    np.testing.assert_allclose(mean, residual.mean() / (1 + pull), rtol=1e-5)


def test_a_client_without_examples_has_the_effects_of_all():
  method = helpers.build('blup')
  clients = helpers.make_clients(method)
  state = helpers.run(method, 2, clients).state
  bound = method.trainer
  empty = clients[0].data._replace(mask=0 * clients[0].data.mask)
  start = bound.start(state.server, clients[0]._replace(data=empty))
  tf.nest.map_structure(
    np.testing.assert_array_equal, dict(start.weights), dict(start.shared)
  )


@pytest.mark.parametrize(
  'slopes, expected',
  [
    ((), (0.563, 0.566, [[0.094]])),
    ((0,), (0.557, 0.554, [[0.015, 0.018], [0.018, 0.092]])),
  ],
)
def test_exam_is_fitted_as_by_lme4(slopes, expected):
  """The effects of schools on exams, from R's package mlmRev."""
  schools = {}
  with gzip.open(data.path('tables/Exam.csv.gz'), 'rt') as file:
    for row in csv.DictReader(file):
      pair = float(row['standLRT']), float(row['normexam'])
      schools.setdefault(row['school'], []).append(pair)
  method = helpers.build('blup', linear.LinearRegression(1), own_slopes=slopes)
  clients = helpers.make_clients(
    method,
    [
      helpers.padded(
        helpers.make_batches(
          dict(x=np.float32(pairs)[:, :1], y=np.float32(pairs)[:, 1]), 200
        ),
        200,
        200,
        1,
      )
      for pairs in schools.values()
    ],
  )
  server = helpers.run(method, 60, clients).state.server
  slope, noise, covariance = expected
  np.testing.assert_allclose(server.model['kernel'], [slope], atol=6e-4)
  np.testing.assert_allclose(server.noise, noise, atol=6e-4)
  np.testing.assert_allclose(server.covariance, covariance, atol=1.5e-3)


def test_refuses_classes_and_features_that_are_not_there():
  with pytest.raises(errors.UserError, match='blup needs a linear regression'):
    helpers.build('blup', linear.LogisticRegression(3, num_classes=2))
  with pytest.raises(settings.SettingError, match='own_slopes has 3'):
    helpers.build('blup', own_slopes=(3,))
