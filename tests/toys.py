"""Small models of what no task's model has: frozen weights, a client's vector.

All of them learn from examples of three features by plain SGD.
"""

import collections
from collections.abc import Mapping
import dataclasses

import numpy as np
import tensorflow as tf

from tasks.models import layers
from tasks.models import linear
from tasks.models import metrics
from tasks.models import models
from tasks.models import normalization

_NUM_FEATURES = 3
_WIDTH = 4
_VECTOR_SIZE = 2


def _pretrained() -> models.Weights:
  rng = np.random.default_rng(0)
  kernel = rng.normal(size=(_NUM_FEATURES, _WIDTH)).astype(np.float32)
  bias = rng.normal(size=_WIDTH).astype(np.float32)
  return collections.OrderedDict(pretrained_kernel=kernel, pretrained_bias=bias)


@dataclasses.dataclass(frozen=True)
class FrozenModel(linear.LinearRegression):
  """Least squares on the output of a pretrained layer.

  Its examples are {'x': [3], 'y': []}. Its own weights, all of them its head,
  are a kernel of four and a bias.
  """

  num_features: int = _NUM_FEATURES
  frozen: models.Weights = dataclasses.field(
    default_factory=_pretrained, kw_only=True, compare=False, repr=False
  )

  @property
  def _kernel_shape(self) -> list[int]:
    return [_WIDTH]

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return tf.tanh(layers.dense(self.frozen, 'pretrained', batch['x']))


@dataclasses.dataclass(frozen=True)
class VectorModel(linear.LinearRegression, models.GeneratingModel):
  """Least squares on a layer of the features and a vector of the client's own.

  Its examples are {'x': [3], 'y': []}. The vector, of size two, is the part
  'client'; the layer is the encoder. What it generates is the first two
  features that the layer makes.
  """

  num_features: int = _NUM_FEATURES

  @property
  def _kernel_shape(self) -> list[int]:
    return [_WIDTH]

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      'client': ('vector',),
      **super().parts,
      models.ENCODER: ('hidden_kernel', 'hidden_bias'),
    }

  def init(self, seed: tf.Tensor) -> models.Weights:
    seeds = tf.random.experimental.stateless_split(seed, 3)
    return collections.OrderedDict(
      vector=0.1 * tf.random.stateless_normal([_VECTOR_SIZE], seeds[0]),
      hidden_kernel=layers.glorot_uniform(
        seeds[1], [_NUM_FEATURES + _VECTOR_SIZE, _WIDTH]
      ),
      hidden_bias=tf.zeros([_WIDTH]),
      **super().init(seeds[2]),
    )

  def random_init(self, seed: tf.Tensor) -> models.Weights:
    return self.init(seed)

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x, vector = batch['x'], weights['vector']
    vectors = tf.broadcast_to(vector, [tf.shape(x)[0], _VECTOR_SIZE])
    x = tf.concat([x, vectors], axis=1)
    return tf.tanh(layers.dense(weights, 'hidden', x))

  def generate(
    self, weights: models.Weights, batch: models.Batch
  ) -> models.Weights:
    made = self.encode(weights, batch)[:, :_VECTOR_SIZE]
    return collections.OrderedDict(vector=made)


@dataclasses.dataclass(frozen=True)
class NormalizedModel(models.Regressor, normalization.NormalizedModel):
  """Least squares on a layer of normalized features, normalized once more.

  Its examples are {'x': [3], 'y': []}; the first normalization, `first`, has
  the features themselves.
  """

  norm: str = dataclasses.field(default=normalization.BATCH, kw_only=True)

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([_NUM_FEATURES]), y=tf.TensorSpec([])
    )

  @property
  def norm_channels(self) -> Mapping[str, int]:
    return collections.OrderedDict(first=_NUM_FEATURES, second=_WIDTH)

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      models.ENCODER: ('hidden_kernel',),
      **self.norm_parts(),
      models.HEAD: ('kernel', 'bias'),
    }

  def init(self, seed: tf.Tensor) -> models.Weights:
    seeds = tf.random.experimental.stateless_split(seed, 2)
    return collections.OrderedDict(
      hidden_kernel=layers.glorot_uniform(seeds[0], [_NUM_FEATURES, _WIDTH]),
      **self.init_norm(),
      kernel=tf.random.stateless_normal([_WIDTH], seeds[1]),
      bias=tf.zeros([]),
    )

  def represent(
    self,
    weights: models.Weights,
    batch: models.Batch,
    normalize: normalization.Normalize,
  ) -> tf.Tensor:
    hidden = normalize('first', batch['x']) @ weights['hidden_kernel']
    return tf.tanh(normalize('second', hidden))

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return tf.linalg.matvec(features, weights['kernel']) + weights['bias']


@dataclasses.dataclass(frozen=True)
class F1Model(linear.LogisticRegression):
  """Logistic regression of whether something is preferred, judged by its F1.

  Its examples are {'x': [3], 'y': [] int32}, 0 or 1. The statistics of its
  metric, 'macro_f1', are the counts of each true class and predicted class.
  """

  num_features: int = _NUM_FEATURES
  num_classes: int = 2

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {'macro_f1': metrics.MACRO_F1}

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    true = tf.one_hot(batch['y'], self.num_classes)
    predicted = tf.one_hot(predicted, self.num_classes)
    return collections.OrderedDict(
      macro_f1=true[:, :, tf.newaxis] * predicted[:, tf.newaxis, :]
    )


@dataclasses.dataclass(frozen=True)
class TypedModel(F1Model):
  """A layer of the features, and of a vector if there is one, before `F1Model`.

  Its examples are {'x': [3], 'y': [] int32, 'type': [] int32}. The vector is an
  input of the layer, and again beside its output.
  """

  types: int = 3
  vector_size: int = 0

  @property
  def num_types(self) -> int:
    return self.types

  def add_vector(self, size: int = 0) -> models.Model:
    return dataclasses.replace(self, vector_size=size or _VECTOR_SIZE)

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    spec = collections.OrderedDict(super().example_spec)
    return collections.OrderedDict(spec, type=tf.TensorSpec([], tf.int32))

  @property
  def _kernel_shape(self) -> list[int]:
    return [_WIDTH + self.vector_size, self.num_classes]

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    parts = {
      **super().parts,
      models.ENCODER: ('hidden_kernel', 'hidden_bias'),
    }
    return {models.CLIENT: ('vector',), **parts} if self.vector_size else parts

  def init(self, seed: tf.Tensor) -> models.Weights:
    seeds = tf.random.experimental.stateless_split(seed, 3)
    weights = collections.OrderedDict(
      hidden_kernel=layers.glorot_uniform(
        seeds[0], [_NUM_FEATURES + self.vector_size, _WIDTH]
      ),
      hidden_bias=tf.zeros([_WIDTH]),
      kernel=layers.glorot_uniform(seeds[1], self._kernel_shape),
      bias=tf.zeros([self.num_classes]),
    )
    if self.vector_size:
      weights['vector'] = tf.random.stateless_uniform(
        [self.vector_size], seeds[2]
      )
    return weights

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = batch['x']
    if not self.vector_size:
      return tf.tanh(layers.dense(weights, 'hidden', x))
    shape = [tf.shape(x)[0], self.vector_size]
    vectors = tf.broadcast_to(weights['vector'], shape)
    x = layers.dense(weights, 'hidden', tf.concat([x, vectors], axis=1))
    return tf.concat([tf.tanh(x), vectors], axis=1)


@dataclasses.dataclass(frozen=True)
class SignModel(linear.LogisticRegression):
  """Whether a number is above zero, from a layer of the features.

  Its examples are {'x': [3], 'y': []}, those of a regression.
  """

  num_features: int = _NUM_FEATURES
  num_classes: int = 2

  @property
  def _label(self) -> tf.TensorSpec:
    return tf.TensorSpec([])

  @property
  def num_values(self) -> Mapping[str, int]:
    return {}

  @property
  def _kernel_shape(self) -> list[int]:
    return [_WIDTH, self.num_classes]

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      **super().parts,
      models.ENCODER: ('hidden_kernel', 'hidden_bias'),
    }

  def init(self, seed: tf.Tensor) -> models.Weights:
    seeds = tf.random.experimental.stateless_split(seed, 2)
    kernel = layers.glorot_uniform(seeds[0], [_NUM_FEATURES, _WIDTH])
    return collections.OrderedDict(
      hidden_kernel=kernel,
      hidden_bias=tf.zeros([_WIDTH]),
      **super().random_init(seeds[1]),
    )

  def random_init(self, seed: tf.Tensor) -> models.Weights:
    return self.init(seed)

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return tf.tanh(layers.dense(weights, 'hidden', batch['x']))

  def target(self, batch: models.Batch) -> tf.Tensor:
    return tf.cast(batch['y'] > 0, tf.int32)

  def score_loss(self, scores: tf.Tensor, batch: models.Batch) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
      self.target(batch), scores
    )

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    correct = tf.cast(tf.equal(predicted, self.target(batch)), tf.float32)
    return collections.OrderedDict(accuracy=models.mean_statistics(correct))
