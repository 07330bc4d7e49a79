"""The mean of normally distributed numbers, as a model."""

import collections
from collections.abc import Mapping
import dataclasses

import tensorflow as tf

from tasks.models import metrics
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class GaussianMean(models.Model):
  """The mean theta of normally distributed vectors, whose variance is known.

  Its examples are {'parent': [], 'variance': [], 'y': [dimension]}: the parent
  parameter, which only the second metric uses; the variance of the entries of
  the mean of all vectors of the client; and a vector. The mean over the
  client's vectors of the loss ||theta - y||^2 / (2 variance) is their negative
  log-likelihood, up to a constant. The metrics are the mean distances of
  theta's entries from y and from the parent parameter.

  Attributes:
    dimension: The number of entries.
  """

  dimension: int = 1

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      parent=tf.TensorSpec([]),
      variance=tf.TensorSpec([]),
      y=tf.TensorSpec([self.dimension]),
    )

  @property
  def loss_is_total(self) -> bool:
    return True

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {models.ENCODER: (), models.HEAD: ('mean',)}

  def init(self, seed: tf.Tensor) -> models.Weights:
    return collections.OrderedDict(mean=tf.zeros([self.dimension]))

  def random_init(self, seed: tf.Tensor) -> models.Weights:
    return collections.OrderedDict(
      mean=tf.random.stateless_normal([self.dimension], seed)
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return tf.ones_like(batch['variance'])[:, tf.newaxis]

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return features * weights['mean']

  def score_loss(self, scores: tf.Tensor, batch: models.Batch) -> tf.Tensor:
    squares = tf.reduce_sum(tf.square(scores - batch['y']), axis=1)
    # Padding has a variance of zero.
    return tf.math.divide_no_nan(squares, 2 * batch['variance'])

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {'l1_error': metrics.ERROR, 'parent_l1_error': metrics.ERROR}

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    def distance(truth: tf.Tensor) -> tf.Tensor:
      return models.mean_statistics(
        tf.reduce_mean(tf.abs(predicted - truth), 1)
      )

    return collections.OrderedDict(
      l1_error=distance(batch['y']),
      parent_l1_error=distance(batch['parent'][:, tf.newaxis]),
    )
