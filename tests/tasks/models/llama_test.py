"""Tests of the Llama form: numbers of Hugging Face, and properties."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import language_model_files
from tasks.models import llama
from tests import data
from tests.tasks.models import llama_source

_SIZES = llama_source.SIZES
_WORDS = np.array([[1, 5, 9, 2, 33, 7]], np.int32)
_SENTENCES = np.array([[3, 1, 4, 18, 21], [0, 5, 9, 2, 39]], np.int32)


@pytest.fixture(name='weights', scope='module')
def _weights():
  return llama_source.weights()


def _logits(weights, words, prefix=None, sizes=_SIZES, is_word=None):
  features = sizes.encode(weights, tf.constant(words), prefix, is_word)
  return (features @ tf.transpose(weights[sizes.head])).numpy()


def _prefix(number=1):
  rng = np.random.default_rng(99)
  return np.float32([rng.standard_normal((1, 32))] * number)


def test_logits_are_those_of_hugging_face(weights):
  logits = _logits(weights, _WORDS)[0]
  expected = [-1.61075, 1.60021, 0.15319, 0.26891, 0.24917, 0.04261]
  np.testing.assert_allclose(logits[-1, :6], expected, atol=1e-4)
  np.testing.assert_allclose(logits.sum(), 18.25250, atol=1e-3)
  np.testing.assert_allclose((logits**2).sum(), 299.40616, atol=1e-3)


def test_logits_behind_a_prefix_are_those_of_hugging_face(weights):
  logits = _logits(weights, _WORDS, _prefix())[0, -1, :6]
  expected = [-1.95667, 1.50018, 0.73993, -0.13901, -0.24378, -0.04766]
  np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_turning_neighbors_in_place_of_halves_gives_other_logits(weights):
  """The convention of other files; what it gives seems plausible."""
  turned = dict(weights)
  for i in range(_SIZES.num_blocks):
    for name in (f'h{i}_q_proj', f'h{i}_k_proj'):
      by_pair = weights[name].reshape(-1, 2, 4, 32).swapaxes(1, 2)
      turned[name] = by_pair.reshape(weights[name].shape)
  difference = _logits(turned, _WORDS) - _logits(weights, _WORDS)
  assert np.abs(difference).max() > 0.1


def test_only_differences_of_positions_matter(weights, monkeypatch):
  expected = _logits(weights, _WORDS)
  angles = llama.Llama._angles

  def later(self, time):
    cos, sin = angles(self, time + 30)
    return cos[30:], sin[30:]

  monkeypatch.setattr(llama.Llama, '_angles', later)
  np.testing.assert_allclose(_logits(weights, _WORDS), expected, atol=1e-4)


def test_padding_changes_nothing(weights):
  is_word = np.arange(5) < [[5], [2]]
  logits = _logits(weights, _SENTENCES, _prefix(2), is_word=is_word)
  whole = _logits(weights, _SENTENCES, _prefix(2))
  np.testing.assert_allclose(logits[is_word], whole[is_word], atol=1e-5)
  assert not logits[~is_word].any()


def test_no_word_changes_a_prediction_before_it(weights):
  before = _logits(weights, _SENTENCES)
  for place in range(5):
    words = _SENTENCES.copy()
    words[:, place] = (words[:, place] + 1) % 40
    after = _logits(weights, words)
    np.testing.assert_array_equal(after[:, :place], before[:, :place])
    assert np.all(np.abs(after[:, place:] - before[:, place:]).max(2) > 1e-4)


def test_gradients_are_those_of_differences(weights):
  """Checks the custom gradient of norms, and that of turned, shared heads."""
  prefix = tf.constant(_prefix())
  towards = tf.constant(_prefix()[:, :, ::-1])

  def loss(step):
    logits = _SIZES.encode(
      weights, tf.constant(_WORDS), prefix + step * towards
    )
    return tf.reduce_sum(tf.sin(logits))

  with tf.GradientTape() as tape:
    step = tf.constant(0.0)
    tape.watch(step)
    value = loss(step)
  slope = (loss(1e-2) - loss(-1e-2)) / 2e-2
  np.testing.assert_allclose(tape.gradient(value, step), slope, rtol=2e-3)


@pytest.mark.parametrize(
  'words, expected',
  [
    (
      [504, 3575, 282, 4649, 314],
      {
        7042: -0.2579,
        260: -2.7366,
        4528: -4.3863,
        2250: -4.6231,
        1315: -4.6777,
      },
    ),
    (
      [19556, 905],
      {282: -1.4185, 28: -1.8354, 30: -2.4311, 837: -3.2334, 351: -3.5717},
    ),
  ],
)
def test_smollm2_scores_as_hugging_face_does(smollm2, words, expected):
  sizes, weights = smollm2
  logits = _logits(weights, [words], sizes=sizes)[0, -1]
  scores = tf.nn.log_softmax(logits).numpy()[list(expected)]
  np.testing.assert_allclose(scores, list(expected.values()), atol=2e-3)


def test_smollm2_scores_behind_a_prefix_as_hugging_face_does(smollm2):
  sizes, weights = smollm2
  prefix = np.full([1, 1, 576], 0.02, np.float32)
  features = sizes.encode(weights, tf.constant([[19556, 905]]), prefix)[0, -1:]
  scores = tf.nn.log_softmax(features @ tf.transpose(weights['embed_tokens']))
  np.testing.assert_allclose(
    scores.numpy()[0, [28, 30, 17]], [-2.0865, -2.2814, -2.4402], atol=2e-3
  )


def test_smollm2_gives_a_sentence_the_likelihood_of_hugging_face(smollm2):
  sizes, weights = smollm2
  words = [23855, 339, 325, 750, 540, 12364, 282, 451, 6728, 47]
  scores = tf.nn.log_softmax(_logits(weights, [words], sizes=sizes)[0]).numpy()
  found = -scores[range(9), words[1:]]
  expected = '6.4778 4.3924 4.7379 1.4606 9.3437 2.2363 2.4143 6.4398 2.0868'
  np.testing.assert_allclose(found, np.float64(expected.split()), atol=2e-3)


@pytest.fixture(name='smollm2', scope='module')
def _smollm2():
  path = data.path('smollm2/model.safetensors')
  sizes, weights = language_model_files.load(path)
  assert sum(w.size for w in weights.values()) == 134_515_008
  return sizes, weights


def test_a_head_of_its_own_is_a_further_weight():
  untied = dataclasses.replace(_SIZES, tied=False)
  assert set(untied.shapes) - set(_SIZES.shapes) == {'lm_head'}
