"""Convolutional networks: EMNIST's of TFF, ADNI's of Motley, CIFAR-10's."""

import abc
import collections
from collections.abc import Mapping
import dataclasses

import tensorflow as tf

from tasks.models import layers
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class _ConvolutionalModel(models.Model):
  """A model of convolutions and dense layers, of which `output` is the last."""

  @property
  @abc.abstractmethod
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    """The shape of each layer's kernel, in the order of the layers."""

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    names = [
      f'{layer}_{weight}'
      for layer in self._kernel_shapes
      for weight in ('kernel', 'bias')
    ]
    return {models.ENCODER: tuple(names[:-2]), models.HEAD: tuple(names[-2:])}

  def init(self, seed: tf.Tensor) -> models.Weights:
    """As in `Model`; names, shapes and distributions are those of Keras."""
    shapes = self._kernel_shapes
    weights = collections.OrderedDict()
    seeds = tf.random.experimental.stateless_split(seed, len(shapes))
    for i, (layer, shape) in enumerate(shapes.items()):
      weights[f'{layer}_kernel'] = layers.glorot_uniform(seeds[i], shape)
      weights[f'{layer}_bias'] = tf.zeros(shape[-1:])
    return weights

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return layers.dense(weights, 'output', features)


@dataclasses.dataclass(frozen=True)
class EmnistCnn(_ConvolutionalModel, models.Classifier):
  """TFF's `cnn_dropout` for EMNIST, without its dropout.

  Two 3x3 convolutions of 32 and 64 channels, 2x2 max-pooling, a dense layer of
  128 and one of the classes: 1,206,590 weights for 62 classes. The loss of a
  `Model` is a pure function of weights and batch, hence no dropout.

  Its examples are {'x': [28, 28, 1] float32, 'y': [] int32}; it represents one
  by the dense layer before the last, of width 128.

  Attributes:
    num_classes: The number of classes; 10 for digits only.
  """

  num_classes: int = 62

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([28, 28, 1]), y=tf.TensorSpec([], tf.int32)
    )

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    return collections.OrderedDict(
      conv1=(3, 3, 1, 32),
      conv2=(3, 3, 32, 64),
      dense=(12 * 12 * 64, 128),
      output=(128, self.num_classes),
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = tf.nn.relu(layers.convolution(weights, 'conv1', batch['x'], 'VALID'))
    x = layers.convolution(weights, 'conv2', x, 'VALID')
    x = layers.relu_and_max_pool(x)
    x = tf.reshape(x, [-1, self._kernel_shapes['dense'][0]])
    return tf.nn.relu(layers.dense(weights, 'dense', x))


@dataclasses.dataclass(frozen=True)
class AdniCnn(_ConvolutionalModel, models.Regressor):
  """Motley's model for ADNI: one number from an image.

  Two 5x5 convolutions of 32 and 64 channels, each with 2x2 max-pooling, a dense
  layer of 512 and one of a single unit. Loss and metric are the squared error.

  Its examples are {'x': [32, 32, 1] float32, 'y': [] float32}; it represents
  one by the dense layer before the last.
  """

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([32, 32, 1]), y=tf.TensorSpec([])
    )

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    return collections.OrderedDict(
      conv1=(5, 5, 1, 32),
      conv2=(5, 5, 32, 64),
      dense=(8 * 8 * 64, 512),
      output=(512, 1),
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = layers.convolution(weights, 'conv1', batch['x'], 'SAME')
    x = layers.relu_and_max_pool(x)
    x = layers.convolution(weights, 'conv2', x, 'SAME')
    x = layers.relu_and_max_pool(x)
    x = tf.reshape(x, [-1, self._kernel_shapes['dense'][0]])
    return tf.nn.relu(layers.dense(weights, 'dense', x))

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return super().decide(weights, features)[:, 0]


@dataclasses.dataclass(frozen=True)
class Cifar10Cnn(_ConvolutionalModel, models.Classifier):
  """The network of PyTorch's tutorial on CIFAR-10: 62,006 weights.

  Two 5x5 convolutions of 6 and 16 channels, each with 2x2 max-pooling, and
  dense layers of 120, 84 and the ten classes.

  Its examples are {'x': [32, 32, 3] float32, 'y': [] int32}; it represents one
  by the dense layer before the last.
  """

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([32, 32, 3]), y=tf.TensorSpec([], tf.int32)
    )

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    return collections.OrderedDict(
      conv1=(5, 5, 3, 6),
      conv2=(5, 5, 6, 16),
      dense1=(5 * 5 * 16, 120),
      dense2=(120, 84),
      output=(84, 10),
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = batch['x']
    for layer in ('conv1', 'conv2'):
      x = layers.convolution(weights, layer, x, 'VALID')
      x = layers.relu_and_max_pool(x)
    x = tf.reshape(x, [-1, self._kernel_shapes['dense1'][0]])
    for layer in ('dense1', 'dense2'):
      x = tf.nn.relu(layers.dense(weights, layer, x))
    return x
