"""MobileNetV2 for images of landmarks, with group normalization.

Sandler et al. 2018, table 2. Group normalization (Wu and He 2018) replaces
batch normalization, whose statistics depend on the other images in the batch
(Hsieh et al. 2020). The loss of an image is thus a function of only the weights
and the image.
"""

import collections
from collections.abc import Iterator, Mapping
import dataclasses

import tensorflow as tf

from tasks.models import layers
from tasks.models import models

# Expansion, output channels, number of blocks, stride of the first block.
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
class _ConvolutionSpec:
  """A convolution without a bias, followed by a normalization.

  Attributes:
    name: The prefix of the names of its weights.
    kernel: The shape of the kernel. If its last axis, the outputs, is 1, each
      channel is convolved separately.
    stride: The stride.
    activated: Whether min(max(x, 0), 6) follows.
  """

  name: str
  kernel: tuple[int, int, int, int]
  stride: int = 1
  activated: bool = True

  @property
  def is_depthwise(self) -> bool:
    """Whether each channel is convolved separately."""
    return self.kernel[3] == 1

  @property
  def channels(self) -> int:
    """The number of output channels."""
    return self.kernel[2] if self.is_depthwise else self.kernel[3]


def _blocks() -> Iterator[tuple[_ConvolutionSpec, ...]]:
  """Lists the layers block by block; a block may have a skip connection."""
  channels = _FIRST_CHANNELS
  yield (_ConvolutionSpec('first', (3, 3, 3, channels), stride=2),)
  i = 0
  for expansion, outputs, repeats, first_stride in _STAGES:
    for stride in (first_stride, *[1] * (repeats - 1)):
      inner = expansion * channels
      layers = (
        _ConvolutionSpec(f'block{i}_expand', (1, 1, channels, inner)),
        _ConvolutionSpec(f'block{i}_depthwise', (3, 3, inner, 1), stride),
        _ConvolutionSpec(
          f'block{i}_project', (1, 1, inner, outputs), activated=False
        ),
      )
      yield layers if expansion > 1 else layers[1:]
      channels = outputs
      i += 1
  yield (_ConvolutionSpec('last', (1, 1, channels, _LAST_CHANNELS)),)


_BLOCKS = tuple(_blocks())
_LAYERS = tuple(layer for block in _BLOCKS for layer in block)


def _apply(
  layer: _ConvolutionSpec,
  weights: models.Weights,
  x: tf.Tensor,
  num_groups: int,
) -> tf.Tensor:
  """Applies a convolution, its normalization and its activation."""
  kernel = weights[f'{layer.name}_kernel']
  if layer.is_depthwise:
    strides = [1, layer.stride, layer.stride, 1]
    x = tf.nn.depthwise_conv2d(x, kernel, strides, 'SAME')
  else:
    x = tf.nn.conv2d(x, kernel, layer.stride, 'SAME')
  x = layers.group_norm(weights, layer.name, x, num_groups, _EPSILON)
  return tf.nn.relu6(x) if layer.activated else x


@dataclasses.dataclass(frozen=True)
class MobileNetV2(models.Classifier):
  """TFF's `create_mobilenet_v2`: 4,821,740 weights for 2,028 classes.

  Its examples are {'x': [image_size, image_size, 3] uint8, 'y': [] int32}; it
  represents one by the mean over the places of the last convolution, of width
  1,280.

  Attributes:
    num_classes: The number of classes.
    image_size: The height and the width of the images.
    num_groups: The number of groups of channels that are normalized together;
      the default is Motley's.
  """

  num_classes: int
  image_size: int = 128
  num_groups: int = 8

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    image = tf.TensorSpec([self.image_size, self.image_size, 3], tf.uint8)
    return collections.OrderedDict(x=image, y=tf.TensorSpec([], tf.int32))

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      models.ENCODER: tuple(
        f'{layer.name}_{weight}'
        for layer in _LAYERS
        for weight in ('kernel', 'scale', 'offset')
      ),
      models.HEAD: ('output_kernel', 'output_bias'),
    }

  def init(self, seed: tf.Tensor) -> models.Weights:
    seeds = tf.random.experimental.stateless_split(seed, len(_LAYERS) + 1)
    weights = collections.OrderedDict()
    for i, layer in enumerate(_LAYERS):
      weights[f'{layer.name}_kernel'] = layers.glorot_uniform(
        seeds[i], layer.kernel
      )
      weights[f'{layer.name}_scale'] = tf.ones([layer.channels])
      weights[f'{layer.name}_offset'] = tf.zeros([layer.channels])
    weights['output_kernel'] = layers.glorot_uniform(
      seeds[-1], [_LAST_CHANNELS, self.num_classes]
    )
    weights['output_bias'] = tf.zeros([self.num_classes])
    return weights

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = layers.scale_bytes(batch['x'])
    for block in _BLOCKS:
      before = x
      for layer in block:
        x = _apply(layer, weights, x, self.num_groups)
      if x.shape == before.shape:
        x += before
    return tf.reduce_mean(x, axis=[1, 2])

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return layers.dense(weights, 'output', features)
