"""A frozen language model, in which others train something small.

An example is an utterance w_1, …, w_T in a context c. Its loss is the mean of
-log p(w_t) for t = 2, …, T. In the evaluation the first words are a given
prompt: metrics are over the words after them.

What stands at the first position matters to a language model, whatever it is
(Xiao et al. 2024, attention sinks), so that a prompt may help only by standing
there. A word can therefore stand before each utterance.

All weights of the language model are frozen: they are arguments of
computations.
"""

import collections
from collections.abc import Mapping
import dataclasses
import types
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tasks.models import language_models
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


def make_examples(
  words: np.ndarray,
  contexts: np.ndarray,
  num_bytes: np.ndarray | None = None,
  begun: np.ndarray | None = None,
) -> collections.OrderedDict[str, np.ndarray]:
  """Makes the examples of a frozen model from utterances.

  Args:
    words: The numbers of their words, from 1 on, `[utterances, time]` int32.
    contexts: The numbers of their contexts, `[utterances]` int32.
    num_bytes: The bytes of each word that is judged, `[utterances, time]`;
      by default each word has one.
    begun: How many words of the text begin with it; by default one.

  Returns:
    The examples.
  """
  is_word = (words > 0).astype(np.int32)
  return collections.OrderedDict(
    x=words[:, :-1],
    y=words[:, 1:],
    context=contexts,
    bytes=(is_word if num_bytes is None else num_bytes)[:, 1:],
    begun=(is_word if begun is None else begun)[:, 1:],
  )


@dataclasses.dataclass(frozen=True)
class FrozenModel(models.Model):
  """A pretrained language model without anything to train.

  Its examples are {'x': [sequence_length] int32, the words w_1, …, w_(T-1),
  'y': the words w_2, …, w_T, 'context': [] int32}. The words of a language
  model are tokens, parts of words of the text. They are numbered from 1 on; 0
  is padding, which comes last. Further features count the bytes of each token
  of 'y' that metrics of the text are over ('bytes'), and the words of the text
  that begin with it ('begun'), so that models of other tokens can be compared.

  Attributes:
    language_model: The language model, whose weights are `frozen`.
    num_contexts: The number of contexts.
    sequence_length: The largest T - 1.
    prompt_length: The number of words that metrics leave out.
    first_word: The word that stands before each utterance; None for no word.
    most_contexts: As in `Model`.
  """

  language_model: language_models.LanguageModel
  num_contexts: int = 1
  sequence_length: int = dataclasses.field(default=31, kw_only=True)
  prompt_length: int = dataclasses.field(default=3, kw_only=True)
  first_word: int | None = dataclasses.field(default=None, kw_only=True)
  most_contexts: int | None = dataclasses.field(default=None, kw_only=True)

  @property
  def pretrained_models(self) -> Mapping[str, 'FrozenModel']:
    """The language model alone, and behind its first word."""
    first_words: dict[str, int | None] = {'pretrained': None}
    if self.first_word is not None:
      first_words['pretrained behind a word'] = self.first_word
    return {
      name: FrozenModel(
        self.language_model,
        self.num_contexts,
        sequence_length=self.sequence_length,
        prompt_length=self.prompt_length,
        first_word=first_word,
        frozen=self.frozen,
      )
      for name, first_word in first_words.items()
    }

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    words = tf.TensorSpec([self.sequence_length], tf.int32)
    return collections.OrderedDict(
      x=words,
      y=words,
      context=tf.TensorSpec([], tf.int32),
      bytes=words,
      begun=words,
    )

  @property
  def num_values(self) -> Mapping[str, int]:
    words = self.language_model.vocabulary_size + 1  # With padding.
    return {'x': words, 'y': words, 'context': self.num_contexts}

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {models.ENCODER: (), models.HEAD: ()}

  def init(self, seed: tf.Tensor) -> models.Weights:
    del seed
    return collections.OrderedDict()

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return self._encode_behind(self._prefix(batch), batch)

  def _prefix(self, batch: models.Batch) -> tf.Tensor | None:
    """Returns the embedding of the first word, `[batch, 1, width]`."""
    if self.first_word is None:
      return None
    row = self.frozen[self.language_model.embedding][self.first_word]
    size = tf.shape(batch['x'])[0]
    return tf.broadcast_to(row, [size, 1, self.language_model.width])

  def _words(self, batch: models.Batch) -> tf.Tensor:
    """Returns the numbers of w_1, …, w_(T-1) from 0 on, `[batch, time]`."""
    return tf.maximum(batch['x'] - 1, 0)

  def _encode_behind(
    self,
    prefix: tf.Tensor | None,
    batch: models.Batch,
    adapters: language_models.Adapters = types.MappingProxyType({}),
  ) -> tf.Tensor:
    """Represents the words behind prefixes, `[batch, length, width]`."""
    # A word that no other word follows is not needed.
    is_word = batch['y'] > 0
    words = self._words(batch)
    features = self.language_model.encode(
      self.frozen, words, prefix, is_word, adapters
    )
    return tf.reshape(features, [-1, self.language_model.width])

  def decide(self, weights: models.Weights, features: tf.Tensor) -> Scores:
    return self._last_layer(features, self.frozen[self.language_model.head])

  def _last_layer(
    self, features: tf.Tensor, head: tf.Tensor
  ) -> next_word.LastLayer:
    bias = tf.zeros([self.language_model.vocabulary_size])
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
    log_likelihood = self._reshape_to_examples(log_likelihood)

    def statistic(
      is_judged: tf.Tensor, number: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
      # Not a product: the probability of padding may be zero.
      of_words = tf.where(is_judged, log_likelihood, 0.0)
      number = tf.cast(number, tf.float32)
      return -tf.reduce_sum(of_words, axis=1), tf.reduce_sum(number, axis=1)

    judged, has_bytes = self._is_evaluated(batch), batch['bytes'] > 0
    return collections.OrderedDict(
      perplexity=statistic(judged > 0, judged),
      word_perplexity=statistic(has_bytes, batch['begun']),
      bits_per_byte=statistic(has_bytes, batch['bytes']),
    )

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {
      'accuracy': metrics.SHARE,
      'perplexity': metrics.PERPLEXITY,
      'word_perplexity': metrics.PERPLEXITY,
      'bits_per_byte': metrics.BITS_PER_BYTE,
    }

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
