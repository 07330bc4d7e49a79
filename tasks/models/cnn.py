"""Convolutional networks: for EMNIST as in TFF, for ADNI as in Motley.

Two of its gradients are not TensorFlow's own. They are equal, and faster on a
CPU whatever program the model ends up in:
- TensorFlow merges the gradients of a bias and of a convolution's kernel into
  one kernel that takes a fifth longer than both by themselves.
- The gradient of max-pooling has a fast kernel, but inside a loop it depends on
  the order in which TensorFlow happens to visit the graph whether that is used
  or one that takes thirty times as long: a quarter of the time of a step.
"""

import collections
from collections.abc import Callable, Mapping
import functools

import tensorflow as tf

from tasks.models import initializers
from tasks.models import model as model_lib


@tf.custom_gradient
def _add_bias(
  x: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
  """Adds the bias of each channel."""
  return tf.nn.bias_add(x, bias), lambda g: (g, tf.reduce_sum(g, [0, 1, 2]))


@tf.custom_gradient
def _relu_and_max_pool(
  x: tf.Tensor,
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
  """2x2 max-pooling of relu(x), whose height and width are even.

  Where several places hold the maximum they share the gradient; TensorFlow
  gives it to the first. That is as much a subgradient, and where it matters, in
  an image's empty parts, their patches are the same too.

  Args:
    x: Of shape `[batch, height, width, channels]`.

  Returns:
    The result, `[batch, height / 2, width / 2, channels]`, and its gradient.
  """
  _, height, width, channels = x.shape
  active = tf.nn.relu(x)
  pooled = tf.nn.max_pool2d(active, 2, 2, 'VALID')

  def gradient(upstream: tf.Tensor) -> tf.Tensor:
    # The four places of a window are the axes of size 2 of `windows`, and
    # meet with what there is one of a window by broadcasting.
    windows = [-1, 2, width // 2, 2, channels]
    one_each = [-1, 1, width // 2, 1, channels]
    images = [-1, height, width, channels]
    is_maximum = tf.cast(
      tf.equal(tf.reshape(active, windows), tf.reshape(pooled, one_each)),
      x.dtype,
    )
    num_maxima = 4 * tf.nn.avg_pool2d(
      tf.reshape(is_maximum, images), 2, 2, 'VALID'
    )
    share = tf.where(pooled > 0, upstream / num_maxima, 0)
    return tf.reshape(is_maximum * tf.reshape(share, one_each), images)

  return pooled, gradient


def _init(
  kernel_shapes: Mapping[str, tuple[int, ...]], seed: tf.Tensor
) -> model_lib.Weights:
  """A kernel and a bias for each layer, named, shaped and begun as in Keras."""
  weights = collections.OrderedDict()
  seeds = tf.random.experimental.stateless_split(seed, len(kernel_shapes))
  for i, (layer, shape) in enumerate(kernel_shapes.items()):
    weights[f'{layer}_kernel'] = initializers.glorot_uniform(seeds[i], shape)
    weights[f'{layer}_bias'] = tf.zeros(shape[-1:])
  return weights


def _convolution(
  weights: model_lib.Weights, layer: str, x: tf.Tensor, padding: str
) -> tf.Tensor:
  y = tf.nn.conv2d(x, weights[f'{layer}_kernel'], 1, padding)
  return _add_bias(y, weights[f'{layer}_bias'])


def _dense(weights: model_lib.Weights, layer: str, x: tf.Tensor) -> tf.Tensor:
  return tf.matmul(x, weights[f'{layer}_kernel']) + weights[f'{layer}_bias']


@functools.cache
def emnist_cnn(num_classes: int = 62) -> model_lib.Model:
  """TFF's `cnn_dropout` for EMNIST, without its dropout.

  Two 3x3 convolutions of 32 and 64 channels, 2x2 max-pooling, a dense layer of
  128 and one of the classes: 1,206,590 weights for 62 classes. The loss of a
  `Model` is a pure function of weights and batch, hence no dropout.

  Args:
    num_classes: The number of classes; 10 for digits only.

  Returns:
    The model, of examples {'x': [28, 28, 1] float32, 'y': [] int32}. Its
    embedding is the dense layer before the last, of width 128.
  """
  kernel_shapes = collections.OrderedDict(
    conv1=(3, 3, 1, 32),
    conv2=(3, 3, 32, 64),
    dense=(12 * 12 * 64, 128),
    output=(128, num_classes),
  )

  def embedding(
    weights: model_lib.Weights, batch: model_lib.Batch
  ) -> tf.Tensor:
    x = tf.nn.relu(_convolution(weights, 'conv1', batch['x'], 'VALID'))
    x = _relu_and_max_pool(_convolution(weights, 'conv2', x, 'VALID'))
    x = tf.reshape(x, [-1, kernel_shapes['dense'][0]])
    return tf.nn.relu(_dense(weights, 'dense', x))

  def logits(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    return _dense(weights, 'output', embedding(weights, batch))

  return model_lib.classifier(
    tf.TensorSpec([28, 28, 1]),
    lambda seed: _init(kernel_shapes, seed),
    logits,
    embedding,
    head=frozenset(['output_kernel', 'output_bias']),
  )


@functools.cache
def adni_cnn() -> model_lib.Model:
  """Motley's model for ADNI: one number from an image.

  Two 5x5 convolutions of 32 and 64 channels, each with 2x2 max-pooling, a dense
  layer of 512 and one of a single unit. Loss and metric are the squared error.

  Returns:
    The model, of examples {'x': [32, 32, 1] float32, 'y': [] float32}. Its
    embedding is the dense layer before the last.
  """
  kernel_shapes = collections.OrderedDict(
    conv1=(5, 5, 1, 32),
    conv2=(5, 5, 32, 64),
    dense=(8 * 8 * 64, 512),
    output=(512, 1),
  )

  def embedding(
    weights: model_lib.Weights, batch: model_lib.Batch
  ) -> tf.Tensor:
    x = _relu_and_max_pool(_convolution(weights, 'conv1', batch['x'], 'SAME'))
    x = _relu_and_max_pool(_convolution(weights, 'conv2', x, 'SAME'))
    x = tf.reshape(x, [-1, kernel_shapes['dense'][0]])
    return tf.nn.relu(_dense(weights, 'dense', x))

  def predict(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    return _dense(weights, 'output', embedding(weights, batch))[:, 0]

  def error(predictions: tf.Tensor, batch: model_lib.Batch) -> tf.Tensor:
    return tf.square(predictions - batch['y'])

  def metrics(
    predictions: tf.Tensor, batch: model_lib.Batch
  ) -> model_lib.Metrics:
    return collections.OrderedDict(
      squared_error=model_lib.each_as_one(error(predictions, batch))
    )

  return model_lib.Model(
    example_spec=collections.OrderedDict(
      x=tf.TensorSpec([32, 32, 1]), y=tf.TensorSpec([])
    ),
    init=lambda seed: _init(kernel_shapes, seed),
    loss=lambda weights, batch: error(predict(weights, batch), batch),
    metrics=lambda weights, batch: metrics(predict(weights, batch), batch),
    embedding=embedding,
    head=frozenset(['output_kernel', 'output_bias']),
    prediction=model_lib.Prediction(predict, lambda batch: batch['y'], metrics),
  )
