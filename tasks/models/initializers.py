"""How weights begin."""

from collections.abc import Sequence
import math

import tensorflow as tf


def glorot_uniform(seed: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
  """Keras's default for a kernel; its last axes are the inputs and outputs."""
  limit = math.sqrt(6 / (math.prod(shape[:-2]) * (shape[-2] + shape[-1])))
  return tf.random.stateless_uniform(shape, seed, -limit, limit)
