"""The recurrent network for next-word prediction of `tff.simulation.baselines`.

Its layers compute what Keras's do, but have gradients of their own, which take
a bit more than half the time on a CPU.
"""

import collections
from collections.abc import Callable
import functools
import math
from typing import Any

import tensorflow as tf

from tasks.models import model as model_lib

_Gradient = Callable[[tf.Tensor], tuple[Any, ...]]


def _transpose(matrix: tf.Tensor) -> tf.Tensor:
  """The transpose, as a tensor of its own.

  TensorFlow would make a plain transpose part of the products it is used in,
  and for thin products the work of transposing would be several times theirs.
  """
  return tf.reshape(
    tf.transpose(matrix[tf.newaxis], [0, 2, 1]), matrix.shape[::-1]
  )


@tf.custom_gradient
def _look_up(table: tf.Tensor, words: tf.Tensor) -> tuple[tf.Tensor, _Gradient]:
  """Rows of `table`; the gradient is dense, as all that is made of it is."""

  def gradient(upstream: tf.Tensor) -> tuple[Any, ...]:
    return (
      tf.math.unsorted_segment_sum(upstream, words, table.shape[0]),
      None,
    )

  return tf.gather(table, words), gradient


@tf.custom_gradient
def _lstm(
  x: tf.Tensor,
  kernel: tf.Tensor,
  recurrent_kernel: tf.Tensor,
  bias: tf.Tensor,
) -> tuple[tf.Tensor, _Gradient]:
  """An LSTM layer, from `[time, batch, features]` to `[time, batch, units]`.

  With the gates i (input), f (forget), g (candidate) and o (output), in this
  order along the axis of size 4 * units, as in Keras:

    z_t = x_t kernel + h_(t-1) recurrent_kernel + bias
    c_t = f_t * c_(t-1) + i_t * g_t
    h_t = o_t * tanh(c_t)

  Whatever does not depend on the step before is done for all steps at once; in
  the gradient, that is all but dz_t. So the kernels' gradients are one product
  each and not a sum over time of thin ones.

  Args:
    x: The inputs.
    kernel: `[features, 4 * units]`.
    recurrent_kernel: `[units, 4 * units]`.
    bias: `[4 * units]`.

  Returns:
    h_1, …, h_T, and their gradient.
  """
  steps, _, features = x.shape
  units = recurrent_kernel.shape[0]
  flat_x = tf.reshape(x, [-1, features])
  z_of_x = tf.nn.bias_add(tf.matmul(flat_x, kernel), bias)
  z_of_x = tf.unstack(tf.reshape(z_of_x, [steps, -1, 4 * units]))
  # [time] of [batch, ...]: i, f, an unused part, and o side by side; g; c;
  # tanh(c); and h.
  gates, candidates, cells, tanh_cells, outputs = [], [], [], [], []
  for t in range(steps):
    z = z_of_x[t]
    if t:
      z += tf.matmul(outputs[-1], recurrent_kernel)
    # One sigmoid of everything takes less than one of each of three parts.
    gates.append(tf.sigmoid(z))
    candidates.append(tf.tanh(z[:, 2 * units : 3 * units]))
    i, f, _, o = tf.split(gates[-1], 4, axis=1)
    cell = i * candidates[-1]
    if t:
      cell += f * cells[-1]
    cells.append(cell)
    tanh_cells.append(tf.tanh(cell))
    outputs.append(o * tanh_cells[-1])

  def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
    zeros = tf.zeros_like(cells[0])
    i, f, _, o = tf.split(tf.stack(gates), 4, axis=2)
    g, tanh_c = tf.stack(candidates), tf.stack(tanh_cells)
    c_before = tf.stack([zeros, *cells[:-1]])
    # dz_t = dz_by_c_or_h_t * [dc_t, dc_t, dc_t, dh_t].
    dz_by_c_or_h = tf.unstack(
      tf.concat(
        [
          g * i * (1 - i),
          c_before * f * (1 - f),
          i * (1 - g * g),
          tanh_c * o * (1 - o),
        ],
        axis=2,
      )
    )
    c_by_h = tf.unstack(o * (1 - tanh_c * tanh_c))
    f = tf.unstack(f)
    upstream = tf.unstack(upstream)
    transposed = _transpose(recurrent_kernel)

    dz = [None] * steps
    for t in reversed(range(steps)):
      dh = upstream[t]
      if t + 1 < steps:
        dh += tf.matmul(dz[t + 1], transposed)
        dc = dh * c_by_h[t] + dc * f[t + 1]  # noqa: F821
      else:
        dc = dh * c_by_h[t]
      dz[t] = dz_by_c_or_h[t] * tf.concat([dc, dc, dc, dh], axis=1)

    dz = tf.reshape(tf.stack(dz), [-1, 4 * units])
    h_before = tf.reshape(tf.stack([zeros, *outputs[:-1]]), [-1, units])
    return (
      tf.reshape(tf.matmul(dz, kernel, transpose_b=True), tf.shape(x)),
      tf.matmul(flat_x, dz, transpose_a=True),
      tf.matmul(h_before, dz, transpose_a=True),
      tf.reduce_sum(dz, axis=0),
    )

  return tf.stack(outputs), gradient


@tf.custom_gradient
def _cross_entropy(
  x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, words: tf.Tensor
) -> tuple[tf.Tensor, _Gradient]:
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


def _glorot_uniform(seed: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
  """Keras's default for a kernel."""
  limit = math.sqrt(6 / (rows + columns))
  return tf.random.stateless_uniform([rows, columns], seed, -limit, limit)


def _orthogonal(seed: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
  """Keras's default for a recurrent kernel; it has more columns than rows."""
  q, r = tf.linalg.qr(tf.random.stateless_normal([columns, rows], seed))
  # QR leaves the signs open; this makes all orthogonal matrices as likely.
  return tf.transpose(q * tf.sign(tf.linalg.diag_part(r)))


@functools.cache
def next_word_lstm(
  vocabulary_size: int = 10_000,
  *,
  sequence_length: int = 20,
  num_oov_buckets: int = 1,
  embedding_size: int = 96,
  lstm_size: int = 670,
) -> model_lib.Model:
  """TFF's recurrent model for StackOverflow.

  An embedding, an LSTM, a dense layer of the embedding's size and one of all
  words: 4,050,748 weights with the default sizes. Words are numbered as there:
  0 is padding, which comes last in a sentence, the vocabulary follows from 1,
  then the buckets of unknown words, the beginning and the end of a sentence.

  The loss of a sentence is the mean over its words, padding left out, and the
  sentence counts in a batch by their number. The accuracy leaves out padding,
  unknown words and the end of the sentence.

  The recurrence goes on over padding. As that comes last, no word that counts
  sees it, so that the result is that of Keras with masking.

  Args:
    vocabulary_size: The number of words, without the special ones.
    sequence_length: The number of words in an example.
    num_oov_buckets: The number of words that stand for unknown ones.
    embedding_size: The size of the embedding and of the last but one layer.
    lstm_size: The number of units of the LSTM.

  Returns:
    The model, of examples {'x': [sequence_length] int32, 'y': the same, one
    word later}.
  """
  num_words = vocabulary_size + num_oov_buckets + 3
  not_predicted = (
    0,
    *range(vocabulary_size + 1, vocabulary_size + num_oov_buckets + 1),
    num_words - 1,
  )

  def init(seed: tf.Tensor) -> model_lib.Weights:
    seeds = tf.random.experimental.stateless_split(seed, 5)
    return collections.OrderedDict(
      embedding=tf.random.stateless_uniform(
        [num_words, embedding_size], seeds[0], -0.05, 0.05
      ),
      lstm_kernel=_glorot_uniform(seeds[1], embedding_size, 4 * lstm_size),
      lstm_recurrent_kernel=_orthogonal(seeds[2], lstm_size, 4 * lstm_size),
      # A forget gate that is open at the start.
      lstm_bias=tf.repeat([0.0, 1.0, 0.0, 0.0], lstm_size),
      dense_kernel=_glorot_uniform(seeds[3], lstm_size, embedding_size),
      dense_bias=tf.zeros([embedding_size]),
      output_kernel=_glorot_uniform(seeds[4], embedding_size, num_words),
      output_bias=tf.zeros([num_words]),
    )

  def before_output(
    weights: model_lib.Weights, batch: model_lib.Batch
  ) -> tf.Tensor:
    """The input of the last layer, `[time * batch, embedding_size]`."""
    words = tf.reshape(tf.transpose(batch['x']), [-1])
    x = _look_up(weights['embedding'], words)
    h = _lstm(
      tf.reshape(x, [sequence_length, -1, embedding_size]),
      weights['lstm_kernel'],
      weights['lstm_recurrent_kernel'],
      weights['lstm_bias'],
    )
    h = tf.reshape(h, [-1, lstm_size])
    return tf.matmul(h, weights['dense_kernel']) + weights['dense_bias']

  def is_word(batch: model_lib.Batch) -> tf.Tensor:
    return tf.cast(tf.not_equal(batch['y'], 0), tf.float32)

  def example_weight(batch: model_lib.Batch) -> tf.Tensor:
    return tf.reduce_sum(is_word(batch), axis=1)

  def loss(weights: model_lib.Weights, batch: model_lib.Batch) -> tf.Tensor:
    of_words = _cross_entropy(
      before_output(weights, batch),
      weights['output_kernel'],
      weights['output_bias'],
      tf.reshape(tf.transpose(batch['y']), [-1]),
    )
    of_words = tf.transpose(tf.reshape(of_words, [sequence_length, -1]))
    return tf.math.divide_no_nan(
      tf.reduce_sum(of_words * is_word(batch), axis=1), example_weight(batch)
    )

  def metrics(
    weights: model_lib.Weights, batch: model_lib.Batch
  ) -> model_lib.Metrics:
    logits = tf.matmul(before_output(weights, batch), weights['output_kernel'])
    logits += weights['output_bias']
    predicted = tf.transpose(
      tf.reshape(tf.argmax(logits, 1, tf.int32), [sequence_length, -1])
    )
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
    metrics=metrics,
    example_weight=example_weight,
    head=frozenset(['output_kernel', 'output_bias']),
  )
