"""A frozen GPT-2 with a prompt or a head that is trained (FedPC).

Silva, Tambwekar and Gombolay 2022, "FedPC: federated learning for language
generation with personal and context preference embeddings". An example is an
utterance w_1, …, w_T in a context c. Its loss is the mean of -log p(w_t) for
t = 2, …, T. In the evaluation the first words are a given prompt: metrics are
over the words after them.

All of GPT-2's weights are frozen: they are arguments of computations.
"""

import collections
from collections.abc import Mapping
import dataclasses
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from tasks.models import gpt2
from tasks.models import layers
from tasks.models import metrics
from tasks.models import models
from tasks.models import next_word


class HeadOfEach(NamedTuple):
  """Several last layers, one for each row, which replace the logits.

  Attributes:
    x: The input, `[rows, features]`.
    heads: `[heads, words, features]`.
    head_numbers: The number of the head of each row, `[rows]`.
  """

  x: tf.Tensor
  heads: tf.Tensor
  head_numbers: tf.Tensor

  def logits(self) -> tf.Tensor:
    """Returns the logits, `[rows, words]`."""
    _, words, features = self.heads.shape
    # One product for all heads, as there are few, most often one.
    of_heads = tf.matmul(
      self.x, tf.reshape(self.heads, [-1, features]), transpose_b=True
    )
    of_heads = tf.reshape(of_heads, [tf.shape(self.x)[0], -1, words])
    return tf.gather(of_heads, self.head_numbers, batch_dims=1)

  def log_likelihood(self, words: tf.Tensor) -> tf.Tensor:
    """Returns the log-probability of one word for each row, `[rows]`."""
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(words, self.logits())

  def gather(self, places: tf.Tensor) -> 'HeadOfEach':
    """Returns the layers of only the rows at some places, `[places, 1]`."""
    return self._replace(
      x=tf.gather_nd(self.x, places),
      head_numbers=tf.gather_nd(self.head_numbers, places),
    )


Scores: TypeAlias = next_word.LastLayer | HeadOfEach


@dataclasses.dataclass(frozen=True)
class FrozenGpt2(models.Model):
  """A pretrained GPT-2 without anything to train.

  Its examples are {'x': [sequence_length] int32, the words w_1, …, w_(T-1),
  'y': the words w_2, …, w_T, 'context': [] int32}. Words are numbered from 1
  on; 0 is padding, which comes last.

  Attributes:
    gpt2: The sizes of the GPT-2, whose weights are `frozen`.
    num_contexts: The number of contexts.
    sequence_length: The largest T - 1.
    prompt_length: The number of words that metrics leave out.
    most_contexts: As in `Model`.
  """

  gpt2: gpt2.Gpt2
  num_contexts: int = 1
  sequence_length: int = dataclasses.field(default=31, kw_only=True)
  prompt_length: int = dataclasses.field(default=3, kw_only=True)
  most_contexts: int | None = dataclasses.field(default=None, kw_only=True)

  @property
  def pretrained(self) -> 'FrozenGpt2':
    """The GPT-2 without a prompt and without a trained head."""
    return FrozenGpt2(
      self.gpt2,
      self.num_contexts,
      sequence_length=self.sequence_length,
      prompt_length=self.prompt_length,
      frozen=self.frozen,
    )

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    words = tf.TensorSpec([self.sequence_length], tf.int32)
    return collections.OrderedDict(
      x=words, y=words, context=tf.TensorSpec([], tf.int32)
    )

  @property
  def num_values(self) -> Mapping[str, int]:
    words = self.gpt2.vocabulary_size + 1  # With padding.
    return {'x': words, 'y': words, 'context': self.num_contexts}

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {models.ENCODER: (), models.HEAD: ()}

  def init(self, seed: tf.Tensor) -> models.Weights:
    del seed
    return collections.OrderedDict()

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return self._encode_behind(None, batch)

  def _words(self, batch: models.Batch) -> tf.Tensor:
    """Returns the numbers of w_1, …, w_(T-1) from 0 on, `[batch, time]`."""
    return tf.maximum(batch['x'] - 1, 0)

  def _encode_behind(
    self, prefix: tf.Tensor | None, batch: models.Batch
  ) -> tf.Tensor:
    """Represents the words behind prefixes, `[batch, length, width]`."""
    # A word that no other word follows is not needed.
    is_word = batch['y'] > 0
    words = self._words(batch)
    features = self.gpt2.encode(self.frozen, words, prefix, is_word)
    return tf.reshape(features, [-1, self.gpt2.width])

  def decide(self, weights: models.Weights, features: tf.Tensor) -> Scores:
    """Returns the last layer, which is the matrix of word embeddings."""
    return self._last_layer(features, self.frozen['wte'])

  def _last_layer(
    self, features: tf.Tensor, head: tf.Tensor
  ) -> next_word.LastLayer:
    bias = tf.zeros([self.gpt2.vocabulary_size])
    return next_word.LastLayer(features, tf.transpose(head), bias)

  def _places(self, batch: models.Batch) -> tf.Tensor:
    """Returns the places of the entries that are words, `[places, 1]`."""
    return tf.where(tf.reshape(batch['y'] > 0, [-1]))

  def log_likelihood(self, scores: Scores, batch: models.Batch) -> tf.Tensor:
    """Returns the log-probability of each entry's word; 0 for padding."""
    places, words = self._places(batch), self.target(batch)
    found = scores.gather(places).log_likelihood(tf.gather_nd(words, places))
    return tf.scatter_nd(places, found, tf.shape(words, tf.int64))

  def score_loss(self, scores: Scores, batch: models.Batch) -> tf.Tensor:
    of_words = self._reshape_to_examples(self.log_likelihood(scores, batch))
    is_word = self.entry_mask(batch)
    return -tf.math.divide_no_nan(
      tf.reduce_sum(is_word * of_words, axis=1), tf.reduce_sum(is_word, axis=1)
    )

  def predict(self, scores: Scores) -> tf.Tensor:
    return models.most_likely(scores.logits())

  def predict_softly(self, scores: Scores) -> tf.Tensor:
    return tf.nn.softmax(scores.logits())

  def _reshape_to_examples(self, of_entries: tf.Tensor) -> tf.Tensor:
    return tf.reshape(of_entries, [-1, self.sequence_length])

  def _is_evaluated(self, batch: models.Batch) -> tf.Tensor:
    """Returns 1 for a word after the given prompt, `[batch, time]`."""
    # The first of y is w_2.
    behind = tf.range(self.sequence_length) >= self.prompt_length - 1
    return tf.cast((batch['y'] > 0) & behind, tf.float32)

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    correct = tf.equal(predicted, self.target(batch))
    judged = self._is_evaluated(batch)
    correct = judged * tf.cast(self._reshape_to_examples(correct), tf.float32)
    return collections.OrderedDict(
      accuracy=(tf.reduce_sum(correct, axis=1), tf.reduce_sum(judged, axis=1))
    )

  def likelihood_statistics(
    self, log_likelihood: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    judged = self._is_evaluated(batch)
    # Not a product: the probability of padding may be zero.
    of_words = tf.where(
      judged > 0, self._reshape_to_examples(log_likelihood), 0.0
    )
    return collections.OrderedDict(
      perplexity=(
        -tf.reduce_sum(of_words, axis=1),
        tf.reduce_sum(judged, axis=1),
      )
    )

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {'accuracy': metrics.SHARE, 'perplexity': metrics.PERPLEXITY}

  def judge_scores(
    self, scores: Scores, batch: models.Batch
  ) -> models.Statistics:
    places = self._places(batch)
    predicted = tf.scatter_nd(
      places,
      self.predict(scores.gather(places)),
      tf.shape(self.target(batch), tf.int64),
    )
    return collections.OrderedDict(
      **self.prediction_statistics(predicted, batch),
      **self.likelihood_statistics(self.log_likelihood(scores, batch), batch),
    )

  def target(self, batch: models.Batch) -> tf.Tensor:
    """Returns the words' numbers from 0 on, `[entries]`; 0 for padding, too."""
    return tf.reshape(tf.maximum(batch['y'] - 1, 0), [-1])

  def entry_mask(self, batch: models.Batch) -> tf.Tensor:
    return tf.cast(batch['y'] > 0, tf.float32)

  def example_weight(self, batch: models.Batch) -> tf.Tensor:
    """Returns the number of predicted words of each utterance."""
    return tf.reduce_sum(self.entry_mask(batch), axis=1)


def initial_vectors(
  seed: tf.Tensor, num_contexts: int, width: int
) -> models.Weights:
  """Draws psi, uniform in [0, 1), and all phi, normal with a deviation of 1."""
  seeds = tf.random.experimental.stateless_split(seed, 2)
  return collections.OrderedDict(
    psi=tf.random.stateless_uniform([width], seeds[0]),
    phi=tf.random.stateless_normal([num_contexts, width], seeds[1]),
  )


@dataclasses.dataclass(frozen=True)
class PromptedGpt2(FrozenGpt2):
  """A frozen GPT-2 with one vector before the words, e = psi * phi_c (FedPC).

  psi is the client's vector, and phi_c the vector of a context.
  """

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {models.CLIENT: ('psi',), models.ENCODER: ('phi',), models.HEAD: ()}

  @property
  def context_names(self) -> tuple[str, ...]:
    return ('phi',)

  def init(self, seed: tf.Tensor) -> models.Weights:
    return initial_vectors(seed, self.num_contexts, self.gpt2.width)

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    phi = layers.look_up(weights['phi'], batch['context'])
    e = weights['psi'] * phi
    return self._encode_behind(e[:, tf.newaxis], batch)


@dataclasses.dataclass(frozen=True)
class Gpt2WithHead(FrozenGpt2):
  """A frozen GPT-2 with a last layer that is trained (FedPC's meta-learning).

  The last layer starts as a copy of the matrix of word embeddings. The weight
  'head' is its difference from that matrix, and thus starts at zero: steps on
  the difference are steps on the layer.
  """

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {models.ENCODER: (), models.HEAD: ('head',)}

  def init(self, seed: tf.Tensor) -> models.Weights:
    shape = [self.gpt2.vocabulary_size, self.gpt2.width]
    return collections.OrderedDict(head=tf.zeros(shape))

  def decide(
    self, weights: models.Weights, features: tf.Tensor
  ) -> next_word.LastLayer:
    return self._last_layer(features, self.frozen['wte'] + weights['head'])


@dataclasses.dataclass(frozen=True)
class Gpt2WithTwoHeads(FrozenGpt2):
  """A frozen GPT-2 with a head of the client and one of each context.

  This is FedPC's split learning. The scores are the mean of the scores of the
  two heads, or their sum; the paper does not say which. As in `Gpt2WithHead`,
  both weights are differences from the matrix of word embeddings.

  Attributes:
    sums_heads: Whether the scores are the sum.
  """

  sums_heads: bool = dataclasses.field(default=False, kw_only=True)

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      models.CLIENT: ('own_head',),
      models.ENCODER: (),
      models.HEAD: ('context_heads',),
    }

  @property
  def context_names(self) -> tuple[str, ...]:
    return ('context_heads',)

  def init(self, seed: tf.Tensor) -> models.Weights:
    shape = [self.gpt2.vocabulary_size, self.gpt2.width]
    return collections.OrderedDict(
      own_head=tf.zeros(shape),
      context_heads=tf.zeros([self.num_contexts, *shape]),
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    """Represents words, with the number of the context as the last feature."""
    features = super().encode(weights, batch)
    context = tf.repeat(batch['context'], self.sequence_length)
    context = tf.cast(context, features.dtype)[:, tf.newaxis]
    return tf.concat([features, context], axis=1)

  def decide(self, weights: models.Weights, features: tf.Tensor) -> HeadOfEach:
    contexts, head_numbers = tf.unique(tf.cast(features[:, -1], tf.int32))
    heads = layers.look_up(weights['context_heads'], contexts)
    heads += 2 * self.frozen['wte'] + weights['own_head']
    if not self.sums_heads:
      heads /= 2
    return HeadOfEach(features[:, :-1], heads, head_numbers)
