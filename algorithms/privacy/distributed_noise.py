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

`tff.learning.ddp_secure_aggregator` does the same, with the same s, but adapts
the clip, and takes its seeds from the clock: a resumed run would differ.
"""

import collections
import dataclasses
import math

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from algorithms import vectors
from algorithms.privacy import keys
from algorithms.privacy import private_aggregation
from base import aliases

# Makes the seed of a client's noise differ from its other seeds.
_DISTRIBUTED = 0xD157
# A normal number is this many deviations away with probability 1e-4.
_DEVIATIONS = 3.8905919
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
  """Multiplies a vector, of a power of two entries, by the orthonormal H."""
  size = vector.shape[0]
  half = 1
  while half < size:
    first, second = tf.unstack(tf.reshape(vector, [-1, 2, half]), axis=1)
    vector = tf.reshape(tf.stack([first + second, first - second], 1), [size])
    half *= 2
  return vector / math.sqrt(size)


def _signs(seed: aliases.Seed, size: int) -> tf.Tensor:
  bits = tf.random.stateless_uniform([size], seed, 0, 2, tf.int32)
  return tf.cast(2 * bits - 1, tf.float32)


class SkellamQuery(tfp.SumAggregationDPQuery):
  """Rotates and scales records, and rotates the sum of integers back."""

  _GlobalState = collections.namedtuple(
    '_GlobalState', ['l2_norm_clip', 'scale', 'stddev', 'seed', 'round']
  )
  _Params = collections.namedtuple(
    '_Params', ['l2_norm_clip', 'scale', 'stddev', 'seed']
  )

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
    return self._Params(
      global_state.l2_norm_clip, global_state.scale, global_state.stddev, seed
    )

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
    self, sample_state: tf.Tensor, global_state: private_aggregation.QueryState
  ) -> tuple[private_aggregation.Record, private_aggregation.QueryState, None]:
    half = 2 ** (self._aggregator.bits - 1)
    around_zero = tf.math.floormod(sample_state + half, 2 * half) - half
    turned = hadamard(tf.cast(around_zero, tf.float32) / global_state.scale)
    params = self.derive_sample_params(global_state)
    vector = _signs(params.seed, turned.shape[0]) * turned
    leaves = vectors.split(vector[: self._size], tf.nest.flatten(self._specs))
    result = tf.nest.pack_sequence_as(self._specs, leaves)
    return result, global_state._replace(round=global_state.round + 1), None


def skellam(seed: aliases.Seed, size: int, stddev: tf.Tensor) -> tf.Tensor:
  """Draws int32 integers with a deviation of `stddev`."""
  # The rate can be too large for float32.
  rate = tf.square(tf.cast(stddev, tf.float64)) / 2
  first, second = tf.unstack(
    tf.random.stateless_poisson([2, size], seed, rate, tf.int64)
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

  def send(
    self,
    query: private_aggregation.Query,
    params: private_aggregation.Params,
    record: private_aggregation.Record,
    seed: aliases.Seed,
  ) -> tf.Tensor:
    scaled = super().send(query, params, record, seed)
    own_seed = keys.derive(seed, _DISTRIBUTED)
    seeds = [keys.derive(own_seed, k) for k in range(2)]
    below = tf.floor(scaled)
    is_up = tf.random.stateless_uniform(scaled.shape, seeds[0]) < scaled - below
    integers = tf.cast(below, tf.int32) + tf.cast(is_up, tf.int32)
    noise = skellam(seeds[1], scaled.shape[0], params.stddev)
    return tf.math.floormod(integers + noise, 2**self.bits)

  def sum(self, sent: tff.Value) -> tff.Value:
    return tff.federated_secure_sum_bitwidth(sent, self.bits)
