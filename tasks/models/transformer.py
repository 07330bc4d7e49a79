"""The transformer for next-word prediction that Motley uses for TED talks.

It has the form of the transformers of google-research/federated: one causal
encoder layer (Vaswani et al. 2017), between a narrow embedding and a last layer
that is the same matrix.
"""

import collections
from collections.abc import Mapping
import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf

from tasks.models import layers
from tasks.models import models
from tasks.models import next_word

_EPSILON = 1e-6
# The wavelength over 2 pi of the slowest wave in the encoding of positions.
_LONGEST_WAVE = 10_000


def _encode_positions(length: int, size: int) -> np.ndarray:
  """Encodes each position by sines (even columns) and cosines (odd columns).

  The result is `[length, size]`. Vaswani et al. 2017, section 3.5.
  """
  column = np.arange(size)
  angle = np.arange(length)[:, np.newaxis] / _LONGEST_WAVE ** (
    column // 2 * 2 / size
  )
  return np.where(column % 2, np.cos(angle), np.sin(angle)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class NextWordTransformer(next_word.NextWordModel):
  """Motley's model for TedMulti: 4,769,824 weights with the default sizes.

  There is no dropout (.1 in Motley): the loss of a `Model` is a pure function
  of weights and batch. Padding comes last in a sentence and words attend only
  to earlier ones, so that no word that counts depends on padding.

  It represents a word by the input of the last layer, of width
  `embedding_size`, as Motley does. The last layer is the matrix of word
  embeddings. This matrix is the head, so that `encode` reads the head, too.

  Attributes:
    embedding_size: The size of the embedding and of the last layer's input.
    width: The width of the layers in between.
    hidden_size: The number of units between the two layers that follow the
      attention.
    num_heads: The number of heads of the attention, which divides the width.
  """

  vocabulary_size: int = 15_814
  embedding_size: int = dataclasses.field(default=96, kw_only=True)
  width: int = dataclasses.field(default=512, kw_only=True)
  hidden_size: int = dataclasses.field(default=2048, kw_only=True)
  num_heads: int = dataclasses.field(default=8, kw_only=True)

  @functools.cached_property
  def _dense_shapes(self) -> Mapping[str, tuple[int, int]]:
    """The shape of each dense layer's kernel, in the order of the layers."""
    width = self.width
    return collections.OrderedDict(
      widen=(self.embedding_size, width),
      query=(width, width),
      key=(width, width),
      value=(width, width),
      attention=(width, width),
      hidden=(width, self.hidden_size),
      feed_forward=(self.hidden_size, width),
      narrow=(width, self.embedding_size),
    )

  @functools.cached_property
  def _positions(self) -> np.ndarray:
    return _encode_positions(self.sequence_length, self.embedding_size)

  @functools.cached_property
  def _causal_mask(self) -> np.ndarray:
    """Added to the attention's scores: a word does not see later ones."""
    return -1e9 * (1 - np.tri(self.sequence_length, dtype=np.float32))

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    names = [
      f'{layer}_{weight}'
      for layer in self._dense_shapes
      for weight in self._weight_names(layer)
    ]
    return {models.ENCODER: tuple(names), models.HEAD: ('embedding',)}

  @property
  def encodes_by_head(self) -> bool:
    return True

  def _weight_names(self, layer: str) -> tuple[str, ...]:
    """Lists the weights of a dense layer and its normalization, if any."""
    if layer in ('attention', 'feed_forward'):
      return 'kernel', 'bias', 'scale', 'offset'
    return 'kernel', 'bias'

  def init(self, seed: tf.Tensor) -> models.Weights:
    shapes = self._dense_shapes
    seeds = tf.random.experimental.stateless_split(seed, len(shapes) + 1)
    weights = collections.OrderedDict(
      embedding=tf.random.stateless_uniform(
        [self.num_words, self.embedding_size], seeds[-1], -0.05, 0.05
      )
    )
    for i, (layer, shape) in enumerate(shapes.items()):
      start = {
        'kernel': layers.glorot_uniform(seeds[i], shape),
        'bias': tf.zeros(shape[-1:]),
        'scale': tf.ones(shape[-1:]),
        'offset': tf.zeros(shape[-1:]),
      }
      for weight in self._weight_names(layer):
        weights[f'{layer}_{weight}'] = start[weight]
    return weights

  def _attend(self, weights: models.Weights, x: tf.Tensor) -> tf.Tensor:
    """Applies the attention to the words of each sentence, as rows."""
    num_heads, width = self.num_heads, self.width
    by_head = [-1, self.sequence_length, num_heads, width // num_heads]

    def heads(layer: str) -> tf.Tensor:
      """Returns a layer's output, `[batch, heads, time, width / heads]`."""
      y = tf.reshape(layers.dense(weights, layer, x), by_head)
      return tf.transpose(y, [0, 2, 1, 3])

    scores = tf.matmul(heads('query'), heads('key'), transpose_b=True)
    scores = scores * math.sqrt(num_heads / width) + self._causal_mask
    y = tf.matmul(tf.nn.softmax(scores), heads('value'))
    return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, width])

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = layers.look_up(weights['embedding'], batch['x'])
    x = x * math.sqrt(self.embedding_size) + self._positions
    # One row a word: a product with a kernel is then one of two matrices, and
    # so is its gradient.
    x = tf.reshape(x, [-1, self.embedding_size])
    x = layers.dense(weights, 'widen', x)
    y = layers.dense(weights, 'attention', self._attend(weights, x))
    x = layers.layer_norm(weights, 'attention', x + y, _EPSILON)
    y = tf.nn.relu(layers.dense(weights, 'hidden', x))
    y = layers.dense(weights, 'feed_forward', y)
    x = layers.layer_norm(weights, 'feed_forward', x + y, _EPSILON)
    return layers.dense(weights, 'narrow', x)

  def decide(
    self, weights: models.Weights, features: tf.Tensor
  ) -> next_word.LastLayer:
    kernel = tf.transpose(weights['embedding'])
    return next_word.LastLayer(features, kernel, tf.zeros([self.num_words]))
