"""Models of what a user likes, with the user's vector as input (FedEmbed).

Silva et al. 2022, "FedEmbed: personalized private federated learning", appendix
B. The user's vector e is an input twice: it is the diagonal of a second channel
of the image, and it is appended to the output of the encoder. Weights are
initialized as in PyTorch.
"""

import abc
import collections
from collections.abc import Mapping
import dataclasses

import tensorflow as tf

from base import errors
from tasks.models import layers
from tasks.models import metrics
from tasks.models import models

_EPSILON = 1e-5  # PyTorch's, for layer normalization.
ACTIVATIONS = ('none', 'relu')
# Padding as in PyTorch; 'SAME' pads only at the end if strides are two.
_ONE_AROUND = [[0, 0], [1, 1], [1, 1], [0, 0]]
_ONE_ABOVE_AND_BELOW = [[0, 0], [1, 1], [0, 0], [0, 0]]


def _convolve(
  weights: models.Weights, layer: str, x: tf.Tensor, padding: layers.Padding
) -> tf.Tensor:
  """Convolves images with the kernel of a layer, of stride 2."""
  kernel, bias = weights[f'{layer}_kernel'], weights[f'{layer}_bias']
  return layers.convolve(kernel, bias, x, padding, 2)


class ClassifierWithF1(models.Classifier):
  """A classifier with the metric 'macro_f1', the mean F1 of all labels."""

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {**super().metrics, 'macro_f1': metrics.MACRO_F1}

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    statistics = super().prediction_statistics(predicted, batch)
    true = tf.one_hot(batch['y'], self.num_classes)
    found = tf.one_hot(predicted, self.num_classes)
    statistics['macro_f1'] = true[:, :, tf.newaxis] * found[:, tf.newaxis, :]
    return statistics


@dataclasses.dataclass(frozen=True)
class PreferenceModel(ClassifierWithF1):
  """A model of whether a user likes an image; images have types.

  Its examples are {'x': [height, width, 1] float32, 'y': [] int32, 1 if the
  user likes it, 'type': [] int32}.

  Attributes:
    types: The number of types.
    vector_size: The size of the user's vector; 0 for none.
    activation: The activation after each layer normalization but the last:
      'relu', or 'none' as in the paper.
  """

  types: int
  vector_size: int = 0
  activation: str = 'none'
  num_classes: int = dataclasses.field(default=2, init=False)

  @property
  @abc.abstractmethod
  def _shape(self) -> tuple[int, int]:
    """The height and the width of an image."""

  @property
  @abc.abstractmethod
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    """The shape of each layer's kernel, in the order of the layers."""

  @property
  @abc.abstractmethod
  def _norm_shapes(self) -> Mapping[str, tuple[int, ...]]:
    """The shape of each layer normalization."""

  @abc.abstractmethod
  def _represent(self, weights: models.Weights, first: tf.Tensor) -> tf.Tensor:
    """Represents examples, given the output of the first convolution."""

  @abc.abstractmethod
  def _convolve_first(
    self, kernel: tf.Tensor, bias: tf.Tensor, x: tf.Tensor
  ) -> tf.Tensor:
    """Applies the first convolution to some channels of images."""

  @property
  def num_types(self) -> int:
    return self.types

  def add_vector(self, size: int = 0) -> models.Model:
    """Returns the model with a vector, by default of the images' height."""
    most = min(self._shape)
    if size > most:
      raise errors.UserError(
        f'A vector of {size} does not fit on the diagonal of images of'
        f' {self._shape[0]} x {self._shape[1]}. Set a size of at most {most}.'
      )
    return dataclasses.replace(self, vector_size=size or most)

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([*self._shape, 1]),
      y=tf.TensorSpec([], tf.int32),
      type=tf.TensorSpec([], tf.int32),
    )

  @property
  def _channels(self) -> int:
    return 2 if self.vector_size else 1

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    kernels = [
      f'{layer}_{weight}'
      for layer in self._kernel_shapes
      for weight in ('kernel', 'bias')
    ]
    norms = [
      f'{layer}_{weight}'
      for layer in self._norm_shapes
      for weight in ('scale', 'offset')
    ]
    parts = {
      models.ENCODER: (*kernels[:-2], *norms),
      models.HEAD: tuple(kernels[-2:]),
    }
    return {models.CLIENT: ('vector',), **parts} if self.vector_size else parts

  def init(self, seed: tf.Tensor) -> models.Weights:
    shapes = self._kernel_shapes
    seeds = tf.random.experimental.stateless_split(seed, 2 * len(shapes) + 1)
    weights = layers.fan_in_layers(seeds, shapes)
    for layer, shape in self._norm_shapes.items():
      weights[f'{layer}_scale'] = tf.ones(shape)
      weights[f'{layer}_offset'] = tf.zeros(shape)
    if self.vector_size:
      weights['vector'] = tf.random.stateless_uniform(
        [self.vector_size], seeds[-1]
      )
    return weights

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x, kernel, bias = batch['x'], weights['conv1_kernel'], weights['conv1_bias']
    if not self.vector_size:
      return self._represent(weights, self._convolve_first(kernel, bias, x))
    e = weights['vector']
    height, width = self._shape
    rest = [[0, height - self.vector_size], [0, width - self.vector_size]]
    diagonal = tf.pad(tf.linalg.diag(e), rest)[tf.newaxis, :, :, tf.newaxis]
    # The second channel is the same for all examples, so that it is convolved
    # once; the bias is added with the first.
    first = self._convolve_first(kernel[:, :, :1], bias, x)
    first += self._convolve_first(
      kernel[:, :, 1:], tf.zeros_like(bias), diagonal
    )
    features = self._represent(weights, first)
    vectors = tf.broadcast_to(e, [tf.shape(x)[0], self.vector_size])
    return tf.concat([features, vectors], axis=1)

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return layers.dense(weights, 'output', features)

  def _normalize(
    self, weights: models.Weights, layer: str, x: tf.Tensor, last: bool = False
  ) -> tf.Tensor:
    x = layers.layer_norm(weights, layer, x, _EPSILON)
    return tf.nn.relu(x) if self.activation == 'relu' and not last else x


@dataclasses.dataclass(frozen=True)
class DigitPreference(PreferenceModel):
  """The network for MNIST, appendix B.1.

  Its encoder has 114,896 weights with a vector of 28, and 114,752 without.
  """

  @property
  def _shape(self) -> tuple[int, int]:
    return 28, 28

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    return collections.OrderedDict(
      conv1=(3, 3, self._channels, 16),
      conv2=(3, 3, 16, 32),
      conv3=(7, 7, 32, 64),
      output=(64 + self.vector_size, self.num_classes),
    )

  @property
  def _norm_shapes(self) -> Mapping[str, tuple[int, ...]]:
    return collections.OrderedDict(
      norm1=(14, 14, 16), norm2=(7, 7, 32), norm3=(64,)
    )

  def _convolve_first(
    self, kernel: tf.Tensor, bias: tf.Tensor, x: tf.Tensor
  ) -> tf.Tensor:
    return layers.convolve(kernel, bias, x, _ONE_AROUND, 2)

  def _represent(self, weights: models.Weights, first: tf.Tensor) -> tf.Tensor:
    x = self._normalize(weights, 'norm1', first)
    x = _convolve(weights, 'conv2', x, _ONE_AROUND)
    x = self._normalize(weights, 'norm2', x)
    # The kernel is as large as the image.
    kernel = tf.reshape(weights['conv3_kernel'], [-1, 64])
    x = tf.reshape(x, [-1, kernel.shape[0]]) @ kernel + weights['conv3_bias']
    return self._normalize(weights, 'norm3', x, last=True)


@dataclasses.dataclass(frozen=True)
class SpeechPreference(PreferenceModel):
  """The network for spectrograms of 200 x 375, appendix B.2.

  The printed shapes need a padding of 1 in the height of the first convolution,
  which is not printed. Its encoder has 243,344 weights with a vector of 200.
  """

  @property
  def _shape(self) -> tuple[int, int]:
    return 200, 375

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    return collections.OrderedDict(
      conv1=(3, 5, self._channels, 16),
      conv2=(5, 5, 16, 32),
      conv3=(3, 2, 32, 64),
      dense=(3 * 3 * 64, 256),
      output=(256 + self.vector_size, self.num_classes),
    )

  @property
  def _norm_shapes(self) -> Mapping[str, tuple[int, ...]]:
    return collections.OrderedDict(
      norm1=(50, 41, 16), norm2=(7, 6, 32), norm3=(3, 3, 64), norm4=(256,)
    )

  def _convolve_first(
    self, kernel: tf.Tensor, bias: tf.Tensor, x: tf.Tensor
  ) -> tf.Tensor:
    # Padded before, as with padding in the convolution TensorFlow uses a kernel
    # for its gradient that takes ten times as long here.
    x = tf.pad(x, _ONE_ABOVE_AND_BELOW)
    # A mean is linear, so that it can be computed for each channel separately.
    return layers.convolve_and_average(kernel, bias, x, (2, 3), (2, 3))

  def _represent(self, weights: models.Weights, first: tf.Tensor) -> tf.Tensor:
    x = self._normalize(weights, 'norm1', first)
    kernel, bias = weights['conv2_kernel'], weights['conv2_bias']
    x = layers.convolve_and_average(kernel, bias, x, (2, 2), (3, 3))
    x = self._normalize(weights, 'norm2', x)
    x = _convolve(weights, 'conv3', x, 'VALID')
    x = self._normalize(weights, 'norm3', x)
    x = tf.reshape(x, [-1, self._kernel_shapes['dense'][0]])
    x = layers.dense(weights, 'dense', x)
    return self._normalize(weights, 'norm4', x, last=True)
