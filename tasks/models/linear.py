"""Linear models: regression, classification, and a support vector machine.

All their weights are the head, and an example is represented by its features.
"""

import abc
import collections
from collections.abc import Mapping
import dataclasses
import math
from typing import Literal

import tensorflow as tf

from tasks.models import metrics
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class LinearModel(models.Model):
  """A model of the scores x . kernel + bias.

  Attributes:
    num_features: The number of features.
    initial_stddev: The standard deviation of the kernel at the start. It is
      zero in Motley, except where several models must start differently.
  """

  num_features: int
  initial_stddev: float = dataclasses.field(default=0.0, kw_only=True)

  @property
  def example_gradients(self) -> Literal['at once']:
    return 'at once'

  @property
  @abc.abstractmethod
  def _label(self) -> tf.TensorSpec:
    """The shape and type of a label."""

  @property
  def _kernel_shape(self) -> list[int]:
    return [self.num_features]

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([self.num_features]), y=self._label
    )

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {models.ENCODER: (), models.HEAD: ('kernel', 'bias')}

  def _add_bias(self, kernel: tf.Tensor) -> models.Weights:
    return collections.OrderedDict(
      kernel=kernel, bias=tf.zeros(self._kernel_shape[1:])
    )

  def init(self, seed: tf.Tensor) -> models.Weights:
    return self._add_bias(
      self.initial_stddev * tf.random.stateless_normal(self._kernel_shape, seed)
    )

  def random_init(self, seed: tf.Tensor) -> models.Weights:
    # Haiku's default, which Motley's clusters start from.
    stddev = 1 / math.sqrt(self.num_features)
    return self._add_bias(
      stddev * tf.random.stateless_truncated_normal(self._kernel_shape, seed)
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return batch['x']

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    # `tf.tensordot` would be a dozen operations, as no one knows the entries.
    product = tf.matmul if len(self._kernel_shape) > 1 else tf.linalg.matvec
    return product(features, weights['kernel']) + weights['bias']


@dataclasses.dataclass(frozen=True)
class LinearRegression(LinearModel):
  """Least squares, for examples {'x': [features], 'y': []}.

  The loss is *half* the squared error; so is the metric, as in Motley's School.

  Attributes:
    whole_error: Whether the metric is the whole squared error.
  """

  whole_error: bool = dataclasses.field(default=False, kw_only=True)

  @property
  def _label(self) -> tf.TensorSpec:
    return tf.TensorSpec([])

  def score_loss(self, scores: tf.Tensor, batch: models.Batch) -> tf.Tensor:
    return 0.5 * tf.square(scores - batch['y'])

  @property
  def _metric(self) -> str:
    return 'squared_error' if self.whole_error else 'half_squared_error'

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {self._metric: metrics.ERROR}

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    half = self.score_loss(predicted, batch)
    error = 2 * half if self.whole_error else half
    return collections.OrderedDict(
      {self._metric: models.mean_statistics(error)}
    )


@dataclasses.dataclass(frozen=True)
class LogisticRegression(LinearModel, models.Classifier):
  """Multinomial logistic regression: softmax(x . kernel + bias).

  Its examples are {'x': [features], 'y': [] int32}.

  Attributes:
    num_classes: The number of classes.
  """

  num_classes: int

  @property
  def _label(self) -> tf.TensorSpec:
    return tf.TensorSpec([], tf.int32)

  @property
  def _kernel_shape(self) -> list[int]:
    return [self.num_features, self.num_classes]


@dataclasses.dataclass(frozen=True)
class SupportVectorMachine(LinearModel):
  """A linear SVM: sign(x . kernel + bias), {'x': [features], 'y': [] -1 or 1}.

  The loss is the hinge loss max(0, 1 - y (x . kernel + bias)), plus half `l2`
  times the square of all weights. A prediction is the number whose sign is the
  label; a probability p of the label 1 is the prediction 2 p - 1.

  Attributes:
    l2: How strongly the weights are regularized, including the bias.
  """

  l2: float

  @property
  def _label(self) -> tf.TensorSpec:
    return tf.TensorSpec([])

  def score_loss(self, scores: tf.Tensor, batch: models.Batch) -> tf.Tensor:
    """Returns the hinge loss; `penalize` regularizes the weights."""
    return tf.nn.relu(1.0 - batch['y'] * scores)

  def penalize(self, weights: models.Weights, losses: tf.Tensor) -> tf.Tensor:
    if self.l2:
      losses += self.l2 * sum(map(tf.nn.l2_loss, weights.values()))
    return losses

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {'accuracy': metrics.SHARE}

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    correct = tf.equal(tf.sign(predicted), batch['y'])
    return collections.OrderedDict(
      accuracy=models.mean_statistics(tf.cast(correct, tf.float32))
    )
