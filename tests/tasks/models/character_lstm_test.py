"""Tests of the character-aware LSTM."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import character_lstm
from tasks.models import metrics

_SEED = tf.constant([1, 2])
_WORDS = ('a', 'the', 'sea', 'seas', 'océan', 'e')
_OOV, _BOS, _EOS = 7, 8, 9
_LENGTH = 5
_UNITS = 6
_FILTERS = (2, 1, 3)
_CHARACTER_SIZE = 3


def _model(word_length=6):
  return character_lstm.CharacterLstm.create(
    _WORDS,
    word_length,
    sequence_length=_LENGTH,
    character_size=_CHARACTER_SIZE,
    filters=_FILTERS,
    lstm_size=_UNITS,
  )


@pytest.fixture(name='model')
def _fixture_model():
  return _model()


def _batch():
  """Makes a long sentence, a short, one with an unknown word, an empty one."""
  sentences = np.array(
    [
      [_BOS, 1, 2, 3, 4, 5],
      [_BOS, 6, _EOS, 0, 0, 0],
      [_BOS, _OOV, 5, 5, _EOS, 0],
      [0, 0, 0, 0, 0, 0],
    ],
    np.int32,
  )
  return {
    'x': tf.constant(sentences[:, :-1]),
    'y': tf.constant(sentences[:, 1:]),
  }


def _weights(model):
  """Makes weights that are larger than initial ones, so that outputs differ."""
  weights = model.init(_SEED)
  rng = np.random.default_rng(0)
  for name, weight in weights.items():
    noise = rng.normal(scale=0.5, size=weight.shape)
    weights[name] = weight + tf.constant(noise, tf.float32)
  return weights


def _keras_model(model):
  """Makes the model of Keras; also returns its variables, in our order."""
  spelled = tf.keras.Input([_LENGTH, model.frozen['spelling'].shape[1]])
  length = spelled.shape[-1]
  characters = tf.reshape(tf.cast(spelled, tf.int32), [-1, length])
  there = tf.cast(characters > 0, tf.float32)[:, :, tf.newaxis]
  width = sum(_FILTERS)
  embedding = tf.keras.layers.Embedding(model.num_characters, _CHARACTER_SIZE)
  convolutions = [
    tf.keras.layers.Conv1D(number, w, activation='tanh')
    for w, number in enumerate(_FILTERS, 1)
  ]
  change = tf.keras.layers.Dense(width, activation='relu')
  gate = tf.keras.layers.Dense(width, activation='sigmoid')
  lstms = [tf.keras.layers.LSTM(_UNITS, return_sequences=True) for _ in '12']
  output = tf.keras.layers.Dense(_EOS + 1)

  embedded = embedding(tf.maximum(characters - 1, 0)) * there
  pooled = []
  for w, convolution in enumerate(convolutions, 1):
    padded = tf.keras.layers.ZeroPadding1D((0, w - 1))(embedded)
    y = convolution(padded) * there - 2 * (1 - there)
    pooled.append(tf.reduce_max(y, axis=1))
  y = tf.concat(pooled, axis=1)
  y = gate(y) * change(y) + (1 - gate(y)) * y
  h = tf.reshape(y, [-1, _LENGTH, width])
  for layer in lstms:
    h = layer(h)
  keras = tf.keras.Model(spelled, output(h))
  ordered = [embedding, *convolutions, change, gate, *lstms, output]
  return keras, [v for layer in ordered for v in layer.trainable_variables]


def _as_keras(weights):
  """Orders the weights so that each convolution has its own bias."""
  biases = tf.split(weights['filters_bias'], _FILTERS)
  ordered = [weights['characters']]
  for width, (number, bias) in enumerate(zip(_FILTERS, biases), 1):
    kernel = weights[f'filters_{width}_kernel']
    ordered += [tf.reshape(kernel, [width, _CHARACTER_SIZE, number]), bias]
  after = list(weights).index('filters_bias') + 1
  return [*ordered, *list(weights.values())[after:]]


def _loss_and_gradient(loss, weights):
  with tf.GradientTape() as tape:
    tape.watch(weights)
    value = loss(weights)
  gradient = tape.gradient(value, weights)
  return value, tf.nest.map_structure(tf.convert_to_tensor, gradient)


def test_loss_and_gradient_are_those_of_keras(model):
  weights, batch = _weights(model), _batch()
  keras, variables = _keras_model(model)
  for variable, weight in zip(variables, _as_keras(weights), strict=True):
    variable.assign(weight)
  spelled = tf.gather(model.frozen['spelling'], batch['x'])
  counts = tf.cast(batch['y'] > 0, tf.float32)
  with tf.GradientTape() as tape:
    of_words = tf.keras.losses.sparse_categorical_crossentropy(
      batch['y'], keras(spelled), from_logits=True
    )
    keras_loss = tf.reduce_sum(of_words * counts) / tf.reduce_sum(counts)
  keras_gradient = tape.gradient(keras_loss, variables)

  loss, gradient = _loss_and_gradient(
    lambda w: model.mean_loss(w, batch, tf.ones([4])), weights
  )
  np.testing.assert_allclose(loss, keras_loss, rtol=1e-5)
  for ours, of_keras in zip(_as_keras(gradient), keras_gradient, strict=True):
    of_keras = tf.convert_to_tensor(of_keras)
    assert np.any(of_keras.numpy())
    np.testing.assert_allclose(ours, of_keras, rtol=1e-4, atol=1e-6)


def test_gradient_is_the_same_under_xla(model):
  weights, batch = _weights(model), _batch()

  def gradient(weights):
    return _loss_and_gradient(
      lambda w: model.mean_loss(w, batch, tf.ones([4])), weights
    )[1]

  compiled = tf.function(gradient, jit_compile=True)(weights)
  for name, expected in gradient(weights).items():
    np.testing.assert_allclose(
      compiled[name], expected, rtol=1e-4, atol=1e-6, err_msg=name
    )


def test_has_the_size_of_the_paper():
  init = tf.function(character_lstm.CharacterLstm().init)
  shapes = init.get_concrete_function(tf.TensorSpec([2], tf.int32))
  characters = 100 * 15
  # 5 w filters of width w = 1, …, 5, and 25 of width 6.
  filters = sum(15 * w * min(25, 5 * w) for w in range(1, 7)) + 100
  highway = 2 * (100 + 1) * 100
  lstms = 4 * 512 * (100 + 512 + 1) + 4 * 512 * (512 + 512 + 1)
  output = (512 + 1) * 33_004
  total = characters + filters + highway + lstms + output
  assert total == 20_313_851
  assert (
    sum(shape.num_elements() for shape in shapes.output_shapes.values())
    == total
  )


def test_longer_padding_of_words_changes_nothing(model):
  weights, batch = _weights(model), _batch()
  longer = _model(word_length=9)
  assert longer.frozen['spelling'].shape[1] > model.frozen['spelling'].shape[1]
  np.testing.assert_allclose(
    longer.encode(weights, batch), model.encode(weights, batch), rtol=1e-5
  )


def test_words_are_spelled_between_marks():
  table, num_characters = character_lstm.spell(['ab', 'b', 'abba'], 3)
  begins, ends, a, b = 1, 2, 7, 8
  assert num_characters == b
  np.testing.assert_array_equal(
    table,
    [
      [3, 0, 0, 0, 0],
      [begins, a, b, ends, 0],
      [begins, b, ends, 0, 0],
      [begins, a, b, b, ends],
      [4, 0, 0, 0, 0],
      [5, 0, 0, 0, 0],
      [6, 0, 0, 0, 0],
    ],
  )


def test_models_of_other_words_are_equal_and_differ_in_the_digest(model):
  frozen = {'spelling': np.roll(model.frozen['spelling'], 1, axis=0)}
  other = dataclasses.replace(model, frozen=frozen)
  assert other == model
  assert hash(other) == hash(model)
  assert other.frozen_digest != model.frozen_digest


def test_perplexity_is_the_exponential_of_the_mean_loss_of_words(model):
  weights, batch = _weights(model), _batch()
  probabilities = model.predict_softly(model.scores(weights, batch)).numpy()
  y = batch['y'].numpy().ravel()
  losses = -np.log(probabilities[np.arange(len(y)), y])[y > 0]
  sums = [
    s.numpy().sum() for s in model.statistics(weights, batch)['perplexity']
  ]
  assert sums[1] == len(losses) == 11
  np.testing.assert_allclose(
    metrics.PERPLEXITY.value(sums), np.exp(losses.mean()), rtol=1e-5
  )
  np.testing.assert_allclose(
    np.log(metrics.PERPLEXITY.value(sums)),
    model.mean_loss(weights, batch, tf.ones([4])),
    rtol=1e-5,
  )
