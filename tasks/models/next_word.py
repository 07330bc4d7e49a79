"""Shared parts of the models that predict the next word of a sentence.

Words are numbered as in TFF's StackOverflow: 0 is padding, which comes last in
a sentence, the vocabulary starts at 1, then follow the buckets of unknown
words, the beginning and the end of a sentence.

The loss of a sentence is the mean over its words without padding, and the
sentence counts in a batch by their number. The accuracy leaves out padding,
unknown words and the end of the sentence. The perplexity leaves out padding
only, so that it is the exponential of the mean loss of all words.
"""

import abc
import collections
from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tasks.models import layers
from tasks.models import metrics
from tasks.models import models


class LastLayer(NamedTuple):
  """A dense layer of all words and its input, which replace its logits.

  Loss and gradient are faster to compute from these than from the logits.

  Attributes:
    x: The input, `[rows, features]`.
    kernel: `[features, words]`.
    bias: `[words]`.
  """

  x: tf.Tensor
  kernel: tf.Tensor
  bias: tf.Tensor

  def logits(self) -> tf.Tensor:
    """Returns the output, `[rows, words]`."""
    return tf.matmul(self.x, self.kernel) + self.bias

  def log_likelihood(self, words: tf.Tensor) -> tf.Tensor:
    """Returns the log-probability of one word for each row, `[rows]`."""
    return -_cross_entropy(*self, words)

  def gather(self, places: tf.Tensor) -> 'LastLayer':
    """Returns the layer with only the rows at some places, `[places, 1]`."""
    return self._replace(x=tf.gather_nd(self.x, places))


@tf.custom_gradient
def _cross_entropy(
  x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, words: tf.Tensor
) -> tuple[tf.Tensor, layers.Gradient]:
  """Computes -log softmax(x kernel + bias)[word] of each row of x.

  It reads and writes as few tensors of rows times words as it can.

  Args:
    x: `[rows, features]`.
    kernel: `[features, words]`.
    bias: `[words]`.
    words: `[rows]`.

  Returns:
    The loss of each row, and the gradient.
  """
  logits = tf.nn.bias_add(tf.matmul(x, kernel), bias)
  probabilities = tf.nn.softmax(logits)
  # The largest logit is log(largest probability) + log(sum(exp(logits))).
  largest = tf.reduce_max(probabilities, axis=1)
  log_normalizer = tf.reduce_max(logits, axis=1) - tf.math.log(largest)
  loss = log_normalizer - tf.gather(logits, words, batch_dims=1)

  def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
    rows = tf.range(tf.shape(words)[0])
    dlogits = tf.tensor_scatter_nd_sub(
      probabilities,
      tf.stack([rows, words], axis=1),
      tf.ones_like(upstream),
    )
    # `upstream` scales the rows of small matrices rather than of `dlogits`.
    column = upstream[:, tf.newaxis]
    return (
      column * tf.matmul(dlogits, kernel, transpose_b=True),
      tf.matmul(column * x, dlogits, transpose_a=True),
      tf.linalg.matvec(dlogits, upstream, transpose_a=True),
      None,
    )

  return loss, gradient


@dataclasses.dataclass(frozen=True)
class NextWordModel(models.Model):
  """A model whose last layer is a softmax over all words.

  Its examples are {'x': [sequence_length] int32, 'y': the same, one word
  later}, and its entries the words of a batch, `[batch * time]`.

  Attributes:
    vocabulary_size: The number of words, without the special ones.
    sequence_length: The number of words in an example.
    num_oov_buckets: The number of words that stand for unknown words.
  """

  vocabulary_size: int
  sequence_length: int = dataclasses.field(default=20, kw_only=True)
  num_oov_buckets: int = dataclasses.field(default=1, kw_only=True)

  @property
  def num_words(self) -> int:
    """The number of words, with the special ones."""
    return self.vocabulary_size + self.num_oov_buckets + 3

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    sentence = tf.TensorSpec([self.sequence_length], tf.int32)
    return collections.OrderedDict(x=sentence, y=sentence)

  @property
  def num_values(self) -> Mapping[str, int]:
    return {'x': self.num_words, 'y': self.num_words}

  @abc.abstractmethod
  def decide(self, weights: models.Weights, features: tf.Tensor) -> LastLayer:
    """Returns the last layer, with a row for each entry."""

  def log_likelihood(self, scores: LastLayer, batch: models.Batch) -> tf.Tensor:
    """Returns the log-probability of each next word, `[entries]`."""
    return scores.log_likelihood(self.target(batch))

  def score_loss(self, scores: LastLayer, batch: models.Batch) -> tf.Tensor:
    total, number = self.likelihood_statistics(
      self.log_likelihood(scores, batch), batch
    )['perplexity']
    return tf.math.divide_no_nan(total, number)

  def predict(self, scores: LastLayer) -> tf.Tensor:
    return models.most_likely(scores.logits())

  def predict_softly(self, scores: LastLayer) -> tf.Tensor:
    return tf.nn.softmax(scores.logits())

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    first_unknown = self.vocabulary_size + 1
    left_out = (
      0,
      *range(first_unknown, first_unknown + self.num_oov_buckets),
      self.num_words - 1,
    )
    predicted = tf.reshape(predicted, [-1, self.sequence_length])
    counts = tf.reduce_all(
      tf.not_equal(batch['y'][:, :, tf.newaxis], left_out), axis=2
    )
    correct = tf.logical_and(tf.equal(predicted, batch['y']), counts)
    return collections.OrderedDict(
      accuracy=(
        tf.reduce_sum(tf.cast(correct, tf.float32), axis=1),
        tf.reduce_sum(tf.cast(counts, tf.float32), axis=1),
      )
    )

  def likelihood_statistics(
    self, log_likelihood: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    of_words = tf.reshape(log_likelihood, [-1, self.sequence_length])
    is_word = self.entry_mask(batch) > 0
    # Not a product: the probability of padding may be zero.
    total = -tf.reduce_sum(tf.where(is_word, of_words, 0.0), axis=1)
    return collections.OrderedDict(
      perplexity=(total, self.example_weight(batch))
    )

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {'accuracy': metrics.SHARE, 'perplexity': metrics.PERPLEXITY}

  def judge_scores(
    self, scores: models.Scores, batch: models.Batch
  ) -> models.Statistics:
    return collections.OrderedDict(
      **self.prediction_statistics(self.predict(scores), batch),
      **self.likelihood_statistics(self.log_likelihood(scores, batch), batch),
    )

  def target(self, batch: models.Batch) -> tf.Tensor:
    return tf.reshape(batch['y'], [-1])

  def entry_mask(self, batch: models.Batch) -> tf.Tensor:
    return tf.cast(tf.not_equal(batch['y'], 0), tf.float32)

  def example_weight(self, batch: models.Batch) -> tf.Tensor:
    """Returns the number of words of each sentence."""
    return tf.reduce_sum(self.entry_mask(batch), axis=1)
