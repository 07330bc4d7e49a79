"""Linear models."""

import collections
from collections.abc import Callable
import functools
import math

import tensorflow as tf

from tasks.models import model as model_lib


def _linear_model(
  kernel_shape: list[int],
  initial_stddev: float,
  label: tf.TensorSpec,
  loss: Callable[[tf.Tensor, model_lib.Batch], tf.Tensor],
  metrics: Callable[[tf.Tensor, model_lib.Batch], model_lib.Metrics],
  target: Callable[[model_lib.Batch], tf.Tensor] = lambda batch: batch['y'],
  link: Callable[[tf.Tensor], tf.Tensor] = lambda scores: scores,
  l2: float = 0.0,
) -> model_lib.Model:
  """The model of scores x . kernel + bias.

  Args:
    kernel_shape: The shape of the kernel: of the features, and of the scores.
    initial_stddev: The standard deviation of the kernel at the start.
    label: What a label is.
    loss: The loss of each example of a batch, from its scores.
    metrics: The metrics of each example, from its prediction.
    target: The perfect predictions of a batch.
    link: From the scores to predictions.
    l2: What half the square of all weights is multiplied by in the loss.

  Returns:
    The model.
  """

  def scores(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    product = tf.tensordot(batch['x'], weights['kernel'], 1)
    return product + weights['bias']

  def regularized_loss(
    weights: model_lib.Weights, batch: model_lib.Batch
  ) -> tf.Tensor:
    losses = loss(scores(weights, batch), batch)
    if l2:
      losses += l2 * sum(map(tf.nn.l2_loss, weights.values()))
    return losses

  def predict(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    return link(scores(weights, batch))

  def init(kernel: tf.Tensor) -> model_lib.Weights:
    return collections.OrderedDict(
      kernel=kernel, bias=tf.zeros(kernel_shape[1:])
    )

  # Haiku's default, which Motley's clusters start at.
  random_stddev = 1 / math.sqrt(kernel_shape[0])
  return model_lib.Model(
    example_spec=collections.OrderedDict(
      x=tf.TensorSpec(kernel_shape[:1]), y=label
    ),
    init=lambda seed: init(
      initial_stddev * tf.random.stateless_normal(kernel_shape, seed)
    ),
    random_init=lambda seed: init(
      random_stddev * tf.random.stateless_truncated_normal(kernel_shape, seed)
    ),
    loss=regularized_loss,
    metrics=lambda weights, batch: metrics(predict(weights, batch), batch),
    embedding=lambda weights, batch: batch['x'],
    head=frozenset(['kernel', 'bias']),
    prediction=model_lib.Prediction(predict, target, metrics),
  )


@functools.cache
def linear_regression(
  num_features: int, initial_stddev: float = 0.0
) -> model_lib.Model:
  """Least squares: x . kernel + bias, examples {'x': [features], 'y': []}.

  Loss and metric are *half* the squared error, as in Motley's School.

  Args:
    num_features: The number of features.
    initial_stddev: The standard deviation of the kernel at the start. It is
      zero in Motley, save where several models must not start as one.

  Returns:
    The model. All its weights are its head, and its embedding the features.
  """

  def loss(scores: tf.Tensor, batch: model_lib.Batch) -> tf.Tensor:
    return 0.5 * tf.square(scores - batch['y'])

  def metrics(
    predictions: tf.Tensor, batch: model_lib.Batch
  ) -> model_lib.Metrics:
    return collections.OrderedDict(
      half_squared_error=model_lib.each_as_one(loss(predictions, batch))
    )

  return _linear_model(
    [num_features], initial_stddev, tf.TensorSpec([]), loss, metrics
  )


@functools.cache
def logistic_regression(
  num_features: int, num_classes: int, initial_stddev: float = 0.0
) -> model_lib.Model:
  """Multinomial: softmax(x . kernel + bias), {'x': [features], 'y': [] int32}.

  Args:
    num_features: The number of features.
    num_classes: The number of classes.
    initial_stddev: The standard deviation of the kernel at the start.

  Returns:
    The model. All its weights are its head, and its embedding the features.
  """

  def loss(scores: tf.Tensor, batch: model_lib.Batch) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(batch['y'], scores)

  return _linear_model(
    [num_features, num_classes],
    initial_stddev,
    tf.TensorSpec([], tf.int32),
    loss,
    metrics=model_lib.accuracy,
    target=lambda batch: tf.one_hot(batch['y'], num_classes),
    link=tf.nn.softmax,
  )


@functools.cache
def support_vector_machine(num_features: int, l2: float) -> model_lib.Model:
  """A linear SVM: sign(x . kernel + bias), {'x': [features], 'y': [] -1 or 1}.

  The loss is the hinge loss max(0, 1 - y (x . kernel + bias)), plus half `l2`
  times the square of all weights. A prediction is that which is to be given a
  sign; a probability p of the label 1 is the prediction 2 p - 1.

  Args:
    num_features: The number of features.
    l2: How strongly the weights, bias and all, are regularized.

  Returns:
    The model. All its weights are its head, and its embedding the features.
  """

  def loss(scores: tf.Tensor, batch: model_lib.Batch) -> tf.Tensor:
    return tf.nn.relu(1.0 - batch['y'] * scores)

  def metrics(
    predictions: tf.Tensor, batch: model_lib.Batch
  ) -> model_lib.Metrics:
    correct = tf.equal(tf.sign(predictions), batch['y'])
    return collections.OrderedDict(
      accuracy=model_lib.each_as_one(tf.cast(correct, tf.float32))
    )

  return _linear_model(
    [num_features], 0.0, tf.TensorSpec([]), loss, metrics, l2=l2
  )
