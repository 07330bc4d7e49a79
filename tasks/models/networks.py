"""Networks of any sizes: linear, dense and convolutional.

A network has 3x3 convolutions, each with 2x2 max-pooling, then dense layers,
and a last dense layer. With only the last layer it is a linear model.

Examples are {'x': [features] or [height, width, channels] float32, 'y': [], the
number or the class}. If examples have types, these are the feature 'type'. If
they have contexts, these are the feature 'context', and the input of the dense
layers has e = psi * phi_c appended: the product of a vector of the client and
one of the context, which FedPC has before words (see `tasks.models.prompted`).
"""

import collections
from collections.abc import Mapping
import dataclasses
import math
from typing import Literal

import tensorflow as tf

from tasks.models import layered
from tasks.models import layers
from tasks.models import models
from tasks.models import preference

# The size of e, psi and phi_c.
_VECTOR_SIZE = 16


@dataclasses.dataclass(frozen=True)
class Network(layered.LayeredModel):
  """A network; a subclass knows what it predicts.

  Attributes:
    shape: The shape of the input.
    filters: The number of filters of each convolution, for images.
    hidden: The width of each dense layer before the last.
    types: The number of types of examples; 0 if they have none.
    num_contexts: The number of contexts; 0 if there are none.
  """

  shape: tuple[int, ...]
  filters: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)
  hidden: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)
  types: int = dataclasses.field(default=0, kw_only=True)
  num_contexts: int = dataclasses.field(default=0, kw_only=True)

  @property
  def _num_outputs(self) -> int:
    return 1

  @property
  def example_gradients(self) -> Literal['in turns', 'by norms']:
    # The vectors are not in a layer that computes norms.
    return 'in turns' if self.num_contexts else 'by norms'

  @property
  def num_types(self) -> int:
    return self.types

  @property
  def context_names(self) -> tuple[str, ...]:
    return ('phi',) if self.num_contexts else ()

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    label = tf.int32 if isinstance(self, models.Classifier) else tf.float32
    spec = collections.OrderedDict(
      x=tf.TensorSpec(self.shape), y=tf.TensorSpec([], label)
    )
    if self.types:
      spec['type'] = tf.TensorSpec([], tf.int32)
    if self.num_contexts:
      spec['context'] = tf.TensorSpec([], tf.int32)
    return spec

  @property
  def num_values(self) -> Mapping[str, int]:
    contexts = {'context': self.num_contexts} if self.num_contexts else {}
    return {**super().num_values, **contexts}

  @property
  def _flat_size(self) -> int:
    """The number of inputs of the first dense layer, without e."""
    *places, channels = self.shape
    shrunk = [size // 2 ** len(self.filters) for size in places]
    return math.prod(shrunk) * (self.filters or (channels,))[-1]

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = collections.OrderedDict()
    channels = self.shape[-1]
    for k, filters in enumerate(self.filters, 1):
      shapes[f'conv{k}'] = 3, 3, channels, filters
      channels = filters
    inputs = self._flat_size + _VECTOR_SIZE * bool(self.num_contexts)
    for k, width in enumerate(self.hidden, 1):
      shapes[f'dense{k}'] = inputs, width
      inputs = width
    shapes['output'] = inputs, self._num_outputs
    return shapes

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    parts = super().parts
    if not self.num_contexts:
      return parts
    encoder = ('phi', *parts[models.ENCODER])
    return {models.CLIENT: ('psi',), **parts, models.ENCODER: encoder}

  def init(self, seed: tf.Tensor) -> models.Weights:
    """Makes initial weights; a linear model starts at zero."""
    weights = self.random_init(seed)
    if not (self.filters or self.hidden):
      weights['output_kernel'] = tf.zeros_like(weights['output_kernel'])
    return weights

  def random_init(self, seed: tf.Tensor) -> models.Weights:
    weights = super().init(seed)
    if self.num_contexts:
      seeds = tf.random.experimental.stateless_split(seed, 2)
      weights['psi'] = tf.random.stateless_uniform([_VECTOR_SIZE], seeds[0])
      weights['phi'] = tf.random.stateless_normal(
        [self.num_contexts, _VECTOR_SIZE], seeds[1]
      )
    return weights

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = batch['x']
    for k in range(1, len(self.filters) + 1):
      x = layers.convolution(weights, f'conv{k}', x, 'SAME')
      # Pooling needs even sizes.
      _, height, width, _ = x.shape
      x = layers.relu_and_max_pool(x[:, : height // 2 * 2, : width // 2 * 2])
    x = tf.reshape(x, [-1, self._flat_size])
    if self.num_contexts:
      phi = layers.look_up(weights['phi'], batch['context'])
      x = tf.concat([x, weights['psi'] * phi], axis=1)
    for k in range(1, len(self.hidden) + 1):
      x = tf.nn.relu(layers.dense(weights, f'dense{k}', x))
    return x


@dataclasses.dataclass(frozen=True)
class NetworkRegressor(Network, models.Regressor):
  """A network that predicts a number; the loss is half the squared error."""

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return super().decide(weights, features)[:, 0]

  def score_loss(self, scores: tf.Tensor, batch: models.Batch) -> tf.Tensor:
    return 0.5 * super().score_loss(scores, batch)


@dataclasses.dataclass(frozen=True)
class NetworkClassifier(Network, models.Classifier):
  """A network that predicts a class.

  Attributes:
    num_classes: The number of classes.
  """

  num_classes: int

  @property
  def _num_outputs(self) -> int:
    return self.num_classes


@dataclasses.dataclass(frozen=True)
class PreferenceNetwork(preference.ClassifierWithF1, NetworkClassifier):
  """A network that predicts whether a user likes something; has macro F1."""
