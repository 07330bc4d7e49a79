"""The entries of several tensors, one after another, as a vector."""

import collections
from collections.abc import Iterable

import tensorflow as tf

from tasks.models import models


def count(leaves: Iterable[tf.Tensor]) -> int:
  """Counts the entries of several tensors of known shapes."""
  return sum(leaf.shape.num_elements() for leaf in leaves)


def join(leaves: Iterable[tf.Tensor]) -> tf.Tensor:
  """Makes one vector of the entries of several tensors, in their order."""
  return tf.concat([tf.reshape(leaf, [-1]) for leaf in leaves], 0)


def split(vector: tf.Tensor, like: Iterable[tf.Tensor]) -> list[tf.Tensor]:
  """Splits a vector into tensors with the shapes of `like`, in their order."""
  shapes = [leaf.shape for leaf in like]
  parts = tf.split(vector, [shape.num_elements() for shape in shapes])
  return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]


def split_weights(vector: tf.Tensor, like: models.Weights) -> models.Weights:
  """Splits a vector into weights with the names and shapes of `like`."""
  return collections.OrderedDict(zip(like, split(vector, like.values())))
