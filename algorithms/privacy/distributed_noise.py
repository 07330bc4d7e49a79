"""Noise that clients add together, so that a secure sum hides each of them.

The Skellam mechanism (Agarwal, Kairouz and Liu 2021, algorithm 1). A client

  clips its record to S, and rotates it by H D, with random signs D and the
    Hadamard transform H, which are the same for all clients of a round
  scales it by s, and rounds each entry up or down at random, without bias
  adds Skellam noise of variance (s z S)² / n, the difference of two Poissons
  sends it modulo 2^bits

and the secure sum of these, as numbers around zero, is rotated back. s is the
largest scale at which an entry of the sum, with the spread of typical records,
needs more than these bits with probability 1e-4.

Only the sum is revealed, and a sum of Skellam variables is one whose variance
is the sum of theirs. So this simulation draws the noise of all clients that
take part at once, when their integers are summed: what the server learns has
the same distribution, in a small part of the time. In a deployment each client
adds its share before it sends.

`tff.learning.ddp_secure_aggregator` does the same, with the same s, but adapts
the clip, and takes its seeds from the clock: a resumed run would differ.
"""

import collections
from collections.abc import Sequence
import dataclasses
import math

import numpy as np
from scipy import linalg
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from algorithms import vectors
from algorithms.privacy import keys
from algorithms.privacy import private_aggregation
from base import aliases

# Makes the seed of the noise, or of a client's rounding, differ from others.
_DISTRIBUTED = 0xD157
# Matrices of H of this size are multiplied at once, which is fastest.
_LARGEST_FACTOR = 64
# The rate from which on Poisson variables are drawn by rejection.
_LEAST_REJECTION_RATE = 10.0
# A variable of a smaller rate is larger with probability 1e-30.
_MOST_OF_SMALL_RATE = 64
# More clients than a round has, which are counted beside their sum.
_MOST_CLIENTS = 2**31 - 1
# A normal number is this many deviations away with probability 1e-4.
_DEVIATIONS = 3.8905919
# The error of Stirling's formula for the logarithm of n!; not used for 0.
_STIRLING_ERRORS = np.array(
  [0.0]
  + [
    math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n - math.log(2 * math.pi) / 2
    for n in range(1, 16)
  ]
)
# Rounding errors may make the norm of a clipped record larger by this factor.
_LEEWAY = 1 + 1e-5


def padded_size(dimension: int) -> int:
  """Returns the next power of two, to which H pads."""
  return 1 << max(dimension - 1, 0).bit_length()


def has_room(bits: int, clients: float) -> bool:
  """Tells whether the rounding errors of all clients fit into the bits."""
  return 4.0**bits > clients * _DEVIATIONS**2


def scale(
  noise: aliases.Number,
  clip: aliases.Number,
  clients: aliases.Number,
  dimension: int,
  bits: int,
) -> aliases.Number:
  """Returns s.

  In each entry, the sum of n rotated records has a variance of n² S² / d, the
  noise has z² S², and rounding at most n / 4 s².
  """
  of_sum = clip * (clients**2 / padded_size(dimension) + noise**2) ** 0.5
  room = (4.0**bits - clients * _DEVIATIONS**2) ** 0.5
  return room / (2 * _DEVIATIONS * of_sum)


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """How far one client can move the sum of integers, and its noise.

  Attributes:
    l1: The largest sum of absolute values.
    l2: The largest norm.
    variance: The variance of the noise of one client.
  """

  l1: float
  l2: float
  variance: float


def sensitivity(
  noise: float, clip: float, clients: float, dimension: int, bits: int
) -> Sensitivity:
  """Finds the sensitivity: see `scale` for the arguments."""
  s = float(scale(noise, clip, clients, dimension, bits))
  root = math.sqrt(padded_size(dimension))
  # Each entry is rounded by less than one.
  l2 = s * clip * _LEEWAY + root
  # The square of an integer is at least its absolute value.
  return Sensitivity(l2 * min(root, l2), l2, (s * noise * clip) ** 2 / clients)


def hadamard(vector: tf.Tensor) -> tf.Tensor:
  """Multiplies a vector, of a power of two entries, by the orthonormal H.

  H is the Kronecker product of small H, each of which turns one axis.
  """
  size = vector.shape[0]
  left = size
  while left > 1:
    factor = min(left, _LARGEST_FACTOR)
    left //= factor
    # The last axis is turned, and becomes the first.
    vector = tf.matmul(
      linalg.hadamard(factor).astype(np.float32),
      tf.reshape(vector, [size // factor, factor]),
      transpose_b=True,
    )
  return tf.reshape(vector, [size]) / math.sqrt(size)


def _signs(seed: aliases.Seed, size: int) -> tf.Tensor:
  # The first bits of signed numbers.
  bits = keys.draw_bits(seed, (0, 0), size, tf.int32)
  return tf.where(bits < 0, -1.0, 1.0)


class SkellamQuery(tfp.SumAggregationDPQuery):
  """Rotates and scales records, and rotates the sum of integers back."""

  _GlobalState = collections.namedtuple(
    '_GlobalState', ['l2_norm_clip', 'scale', 'stddev', 'seed', 'round']
  )
  _Params = collections.namedtuple('_Params', ['l2_norm_clip', 'scale', 'seed'])

  def __init__(
    self,
    aggregator: 'Distributed',
    specs: private_aggregation.Specs,
    seed: aliases.Seed,
  ):
    """Makes the query.

    Args:
      aggregator: The noise, the clip and the clients.
      specs: The tensors of a record.
      seed: Two int32.
    """
    self._aggregator = aggregator
    self._specs = specs
    self._seed = seed
    self._size = vectors.count(tf.nest.flatten(specs))

  def initial_global_state(self) -> private_aggregation.QueryState:
    noise, clip = self._aggregator.noise, self._aggregator.clip
    clients = self._aggregator.clients
    s = scale(noise, clip, clients, self._size, self._aggregator.bits)
    return self._GlobalState(
      tf.cast(clip, tf.float32),
      tf.cast(s, tf.float32),
      # The noise of one client, on integers.
      tf.cast(s * noise * clip / clients**0.5, tf.float32),
      tf.cast(self._seed, tf.int32),
      tf.constant(0),
    )

  def derive_sample_params(
    self, global_state: private_aggregation.QueryState
  ) -> private_aggregation.Params:
    seed = keys.derive(global_state.seed, global_state.round)
    return self._Params(global_state.l2_norm_clip, global_state.scale, seed)

  def preprocess_record(
    self, params: private_aggregation.Params, record: private_aggregation.Record
  ) -> tf.Tensor:
    clipped, _ = tf.clip_by_global_norm(
      tf.nest.flatten(record), params.l2_norm_clip
    )
    vector = vectors.join(clipped)
    size = padded_size(self._size)
    vector = tf.pad(vector, [[0, size - self._size]])
    return params.scale * hadamard(_signs(params.seed, size) * vector)

  def get_noised_result(
    self,
    sample_state: tuple[tf.Tensor, tf.Tensor],
    global_state: private_aggregation.QueryState,
  ) -> tuple[private_aggregation.Record, private_aggregation.QueryState, None]:
    total, num_clients = sample_state
    params = self.derive_sample_params(global_state)
    # The variance can be too large for float32.
    variance = tf.cast(num_clients, tf.float64) * tf.square(
      tf.cast(global_state.stddev, tf.float64)
    )
    seed = keys.derive(params.seed, _DISTRIBUTED)
    total += skellam(seed, total.shape[0], variance)
    half = 2 ** (self._aggregator.bits - 1)
    around_zero = tf.math.floormod(total + half, 2 * half) - half
    turned = hadamard(tf.cast(around_zero, tf.float32) / global_state.scale)
    vector = _signs(params.seed, turned.shape[0]) * turned
    leaves = vectors.split(vector[: self._size], tf.nest.flatten(self._specs))
    result = tf.nest.pack_sequence_as(self._specs, leaves)
    return result, global_state._replace(round=global_state.round + 1), None


def _uniform(seed: aliases.Seed, place: int, shape: Sequence[int]) -> tf.Tensor:
  """Draws from (0, 1), with 52 bits."""
  bits = keys.draw_bits(seed, (place, 0), math.prod(shape), tf.uint64)
  high = tf.bitwise.right_shift(bits, tf.constant(12, tf.uint64))
  drawn = (tf.cast(tf.cast(high, tf.int64), tf.float64) + 0.5) * 2.0**-52
  return tf.reshape(drawn, shape)


def _small_poisson(
  seed: aliases.Seed, shape: tuple[int, ...], rate: tf.Tensor
) -> tf.Tensor:
  """Draws Poisson variables, minus the whole part of a small rate.

  It inverts the probability of being larger, in which the tail is exact.
  """
  factors = rate / np.arange(1.0, _MOST_OF_SMALL_RATE)
  density = tf.exp(-rate) * tf.math.cumprod(tf.concat([[1.0], factors], 0))
  larger = tf.cumsum(density, exclusive=True, reverse=True)
  is_below = _uniform(seed, 0, shape)[..., tf.newaxis] < larger
  drawn = tf.reduce_sum(tf.cast(is_below, tf.int32), -1)
  return tf.cast(drawn, tf.float64) - tf.floor(rate)


def _log_density(away: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
  """Returns the logarithm of a Poisson density, without cancellation.

  It is Loader's form (2000, "Fast and accurate computation of binomial
  probabilities"): log p(k) = -e(k) - D(k, rate) - log(2 π k) / 2, where e is
  the error of Stirling's formula, and D the deviance.

  Args:
    away: k minus the whole part of the rate.
    rate: The rate, at least 10.
  """
  whole = tf.floor(rate)
  k = tf.maximum(away + whole, 1.0)
  apart = tf.maximum(away, 1.0 - whole) - (rate - whole)
  v = apart / (k + rate)
  series = tf.zeros_like(v)
  for j in range(9, 0, -1):
    series = (series + 1 / (2 * j + 1)) * v**2
  near = apart * v + 2 * k * v * series
  far = k * tf.math.log(k / rate) - apart
  deviance = tf.where(tf.abs(v) < 0.1, near, far)
  error = tf.zeros_like(k)
  for term in (1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12):
    error = error / k**2 + term
  few = tf.cast(tf.minimum(k, len(_STIRLING_ERRORS) - 1.0), tf.int32)
  error = tf.where(
    k < len(_STIRLING_ERRORS), tf.gather(_STIRLING_ERRORS, few), error / k
  )
  return tf.where(
    away + whole < 1,
    -rate,
    -error - deviance - tf.math.log(2 * math.pi * k) / 2,
  )


def propose(u: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Proposes a Poisson variable by Hörmann's transformed rejection (1993).

  Args:
    u: From (0, 1).
    rate: The rate, at least 10.

  Returns:
    The variable minus the whole part of the rate, and the logarithm of the
    probability with which to accept it.
  """
  whole = tf.floor(rate)
  b = 0.931 + 2.53 * tf.sqrt(rate)
  a = -0.059 + 0.02483 * b
  # Hörmann's is too small by up to .5 %, so that some would be too rare.
  inverse_alpha = 1.01 * (1.1239 + 1.1328 / (b - 3.4))
  beyond = 0.5 - tf.abs(u - 0.5)
  away = tf.floor((2 * a / beyond + b) * (u - 0.5) + (rate - whole + 0.43))
  accepts = _log_density(away, rate) - tf.math.log(
    inverse_alpha / (a / beyond**2 + b)
  )
  return away, tf.where(away + whole < 0, np.float64(-np.inf), accepts)


def _large_poisson(
  seed: aliases.Seed, shape: tuple[int, ...], rate: tf.Tensor
) -> tf.Tensor:
  """Draws Poisson variables, minus the whole part of a large rate."""

  def attempt(
    t: tf.Tensor, is_drawn: tf.Tensor, drawn: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    own_seed = keys.derive(seed, t)
    proposed, accepts = propose(_uniform(own_seed, 0, shape), rate)
    accepted = tf.math.log(_uniform(own_seed, 1, shape)) <= accepts
    return t + 1, is_drawn | accepted, tf.where(is_drawn, drawn, proposed)

  _, _, drawn = tf.while_loop(
    lambda _, is_drawn, __: tf.logical_not(tf.reduce_all(is_drawn)),
    attempt,
    (0, tf.zeros(shape, tf.bool), tf.zeros(shape, tf.float64)),
  )
  return drawn


def skellam(seed: aliases.Seed, size: int, variance: tf.Tensor) -> tf.Tensor:
  """Draws int32 integers, each the difference of two Poisson variables.

  XLA has no Poisson variables, and TensorFlow's lose digits at large rates.
  These are drawn in float64: of a small rate by inversion, of a large one by
  rejection. Each probability is right to about 1e-15.

  Args:
    seed: Two int32.
    size: How many to draw.
    variance: Their variance, of float64.
  """
  rate = variance / 2
  first, second = tf.unstack(
    tf.cond(
      rate < _LEAST_REJECTION_RATE,
      lambda: _small_poisson(seed, (2, size), rate),
      lambda: _large_poisson(seed, (2, size), rate),
    )
  )
  return tf.cast(first - second, tf.int32)


@dataclasses.dataclass(frozen=True)
class Distributed(private_aggregation.Private):
  """Has clients add their shares of the noise, and sums securely.

  Attributes:
    bits: The number of bits of each entry that is sent.
  """

  bits: int = 20

  def query(
    self, specs: private_aggregation.Specs, seed: aliases.Seed
  ) -> private_aggregation.Query:
    return SkellamQuery(self, specs, seed)

  def clients_stddev(
    self, state: private_aggregation.QueryState, clients: tf.Tensor
  ) -> tf.Tensor:
    return state.stddev / state.scale * tf.sqrt(clients)

  def send(
    self,
    query: private_aggregation.Query,
    params: private_aggregation.Params,
    record: private_aggregation.Record,
    seed: aliases.Seed,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    scaled = super().send(query, params, record, seed)
    # Not the seed itself, from which the client has drawn already.
    seed = keys.derive(seed, _DISTRIBUTED)
    below = tf.floor(scaled)
    bits = keys.draw_bits(seed, (0, 0), scaled.shape[0])
    drawn = tf.cast(tf.bitwise.right_shift(bits, 8), tf.float32) * 2.0**-24
    is_up = drawn < scaled - below
    integers = tf.cast(below, tf.int32) + tf.cast(is_up, tf.int32)
    return tf.math.floormod(integers, 2**self.bits), tf.constant(1)

  def sum(self, sent: tff.Value) -> tff.Value:
    moduli = 2**self.bits, _MOST_CLIENTS
    return tff.backends.mapreduce.federated_secure_modular_sum(sent, moduli)
