"""Tests of the networks of FedEmbed against their description and NumPy."""

import math

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from tasks.models import models
from tasks.models import preference

_SEED = tf.constant([1, 2])
_DIGITS = preference.DigitPreference(10)
_SPEECH = preference.SpeechPreference(20)


def _batch(model, size=2):
  rng = np.random.default_rng(0)
  x = rng.random(size=(size, *model.example_spec['x'].shape))
  return {
    'x': tf.constant(x, tf.float32),
    'y': tf.constant([0, 1] * (size // 2)),
    'type': tf.zeros([size], tf.int32),
  }


def _sizes(model):
  weights = model.init(_SEED)
  return {
    part: sum(weights[name].shape.num_elements() for name in names)
    for part, names in model.parts.items()
  }


@pytest.mark.parametrize(
  'model, encoder, with_heads',
  [
    (_DIGITS, 114_752, None),
    (_DIGITS.add_vector(), 114_896, 117_872),
    (_SPEECH.add_vector(), 243_344, 271_678),
  ],
  ids=['digits_alone', 'digits', 'speech'],
)
def test_numbers_of_weights(model, encoder, with_heads):
  sizes = _sizes(model)
  assert sizes[models.ENCODER] == encoder
  if with_heads:
    # A head of each type, one of all users, and one of the types.
    width = model.init(_SEED)['output_kernel'].shape[0]
    heads = sizes[models.HEAD] * (model.num_types + 1)
    heads += (width + 1) * model.num_types
    assert encoder + heads == with_heads


def test_heads_see_the_representation_and_the_vector():
  for model, width in ((_DIGITS, 64), (_SPEECH, 256)):
    add_vector = model.add_vector()
    weights, batch = add_vector.init(_SEED), _batch(add_vector)
    features = add_vector.encode(weights, batch)
    assert features.shape == [2, width + add_vector.vector_size]
    np.testing.assert_array_equal(features[:, width:], [weights['vector']] * 2)


def _convolve(x, kernel, bias, stride, padding):
  """Convolves one image `[height, width, channels]`, as PyTorch defines it."""
  rows, columns = padding
  x = np.pad(x, [(rows, rows), (columns, columns), (0, 0)])
  windows = np.lib.stride_tricks.sliding_window_view(
    x, kernel.shape[:2], axis=(0, 1)
  )[:: stride[0], :: stride[1]]
  return np.einsum('ijcab,abco->ijo', windows, kernel) + bias


def _pool(x, height, width):
  rows, columns = x.shape[0] // height, x.shape[1] // width
  x = x[: rows * height, : columns * width]
  return x.reshape(rows, height, columns, width, -1).mean(axis=(1, 3))


def _normalize(x, scale, offset):
  return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * scale + offset


def _two_channels(x, e):
  """Puts the vector on the diagonal of a second channel."""
  second = np.zeros_like(x)
  for i, entry in enumerate(e):
    second[i, i] = entry
  return np.concatenate([x, second], axis=-1)


def _norm(w, name, x):
  return _normalize(x, w[f'{name}_scale'], w[f'{name}_offset'])


def _conv(w, name, x, stride, padding=(0, 0)):
  return _convolve(x, w[f'{name}_kernel'], w[f'{name}_bias'], stride, padding)


def _digit_features(w, x, activate):
  x = _conv(w, 'conv1', _two_channels(x, w['vector']), (2, 2), (1, 1))
  x = activate(_norm(w, 'norm1', x))
  x = activate(_norm(w, 'norm2', _conv(w, 'conv2', x, (2, 2), (1, 1))))
  assert x.shape == (7, 7, 32)
  x = _norm(w, 'norm3', _conv(w, 'conv3', x, (1, 1))[0, 0])
  return np.append(x, w['vector'])


def _speech_features(w, x):
  x = _conv(w, 'conv1', _two_channels(x, w['vector']), (2, 3), (1, 0))
  assert x.shape[:2] == (100, 124)
  x = _norm(w, 'norm1', _pool(x, 2, 3))
  assert x.shape[:2] == (50, 41)
  x = _conv(w, 'conv2', x, (2, 2))
  assert x.shape[:2] == (23, 19)
  x = _norm(w, 'norm2', _pool(x, 3, 3))
  assert x.shape[:2] == (7, 6)
  x = _norm(w, 'norm3', _conv(w, 'conv3', x, (2, 2)))
  assert x.shape == (3, 3, 64)
  x = _norm(w, 'norm4', x.ravel() @ w['dense_kernel'] + w['dense_bias'])
  return np.append(x, w['vector'])


def _weights(model):
  """Makes weights with scales and offsets that are not 1 and 0."""
  rng = np.random.default_rng(0)
  return {
    name: leaf + tf.constant(0.1 * rng.normal(size=leaf.shape), tf.float32)
    for name, leaf in model.init(_SEED).items()
  }


def _as_numpy(weights):
  return {name: leaf.numpy() for name, leaf in weights.items()}


@pytest.mark.parametrize('activation', preference.ACTIVATIONS)
def test_digits_are_represented_as_printed(activation):
  model = preference.DigitPreference(10, 28, activation)
  w, batch = _weights(model), _batch(model)
  activate = {'none': lambda x: x, 'relu': lambda x: np.maximum(x, 0)}
  as_numpy = _as_numpy(w)
  expected = [
    _digit_features(as_numpy, x, activate[activation])
    for x in batch['x'].numpy()
  ]
  np.testing.assert_allclose(model.encode(w, batch), expected, atol=2e-4)


def test_speech_is_represented_as_printed():
  model = _SPEECH.add_vector()
  w, batch = _weights(model), _batch(model)
  expected = [_speech_features(_as_numpy(w), x) for x in batch['x'].numpy()]
  np.testing.assert_allclose(model.encode(w, batch), expected, atol=1e-3)


def test_a_vector_of_zeros_is_as_none():
  add_vector = _DIGITS.add_vector()
  weights, batch = add_vector.init(_SEED), _batch(add_vector)
  weights['vector'] = tf.zeros([28])
  alone = dict(weights)
  alone['conv1_kernel'] = weights['conv1_kernel'][:, :, :1]
  alone['output_kernel'] = weights['output_kernel'][:64]
  np.testing.assert_allclose(
    add_vector.scores(weights, batch), _DIGITS.scores(alone, batch), atol=1e-5
  )


def test_weights_start_as_in_pytorch():
  weights = _DIGITS.add_vector().init(_SEED)
  for layer, fan_in in (('conv2', 144), ('conv3', 1568), ('output', 92)):
    for name in ('kernel', 'bias'):
      most = np.abs(weights[f'{layer}_{name}']).max() * math.sqrt(fan_in)
      assert (0.9 if name == 'kernel' else 0.2) < most <= 1 + 1e-6
  assert 0 <= np.min(weights['vector']) < 0.2
  assert 0.8 < np.max(weights['vector']) < 1


def test_a_vector_that_is_longer_than_the_diagonal_is_refused():
  with pytest.raises(errors.UserError, match='at most 28'):
    _DIGITS.add_vector(29)


def test_a_shorter_vector_is_at_the_start_of_the_diagonal():
  model = _DIGITS.add_vector(5)
  w, batch = _weights(model), _batch(model)
  as_numpy = _as_numpy(w)
  expected = [
    _digit_features(as_numpy, x, lambda x: x) for x in batch['x'].numpy()
  ]
  np.testing.assert_allclose(model.encode(w, batch), expected, atol=2e-4)


def test_f1_is_counted_by_true_and_predicted_label():
  batch = {**_batch(_DIGITS), 'y': tf.constant([0, 1, 1, 1])}
  judged = _DIGITS.prediction_statistics(tf.constant([0, 1, 1, 0]), batch)
  counts = tf.reduce_sum(judged['macro_f1'], 0)
  np.testing.assert_array_equal(counts, [[1, 0], [1, 2]])
  # F1 of label 0: 2 / 3; of label 1: 4 / 5.
  value = _DIGITS.metrics['macro_f1'].value(counts.numpy())
  assert value == pytest.approx((2 / 3 + 4 / 5) / 2)
