"""ResNet-18 for small photos, with group or batch normalization.

He et al. 2016: a first convolution, four stages of two blocks of two 3x3
convolutions each, a mean over the places, and a dense layer. Each stage after
the first halves the size and doubles the channels. As is usual for photos of
32x32, the first convolution is 3x3 and nothing is pooled after it. With 16
channels in the first stage it has 701,466 weights for ten classes, with 64, as
published, 11,173,962. Its weights start as PyTorch's do in a ResNet.
"""

import collections
from collections.abc import Iterator, Mapping
import dataclasses
import math

import tensorflow as tf

from tasks.models import layers
from tasks.models import models
from tasks.models import normalization

_STAGES, _BLOCKS = 4, 2


@dataclasses.dataclass(frozen=True)
class _Block:
  """Two convolutions with a way around them.

  Attributes:
    name: The prefix of the names of its weights.
    inputs: The number of channels of its input.
    channels: The number of channels of its output.
    stride: The stride of the first convolution, and of the way around.
  """

  name: str
  inputs: int
  channels: int
  stride: int

  @property
  def kernels(self) -> Mapping[str, tuple[int, ...]]:
    """The shapes of its kernels; each is followed by a normalization."""
    shapes = collections.OrderedDict()
    shapes[f'{self.name}_first'] = 3, 3, self.inputs, self.channels
    shapes[f'{self.name}_second'] = 3, 3, self.channels, self.channels
    if self.inputs != self.channels:
      shapes[f'{self.name}_around'] = 1, 1, self.inputs, self.channels
    return shapes


@dataclasses.dataclass(frozen=True)
class ResNet(models.Classifier, normalization.NormalizedModel):
  """ResNet-18 for small photos.

  Its examples are {'x': [size, size, channels] uint8, 'y': [] int32}; it
  represents one by the mean of the last stage over the places, of 8 times the
  `width`.

  Attributes:
    num_classes: The number of classes.
    shape: The shape of a photo.
    width: The number of channels of the first stage.
  """

  num_classes: int = 10
  shape: tuple[int, int, int] = (32, 32, 3)
  width: int = 16

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec(self.shape, tf.uint8), y=tf.TensorSpec([], tf.int32)
    )

  def _blocks(self) -> Iterator[_Block]:
    inputs = self.width
    for stage in range(_STAGES):
      channels = self.width * 2**stage
      for block in range(_BLOCKS):
        stride = 2 if stage and not block else 1
        yield _Block(f'block{stage + 1}_{block + 1}', inputs, channels, stride)
        inputs = channels

  @property
  def _kernels(self) -> Mapping[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = collections.OrderedDict()
    shapes['stem'] = 3, 3, self.shape[-1], self.width
    for block in self._blocks():
      shapes.update(block.kernels)
    return shapes

  @property
  def norm_channels(self) -> Mapping[str, int]:
    return {layer: shape[-1] for layer, shape in self._kernels.items()}

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      models.ENCODER: tuple(f'{layer}_kernel' for layer in self._kernels),
      **self.norm_parts(),
      models.HEAD: ('output_kernel', 'output_bias'),
    }

  def init(self, seed: tf.Tensor) -> models.Weights:
    shapes = self._kernels
    seeds = tf.random.experimental.stateless_split(seed, len(shapes) + 2)
    weights = collections.OrderedDict()
    for i, (layer, shape) in enumerate(shapes.items()):
      # He et al. 2015, by the number of outputs.
      deviation = math.sqrt(2 / (math.prod(shape[:-2]) * shape[-1]))
      kernel = tf.random.stateless_normal(shape, seeds[i])
      weights[f'{layer}_kernel'] = deviation * kernel
    weights.update(self.init_norm())
    width = self.width * 2 ** (_STAGES - 1)
    head = layers.fan_in_layers(
      seeds[-2:], {'output': (width, self.num_classes)}
    )
    return collections.OrderedDict(weights, **head)

  def represent(
    self,
    weights: models.Weights,
    batch: models.Batch,
    normalize: normalization.Normalize,
  ) -> tf.Tensor:
    def convolve(layer: str, x: tf.Tensor, stride: int = 1) -> tf.Tensor:
      kernel = weights[f'{layer}_kernel']
      if stride == 1:
        return normalize(layer, tf.nn.conv2d(x, kernel, 1, 'SAME'))
      if kernel.shape[0] == 1:
        x = x[:, ::2, ::2]
        return normalize(layer, tf.nn.conv2d(x, kernel, 1, 'VALID'))
      # PyTorch's padding, but for what no window reaches. A convolution that
      # pads by itself has gradients that take twice as long.
      around = [[1, size % 2] for size in x.shape[1:3]]
      x = tf.pad(x, [[0, 0], *around, [0, 0]])
      return normalize(layer, tf.nn.conv2d(x, kernel, 2, 'VALID'))

    x = tf.nn.relu(convolve('stem', layers.scale_bytes(batch['x'])))
    for block in self._blocks():
      y = tf.nn.relu(convolve(f'{block.name}_first', x, block.stride))
      y = convolve(f'{block.name}_second', y)
      if f'{block.name}_around' in block.kernels:
        x = convolve(f'{block.name}_around', x, block.stride)
      x = tf.nn.relu(x + y)
    return tf.reduce_mean(x, [1, 2])

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return layers.dense(weights, 'output', features)
