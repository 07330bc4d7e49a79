"""The transformer for next-word prediction that Motley has for TED talks.

The form is that of the transformers of google-research/federated: one layer of
an encoder (Vaswani et al. 2017) that looks back only, between a narrow
embedding and a last layer that is the same matrix.
"""

import collections
import functools
import math

import numpy as np
import tensorflow as tf

from tasks.models import initializers
from tasks.models import model as model_lib
from tasks.models import next_word

_EPSILON = 1e-6
# Of the slowest wave in the encoding of positions, over 2 pi.
_LONGEST_WAVE = 10_000


def _positions(length: int, size: int) -> np.ndarray:
  """Sines (even columns) and cosines (odd) of each position, `[length, size]`.

  Vaswani et al. 2017, section 3.5.
  """
  column = np.arange(size)
  angle = np.arange(length)[:, np.newaxis] / _LONGEST_WAVE ** (
    column // 2 * 2 / size
  )
  return np.where(column % 2, np.cos(angle), np.sin(angle)).astype(np.float32)


def _dense(weights: model_lib.Weights, layer: str, x: tf.Tensor) -> tf.Tensor:
  return tf.matmul(x, weights[f'{layer}_kernel']) + weights[f'{layer}_bias']


def _normalize(
  weights: model_lib.Weights, layer: str, x: tf.Tensor
) -> tf.Tensor:
  """Layer normalization (Ba et al. 2016)."""
  mean, variance = tf.nn.moments(x, [-1], keepdims=True)
  return tf.nn.batch_normalization(
    x,
    mean,
    variance,
    weights[f'{layer}_offset'],
    weights[f'{layer}_scale'],
    _EPSILON,
  )


@functools.cache
def next_word_transformer(
  vocabulary_size: int = 15_814,
  *,
  sequence_length: int = 20,
  num_oov_buckets: int = 1,
  embedding_size: int = 96,
  width: int = 512,
  hidden_size: int = 2048,
  num_heads: int = 8,
) -> model_lib.Model:
  """Motley's model for TedMulti: 4,769,824 weights with the default sizes.

  See `next_word` for how words are numbered, and for loss and accuracy. There
  is no dropout (.1 in Motley): the loss of a `Model` is a pure function of
  weights and batch.

  Padding comes last in a sentence and words look back only, so that no word
  that counts sees it.

  Args:
    vocabulary_size: The number of words, without the special ones.
    sequence_length: The number of words in an example.
    num_oov_buckets: The number of words that stand for unknown ones.
    embedding_size: The size of the embedding, and of what the last layer sees.
    width: The size of what the layers in between see.
    hidden_size: The number of units between the two layers that follow the
      attention.
    num_heads: The number of heads of the attention, which divide up the width.

  Returns:
    The model, of examples {'x': [sequence_length] int32, 'y': the same, one
    word later}. Its embedding of a word is what the last layer sees, of width
    `embedding_size`, as in Motley. The last layer is the matrix that words are
    looked up in, so that this is the head.
  """
  num_words = next_word.num_words(vocabulary_size, num_oov_buckets)
  dense_shapes = collections.OrderedDict(
    widen=(embedding_size, width),
    query=(width, width),
    key=(width, width),
    value=(width, width),
    attention=(width, width),
    hidden=(width, hidden_size),
    feed_forward=(hidden_size, width),
    narrow=(width, embedding_size),
  )
  positions = _positions(sequence_length, embedding_size)
  # Added to the scores before their softmax: a word sees none after it.
  not_later = -1e9 * (1 - np.tri(sequence_length, dtype=np.float32))

  def init(seed: tf.Tensor) -> model_lib.Weights:
    seeds = tf.random.experimental.stateless_split(seed, len(dense_shapes) + 1)
    weights = collections.OrderedDict(
      embedding=tf.random.stateless_uniform(
        [num_words, embedding_size], seeds[-1], -0.05, 0.05
      )
    )
    for i, (layer, shape) in enumerate(dense_shapes.items()):
      weights[f'{layer}_kernel'] = initializers.glorot_uniform(seeds[i], shape)
      weights[f'{layer}_bias'] = tf.zeros(shape[-1:])
      if layer in ('attention', 'feed_forward'):
        weights[f'{layer}_scale'] = tf.ones([width])
        weights[f'{layer}_offset'] = tf.zeros([width])
    return weights

  def attend(weights: model_lib.Weights, x: tf.Tensor) -> tf.Tensor:
    def heads(layer: str) -> tf.Tensor:
      """`[batch, heads, time, width / heads]`."""
      y = _dense(weights, layer, x)
      y = tf.reshape(y, [-1, sequence_length, num_heads, width // num_heads])
      return tf.transpose(y, [0, 2, 1, 3])

    scores = tf.matmul(heads('query'), heads('key'), transpose_b=True)
    scores = tf.nn.softmax(scores * math.sqrt(num_heads / width) + not_later)
    y = tf.transpose(tf.matmul(scores, heads('value')), [0, 2, 1, 3])
    return tf.reshape(y, [-1, width])

  def embedding(
    weights: model_lib.Weights, batch: model_lib.Batch
  ) -> tf.Tensor:
    x = next_word.look_up(weights['embedding'], batch['x'])
    x = x * math.sqrt(embedding_size) + positions
    # One row a word: a product with a kernel is then one of two matrices, and
    # so is its gradient.
    x = _dense(weights, 'widen', tf.reshape(x, [-1, embedding_size]))
    y = _dense(weights, 'attention', attend(weights, x))
    x = _normalize(weights, 'attention', x + y)
    y = tf.nn.relu(_dense(weights, 'hidden', x))
    y = _dense(weights, 'feed_forward', y)
    x = _normalize(weights, 'feed_forward', x + y)
    return _dense(weights, 'narrow', x)

  def last_layer(weights: model_lib.Weights, x: tf.Tensor) -> next_word.Layer:
    kernel = tf.transpose(weights['embedding'])
    return next_word.Layer(x, kernel, tf.zeros([num_words]))

  return next_word.next_word_model(
    vocabulary_size,
    sequence_length=sequence_length,
    num_oov_buckets=num_oov_buckets,
    init=init,
    embedding=embedding,
    last_layer=last_layer,
    head=frozenset(['embedding']),
  )
