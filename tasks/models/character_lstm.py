"""The character-aware LSTM for next-word prediction of Kim et al. 2016.

A word is represented by its characters, so that words of similar spelling are
similar from the start:

  C_k      the embeddings of the word's characters, side by side
  y_w[j]   = max_i tanh(<C[i : i + w], H_(w,j)> + b_(w,j)), for each width w and
             each of its filters j                          (equations 5 and 6)
  z        = t * relu(W_H y + b_H) + (1 - t) * y,
             t = sigmoid(W_T y + b_T): the highway          (equation 8)

z, for each word of a sentence, goes through a stack of LSTMs, and the next word
is a softmax of the last one's output. There is no dropout (.5 in the paper):
the loss of a `Model` is a pure function of weights and batch.

The table of the characters of each word is no weight: it is in `Model.frozen`.
Words are numbered as in `next_word`.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.models import layers
from tasks.models import lstm
from tasks.models import models
from tasks.models import next_word

SPELLING = 'spelling'
# Marks around the characters of a word.
_WORD_BEGINS, _WORD_ENDS = 1, 2


def spell(
  words: Sequence[str], word_length: int, num_oov_buckets: int = 1
) -> tuple[np.ndarray, int]:
  """Spells each word of a vocabulary, and the special words.

  Args:
    words: The vocabulary.
    word_length: The largest number of characters of a word; others are cut off.
    num_oov_buckets: The number of words that stand for unknown words.

  Returns:
    The characters of each word between two marks, `[words, word_length + 2]`,
    from 1 on and 0 for padding, where each special word is one special
    character; and the number of characters.
  """
  num_special = 3 + num_oov_buckets
  letters = sorted({letter for word in words for letter in word[:word_length]})
  first = _WORD_ENDS + num_special + 1
  numbers = {letter: i for i, letter in enumerate(letters, first)}
  table = np.zeros([len(words) + num_special, word_length + 2], np.int32)
  for row, word in zip(table[1:], words):
    inner = [numbers[letter] for letter in word[:word_length]]
    row[: len(inner) + 2] = [_WORD_BEGINS, *inner, _WORD_ENDS]
  special = [0, *range(len(words) + 1, len(table))]
  table[special, 0] = _WORD_ENDS + 1 + np.arange(num_special)
  return table, first - 1 + len(letters)


@dataclasses.dataclass(frozen=True)
class CharacterLstm(next_word.NextWordModel):
  """The model of Kim et al. 2016, as in group-personalized FL (Liu et al.).

  By default it has the sizes of the latter: words of width 100 (here by the
  rule of Kim et al. that there are min(25, 5 w) filters of width w = 1, …, 6)
  and two LSTMs of 512 units.

  Each word of a batch is computed from its characters, even if it occurs twice.
  This has static shapes, and takes 8 ms of a step, where all 5,000 words of a
  vocabulary take 200 ms (on one core, 320 words in a batch).

  A window of characters starts within the word, and ends in zeros if it is
  wider than the rest of the word. So padding changes nothing.

  It represents a word by the output of the last LSTM.

  Attributes:
    num_characters: The number of characters.
    character_size: The size of a character's embedding.
    filters: The number of filters of width 1, 2, …; their sum is the width of
      a word.
    num_highways: The number of highway layers.
    lstm_size: The number of units of each LSTM.
    num_lstms: The number of LSTMs.
  """

  vocabulary_size: int = 33_000
  num_characters: int = dataclasses.field(default=100, kw_only=True)
  character_size: int = dataclasses.field(default=15, kw_only=True)
  filters: tuple[int, ...] = dataclasses.field(
    default=(5, 10, 15, 20, 25, 25), kw_only=True
  )
  num_highways: int = dataclasses.field(default=1, kw_only=True)
  lstm_size: int = dataclasses.field(default=512, kw_only=True)
  num_lstms: int = dataclasses.field(default=2, kw_only=True)

  @classmethod
  def create(
    cls, words: Sequence[str], word_length: int = 16, **sizes: Any
  ) -> 'CharacterLstm':
    """Makes a model of these words; `sizes` are further fields."""
    table, num_characters = spell(words, word_length)
    return cls(
      len(words),
      num_characters=num_characters,
      frozen=collections.OrderedDict({SPELLING: table}),
      **sizes,
    )

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      models.ENCODER: tuple(self._encoder_shapes),
      models.HEAD: ('output_kernel', 'output_bias'),
    }

  @property
  def _encoder_shapes(self) -> Mapping[str, tuple[int, ...]]:
    """The shape of each weight of the encoder, in the order of the layers."""
    width, units = sum(self.filters), self.lstm_size
    shapes: dict[str, tuple[int, ...]] = {
      'characters': (self.num_characters, self.character_size)
    }
    for w, number in enumerate(self.filters, 1):
      shapes[f'filters_{w}_kernel'] = (w * self.character_size, number)
    shapes['filters_bias'] = (width,)
    for i in range(self.num_highways):
      for layer in (f'highway_{i}', f'highway_{i}_gate'):
        shapes[f'{layer}_kernel'] = (width, width)
        shapes[f'{layer}_bias'] = (width,)
    for i in range(self.num_lstms):
      shapes[f'lstm_{i}_kernel'] = (units if i else width, 4 * units)
      shapes[f'lstm_{i}_recurrent_kernel'] = (units, 4 * units)
      shapes[f'lstm_{i}_bias'] = (4 * units,)
    return shapes

  def init(self, seed: tf.Tensor) -> models.Weights:
    shapes = {
      **self._encoder_shapes,
      'output_kernel': (self.lstm_size, self.num_words),
      'output_bias': (self.num_words,),
    }
    seeds = tf.random.experimental.stateless_split(seed, len(shapes))

    def start(i: int, name: str, shape: tuple[int, ...]) -> tf.Tensor:
      if name == 'characters':
        return tf.random.stateless_uniform(shape, seeds[i], -0.05, 0.05)
      if name.endswith('recurrent_kernel'):
        return layers.orthogonal(seeds[i], *shape)
      if name.endswith('kernel'):
        return layers.glorot_uniform(seeds[i], shape)
      if name.startswith('lstm'):
        # The forget gate is open at the start.
        return tf.repeat([0.0, 1.0, 0.0, 0.0], self.lstm_size)
      # At the start, a highway passes its input on, as in Kim et al.
      return tf.fill(shape, -2.0 if name.endswith('gate_bias') else 0.0)

    return collections.OrderedDict(
      (name, start(i, name, shape))
      for i, (name, shape) in enumerate(shapes.items())
    )

  def _convolve(self, weights: models.Weights, spelled: tf.Tensor) -> tf.Tensor:
    """Applies all filters to words, `[words, length]` to `[words, width]`.

    The filters of all widths are one product: windows have the largest width,
    and narrower kernels end in zeros. A convolution takes longer.

    Args:
      weights: The weights.
      spelled: The words' characters.

    Returns:
      y; tanh is applied after the maximum, as it is monotone.
    """
    length, widest = spelled.shape[1], len(self.filters)
    # Row 0 is for padding.
    table = tf.pad(weights['characters'], [[1, 0], [0, 0]])
    x = layers.look_up(table, tf.reshape(spelled, [-1]))
    x = tf.reshape(x, [-1, length, self.character_size])
    x = tf.pad(x, [[0, 0], [0, widest - 1], [0, 0]])
    windows = tf.concat([x[:, i : i + length] for i in range(widest)], axis=2)
    rows = widest * self.character_size
    kernel = tf.concat(
      [
        tf.pad(kernel, [[0, rows - kernel.shape[0]], [0, 0]])
        for kernel in (
          weights[f'filters_{w}_kernel'] for w in range(1, widest + 1)
        )
      ],
      axis=1,
    )
    y = tf.matmul(tf.reshape(windows, [-1, rows]), kernel)
    y = tf.reshape(y, [-1, length, kernel.shape[1]])
    starts_in_word = tf.not_equal(spelled, 0)[:, :, tf.newaxis]
    y = tf.reduce_max(tf.where(starts_in_word, y, y.dtype.min), axis=1)
    return tf.tanh(y + weights['filters_bias'])

  def _represent(
    self, weights: models.Weights, spelled: tf.Tensor
  ) -> tf.Tensor:
    """Represents words by their characters, `[words, width]`."""
    y = self._convolve(weights, spelled)
    for i in range(self.num_highways):
      gate = tf.sigmoid(layers.dense(weights, f'highway_{i}_gate', y))
      changed = tf.nn.relu(layers.dense(weights, f'highway_{i}', y))
      y = gate * changed + (1 - gate) * y
    return y

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    words = tf.reshape(tf.transpose(batch['x']), [-1])
    x = self._represent(weights, tf.gather(self.frozen[SPELLING], words))
    h = tf.reshape(x, [self.sequence_length, -1, sum(self.filters)])
    for i in range(self.num_lstms):
      h = lstm.layer(weights, f'lstm_{i}', h)
    return tf.reshape(tf.transpose(h, [1, 0, 2]), [-1, self.lstm_size])

  def decide(
    self, weights: models.Weights, features: tf.Tensor
  ) -> next_word.LastLayer:
    return next_word.LastLayer(
      features, weights['output_kernel'], weights['output_bias']
    )
