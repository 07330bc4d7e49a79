"""Tests of the transformer."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import transformer

_SEED = tf.constant([1, 2])
_VOCABULARY = 11
_OOV, _BOS, _EOS = 12, 13, 14
_LENGTH = 5
_SIZE, _WIDTH, _HIDDEN, _HEADS = 6, 8, 10, 2


def _model():
  return transformer.NextWordTransformer(
    _VOCABULARY,
    sequence_length=_LENGTH,
    embedding_size=_SIZE,
    width=_WIDTH,
    hidden_size=_HIDDEN,
    num_heads=_HEADS,
  )


def _batch():
  """Makes a long sentence, a short, one with an unknown word, an empty one."""
  sentences = [
    [_BOS, 1, 2, 3, 4, 11],
    [_BOS, 5, _EOS],
    [_BOS, _OOV, 5, 5, _EOS],
    [],
  ]
  padded = np.zeros([len(sentences), _LENGTH + 1], np.int32)
  for row, sentence in zip(padded, sentences):
    row[: len(sentence)] = sentence
  return {'x': tf.constant(padded[:, :-1]), 'y': tf.constant(padded[:, 1:])}


def _weights(model):
  """Makes weights that are larger than initial ones, so that outputs differ."""
  rng = np.random.default_rng(0)
  weights = model.init(_SEED)
  for name, weight in weights.items():
    noise = rng.normal(scale=0.3, size=weight.shape)
    weights[name] = weight + tf.constant(noise, tf.float32)
  return weights


def _keras_logits(weights, words):
  """Computes the logits by Keras's layers, whose attention has a head axis."""
  layers = tf.keras.layers

  def variables(layer):
    return [weights[f'{layer}_kernel'], weights[f'{layer}_bias']]

  def dense(layer, x, **arguments):
    units = weights[f'{layer}_bias'].shape[0]
    keras = layers.Dense(units, **arguments)
    keras.build(x.shape)
    keras.set_weights(variables(layer))
    return keras(x)

  def normalize(layer, x):
    keras = layers.LayerNormalization(epsilon=1e-6)
    keras.build(x.shape)
    keras.set_weights([weights[f'{layer}_scale'], weights[f'{layer}_offset']])
    return keras(x)

  position = np.arange(_LENGTH)[:, np.newaxis]
  waves = position / 10_000 ** (np.arange(0, _SIZE, 2) / _SIZE)
  positions = np.stack([np.sin(waves), np.cos(waves)], axis=-1)
  x = tf.gather(weights['embedding'], words) * np.sqrt(_SIZE)
  x += positions.reshape(_LENGTH, _SIZE).astype(np.float32)
  x = dense('widen', x)
  attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)
  attention(x, x)
  by_head = [_HEADS, _WIDTH // _HEADS]
  of_attention = []
  for layer in ('query', 'key', 'value'):
    kernel, bias = variables(layer)
    of_attention.append(tf.reshape(kernel, [_WIDTH, *by_head]))
    of_attention.append(tf.reshape(bias, by_head))
  kernel, bias = variables('attention')
  of_attention += [tf.reshape(kernel, [*by_head, _WIDTH]), bias]
  attention.set_weights(of_attention)
  x = normalize('attention', x + attention(x, x, use_causal_mask=True))
  y = dense('feed_forward', dense('hidden', x, activation='relu'))
  x = dense('narrow', normalize('feed_forward', x + y))
  return tf.matmul(x, weights['embedding'], transpose_b=True)


def _predict(model, weights, batch):
  probabilities = model.predict_softly(model.scores(weights, batch)).numpy()
  return probabilities.reshape(-1, _LENGTH, _EOS + 1)


@pytest.fixture(name='model')
def _fixture_model():
  return _model()


@pytest.fixture(name='weights')
def _fixture_weights(model):
  return _weights(model)


def test_has_motleys_size():
  init = tf.function(transformer.NextWordTransformer().init)
  shapes = init.get_concrete_function(tf.TensorSpec([2], tf.int32))
  words, width, hidden = 15_814 + 4, 512, 2048
  attention = 4 * (width * width + width)
  feed_forward = width * hidden + hidden + hidden * width + width
  expected = (
    words * 96
    + (96 * width + width)
    + attention
    + feed_forward
    + 2 * 2 * width
    + (width * 96 + 96)
  )
  assert (
    sum(shape.num_elements() for shape in shapes.output_shapes.values())
    == expected
  )
  assert expected == 4_769_824  # "4M".


def test_predictions_are_those_of_keras_layers(model, weights):
  batch = _batch()
  np.testing.assert_allclose(
    _predict(model, weights, batch),
    tf.nn.softmax(_keras_logits(weights, batch['x'])),
    atol=1e-5,
  )


def test_gradient_is_tensorflows(model, weights):
  batch = _batch()

  def plain_loss(weights):
    """Computes the loss with TensorFlow's own gradients."""
    logits = tf.math.log(model.predict_softly(model.scores(weights, batch)))
    words = tf.reshape(batch['y'], [-1])
    of_words = tf.nn.sparse_softmax_cross_entropy_with_logits(words, logits)
    counts = tf.cast(words > 0, tf.float32)
    return tf.reduce_sum(of_words * counts) / tf.reduce_sum(counts)

  def loss(weights):
    return model.mean_loss(weights, batch, tf.ones([4]))

  gradients = []
  for function in (loss, plain_loss):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      value = function(weights)
    gradients.append(tape.gradient(value, weights))
  np.testing.assert_allclose(loss(weights), plain_loss(weights), rtol=1e-4)
  for name, expected in gradients[1].items():
    np.testing.assert_allclose(
      gradients[0][name], expected, atol=1e-5, rtol=1e-3, err_msg=name
    )


def test_no_word_sees_a_later_one(model, weights):
  batch = _batch()
  x = batch['x'].numpy()
  x[:, 3:] = 9
  before = _predict(model, weights, batch)
  after = _predict(model, weights, {'x': tf.constant(x)})
  np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)
  assert np.abs(after[:, 3:] - before[:, 3:]).max() > 1e-3


def test_a_sentence_counts_by_its_words(model, weights):
  np.testing.assert_array_equal(model.example_weight(_batch()), [5, 2, 4, 0])
  assert model.loss(weights, _batch())[3] == 0


def test_accuracy_leaves_out_special_words(model, weights):
  words = _batch()['y'].numpy()
  right = _predict(model, weights, _batch()).argmax(axis=2) == words
  counts = (words > 0) & (words <= _VOCABULARY)
  correct, counted = model.statistics(weights, _batch())['accuracy']
  np.testing.assert_array_equal(correct, (right & counts).sum(axis=1))
  np.testing.assert_array_equal(counted, [5, 1, 2, 0])


def test_representation_of_a_word_is_what_the_head_sees(model, weights):
  assert set(model.parts['head']) == {'embedding'}
  features = model.encode(weights, _batch())
  assert features.shape == [4 * _LENGTH, _SIZE]
  np.testing.assert_allclose(
    model.predict_softly(model.scores(weights, _batch())),
    tf.nn.softmax(features @ tf.transpose(weights['embedding'])),
    atol=1e-6,
  )


def test_seed_decides_the_weights(model):
  first, again = model.init(_SEED), model.init(_SEED)
  other = model.init(tf.constant([1, 3]))
  for name in first:
    np.testing.assert_array_equal(first[name], again[name])
  assert not np.array_equal(first['embedding'], other['embedding'])
