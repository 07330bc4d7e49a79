"""Recurrent networks: for the next word as in TFF, and for a text's class.

Their layers compute the same as Keras's, but have custom gradients, which take
a bit more than half the time on a CPU.
"""

import collections
from collections.abc import Mapping
import dataclasses

import tensorflow as tf

from tasks.models import layers
from tasks.models import models
from tasks.models import next_word


def _transpose(matrix: tf.Tensor) -> tf.Tensor:
  """Transposes a matrix into a separate tensor.

  TensorFlow would make a plain transpose a part of the products that use it,
  and in thin products transposing takes several times as long as multiplying.
  """
  return tf.reshape(
    tf.transpose(matrix[tf.newaxis], [0, 2, 1]), matrix.shape[::-1]
  )


@tf.custom_gradient
def _lstm(
  x: tf.Tensor,
  kernel: tf.Tensor,
  recurrent_kernel: tf.Tensor,
  bias: tf.Tensor,
) -> tuple[tf.Tensor, layers.Gradient]:
  """Applies an LSTM, `[time, batch, features]` to `[time, batch, units]`.

  The gates i (input), f (forget), g (candidate) and o (output) are in this
  order along the axis of size 4 * units, as in Keras:

    z_t = x_t kernel + h_(t-1) recurrent_kernel + bias
    c_t = f_t * c_(t-1) + i_t * g_t
    h_t = o_t * tanh(c_t)

  Everything that does not depend on the step before is computed for all steps
  at once. In the gradient this is everything but dz_t, so that the gradient of
  each kernel is one product instead of a sum of thin products over time.

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
  # For each step, `[batch, …]`: i, f, an unused part and o side by side; g; c;
  # tanh(c); h.
  gates: list[tf.Tensor] = []
  candidates: list[tf.Tensor] = []
  cells: list[tf.Tensor] = []
  tanh_cells: list[tf.Tensor] = []
  outputs: list[tf.Tensor] = []
  for t in range(steps):
    z = z_of_x[t]
    if t:
      z += tf.matmul(outputs[-1], recurrent_kernel)
    # One sigmoid of everything is faster than three of parts.
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

    dz_backwards: list[tf.Tensor] = []
    dc = None
    for t in reversed(range(steps)):
      dh = upstream[t]
      if dz_backwards:
        dh += tf.matmul(dz_backwards[-1], transposed)
      dc_by_output = dh * c_by_h[t]
      dc = dc_by_output if dc is None else dc_by_output + dc * f[t + 1]
      dz_backwards.append(dz_by_c_or_h[t] * tf.concat([dc, dc, dc, dh], axis=1))

    dz = tf.reshape(tf.stack(dz_backwards[::-1]), [-1, 4 * units])
    h_before = tf.reshape(tf.stack([zeros, *outputs[:-1]]), [-1, units])
    return (
      tf.reshape(tf.matmul(dz, kernel, transpose_b=True), tf.shape(x)),
      tf.matmul(flat_x, dz, transpose_a=True),
      tf.matmul(h_before, dz, transpose_a=True),
      tf.reduce_sum(dz, axis=0),
    )

  return tf.stack(outputs), gradient


def layer(weights: models.Weights, name: str, x: tf.Tensor) -> tf.Tensor:
  """Applies the LSTM with this name, `[time, batch, …]`."""
  parts = ('kernel', 'recurrent_kernel', 'bias')
  return _lstm(x, *(weights[f'{name}_{part}'] for part in parts))


@dataclasses.dataclass(frozen=True)
class NextWordLstm(next_word.NextWordModel):
  """TFF's recurrent model for StackOverflow.

  An embedding, an LSTM, a dense layer of the embedding's size and one of all
  words: 4,050,748 weights with the default sizes.

  The recurrence does not stop at padding. As padding comes last, no word that
  counts depends on it, and the result is the same as in Keras with masking.

  It represents a word by the LSTM's output, from which the next word is
  predicted, of width `lstm_size`, as Motley does. The dense layer between this
  and the head is a separate part, 'projection'.

  Attributes:
    embedding_size: The size of the embedding and of the last but one layer.
    lstm_size: The number of units of the LSTM.
  """

  vocabulary_size: int = 10_000
  embedding_size: int = dataclasses.field(default=96, kw_only=True)
  lstm_size: int = dataclasses.field(default=670, kw_only=True)

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      models.ENCODER: (
        'embedding',
        'lstm_kernel',
        'lstm_recurrent_kernel',
        'lstm_bias',
      ),
      'projection': ('dense_kernel', 'dense_bias'),
      models.HEAD: ('output_kernel', 'output_bias'),
    }

  def init(self, seed: tf.Tensor) -> models.Weights:
    embedding_size, lstm_size = self.embedding_size, self.lstm_size
    seeds = tf.random.experimental.stateless_split(seed, 5)
    return collections.OrderedDict(
      embedding=tf.random.stateless_uniform(
        [self.num_words, embedding_size], seeds[0], -0.05, 0.05
      ),
      lstm_kernel=layers.glorot_uniform(
        seeds[1], [embedding_size, 4 * lstm_size]
      ),
      lstm_recurrent_kernel=layers.orthogonal(
        seeds[2], lstm_size, 4 * lstm_size
      ),
      # The forget gate is open at the start.
      lstm_bias=tf.repeat([0.0, 1.0, 0.0, 0.0], lstm_size),
      dense_kernel=layers.glorot_uniform(seeds[3], [lstm_size, embedding_size]),
      dense_bias=tf.zeros([embedding_size]),
      output_kernel=layers.glorot_uniform(
        seeds[4], [embedding_size, self.num_words]
      ),
      output_bias=tf.zeros([self.num_words]),
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    words = tf.reshape(tf.transpose(batch['x']), [-1])
    x = layers.look_up(weights['embedding'], words)
    h = layer(
      weights,
      'lstm',
      tf.reshape(x, [self.sequence_length, -1, self.embedding_size]),
    )
    return tf.reshape(tf.transpose(h, [1, 0, 2]), [-1, self.lstm_size])

  def decide(
    self, weights: models.Weights, features: tf.Tensor
  ) -> next_word.LastLayer:
    x = layers.dense(weights, 'dense', features)
    return next_word.LastLayer(
      x, weights['output_kernel'], weights['output_bias']
    )


@dataclasses.dataclass(frozen=True)
class TextLstm(models.Classifier):
  """A classifier of texts: frozen embeddings, two LSTM layers, a dense one.

  Its examples are {'x': [sequence_length] int32, 'y': [] int32}, where 'x' are
  rows of `frozen['embedding']`, `[words, embedding_size]`. It represents a text
  by the last output of the second LSTM, padding included.

  Attributes:
    embedding_size: The size of the frozen embeddings.
    sequence_length: The number of words in an example.
    lstm_size: The number of units of each LSTM.
    num_classes: The number of classes.
  """

  embedding_size: int
  sequence_length: int = dataclasses.field(default=25, kw_only=True)
  lstm_size: int = dataclasses.field(default=256, kw_only=True)
  num_classes: int = dataclasses.field(default=2, kw_only=True)

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([self.sequence_length], tf.int32),
      y=tf.TensorSpec([], tf.int32),
    )

  @property
  def num_values(self) -> Mapping[str, int]:
    return {**super().num_values, 'x': len(self.frozen['embedding'])}

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      models.ENCODER: tuple(
        f'{layer}_{weight}'
        for layer in ('lstm1', 'lstm2')
        for weight in ('kernel', 'recurrent_kernel', 'bias')
      ),
      models.HEAD: ('output_kernel', 'output_bias'),
    }

  def init(self, seed: tf.Tensor) -> models.Weights:
    """Makes initial weights; names, shapes and distributions are Keras's."""
    units = self.lstm_size
    seeds = tf.random.experimental.stateless_split(seed, 5)
    weights = collections.OrderedDict()
    for i, inputs in enumerate((self.embedding_size, units)):
      layer = f'lstm{i + 1}'
      weights[f'{layer}_kernel'] = layers.glorot_uniform(
        seeds[2 * i], [inputs, 4 * units]
      )
      weights[f'{layer}_recurrent_kernel'] = layers.orthogonal(
        seeds[2 * i + 1], units, 4 * units
      )
      # The forget gate is open at the start.
      weights[f'{layer}_bias'] = tf.repeat([0.0, 1.0, 0.0, 0.0], units)
    weights['output_kernel'] = layers.glorot_uniform(
      seeds[4], [units, self.num_classes]
    )
    weights['output_bias'] = tf.zeros([self.num_classes])
    return weights

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = tf.gather(self.frozen['embedding'], tf.transpose(batch['x']))
    x = tf.reshape(x, [self.sequence_length, -1, self.embedding_size])
    return layer(weights, 'lstm2', layer(weights, 'lstm1', x))[-1]

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return layers.dense(weights, 'output', features)
