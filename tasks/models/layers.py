"""Layers and initial weights that several models share.

A layer's weights are named after it: `dense_kernel` and `dense_bias` belong to
the layer `dense`.

Some gradients are custom. They are equal to TensorFlow's, and faster on a CPU
in any program that uses the model:
- TensorFlow merges the gradients of a bias and of a convolution's kernel into
  one kernel that takes a fifth longer than two separate ones.
- The gradient of max-pooling has a fast kernel. Inside a loop, however,
  TensorFlow may use another one, depending on the order in which it visits the
  graph. That one takes thirty times as long, a quarter of the time of a step.
- TensorFlow differentiates the mean and the variance of a normalization
  separately, which takes twice as long as the gradient of both together. The
  second gradient of its variance, moreover, is wrong: it treats the mean as a
  constant.
- The gradient of a look-up is sparse in TensorFlow, while everything that is
  computed from it is dense.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import math
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from base import aliases
from tasks.models import models

# Maps the gradient by a function's result to the gradients by its arguments.
Gradient = Callable[[tf.Tensor], aliases.Structure]

# 'VALID', 'SAME', or the rows before and after each axis.
Padding: TypeAlias = str | Sequence[Sequence[int]]


def glorot_uniform(seed: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
  """Draws a kernel as Keras does by default.

  Args:
    seed: The seed, two int32.
    shape: The shape, whose last two axes are the inputs and the outputs.

  Returns:
    The kernel.
  """
  limit = math.sqrt(6 / (math.prod(shape[:-2]) * (shape[-2] + shape[-1])))
  return tf.random.stateless_uniform(shape, seed, -limit, limit)


def fan_in_uniform(
  seed: tf.Tensor, shape: Sequence[int], fan_in: int
) -> tf.Tensor:
  """Draws weights as PyTorch does by default: U(-1, 1) / sqrt(fan_in)."""
  limit = 1 / math.sqrt(fan_in)
  return tf.random.stateless_uniform(shape, seed, -limit, limit)


def fan_in_layers(
  seeds: tf.Tensor, shapes: Mapping[str, Sequence[int]]
) -> models.Weights:
  """Draws the kernel and the bias of each layer as PyTorch does.

  Args:
    seeds: Two seeds for each layer.
    shapes: The shape of each layer's kernel, whose last axis is the outputs.
  """
  weights = collections.OrderedDict()
  for i, (layer, shape) in enumerate(shapes.items()):
    fan_in = math.prod(shape[:-1])
    weights[f'{layer}_kernel'] = fan_in_uniform(seeds[2 * i], shape, fan_in)
    weights[f'{layer}_bias'] = fan_in_uniform(
      seeds[2 * i + 1], shape[-1:], fan_in
    )
  return weights


def orthogonal(seed: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
  """Draws a recurrent kernel as Keras does; it has more columns than rows."""
  q, r = tf.linalg.qr(tf.random.stateless_normal([columns, rows], seed))
  # QR leaves the signs open; this makes all orthogonal matrices as likely.
  return tf.transpose(q * tf.sign(tf.linalg.diag_part(r)))


def probe(name: str) -> str:
  """Returns the name that the probe of a weight has among the weights.

  A probe has a zero for each example of a batch, which changes no result. The
  derivative of the sum of the losses by the probe is the squared norm of each
  example's gradient by the weight. The layer computes this without the
  gradients themselves (Goodfellow 2015, "Efficient per-example gradient
  computations"; Lee and Kifer 2021).
  """
  return f'{name}_probe'


def _add_probe(
  weights: models.Weights,
  name: str,
  y: tf.Tensor,
  square: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
  """Returns y, with a gradient by the probe of a weight if there is one.

  Args:
    weights: The weights.
    name: The name of the weight, which must be used only for y.
    y: The result of a layer, `[examples, …]`.
    square: Maps the gradient by y to the squared norm of each example's
      gradient by the weight.
  """
  if probe(name) not in weights:
    return y

  @tf.custom_gradient
  def through(y: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
    return tf.identity(y), lambda upstream: (upstream, square(upstream))

  return through(y, weights[probe(name)])


def _sum_of_squares(x: tf.Tensor) -> tf.Tensor:
  """Sums squares over all axes but the axis of examples."""
  return tf.reduce_sum(tf.square(x), list(range(1, x.shape.rank)))


def scale_bytes(x: tf.Tensor) -> tf.Tensor:
  """Makes numbers between -1 and 1 of images of bytes.

  Models do so themselves, as bytes take a quarter of the memory of numbers.
  """
  return tf.cast(x, tf.float32) / 127.5 - 1


def dense(weights: models.Weights, layer: str, x: tf.Tensor) -> tf.Tensor:
  """Applies a dense layer to rows: x kernel + bias."""
  y = tf.matmul(x, weights[f'{layer}_kernel']) + weights[f'{layer}_bias']
  y = _add_probe(weights, f'{layer}_bias', y, _sum_of_squares)
  # The norm of an outer product is the product of the norms.
  return _add_probe(
    weights,
    f'{layer}_kernel',
    y,
    lambda upstream: _sum_of_squares(x) * _sum_of_squares(upstream),
  )


@tf.custom_gradient
def _add_bias(x: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
  """Adds the bias of each channel."""
  return tf.nn.bias_add(x, bias), lambda g: (g, tf.reduce_sum(g, [0, 1, 2]))


def convolution(
  weights: models.Weights, layer: str, x: tf.Tensor, padding: str
) -> tf.Tensor:
  """Convolves images with a kernel, of stride 1, and adds a bias."""
  kernel = weights[f'{layer}_kernel']
  y = convolve(kernel, weights[f'{layer}_bias'], x, padding, 1)
  y = _add_probe(
    weights,
    f'{layer}_bias',
    y,
    lambda upstream: _sum_of_squares(tf.reduce_sum(upstream, [1, 2])),
  )
  rows, columns, *_ = kernel.shape

  def square(upstream: tf.Tensor) -> tf.Tensor:
    """Computes the gradient at one place of the kernel after another."""
    _, height, width, channels = y.shape
    of_y = tf.reshape(upstream, [-1, height * width, channels])
    padded = x
    if padding == 'SAME':
      around = [[(n - 1) // 2, n // 2] for n in (rows, columns)]
      padded = tf.pad(x, [[0, 0], *around, [0, 0]])
    return tf.add_n(
      [
        _sum_of_squares(
          tf.matmul(
            tf.reshape(
              padded[:, i : i + height, j : j + width],
              [-1, height * width, x.shape[-1]],
            ),
            of_y,
            transpose_a=True,
          )
        )
        for i in range(rows)
        for j in range(columns)
      ]
    )

  return _add_probe(weights, f'{layer}_kernel', y, square)


def convolve(
  kernel: tf.Tensor,
  bias: tf.Tensor,
  x: tf.Tensor,
  padding: Padding,
  strides: int | Sequence[int],
) -> tf.Tensor:
  """Convolves images with a kernel of any stride, without probes."""
  return _add_bias(tf.nn.conv2d(x, kernel, strides, padding), bias)


def convolve_and_average(
  kernel: tf.Tensor,
  bias: tf.Tensor,
  x: tf.Tensor,
  strides: Sequence[int],
  window: Sequence[int],
) -> tf.Tensor:
  """Convolves images, without padding, and computes the means of windows.

  Both are linear, so that together they are one convolution, with the mean of
  the kernels at all places of a window. It takes half as long, as it does not
  make the larger image in between.

  Args:
    kernel: The kernel, `[height, width, inputs, outputs]`.
    bias: The bias of each output.
    x: The images, `[batch, height, width, inputs]`.
    strides: The strides of the convolution.
    window: The height and the width of the windows, which do not overlap.

  Returns:
    The means for each output.
  """
  rows, columns = (
    sum(np.eye(n + (m - 1) * s, n, -i * s, np.float32) for i in range(m)) / m
    for n, s, m in zip(kernel.shape, strides, window)
  )
  kernel = tf.einsum('ai,bj,ij...->ab...', rows, columns, kernel)
  strides = [s * m for s, m in zip(strides, window)]
  return convolve(kernel, bias, x, 'VALID', strides)


@tf.custom_gradient
def relu_and_max_pool(
  x: tf.Tensor,
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
  """Pools the maxima of relu(x) in windows of 2x2.

  Where several places of a window hold the maximum they share the gradient;
  TensorFlow gives it to the first. Both are subgradients. Ties occur in the
  empty parts of an image, where the surroundings of these places are equal too,
  so that the kernels' gradients do not differ.

  Args:
    x: Images of even height and width, `[batch, height, width, channels]`.

  Returns:
    The result, `[batch, height / 2, width / 2, channels]`, and its gradient.
  """
  _, height, width, channels = x.shape
  active = tf.nn.relu(x)
  pooled = tf.nn.max_pool2d(active, 2, 2, 'VALID')

  def gradient(upstream: tf.Tensor) -> tf.Tensor:
    # The four places of a window are the axes of size 2 of `windows`. Tensors
    # with one value for each window are broadcast to them.
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


def _normalize(
  x: tf.Tensor,
  axes: Sequence[int],
  scale: tf.Tensor,
  offset: tf.Tensor,
  epsilon: float,
) -> tf.Tensor:
  """Normalizes to mean 0 and variance 1 over some axes; scales and shifts."""

  def mean(y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(y, axes, keepdims=True)

  @tf.custom_gradient
  def standardize(x: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
    away = x - mean(x)
    by = tf.math.rsqrt(mean(tf.square(away)) + epsilon)
    y = away * by
    return y, lambda g: by * (g - mean(g) - y * mean(g * y))

  return standardize(x) * scale + offset


def layer_norm(
  weights: models.Weights, layer: str, x: tf.Tensor, epsilon: float
) -> tf.Tensor:
  """Normalizes each example, or row, over its features (Ba et al. 2016).

  Args:
    weights: The model's weights, with a scale and an offset of each feature.
    layer: The name of the layer, with which its weights' names begin.
    x: The features, whose last axes are those of the scale.
    epsilon: The term that is added to the variance.

  Returns:
    The normalized features.
  """
  scale, offset = weights[f'{layer}_scale'], weights[f'{layer}_offset']
  axes = range(-len(scale.shape), 0)
  return _normalize(x, list(axes), scale, offset, epsilon)


def group_norm(
  weights: models.Weights,
  layer: str,
  x: tf.Tensor,
  num_groups: int,
  epsilon: float,
) -> tf.Tensor:
  """Normalizes each image over its places and a group's channels.

  Wu and He 2018.

  Args:
    weights: The model's weights, with a scale and an offset of each channel.
    layer: The name of the layer, with which its weights' names begin.
    x: The images, `[batch, height, width, channels]`.
    num_groups: The number of groups, which divides the number of channels.
    epsilon: The term that is added to the variance.

  Returns:
    The normalized images.
  """
  _, height, width, channels = x.shape
  scale, offset = weights[f'{layer}_scale'], weights[f'{layer}_offset']
  size = height * width

  def of_groups(sums: tf.Tensor) -> tf.Tensor:
    """Makes the mean of each group of the sums of its channels."""
    means = tf.reduce_mean(tf.reshape(sums, groups), -1, keepdims=True) / size
    means = tf.broadcast_to(means, tf.shape(tf.reshape(sums, groups)))
    return tf.reshape(means, [-1, 1, channels])

  groups = [-1, num_groups, channels // num_groups]

  # Sums over the places, which are quick, are divided among the groups: sums
  # over the places and some of the channels take several times as long.
  @tf.custom_gradient
  def normalize(
    x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
  ) -> tuple[tf.Tensor, Gradient]:
    away = x - of_groups(tf.reduce_sum(x, 1))
    variance = of_groups(tf.reduce_sum(tf.square(away), 1))
    by = tf.math.rsqrt(variance + epsilon)

    def gradient(g: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
      of_y, along = tf.reduce_sum(g, 1), tf.reduce_sum(g * away, 1)
      along *= by[:, 0]
      of_x = (
        g * (by * scale)
        - away * (by * by * of_groups(along * scale))
        - by * of_groups(of_y * scale)
      )
      return of_x, tf.reduce_sum(along, 0), tf.reduce_sum(of_y, 0)

    return tf.nn.bias_add(away * (by * scale), offset), gradient

  y = normalize(tf.reshape(x, [-1, size, channels]), scale, offset)
  return tf.reshape(y, [-1, height, width, channels])


class Moments(NamedTuple):
  """The mean and the variance of each channel, and of how many values.

  The variance is that of a sample: its divisor is one less than the number.
  """

  mean: tf.Tensor
  variance: tf.Tensor
  number: tf.Tensor


def batch_norm(
  weights: models.Weights, layer: str, x: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, Moments]:
  """Normalizes each channel over a batch (Ioffe and Szegedy 2015).

  Args:
    weights: The model's weights, with a scale and an offset of each channel.
    layer: The name of the layer, with which its weights' names begin.
    x: The features, or the images, `[batch, …, channels]`.
    epsilon: The term that is added to the variance.

  Returns:
    The normalized features, and the moments of the batch.
  """
  channels = x.shape[-1]
  images = x if x.shape.rank == 4 else tf.reshape(x, [-1, 1, 1, channels])
  y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
    x=images,
    scale=weights[f'{layer}_scale'],
    offset=weights[f'{layer}_offset'],
    mean=tf.zeros([0]),
    variance=tf.zeros([0]),
    epsilon=epsilon,
  )
  if x.shape.rank != 4:
    y = tf.reshape(y, tf.shape(x))
  number = tf.cast(tf.size(x) // channels, tf.float32)
  return y, Moments(mean, variance, number)


@tf.custom_gradient
def look_up(table: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
  """Returns rows of a table of embeddings; the gradient is dense."""

  def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
    return (
      tf.math.unsorted_segment_sum(upstream, rows, table.shape[0]),
      None,
    )

  return tf.gather(table, rows), gradient
