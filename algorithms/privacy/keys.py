"""Random bits and keys for noise, by blocks of the generator Philox.

`tf.random.experimental.stateless_fold_in` keeps only half of a seed, so that
other seeds may draw the same noise. Here each key of 64 bits makes 64 new ones.
The bits are the same under XLA and without it.
"""

import tensorflow as tf

from base import aliases

# TensorFlow's number of the generator.
_PHILOX = 1
# The place of new keys among the draws of a key.
_KEYS = -3


def _word(high: int | tf.Tensor, low: int | tf.Tensor) -> tf.Tensor:
  pair = tf.cast(high, tf.int64) * 2**32 + tf.cast(low, tf.int64)
  return tf.bitcast(pair, tf.uint64)


def draw_bits(
  seed: aliases.Seed,
  place: tuple[int | tf.Tensor, int | tf.Tensor],
  size: int,
  dtype: tf.DType = tf.uint32,
) -> tf.Tensor:
  """Draws whole numbers of 32 random bits.

  Args:
    seed: Two int32.
    place: Two int32, which tell the draws of a seed apart; the first one is not
      -3.
    size: How many numbers to draw.
    dtype: Their type.
  """
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=[size],
    key=_word(seed[0], seed[1])[tf.newaxis],
    # The generator counts in the first word.
    counter=tf.stack([_word(0, 0), _word(*place)]),
    alg=_PHILOX,
    dtype=dtype,
  )


def derive(seed: aliases.Seed, number: int | tf.Tensor) -> aliases.Seed:
  """Returns another seed for each number."""
  return draw_bits(seed, (_KEYS, number), 2, tf.int32)
