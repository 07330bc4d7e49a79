"""What models that predict the next word of a sentence have in common.

Words are numbered as in TFF's StackOverflow: 0 is padding, which comes last in
a sentence, the vocabulary follows from 1, then the buckets of unknown words,
the beginning and the end of a sentence.

The loss of a sentence is the mean over its words, padding left out, and the
sentence counts in a batch by their number. The accuracy leaves out padding,
unknown words and the end of the sentence.
"""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tasks.models import model as model_lib

Gradient = Callable[[tf.Tensor], tuple[Any, ...]]


class Layer(NamedTuple):
  """A dense layer and its input.

  Attributes:
    x: The input, `[rows, features]`.
    kernel: `[features, units]`.
    bias: `[units]`.
  """

  x: tf.Tensor
  kernel: tf.Tensor
  bias: tf.Tensor


def num_words(vocabulary_size: int, num_oov_buckets: int) -> int:
  """How many words there are, with the special ones."""
  return vocabulary_size + num_oov_buckets + 3


@tf.custom_gradient
def look_up(table: tf.Tensor, words: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
  """Rows of `table`; the gradient is dense, as all that is made of it is."""

  def gradient(upstream: tf.Tensor) -> tuple[Any, ...]:
    return (
      tf.math.unsorted_segment_sum(upstream, words, table.shape[0]),
      None,
    )

  return tf.gather(table, words), gradient


@tf.custom_gradient
def _cross_entropy(
  x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, words: tf.Tensor
) -> tuple[tf.Tensor, Gradient]:
  """-log softmax(x kernel + bias)[word] of each row of x.

  What is as large as rows times words is passed over as little as can be.

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

  def gradient(upstream: tf.Tensor) -> tuple[Any, ...]:
    rows = tf.range(tf.shape(words)[0])
    dlogits = tf.tensor_scatter_nd_sub(
      probabilities,
      tf.stack([rows, words], axis=1),
      tf.ones_like(upstream),
    )
    # `upstream` scales the rows of what is small rather than of `dlogits`.
    column = upstream[:, tf.newaxis]
    return (
      column * tf.matmul(dlogits, kernel, transpose_b=True),
      tf.matmul(column * x, dlogits, transpose_a=True),
      tf.linalg.matvec(dlogits, upstream, transpose_a=True),
      None,
    )

  return loss, gradient


def next_word_model(
  vocabulary_size: int,
  *,
  sequence_length: int,
  num_oov_buckets: int,
  init: Callable[[tf.Tensor], model_lib.Weights],
  embedding: Callable[[model_lib.Weights, model_lib.Batch], tf.Tensor],
  last_layer: Callable[[model_lib.Weights, tf.Tensor], Layer],
  head: frozenset[str],
) -> model_lib.Model:
  """The model whose last layer is a softmax over all words.

  Args:
    vocabulary_size: The number of words, without the special ones.
    sequence_length: The number of words in an example.
    num_oov_buckets: The number of words that stand for unknown ones.
    init: As in `Model`.
    embedding: The representation of each word and those before it,
      `[batch * time, dimension]`.
    last_layer: From the weights and the embedding to the last layer.
    head: As in `Model`.

  Returns:
    The model, of examples {'x': [sequence_length] int32, 'y': the same, one
    word later}.
  """
  not_predicted = (
    0,
    *range(vocabulary_size + 1, vocabulary_size + num_oov_buckets + 1),
    num_words(vocabulary_size, num_oov_buckets) - 1,
  )

  def logits(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    """What the last layer gives, `[batch * time, words]`."""
    layer = last_layer(weights, embedding(weights, batch))
    return tf.matmul(layer.x, layer.kernel) + layer.bias

  def next_words(batch: model_lib.Batch) -> tf.Tensor:
    return tf.reshape(batch['y'], [-1])

  def is_word(batch: model_lib.Batch) -> tf.Tensor:
    return tf.cast(tf.not_equal(batch['y'], 0), tf.float32)

  def example_weight(batch: model_lib.Batch) -> tf.Tensor:
    return tf.reduce_sum(is_word(batch), axis=1)

  def loss(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    layer = last_layer(weights, embedding(weights, batch))
    of_words = _cross_entropy(*layer, next_words(batch))
    of_words = tf.reshape(of_words, [-1, sequence_length])
    return tf.math.divide_no_nan(
      tf.reduce_sum(of_words * is_word(batch), axis=1), example_weight(batch)
    )

  def metrics(
    predicted: tf.Tensor, batch: model_lib.Batch
  ) -> model_lib.Metrics:
    predicted = tf.reshape(predicted, [-1, sequence_length])
    counts = tf.reduce_all(
      tf.not_equal(batch['y'][:, :, tf.newaxis], not_predicted), axis=2
    )
    correct = tf.logical_and(tf.equal(predicted, batch['y']), counts)
    return collections.OrderedDict(
      accuracy=(
        tf.reduce_sum(tf.cast(correct, tf.float32), axis=1),
        tf.reduce_sum(tf.cast(counts, tf.float32), axis=1),
      )
    )

  sentence = tf.TensorSpec([sequence_length], tf.int32)
  return model_lib.Model(
    example_spec=collections.OrderedDict(x=sentence, y=sentence),
    init=init,
    loss=loss,
    metrics=lambda weights, batch: metrics(
      model_lib.largest(logits(weights, batch)), batch
    ),
    example_weight=example_weight,
    embedding=embedding,
    head=head,
    prediction=model_lib.Prediction(
      predict=lambda weights, batch: tf.nn.softmax(logits(weights, batch)),
      target=next_words,
      metrics=metrics,
      mask=is_word,
    ),
  )
