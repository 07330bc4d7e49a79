"""MobileNetV2 for images of landmarks, with group normalization.

Sandler et al. 2018, table 2. Group normalization (Wu and He 2018) takes the
place of batch normalization, whose statistics depend on who shares the batch
(Hsieh et al. 2020), so that the loss is a function of weights and images alone.
"""

import collections
from collections.abc import Iterator
import dataclasses
import functools

import tensorflow as tf

from tasks.models import initializers
from tasks.models import model as model_lib

# Expansion, channels, number of blocks, stride of the first of them.
_STAGES = (
  (1, 16, 1, 1),
  (6, 24, 2, 2),
  (6, 32, 3, 2),
  (6, 64, 4, 2),
  (6, 96, 3, 1),
  (6, 160, 3, 2),
  (6, 320, 1, 1),
)
_FIRST_CHANNELS, _LAST_CHANNELS = 32, 1280
_EPSILON = 1e-3


@dataclasses.dataclass(frozen=True)
class _Layer:
  """A convolution without a bias, and a normalization.

  Attributes:
    name: The name that its weights begin with.
    kernel: The shape of the kernel; one output of each channel if it is that of
      a convolution of each channel by itself.
    stride: The stride.
    activated: Whether min(max(x, 0), 6) follows.
  """

  name: str
  kernel: tuple[int, int, int, int]
  stride: int = 1
  activated: bool = True

  @property
  def by_channel(self) -> bool:
    return self.kernel[3] == 1

  @property
  def channels(self) -> int:
    return self.kernel[2] if self.by_channel else self.kernel[3]


def _blocks() -> Iterator[tuple[_Layer, ...]]:
  """The layers of each block, where a block may have a path around it."""
  channels = _FIRST_CHANNELS
  yield (_Layer('first', (3, 3, 3, channels), stride=2),)
  i = 0
  for expansion, outputs, repeats, first_stride in _STAGES:
    for stride in (first_stride, *[1] * (repeats - 1)):
      inner = expansion * channels
      layers = (
        _Layer(f'block{i}_expand', (1, 1, channels, inner)),
        _Layer(f'block{i}_depthwise', (3, 3, inner, 1), stride),
        _Layer(f'block{i}_project', (1, 1, inner, outputs), activated=False),
      )
      yield layers if expansion > 1 else layers[1:]
      channels = outputs
      i += 1
  yield (_Layer('last', (1, 1, channels, _LAST_CHANNELS)),)


def _apply(
  layer: _Layer, weights: model_lib.Weights, x: tf.Tensor, num_groups: int
) -> tf.Tensor:
  kernel = weights[f'{layer.name}_kernel']
  if layer.by_channel:
    strides = [1, layer.stride, layer.stride, 1]
    x = tf.nn.depthwise_conv2d(x, kernel, strides, 'SAME')
  else:
    x = tf.nn.conv2d(x, kernel, layer.stride, 'SAME')

  _, height, width, channels = x.shape
  groups = [num_groups, channels // num_groups]
  grouped = tf.reshape(x, [-1, height * width, *groups])
  mean, variance = tf.nn.moments(grouped, [1, 3], keepdims=True)
  grouped = tf.nn.batch_normalization(
    grouped,
    mean,
    variance,
    tf.reshape(weights[f'{layer.name}_offset'], groups),
    tf.reshape(weights[f'{layer.name}_scale'], groups),
    _EPSILON,
  )
  x = tf.reshape(grouped, [-1, height, width, channels])
  return tf.nn.relu6(x) if layer.activated else x


@functools.cache
def mobilenet_v2(
  num_classes: int, image_size: int = 128, num_groups: int = 8
) -> model_lib.Model:
  """TFF's `create_mobilenet_v2`: 4,821,740 weights for 2,028 classes.

  Args:
    num_classes: The number of classes.
    image_size: The height and the width of the images.
    num_groups: The number of groups of channels that are normalized together;
      the default is Motley's.

  Returns:
    The model, of examples {'x': [image_size, image_size, 3] uint8, 'y': []
    int32}. Its embedding is the mean over the places of the last convolution,
    of width 1,280.
  """
  blocks = tuple(_blocks())

  def init(seed: tf.Tensor) -> model_lib.Weights:
    layers = [layer for block in blocks for layer in block]
    seeds = tf.random.experimental.stateless_split(seed, len(layers) + 1)
    weights = collections.OrderedDict()
    for i, layer in enumerate(layers):
      weights[f'{layer.name}_kernel'] = initializers.glorot_uniform(
        seeds[i], layer.kernel
      )
      weights[f'{layer.name}_scale'] = tf.ones([layer.channels])
      weights[f'{layer.name}_offset'] = tf.zeros([layer.channels])
    weights['output_kernel'] = initializers.glorot_uniform(
      seeds[-1], [_LAST_CHANNELS, num_classes]
    )
    weights['output_bias'] = tf.zeros([num_classes])
    return weights

  def embedding(
    weights: model_lib.Weights, batch: model_lib.Batch
  ) -> tf.Tensor:
    # Bytes become numbers between -1 and 1 only here: they take a quarter of
    # the memory.
    x = tf.cast(batch['x'], tf.float32) / 127.5 - 1
    for block in blocks:
      before = x
      for layer in block:
        x = _apply(layer, weights, x, num_groups)
      if x.shape == before.shape:
        x += before
    return tf.reduce_mean(x, axis=[1, 2])

  def logits(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    product = tf.matmul(embedding(weights, batch), weights['output_kernel'])
    return product + weights['output_bias']

  return model_lib.classifier(
    tf.TensorSpec([image_size, image_size, 3], tf.uint8),
    init,
    logits,
    embedding,
    head=frozenset(['output_kernel', 'output_bias']),
  )
