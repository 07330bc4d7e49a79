"""Tests of the recurrent network."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import lstm

_SEED = tf.constant([1, 2])
_VOCABULARY = 11
_OOV, _BOS, _EOS = 12, 13, 14
_LENGTH = 5
_UNITS = 6


def _model():
  return lstm.NextWordLstm(
    _VOCABULARY,
    sequence_length=_LENGTH,
    embedding_size=4,
    lstm_size=_UNITS,
  )


def _keras_model():
  """Makes TFF's `create_recurrent_model`."""
  words = tf.keras.Input([None], dtype=tf.int32)
  x = tf.keras.layers.Embedding(_EOS + 1, 4, mask_zero=True)(words)
  x = tf.keras.layers.LSTM(_UNITS, return_sequences=True)(x)
  x = tf.keras.layers.Dense(4)(x)
  return tf.keras.Model(words, tf.keras.layers.Dense(_EOS + 1)(x))


def _sentences(*sentences):
  """Makes a batch of sentences of up to `_LENGTH` + 1 words."""
  padded = np.zeros([len(sentences), _LENGTH + 1], np.int32)
  for row, sentence in zip(padded, sentences):
    row[: len(sentence)] = sentence
  return {'x': tf.constant(padded[:, :-1]), 'y': tf.constant(padded[:, 1:])}


def _batch():
  """Makes a long sentence, a short, one with an unknown word, an empty one."""
  return _sentences(
    [_BOS, 1, 2, 3, 4, 11], [_BOS, 5, _EOS], [_BOS, _OOV, 5, 5, _EOS], []
  )


def _weights(model):
  """Makes weights that are larger than initial ones, so that outputs differ."""
  weights = model.init(_SEED)
  rng = np.random.default_rng(0)
  for name, weight in weights.items():
    noise = rng.normal(scale=0.5, size=weight.shape)
    weights[name] = weight + tf.constant(noise, tf.float32)
  return weights


def _plain_loss(weights, batch):
  """Computes the loss of each sentence with TensorFlow's own gradients."""
  x = tf.gather(weights['embedding'], batch['x'])
  h = c = tf.zeros([tf.shape(x)[0], _UNITS])
  losses = []
  for t in range(_LENGTH):
    z = x[:, t] @ weights['lstm_kernel'] + h @ weights['lstm_recurrent_kernel']
    i, f, g, o = tf.split(z + weights['lstm_bias'], 4, axis=1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    h = tf.sigmoid(o) * tf.tanh(c)
    y = h @ weights['dense_kernel'] + weights['dense_bias']
    logits = y @ weights['output_kernel'] + weights['output_bias']
    losses.append(
      tf.nn.sparse_softmax_cross_entropy_with_logits(batch['y'][:, t], logits)
    )
  counts = tf.cast(batch['y'] > 0, tf.float32)
  total = tf.reduce_sum(tf.stack(losses, axis=1) * counts, axis=1)
  return tf.math.divide_no_nan(total, tf.reduce_sum(counts, axis=1))


def _gradient(loss, weights, batch):
  with tf.GradientTape() as tape:
    tape.watch(weights)
    value = tf.reduce_mean(loss(weights, batch))
  gradient = tape.gradient(value, weights)
  return value, tf.nest.map_structure(tf.convert_to_tensor, gradient)


def _hessian_product(loss, weights, batch):
  """Multiplies the Hessian with the weights themselves."""
  with tf.GradientTape() as outer:
    outer.watch(weights)
    gradient = _gradient(loss, weights, batch)[1]
    product = tf.add_n(
      [
        tf.reduce_sum(gradient[name] * tf.stop_gradient(weight))
        for name, weight in weights.items()
      ]
    )
  return tf.nest.map_structure(
    tf.convert_to_tensor, outer.gradient(product, weights)
  )


def _assert_close(actual, expected):
  for name, value in expected.items():
    np.testing.assert_allclose(
      actual[name], value, atol=1e-5, rtol=1e-4, err_msg=name
    )


@pytest.fixture(name='model')
def _fixture_model():
  return _model()


def test_has_the_size_of_tffs():
  init = tf.function(lstm.NextWordLstm().init)
  shapes = init.get_concrete_function(tf.TensorSpec([2], tf.int32))
  assert (
    sum(shape.num_elements() for shape in shapes.output_shapes.values())
    == 4_050_748
  )


def test_starts_as_keras_does(model):
  weights = model.init(_SEED)
  keras = _keras_model()
  assert [tuple(weight.shape) for weight in weights.values()] == [
    weight.shape for weight in keras.get_weights()
  ]
  recurrent = weights['lstm_recurrent_kernel']
  np.testing.assert_allclose(
    tf.matmul(recurrent, recurrent, transpose_b=True),
    np.eye(_UNITS),
    atol=1e-5,
  )
  np.testing.assert_array_equal(
    weights['lstm_bias'], keras.layers[2].get_weights()[2]
  )


def test_seed_decides_the_weights(model):
  first, again = model.init(_SEED), model.init(_SEED)
  other = model.init(tf.constant([1, 3]))
  for name in first:
    np.testing.assert_array_equal(first[name], again[name])
  assert not np.array_equal(first['embedding'], other['embedding'])


def test_loss_and_gradient_are_those_of_keras(model):
  weights, batch = _weights(model), _batch()
  keras = _keras_model()
  keras.set_weights(list(weights.values()))
  counts = tf.cast(batch['y'] > 0, tf.float32)
  with tf.GradientTape() as tape:
    of_words = tf.keras.losses.sparse_categorical_crossentropy(
      batch['y'], keras(batch['x']), from_logits=True
    )
    keras_loss = tf.reduce_sum(of_words * counts) / tf.reduce_sum(counts)
  keras_gradient = [
    tf.convert_to_tensor(gradient)
    for gradient in tape.gradient(keras_loss, keras.trainable_variables)
  ]

  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = model.mean_loss(weights, batch, tf.ones([4]))
  np.testing.assert_allclose(loss, keras_loss, rtol=1e-5)
  _assert_close(
    tape.gradient(loss, weights), dict(zip(weights, keras_gradient))
  )


def test_gradient_is_tensorflows(model):
  weights, batch = _weights(model), _batch()
  for function in (_gradient, tf.function(_gradient)):
    loss, gradient = function(model.loss, weights, batch)
    plain_loss, plain_gradient = function(_plain_loss, weights, batch)
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
    _assert_close(gradient, plain_gradient)


def test_second_derivative_is_tensorflows(model):
  weights, batch = _weights(model), _batch()
  for function in (_hessian_product, tf.function(_hessian_product)):
    _assert_close(
      function(model.loss, weights, batch),
      function(_plain_loss, weights, batch),
    )


def test_gradient_is_the_same_under_xla(model):
  weights, batch = _weights(model), _batch()
  compiled = tf.function(_gradient, jit_compile=True)
  _, expected = _gradient(model.loss, weights, batch)
  _assert_close(compiled(model.loss, weights, batch)[1], expected)


def test_a_sentence_counts_by_its_words(model):
  np.testing.assert_array_equal(model.example_weight(_batch()), [5, 2, 4, 0])


def test_empty_sentence_changes_nothing(model):
  weights = _weights(model)
  batch = _sentences([])
  loss, gradient = _gradient(model.loss, weights, batch)
  assert loss == 0
  for of_weight in gradient.values():
    np.testing.assert_array_equal(of_weight, np.zeros(of_weight.shape))


def test_loss_is_finite_for_large_logits(model):
  weights, batch = _weights(model), _batch()
  weights['output_bias'] = 1000 * tf.one_hot(9, _EOS + 1)
  loss = model.loss(weights, batch)
  np.testing.assert_allclose(loss, _plain_loss(weights, batch), rtol=1e-4)
  assert loss.numpy().max() == pytest.approx(1000, rel=0, abs=20)


def test_accuracy_leaves_out_special_words(model):
  weights = model.init(_SEED)
  expected = {5: [0, 1, 2, 0], _OOV: 4 * [0], 0: 4 * [0], _EOS: 4 * [0]}
  for word, of_sentences in expected.items():
    weights['output_bias'] = 100 * tf.one_hot(word, _EOS + 1)
    correct, counted = model.statistics(weights, _batch())['accuracy']
    np.testing.assert_array_equal(correct, of_sentences)
    np.testing.assert_array_equal(counted, [5, 1, 2, 0])


def test_prediction_is_of_each_word_in_the_order_of_the_sentences(model):
  weights, batch = _weights(model), _batch()
  keras = _keras_model()
  keras.set_weights(list(weights.values()))
  expected = tf.nn.softmax(keras(batch['x'])).numpy()
  mask = model.entry_mask(batch).numpy()
  np.testing.assert_array_equal(mask, batch['y'].numpy() > 0)
  is_word = mask.ravel() > 0
  np.testing.assert_allclose(
    model.predict_softly(model.scores(weights, batch)).numpy()[is_word],
    expected[mask > 0],
    rtol=1e-4,
    atol=1e-7,
  )
  np.testing.assert_array_equal(
    model.target(batch).numpy()[is_word], batch['y'].numpy()[mask > 0]
  )


def test_statistics_are_those_of_the_likeliest_words(model):
  weights, batch = _weights(model), _batch()
  likeliest = tf.argmax(
    model.predict_softly(model.scores(weights, batch)), 1, tf.int32
  )
  np.testing.assert_array_equal(
    model.statistics(weights, batch)['accuracy'],
    model.prediction_statistics(likeliest, batch)['accuracy'],
  )
  correct, _ = model.prediction_statistics(model.target(batch), batch)[
    'accuracy'
  ]
  np.testing.assert_array_equal(correct, [5, 1, 2, 0])


def test_representation_of_a_word_is_the_output_of_kerass_lstm(model):
  weights, batch = _weights(model), _batch()
  keras = _keras_model()
  keras.set_weights(list(weights.values()))
  lstm_layer = tf.keras.Model(keras.input, keras.layers[2].output)
  is_word = batch['x'].numpy() > 0
  features = model.encode(weights, batch).numpy()
  assert features.shape == (4 * _LENGTH, _UNITS)
  np.testing.assert_allclose(
    features[is_word.ravel()],
    lstm_layer(batch['x']).numpy()[is_word],
    rtol=1e-4,
    atol=1e-6,
  )


def test_head_is_the_last_layer(model):
  assert set(model.parts['head']) == {'output_kernel', 'output_bias'}
