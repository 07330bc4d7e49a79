"""Models of layers that each have a kernel and a bias."""

import abc
import collections
from collections.abc import Mapping
from typing import Literal

import tensorflow as tf

from tasks.models import layers
from tasks.models import models


class LayeredModel(models.Model):
  """A model of convolutions and dense layers.

  The last layer, `output`, is the head; the layers before it are the encoder.
  """

  @property
  def example_gradients(self) -> Literal['in turns', 'by norms']:
    return 'by norms'

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
    """Makes initial weights; names, shapes and distributions are Keras's."""
    shapes = self._kernel_shapes
    weights = collections.OrderedDict()
    seeds = tf.random.experimental.stateless_split(seed, len(shapes))
    for i, (layer, shape) in enumerate(shapes.items()):
      weights[f'{layer}_kernel'] = layers.glorot_uniform(seeds[i], shape)
      weights[f'{layer}_bias'] = tf.zeros(shape[-1:])
    return weights

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return layers.dense(weights, 'output', features)
