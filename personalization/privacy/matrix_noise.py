"""The matrix mechanism: noise that later rounds take off again.

A training releases the sums of its rounds, x, with noise Y, where Z = C Y are
independent normals. So Z hides C x. What counts is the noise on sums over
rounds, as a model is the sum of all updates so far. C is a lower triangular
Toeplitz matrix, whose first column is

  1, sum_i s_i, sum_i s_i d_i, sum_i s_i d_i^2, ...

so that Y follows from Z with one buffer for each decay d_i and scale s_i (BLT,
McMahan et al. 2024). Two buffers have as little noise as the best number of
bands of the inverse square root (Kalinin et al. 2025), for which each round
would draw as many normals as there are bands, up to hundreds.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import numpy as np
from scipy import optimize
from scipy import signal

# The bounds of what is searched, so that decays differ from 0 and 1.
_BOUND = 12.0


class Buffers(NamedTuple):
  """Buffers of the noise of earlier rounds, which later rounds take off.

  Attributes:
    decays: How much of a buffer remains after a round.
    scales: How much of a buffer is taken off a round's noise. The sum is less
      than one, so that the column of C decreases.
  """

  decays: tuple[float, ...]
  scales: tuple[float, ...]

  def _fraction(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns C as a fraction of polynomials of the shift by a round."""
    below = np.poly(self.decays)
    above = below.copy()
    for k, scale in enumerate(self.scales):
      others = self.decays[:k] + self.decays[k + 1 :]
      above[1:] += scale * np.poly(others)
    return above, below

  def column(self, rounds: int) -> np.ndarray:
    """Returns the first column of C."""
    return signal.lfilter(*self._fraction(), _impulse(rounds))

  def noise_column(self, rounds: int) -> np.ndarray:
    """Returns the first column of the inverse of C, the noise over z."""
    return signal.lfilter(*self._fraction()[::-1], _impulse(rounds))


def _impulse(rounds: int) -> np.ndarray:
  return np.eye(1, rounds)[0]


def sensitivity(column: np.ndarray, separation: int) -> float:
  """Returns how far a client moves C x.

  Args:
    column: The first column of C, which decreases and is not negative.
    separation: The rounds from one participation of a client to the next; it
      takes part as often as it then can.
  """
  rounds = len(column)
  passes = np.pad(column, [0, -rounds % separation]).reshape(-1, separation)
  return float(np.linalg.norm(np.cumsum(passes, axis=0).ravel()[:rounds]))


def error_of_sums(noise_column: np.ndarray) -> float:
  """Returns the root mean square of the noise on sums over rounds, over z."""
  of_sums = np.cumsum(noise_column)
  return float(np.mean(np.cumsum(of_sums**2)) ** 0.5)


def _make(x: np.ndarray) -> Buffers:
  """Makes buffers of any numbers, as many decays and then as many scales."""
  decays, scales = np.split(x, 2)
  weights = np.exp(scales)
  return Buffers(
    tuple((1 / (1 + np.exp(-decays))).tolist()),
    tuple((weights / (1 + weights.sum())).tolist()),
  )


def _find(
  error: Callable[[Buffers], float], memory: int, number: int
) -> Buffers:
  """Finds the buffers with the least error.

  Args:
    error: The error.
    memory: The rounds that noise is to be remembered for.
    number: The number of buffers.
  """
  memories = np.geomspace(1, max(memory, 2), number + 2)[1:-1]
  start = [*-np.log(np.expm1(1 / memories)), *np.full(number, -1.0)]
  found = optimize.minimize(
    lambda x: error(_make(x)),
    start,
    method='L-BFGS-B',
    bounds=[(-_BOUND, _BOUND)] * len(start),
  )
  # A resumed run must find the same, on any machine.
  return _make(np.round(found.x, 2))


@functools.cache
def find_buffers(rounds: int, separation: int, number: int = 2) -> Buffers:
  """Finds the buffers with the least noise on sums at the same guarantee.

  Args:
    rounds: The rounds of the training, at least one.
    separation: As in `sensitivity`.
    number: The number of buffers.
  """

  def error(made: Buffers) -> float:
    return sensitivity(made.column(rounds), separation) * error_of_sums(
      made.noise_column(rounds)
    )

  return _find(error, separation, number)


@functools.cache
def find_bands(rounds: int, number: int) -> tuple[float, ...]:
  """Finds the first column of a C of few bands, for clients that take turns.

  The columns of rounds that are `number` or more apart have nothing in common.
  So if a client can only be in such rounds, these are like rounds with
  independent noise, and chance amplifies its privacy (Choquette-Choo et al.
  2023). The column is the beginning of one of two buffers.

  Args:
    rounds: The rounds of the training, at least one.
    number: The number of bands.
  """

  def error(made: Buffers) -> float:
    column = made.column(number)
    noise_column = signal.lfilter([1.0], column, _impulse(rounds))
    return float(np.linalg.norm(column)) * error_of_sums(noise_column)

  return tuple(_find(error, number, 2).column(number).tolist())
