"""The contract of language models, which GPT-2 and Llama fulfil.

A language model is pure functions of its weights, like `models.Model`. It
represents the words of sentences, and its last layer scores the next word.
"""

import abc
from collections.abc import Mapping, Sequence
import dataclasses
import math
import types
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from tasks.models import layers
from tasks.models import models


class LowRank(NamedTuple):
  """An adapter of a matrix: what is added to its products with rows.

  Attributes:
    down: `[inputs, rank]`, or `[blocks, inputs, rank]` for all blocks.
    up: `[rank, outputs]`, or `[blocks, rank, outputs]`.
  """

  down: tf.Tensor
  up: tf.Tensor


# The adapters of some matrices of a block, or of all blocks, by their names.
Adapters: TypeAlias = Mapping[str, LowRank]


@dataclasses.dataclass(frozen=True)
class LanguageModel(abc.ABC):
  """A language model of some sizes, as functions of its weights.

  Attributes:
    vocabulary_size: The number of words.
    num_positions: The largest number of words, including the prefix.
    width: The width of the embeddings and between the blocks.
    num_blocks: The number of blocks.
    num_heads: The number of heads of the attention.
  """

  vocabulary_size: int
  num_positions: int
  width: int
  num_blocks: int
  num_heads: int

  @property
  @abc.abstractmethod
  def embedding(self) -> str:
    """The name of the weight with the embedding of each word in a row."""

  @property
  def head(self) -> str:
    """The name of the weight of the last layer, with a row for each word."""
    return self.embedding

  @property
  @abc.abstractmethod
  def matrices(self) -> Mapping[str, tuple[int, int]]:
    """The inputs and outputs of the matrices of a block, by their names."""

  @property
  @abc.abstractmethod
  def shapes(self) -> Mapping[str, tuple[int, ...]]:
    """The shape of each weight."""

  def encode(
    self,
    weights: models.Weights,
    words: tf.Tensor,
    prefix: tf.Tensor | None = None,
    is_word: tf.Tensor | None = None,
    adapters: Adapters = types.MappingProxyType({}),
  ) -> tf.Tensor:
    """Represents the words of sentences.

    Args:
      weights: The weights.
      words: The numbers of the words, from 0 on, `[batch, time]`.
      prefix: The vectors before each sentence, `[batch, length, width]`.
      is_word: False for padding, `[batch, time]`. Padding comes after the
        words, takes next to no time, and is represented by zeros.
      adapters: The adapters of all blocks.

    Returns:
      The representation from which the next word is scored, `[batch, time,
      width]`.
    """
    x = layers.look_up(weights[self.embedding], words)
    if prefix is not None:
      x = tf.concat([prefix, x], axis=1)
    time = x.shape[1]
    x = tf.reshape(self.add_positions(weights, x), [-1, self.width])
    places = Places.find(
      is_word, time - words.shape[1], tf.shape(x, tf.int64)[0]
    )
    of_blocks = divide_adapters(adapters, self.num_blocks)
    x = self.run_blocks(weights, places.gather(x), of_blocks, places, time)
    x = tf.reshape(places.scatter(x), [-1, time, self.width])
    return x[:, time - words.shape[1] :]

  def add_positions(self, weights: models.Weights, x: tf.Tensor) -> tf.Tensor:
    """Adds what positions have to embeddings; by default nothing.

    Args:
      weights: The weights.
      x: The embeddings, `[batch, time, width]`.
    """
    del weights
    return x

  @abc.abstractmethod
  def run_blocks(
    self,
    weights: models.Weights,
    x: tf.Tensor,
    adapters: Sequence[Adapters],
    places: 'Places',
    time: int,
  ) -> tf.Tensor:
    """Runs all blocks and the last normalization.

    Args:
      weights: The weights.
      x: The rows of words.
      adapters: The adapters of each block.
      places: The places of the words.
      time: The number of places of a sentence.

    Returns:
      The rows from which next words are scored.
    """


def divide_adapters(adapters: Adapters, num_blocks: int) -> Sequence[Adapters]:
  """Returns the adapters of each block."""
  of_blocks: list[dict[str, LowRank]] = [{} for _ in range(num_blocks)]
  for matrix, adapter in adapters.items():
    factors = zip(tf.unstack(adapter.down), tf.unstack(adapter.up))
    for of_block, (down, up) in zip(of_blocks, factors):
      of_block[matrix] = LowRank(down, up)
  return of_blocks


def add_change(
  y: tf.Tensor, adapters: Adapters, matrix: str, x: tf.Tensor
) -> tf.Tensor:
  """Adds an adapter's change to y, the product of a matrix of a block and x."""
  if matrix not in adapters:
    return y
  adapter = adapters[matrix]
  return y + tf.matmul(tf.matmul(x, adapter.down), adapter.up)


class Places(NamedTuple):
  """The places of words among those of sentences that are padded.

  One row a word: a product with a kernel is then one of two matrices, and so is
  its gradient, and padding is left out of it.

  Attributes:
    found: The places of the words, `[words, 1]`; None if nothing is padding.
    number: The number of all places.
  """

  found: tf.Tensor | None
  number: tf.Tensor

  @classmethod
  def find(
    cls, is_word: tf.Tensor | None, prefix_length: int, number: tf.Tensor
  ) -> 'Places':
    """Finds the places; those of a prefix before each sentence count, too."""
    if is_word is None:
      return cls(None, number)
    before = [[0, 0], [prefix_length, 0]]
    is_row = tf.pad(is_word, before, constant_values=True)
    return cls(tf.where(tf.reshape(is_row, [-1])), number)

  def gather(self, rows: tf.Tensor) -> tf.Tensor:
    """Takes the rows of words from the rows of all places."""
    return rows if self.found is None else tf.gather_nd(rows, self.found)

  def scatter(self, rows: tf.Tensor) -> tf.Tensor:
    """Puts the rows of words in their places, with zeros elsewhere."""
    if self.found is None:
      return rows
    return tf.scatter_nd(
      self.found, rows, tf.stack([self.number, rows.shape[1]])
    )


def attend(
  query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, groups: int = 1
) -> tf.Tensor:
  """Mixes the values of each word and those before it.

  Args:
    query: `[batch, heads, groups * time, width of a head]`.
    key: `[batch, heads, time, width of a head]`.
    value: The same.
    groups: The number of queries of a word that share a key; those of a group
      come one after another in time.

  Returns:
    The mixtures, of the shape of the query.
  """
  time = key.shape[2]
  scores = tf.matmul(query, key, transpose_b=True)
  scores *= 1 / math.sqrt(key.shape[3])
  later = tf.linalg.band_part(tf.ones([time, time]), -1, 0) - 1
  later = tf.tile(later, [groups, 1])
  return tf.matmul(tf.nn.softmax(scores + 1e9 * later), value)
