"""The Llama form of language models as pure functions of their weights.

Touvron et al. 2023, with the shared keys of Ainslie et al. 2023; SmolLM2 and
many other models have it. For the words w_1, …, w_T of a sentence, with blocks
i = 0, 1, …,

  x = embed_tokens[w]
  x = x + attention(rms(x, input_norm)) o_proj^T
  h = rms(x, post_norm)
  x = x + (silu(h gate_proj^T) * (h up_proj^T)) down_proj^T

and the scores of the next word are rms(x, norm) lm_head^T, where

  rms(x, g) = g x / sqrt(mean(x^2) + epsilon)

Queries and keys are turned by their position p, so that only differences of
positions matter: with f_j = theta^(-2j / n) for a head of width n, the halves
(a, b) of a head become (a cos p f - b sin p f, b cos p f + a sin p f). Several
heads of the queries, one after another, share a head of keys and values. A
prefix has the first positions, and the words follow.
"""

import collections
from collections.abc import Callable, Hashable, Mapping, Sequence
import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tasks.models import language_models
from tasks.models import layers
from tasks.models import models

_NORMS = 'input_norm', 'post_norm'


@dataclasses.dataclass(frozen=True)
class Llama(language_models.LanguageModel):
  """A model of the Llama form of some sizes, as functions of its weights.

  The weights of block i are named 'h0_q_proj', …; those of the normalizations
  have one axis, and kernels are `[outputs, inputs]`, as published.

  Attributes:
    num_key_heads: The number of heads of keys and values, which divides the
      number of heads.
    head_width: The width of a head.
    hidden_width: The width between the two layers of a block's network.
    theta: The base of the frequencies by which positions turn.
    epsilon: The term that is added to the mean square.
    tied: Whether the last layer is the matrix of embeddings.
  """

  num_key_heads: int
  head_width: int
  hidden_width: int
  theta: float
  epsilon: float
  tied: bool

  @property
  def embedding(self) -> str:
    return 'embed_tokens'

  @property
  def head(self) -> str:
    return self.embedding if self.tied else 'lm_head'

  @property
  def matrices(self) -> Mapping[str, tuple[int, int]]:
    width, hidden = self.width, self.hidden_width
    own = self.num_heads * self.head_width
    shared = self.num_key_heads * self.head_width
    return {
      'q': (width, own),
      'k': (width, shared),
      'v': (width, shared),
      'o': (own, width),
      'gate': (width, hidden),
      'up': (width, hidden),
      'down': (hidden, width),
    }

  @property
  def _kernels(self) -> list[str]:
    return [f'{name}_proj' for name in self.matrices]

  @property
  def shapes(self) -> Mapping[str, tuple[int, ...]]:
    words, width = self.vocabulary_size, self.width
    shapes: dict[str, tuple[int, ...]] = collections.OrderedDict()
    shapes[self.embedding] = (words, width)
    for i in range(self.num_blocks):
      for name in _NORMS:
        shapes[f'h{i}_{name}'] = (width,)
      for name, (inputs, outputs) in zip(self._kernels, self.matrices.values()):
        shapes[f'h{i}_{name}'] = (outputs, inputs)
    shapes['norm'] = (width,)
    shapes[self.head] = (words, width)
    return shapes

  def run_blocks(
    self,
    weights: models.Weights,
    x: tf.Tensor,
    adapters: Sequence[language_models.Adapters],
    places: language_models.Places,
    time: int,
  ) -> tf.Tensor:
    run_block = _block_function(
      self, time, x.shape[0], places.found is None, tuple(adapters[0])
    )
    for i, of_block in enumerate(adapters):
      own = {
        name: weights[f'h{i}_{name}'] for name in (*_NORMS, *self._kernels)
      }
      x = run_block(x, own, of_block, places)
    return rms_norm(x, weights['norm'], self.epsilon)

  def run_block(
    self,
    x: tf.Tensor,
    weights: models.Weights,
    adapters: language_models.Adapters,
    places: language_models.Places,
    time: int,
  ) -> tf.Tensor:
    """Runs a block.

    Args:
      x: The rows of words.
      weights: The weights of the block, without 'h…_'.
      adapters: The adapters of the block.
      places: The places of the words.
      time: The number of places of a sentence.

    Returns:
      The rows for the next block.
    """

    def multiply(x: tf.Tensor, name: str) -> tf.Tensor:
      y = tf.matmul(x, weights[f'{name}_proj'], transpose_b=True)
      return language_models.add_change(y, adapters, name, x)

    h = rms_norm(x, weights['input_norm'], self.epsilon)
    q, k, v = (places.scatter(multiply(h, name)) for name in 'qkv')
    x += multiply(places.gather(self._attend(q, k, v, time)), 'o')
    h = rms_norm(x, weights['post_norm'], self.epsilon)
    h = tf.nn.silu(multiply(h, 'gate')) * multiply(h, 'up')
    return x + multiply(h, 'down')

  def _attend(
    self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, time: int
  ) -> tf.Tensor:
    """Mixes the values of each word and those before it; one row a word."""
    width, shared = self.head_width, self.num_key_heads
    groups = self.num_heads // shared

    def split_heads(rows: tf.Tensor, heads: int) -> tf.Tensor:
      return tf.reshape(rows, [-1, time, heads, width])

    def put_heads_first(x: tf.Tensor) -> tf.Tensor:
      return tf.transpose(x, [0, 2, 1, 3])

    query = put_heads_first(self._turn(split_heads(query, self.num_heads)))
    # The heads of a group have the same keys, and become further rows.
    query = tf.reshape(query, [-1, shared, groups * time, width])
    key = put_heads_first(self._turn(split_heads(key, shared)))
    value = put_heads_first(split_heads(value, shared))
    y = language_models.attend(query, key, value, groups)
    y = tf.reshape(y, [-1, self.num_heads, time, width])
    return tf.reshape(put_heads_first(y), [-1, self.num_heads * width])

  def _turn(self, x: tf.Tensor) -> tf.Tensor:
    """Turns the heads of words by position, `[batch, time, heads, width]`."""
    cos, sin = self._angles(x.shape[1])
    a, b = tf.split(x, 2, axis=3)
    return tf.concat([a * cos - b * sin, b * cos + a * sin], axis=3)

  def _angles(self, time: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cosines and sines of positions, `[time, 1, width / 2]`."""
    frequencies = self.theta ** -(
      np.arange(0, self.head_width, 2) / self.head_width
    )
    angles = np.arange(time)[:, np.newaxis, np.newaxis] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@functools.cache
def _block_function(
  sizes: Llama, time: int, *signature: Hashable
) -> Callable[..., tf.Tensor]:
  """Makes a function that is traced once, as tracing all blocks takes long.

  Args:
    sizes: The model.
    time: The number of places of a sentence.
    signature: What else the trace depends on. There is a function for each, as
      TensorFlow warns of functions that are traced several times.
  """
  del signature
  return tf.function(
    functools.partial(sizes.run_block, time=time), autograph=False
  )


def rms_norm(x: tf.Tensor, scale: tf.Tensor, epsilon: float) -> tf.Tensor:
  """Divides each row by its root mean square (Zhang and Sennrich 2019)."""

  @tf.custom_gradient
  def normalize(x: tf.Tensor) -> tuple[tf.Tensor, layers.Gradient]:
    by = tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + epsilon)
    y = x * by
    return y, lambda g: by * (g - y * tf.reduce_mean(g * y, -1, keepdims=True))

  return normalize(x) * scale
