"""The matrix mechanism, beside published numbers and brute force."""

import itertools

import numpy as np
import pytest
from scipy import optimize
from scipy import signal

from personalization.privacy import matrix_noise


def _column(noise_column):
  """Returns the first column of C, given that of its inverse."""
  column = np.eye(1, len(noise_column))[0]
  for t in range(1, len(column)):
    column[t] = -noise_column[1 : t + 1] @ column[:t][::-1]
  return column


def _root_bands(number, rounds):
  """Returns some bands of the inverse square root of a matrix of sums."""
  r = [1.0]
  for j in range(1, number):
    r.append(r[-1] * (j - 1.5) / j)
  return np.pad(r, [0, rounds - number])


def _error(column, noise_column, separation):
  return matrix_noise.sensitivity(
    column, separation
  ) * matrix_noise.error_of_sums(noise_column)


def _error_of_buffers(buffers, rounds, separation):
  column, noise = buffers.column(rounds), buffers.noise_column(rounds)
  return _error(column, noise, separation)


@pytest.mark.parametrize(
  ('bands', 'sensitivity', 'error'),
  [
    (1, 1, 22.37),
    (4, 1.2737, 9.004),
    (16, 1.4532, 5.045),
    (64, 1.6014, 3.426),
    (1000, 1.8069, 3.102),
  ],
)
def test_the_error_of_matrix_mechanisms_is_as_computed_by_others(
  bands, sensitivity, error
):
  noise_column = _root_bands(bands, 1000)
  column = _column(noise_column)
  found = matrix_noise.sensitivity(column, 1000)
  assert found == pytest.approx(sensitivity, abs=1e-4)
  assert _error(column, noise_column, 1000) == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize('separation', [1, 3, 4, 10])
@pytest.mark.parametrize(
  'buffers',
  [
    matrix_noise.Buffers((0.5,), (0.0,)),
    matrix_noise.Buffers((0.9,), (0.3,)),
    matrix_noise.Buffers((0.2, 0.9), (0.5, 0.4)),
  ],
)
def test_the_sensitivity_is_that_of_the_worst_client(buffers, separation):
  n = 10
  column = buffers.column(n)
  c = sum(value * np.eye(n, k=-j) for j, value in enumerate(column))
  times, worst = -(-n // separation), 0.0
  for chosen in itertools.product((0, 1), repeat=n):
    rounds = np.flatnonzero(chosen)
    if len(rounds) <= times and np.all(np.diff(rounds) >= separation):
      worst = max(worst, np.linalg.norm(c @ np.array(chosen)))
  assert matrix_noise.sensitivity(column, separation) == pytest.approx(worst)


def test_the_columns_are_those_of_a_matrix_and_its_inverse():
  buffers = matrix_noise.Buffers((0.2, 0.9), (0.5, 0.4))
  column = buffers.column(5)
  # 1, sum s, sum s d, sum s d^2, ...
  np.testing.assert_allclose(column, [1, 0.9, 0.46, 0.344, 0.2956], rtol=1e-12)
  np.testing.assert_allclose(
    np.convolve(column, buffers.noise_column(5))[:5], np.eye(1, 5)[0], atol=1e-9
  )


@pytest.mark.parametrize(
  ('rounds', 'separation', 'plain', 'four_bands', 'published'),
  [
    (200, 50, 20.1, 8.4, 5.63),
    (500, 100, 35.4, 14.4, 7.16),
    # Of 256 bands; other buffers were not computed.
    (2000, 500, 63.3, 25.3, 7.15),
  ],
)
def test_the_buffers_that_are_found_have_as_little_noise_as_is_published(
  rounds, separation, plain, four_bands, published
):
  without = np.eye(1, rounds)[0]
  assert _error(without, without, separation) == pytest.approx(plain, rel=3e-3)
  bands = _root_bands(4, rounds)
  of_bands = _error(_column(bands), bands, separation)
  assert of_bands == pytest.approx(four_bands, rel=5e-3)
  buffers = matrix_noise.find_buffers(rounds, separation)
  found = _error_of_buffers(buffers, rounds, separation)
  assert found < published + 0.005
  # More buffers are not worth their memory.
  four = matrix_noise.find_buffers(rounds, separation, 4)
  assert found < 1.01 * _error_of_buffers(four, rounds, separation)


@pytest.mark.parametrize('rounds', [1, 2, 30])
def test_where_all_clients_are_in_all_rounds_plain_noise_is_found(rounds):
  buffers = matrix_noise.find_buffers(rounds, 1)
  without = np.eye(1, rounds)[0]
  assert _error_of_buffers(buffers, rounds, 1) == pytest.approx(
    _error(without, without, 1), rel=1e-3
  )


@pytest.mark.parametrize('separation', [1, 2, 7, 40])
def test_the_columns_that_are_found_decrease(separation):
  # Or else the sensitivity would be another one.
  column = matrix_noise.find_buffers(40, separation).column(40)
  assert np.all(np.diff(column) < 1e-12)
  assert np.all(column > -1e-12)


def _error_of_bands(column, rounds):
  noise_column = signal.lfilter([1.0], column, np.eye(1, rounds)[0])
  return np.linalg.norm(column) * matrix_noise.error_of_sums(noise_column)


@pytest.mark.parametrize(('rounds', 'number'), [(200, 4), (200, 8), (500, 5)])
def test_the_bands_that_are_found_are_as_good_as_any(rounds, number):
  column = matrix_noise.find_bands(rounds, number)
  assert len(column) == number
  any_bands = optimize.minimize(
    lambda x: _error_of_bands([1, *np.exp(x)], rounds),
    np.zeros(number - 1),
    method='L-BFGS-B',
  )
  assert _error_of_bands(column, rounds) < 1.002 * any_bands.fun
  assert any_bands.fun < 0.95 * _error_of_bands([1.0], rounds)


def test_rounds_of_one_client_have_nothing_in_common_in_bands():
  rounds, parts = 23, 4
  column = np.pad(matrix_noise.find_bands(rounds, parts), [0, rounds - parts])
  c = sum(value * np.eye(rounds, k=-j) for j, value in enumerate(column))
  products = c.T @ c
  for turn in range(parts):
    of_client = products[turn::parts, turn::parts]
    np.testing.assert_array_equal(of_client, np.diag(np.diag(of_client)))
    # The last rounds of all reveal less.
    assert np.max(of_client) == pytest.approx(np.sum(column**2))
