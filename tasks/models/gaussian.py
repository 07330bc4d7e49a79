"""The mean of normally distributed numbers, as a model."""

import collections
from collections.abc import Mapping
import dataclasses

import tensorflow as tf

from tasks.models import models


@dataclasses.dataclass(frozen=True)
class GaussianMean(models.Model):
  """One weight, the mean theta of numbers whose variance is known.

  Its examples are {'y': [], 'variance': [], 'parent': []}: a number, the
  variance of the mean of all numbers of its client, and the parent parameter
  that only the second metric knows. The loss (theta - y)^2 / (2 variance), in
  the mean over the client's numbers, is the negative log-likelihood of all of
  them up to a constant. The metrics are the distances of theta from y and from
  the parent parameter.
  """

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      (name, tf.TensorSpec([])) for name in ('y', 'variance', 'parent')
    )

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {models.ENCODER: (), models.HEAD: ('mean',)}

  def init(self, seed: tf.Tensor) -> models.Weights:
    return collections.OrderedDict(mean=tf.zeros([]))

  def random_init(self, seed: tf.Tensor) -> models.Weights:
    return collections.OrderedDict(mean=tf.random.stateless_normal([], seed))

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return tf.ones_like(batch['y'])[:, tf.newaxis]

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return features[:, 0] * weights['mean']

  def score_loss(self, scores: tf.Tensor, batch: models.Batch) -> tf.Tensor:
    # Padding has a variance of zero.
    return tf.math.divide_no_nan(
      tf.square(scores - batch['y']), 2 * batch['variance']
    )

  def judge(
    self, predicted: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    return collections.OrderedDict(
      l1_error=models.each_as_one(tf.abs(predicted - batch['y'])),
      parent_l1_error=models.each_as_one(tf.abs(predicted - batch['parent'])),
    )
