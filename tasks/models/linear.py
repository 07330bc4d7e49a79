"""Linear models."""

import collections

import tensorflow as tf

from tasks.models import model as model_lib


def _init(
    kernel_shape: list[int], seed: tf.Tensor, stddev: float
) -> model_lib.Weights:
  kernel = stddev * tf.random.stateless_normal(kernel_shape, seed)
  bias = tf.zeros(kernel_shape[1:])
  return collections.OrderedDict(kernel=kernel, bias=bias)


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

  def loss(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    prediction = tf.linalg.matvec(batch['x'], weights['kernel'])
    return 0.5 * tf.square(prediction + weights['bias'] - batch['y'])

  def metrics(
      weights: model_lib.Weights, batch: model_lib.Batch
  ) -> model_lib.Metrics:
    error = loss(weights, batch)
    return collections.OrderedDict(
        half_squared_error=(error, tf.ones_like(error))
    )

  return model_lib.Model(
      example_spec=collections.OrderedDict(
          x=tf.TensorSpec([num_features]), y=tf.TensorSpec([])
      ),
      init=lambda seed: _init([num_features], seed, initial_stddev),
      loss=loss,
      metrics=metrics,
      embedding=lambda weights, batch: batch['x'],
      head=frozenset(['kernel', 'bias']),
  )


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

  def logits(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    return tf.matmul(batch['x'], weights['kernel']) + weights['bias']

  def loss(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        batch['y'], logits(weights, batch)
    )

  def metrics(
      weights: model_lib.Weights, batch: model_lib.Batch
  ) -> model_lib.Metrics:
    predicted = tf.argmax(logits(weights, batch), -1, tf.int32)
    correct = tf.cast(tf.equal(predicted, batch['y']), tf.float32)
    return collections.OrderedDict(accuracy=(correct, tf.ones_like(correct)))

  return model_lib.Model(
      example_spec=collections.OrderedDict(
          x=tf.TensorSpec([num_features]), y=tf.TensorSpec([], tf.int32)
      ),
      init=lambda seed: _init(
          [num_features, num_classes], seed, initial_stddev
      ),
      loss=loss,
      metrics=metrics,
      embedding=lambda weights, batch: batch['x'],
      head=frozenset(['kernel', 'bias']),
  )
