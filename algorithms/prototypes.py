"""Prototypes: the mean representation of each class, of one or all clients."""

import collections
from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from base import aliases
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import models

# How much farther away a class without a prototype is than all others.
_UNKNOWN = 1e4


@dataclasses.dataclass(frozen=True)
class PrototypeSettings(settings.Settings):
  """The settings of the pull to prototypes."""

  prototype_pull: aliases.Number = settings.field(
    1.0,
    'lambda, how strongly representations are pulled to the prototypes of their'
    ' classes.',
    minimum=0,
  )
  prototype_weighting: str = settings.field(
    'examples',
    'Whether a client counts in the prototype of a class by the number of its'
    ' examples of it, or like all others that have the class (uniform), as in'
    ' PFLlib.',
    choices=('examples', 'uniform'),
  )


class Prototypes(NamedTuple):
  """The mean representations of classes.

  Attributes:
    means: The mean of each class, `[C, K]`; zeros where it is not known.
    counts: The number of examples of each class, or the weight that a mean has,
      `[C]`; 0 where it is not known.
  """

  means: tf.Tensor
  counts: tf.Tensor


def check(model: models.Model, method: str) -> None:
  """Checks that a model represents the examples of classes.

  Args:
    model: The model.
    method: The name of the method.

  Raises:
    UserError: If it does not.
  """
  if (
    not isinstance(model, models.Classifier) or not model.parts[models.ENCODER]
  ):
    raise errors.UserError(
      f'{method} needs a classifier that learns a representation, such as that'
      ' of emnist.'
    )
  client_work.refuse_batch_norm(model)


def num_classes(model: models.Model) -> int:
  """Returns C."""
  assert isinstance(model, models.Classifier)
  return model.num_classes


def nothing(model: models.Model) -> Prototypes:
  """Returns prototypes of which none is known."""
  # Only the shape of the representation is used.
  like = model.encode(model.init(tf.constant([0, 0])), model.blank_example())
  shape = [num_classes(model), like.shape[1]]
  return Prototypes(tf.zeros(shape), tf.zeros(shape[:1]))


def find(
  model: models.Model, w: models.Weights, data: batches.ClientData
) -> tuple[Prototypes, tf.Tensor]:
  """Finds those of a client, over all examples in its batches.

  Returns:
    The prototypes, and the mean of ||z||^2 of each class, `[C]`.
  """

  def add(
    examples: models.Batch, mask: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    # Padding need not be finite.
    exists = mask[:, tf.newaxis] > 0
    z = tf.where(exists, model.encode(w, examples), 0.0)
    of_class = tf.one_hot(model.target(examples), num_classes(model))
    of_class = tf.where(exists, of_class, 0.0)
    squares = tf.reduce_sum(tf.square(z), 1)
    return (
      tf.matmul(of_class, z, transpose_a=True),
      tf.linalg.matvec(of_class, squares, transpose_a=True),
      tf.reduce_sum(of_class, 0),
    )

  sums, squares, counts = client_work.sum_over_batches(data, add)
  means = tf.math.divide_no_nan(sums, counts[:, tf.newaxis])
  return Prototypes(means, counts), tf.math.divide_no_nan(squares, counts)


def sent(found: Prototypes, weighting: str) -> aggregation.Update:
  """Returns what a client sends, for the sum over clients.

  Args:
    found: The prototypes that the client found.
    weighting: The `prototype_weighting`.
  """
  weight = found.counts
  if weighting == 'uniform':
    weight = tf.cast(weight > 0, tf.float32)
  return aggregation.Update(
    Prototypes(weight[:, tf.newaxis] * found.means, weight)
  )


def renew(old: Prototypes, total: Prototypes) -> Prototypes:
  """Returns those of all clients, where a class that nobody has keeps its own.

  Args:
    old: The prototypes before.
    total: The sum of what the clients of a round sent.
  """
  weight = total.counts[:, tf.newaxis]
  means = tf.math.divide_no_nan(total.means, weight)
  return Prototypes(
    tf.where(weight > 0, means, old.means),
    tf.where(total.counts > 0, total.counts, old.counts),
  )


def pull(
  model: models.Model, to: Prototypes, strength: aliases.Number
) -> client_work.AddedLoss:
  """Returns strength * mean_k (z_k - P_yk)^2, where P_y is known."""

  def distance(
    w: models.Weights, examples: models.Batch, z: tf.Tensor
  ) -> tf.Tensor:
    del w
    y = model.target(examples)
    away = tf.reduce_mean(tf.square(z - tf.gather(to.means, y)), axis=1)
    return strength * tf.where(tf.gather(to.counts, y) > 0, away, 0.0)

  return distance


@dataclasses.dataclass(frozen=True)
class Nearest(models.Extended):
  """A classifier that predicts the class of the nearest known prototype.

  Its scores are minus the distances; the prototypes are among the weights.
  """

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {**self.model.parts, 'prototypes': Prototypes._fields}

  def init(self, seed: tf.Tensor) -> models.Weights:
    of_model = self.inner.init(seed)
    return self.place(of_model, nothing(self.model))

  def place(self, w: models.Weights, known: Prototypes) -> models.Weights:
    """Returns the weights of a model and prototypes."""
    return client_work.merge(w, collections.OrderedDict(known._asdict()))

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return self.inner.encode(weights, batch)

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    away = tf.norm(features[:, tf.newaxis] - weights['means'], axis=2)
    unknown = tf.reduce_max(away, 1, keepdims=True) + _UNKNOWN
    return -tf.where(weights['counts'] > 0, away, unknown)
