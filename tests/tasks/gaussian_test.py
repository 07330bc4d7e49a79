"""The Gaussian task against closed forms and its own distribution."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from base import settings
from tasks import gaussian
from tasks import registry
from tasks.models import gaussian as gaussian_model


def _draw(seed=0, **values):
  return gaussian.draw(gaussian.GaussianSettings(**values), seed)


def _posterior(federation, of=0, without=None):
  """Mean and variance of theta_0 given all numbers, by linear algebra.

  Those of the joint normal distribution of (theta_0, theta_1, ...), where
  theta_m is theta_0 for the client `without` inter-client variance.

  Args:
    federation: The clients and their numbers.
    of: The number of another parameter, instead of theta_0.
    without: The client.
  """
  m = len(federation.numbers)
  precision, vector = np.zeros([m + 1, m + 1]), np.zeros(m + 1)
  for k, y in enumerate(federation.numbers):
    difference = np.zeros(m + 1)
    difference[[0, k + 1]] = 1, -1
    variance = 1e-9 if k == without else federation.inter_variance
    precision += np.outer(difference, difference) / variance
    precision[k + 1, k + 1] += len(y) / 0.1
    vector[k + 1] = np.sum(y[:, -1], dtype=np.float64) / 0.1
  covariance = np.linalg.inv(precision)
  return covariance[of] @ vector, covariance[of, of]


def test_optimum_of_the_global_model_is_the_posterior_of_the_parent():
  federation = _draw(
    inter_variance=0.3, max_examples=50, num_clients=6, dimension=2
  )
  mean, variance = _posterior(federation)
  np.testing.assert_allclose(federation.global_posterior.mean[-1], mean)
  np.testing.assert_allclose(federation.global_posterior.variance, variance)


def test_optimum_of_a_client_supposes_that_its_parameter_is_the_parent():
  federation = _draw(
    inter_variance=0.3, max_examples=50, num_clients=6, dimension=2
  )
  means, variances = zip(*(_posterior(federation, without=k) for k in range(6)))
  np.testing.assert_allclose(
    federation.federated_posterior.mean[:, -1], means, rtol=1e-5
  )
  np.testing.assert_allclose(
    federation.federated_posterior.variance, variances, rtol=1e-5
  )
  np.testing.assert_allclose(
    federation.gains, federation.variances / variances, rtol=1e-5
  )


def test_optimum_of_a_client_in_the_hierarchical_model():
  federation = _draw(
    inter_variance=0.3, max_examples=50, num_clients=6, dimension=2
  )
  means, variances = zip(*(_posterior(federation, of=k) for k in range(1, 7)))
  found = federation.hierarchical_posterior
  np.testing.assert_allclose(found.mean[:, -1], means)
  np.testing.assert_allclose(found.variance, variances)


@pytest.mark.parametrize('num_clients', [20, 1000])
def test_equation_3_errs_more_the_more_clients_there_are(num_clients):
  # By Monte Carlo, with clients of 10 to 200 examples as in the paper's case 2.
  federation = _draw(
    num_clients=num_clients,
    inter_variance=1.0,
    max_examples=200,
    dimension=100_000 // num_clients,
  )

  def squared_error(posterior):
    return np.mean((posterior.mean - federation.parameters) ** 2)

  # A client's share S / (sigma_m^-2 + S) is of the others' mean, which is
  # sigma_0^2 + 1 / S away from its parameter.
  others = (num_clients - 1) / (1 + 0.1 / 105)
  share = others / (1 / federation.variances + others)
  expected = np.mean(
    share**2 * (1 + 1 / others) + (1 - share) ** 2 * federation.variances
  )
  of_paper = squared_error(federation.federated_posterior)
  assert of_paper == pytest.approx(expected, rel=0.05)
  optimum = squared_error(federation.hierarchical_posterior)
  assert optimum == pytest.approx(
    np.mean(federation.hierarchical_posterior.variance), rel=0.05
  )
  local = squared_error(federation.local_posterior)
  assert optimum < local < of_paper


def test_posteriors_are_calibrated():
  # Over many draws the squared error is the variance.
  of_local, of_global = [], []
  for seed in range(300):
    federation = _draw(seed, inter_variance=0.01, num_clients=10)
    posterior = federation.local_posterior
    errors = (posterior.mean - federation.parameters)[:, 0]
    of_local += list(errors**2 / posterior.variance)
    posterior = federation.global_posterior
    of_global.append(
      (posterior.mean - federation.parent) ** 2 / posterior.variance
    )
  assert np.mean(of_local) == pytest.approx(1, abs=0.1)
  assert np.mean(of_global) == pytest.approx(1, abs=0.25)


def test_clients_that_are_alike_share_one_optimum():
  federation = _draw(inter_variance=0.0, max_examples=50)
  np.testing.assert_allclose(
    federation.federated_posterior.mean[:, 0],
    np.repeat(federation.global_posterior.mean, 20),
  )
  expected = np.concatenate(federation.numbers).mean(dtype=np.float64)
  np.testing.assert_allclose(federation.global_posterior.mean, expected)


def test_clients_that_have_nothing_in_common_gain_nothing():
  federation = dataclasses.replace(_draw(max_examples=50), inter_variance=1e12)
  np.testing.assert_allclose(federation.gains, 1, rtol=1e-9)
  np.testing.assert_allclose(
    federation.global_posterior.mean, federation.local_posterior.mean.mean(0)
  )


def test_numbers_have_the_distribution_that_the_settings_say():
  federation = _draw(
    num_clients=4000, inter_variance=1.0, min_examples=10, max_examples=200
  )
  sizes = np.array(list(map(len, federation.numbers)))
  assert (sizes.min(), sizes.max()) == (10, 200)
  assert sizes.mean() == pytest.approx(105, rel=0.02)
  assert federation.parameters.mean() == pytest.approx(1.6, abs=0.06)
  assert federation.parameters.std() == pytest.approx(1, rel=0.04)
  residuals = np.concatenate(
    [y - theta for y, theta in zip(federation.numbers, federation.parameters)]
  )
  assert residuals.std() == pytest.approx(np.sqrt(0.1), rel=0.01)
  np.testing.assert_allclose(federation.variances, 0.1 / sizes)


def test_the_task_trains_on_numbers_and_judges_by_the_parameters():
  task = registry.load('gaussian', seed=3, num_clients=5)
  federation = _draw(3, num_clients=5)
  assert task.cross_silo and task.batch_size == 20
  for k, client_id in enumerate(task.train.client_ids):
    train = task.train.sets['train'](client_id)
    np.testing.assert_array_equal(train['y'], federation.numbers[k])
    np.testing.assert_allclose(
      train['variance'], federation.variances[k], rtol=1e-6
    )
    judged = task.test.sets['evaluation'](client_id)
    np.testing.assert_allclose(
      judged['y'], federation.parameters[[k]], rtol=1e-6
    )
    np.testing.assert_allclose(judged['parent'], [1.6], rtol=1e-6)
    chosen_by = task.validation.sets['evaluation'](client_id)
    np.testing.assert_array_equal(chosen_by['y'], federation.further[k])
    assert not np.any(np.isin(federation.further[k], federation.numbers[k]))


def test_loss_is_the_negative_log_likelihood_up_to_a_constant():
  federation = _draw()
  y, variance = federation.numbers[0], federation.variances[0]
  batch = {
    'y': tf.constant(y),
    'variance': tf.fill([len(y)], np.float32(variance)),
    'parent': tf.zeros([len(y)]),
  }
  model, mask = gaussian_model.GaussianMean(), tf.ones([len(y)])

  def likelihood(theta):
    return np.sum((y - theta) ** 2) / (2 * 0.1)

  def loss(theta):
    return model.mean_loss({'mean': tf.constant([theta])}, batch, mask)

  np.testing.assert_allclose(
    loss(1.9) - loss(1.4), likelihood(1.9) - likelihood(1.4), rtol=1e-4
  )


def test_metrics_are_the_distances_from_the_example_and_from_the_parent():
  model = gaussian_model.GaussianMean(2)
  batch = {
    'y': tf.constant([[1.0, 1.5], [2.0, 4.0]]),
    'variance': tf.ones([2]),
    'parent': tf.constant([0.0, 5.0]),
  }
  found = model.statistics({'mean': tf.constant([1.5, 2.5])}, batch)
  np.testing.assert_allclose(found['l1_error'][0], [0.75, 1.0])
  np.testing.assert_allclose(found['parent_l1_error'][0], [2.0, 3.0])


def test_more_examples_at_least_than_at_most_are_refused():
  with pytest.raises(settings.SettingError, match='at most max_examples, 20'):
    gaussian.GaussianSettings(min_examples=21)
