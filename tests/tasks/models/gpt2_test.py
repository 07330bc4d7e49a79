"""Tests of GPT-2: numbers of Hugging Face, and of formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import gpt2
from tests.tasks.models import gpt2_source

_SIZES = gpt2_source.SIZES
_WORDS = gpt2_source.WORDS


def _logits(weights, words=_WORDS, prefix=None, sizes=_SIZES):
  features = sizes.encode(weights, tf.constant(words), prefix)
  return (features @ tf.transpose(weights['wte'])).numpy()


def _expected_logits(weights, words, prefix, sizes):
  """Computes the logits of one sentence by the formulas, word by word."""
  w = {name: np.float64(weight) for name, weight in weights.items()}

  def norm(layer, x):
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    centered /= np.sqrt(variance + 1e-5)
    return centered * w[f'{layer}_scale'] + w[f'{layer}_offset']

  def dense(layer, x):
    return x @ w[f'{layer}_kernel'] + w[f'{layer}_bias']

  x = np.concatenate([prefix, w['wte'][words]])
  x = x + w['wpe'][: len(x)]
  size = sizes.width // sizes.num_heads
  for i in range(sizes.num_blocks):
    qkv = dense(f'h{i}_attn_c_attn', norm(f'h{i}_ln_1', x))
    query, key, value = np.split(qkv, 3, axis=1)
    mixed = np.zeros_like(x)
    for head in range(sizes.num_heads):
      of_head = slice(head * size, (head + 1) * size)
      for t in range(len(x)):
        scores = key[: t + 1, of_head] @ query[t, of_head] / np.sqrt(size)
        shares = np.exp(scores) / np.exp(scores).sum()
        mixed[t, of_head] = shares @ value[: t + 1, of_head]
    x = x + dense(f'h{i}_attn_c_proj', mixed)
    y = dense(f'h{i}_mlp_c_fc', norm(f'h{i}_ln_2', x))
    y *= 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    x = x + dense(f'h{i}_mlp_c_proj', y)
  return norm('ln_f', x)[len(prefix) :] @ w['wte'].T


@pytest.fixture(name='weights', scope='module')
def _weights():
  return gpt2_source.weights()


@pytest.mark.parametrize(
  'sizes, number', [(gpt2.DISTILGPT2, 81_912_576), (gpt2.SMALL, 1_858_304)]
)
def test_has_the_published_number_of_weights(sizes, number):
  assert sum(np.prod(shape) for shape in sizes.shapes.values()) == number


def test_heads_are_of_width_64():
  assert (gpt2.DISTILGPT2.num_heads, gpt2.SMALL.num_heads) == (12, 2)


def test_initial_weights_have_the_shapes():
  weights = _SIZES.init(tf.constant([1, 2]))
  shapes = {name: tuple(w.shape) for name, w in weights.items()}
  assert shapes == dict(_SIZES.shapes)


def test_logits_are_those_of_hugging_face(weights):
  np.testing.assert_allclose(_logits(weights), gpt2_source.LOGITS, atol=1e-5)


def test_logits_behind_a_prefix_are_those_of_hugging_face(weights):
  np.testing.assert_allclose(
    _logits(weights, prefix=gpt2_source.prefix()),
    gpt2_source.LOGITS_BEHIND_PREFIX,
    atol=1e-5,
  )


@pytest.mark.parametrize('length', [0, 1, 3])
def test_logits_are_those_of_the_formulas(length):
  sizes = gpt2.Gpt2(11, 9, 12, 3, 3)
  rng = np.random.default_rng(2)
  weights = {
    name: rng.normal(scale=0.5, size=shape).astype(np.float32)
    for name, shape in sizes.shapes.items()
  }
  words = rng.integers(11, size=[2, 6])
  prefix = rng.normal(size=[2, length, 12]).astype(np.float32)
  expected = [
    _expected_logits(weights, sentence, start, sizes)
    for sentence, start in zip(words, prefix)
  ]
  actual = _logits(weights, words, prefix, sizes)
  np.testing.assert_allclose(actual, expected, atol=1e-4, rtol=1e-5)


def test_a_prefix_of_no_vectors_changes_nothing(weights):
  np.testing.assert_array_equal(
    _logits(weights, prefix=tf.zeros([2, 0, 8])), _logits(weights)
  )


def test_what_is_no_word_is_left_out(weights):
  prefix = tf.constant(gpt2_source.prefix())
  is_word = np.arange(_WORDS.shape[1]) < [[4], [2]]
  features = _SIZES.encode(weights, tf.constant(_WORDS), prefix, is_word)
  whole = _SIZES.encode(weights, tf.constant(_WORDS), prefix).numpy()
  np.testing.assert_allclose(
    features, whole * is_word[..., np.newaxis], atol=1e-6
  )


def test_no_word_changes_a_prediction_before_it(weights):
  prefix = gpt2_source.prefix()
  before = _logits(weights, prefix=prefix)
  for place in range(_WORDS.shape[1]):
    words = _WORDS.copy()
    words[:, place] += 1
    words %= _SIZES.vocabulary_size
    after = _logits(weights, words, prefix)
    np.testing.assert_array_equal(after[:, :place], before[:, :place])
    assert np.all(np.abs(after[:, place:] - before[:, place:]).max(2) > 1e-4)


def test_logits_are_those_of_an_installed_transformers(weights):
  transformers = pytest.importorskip(
    'transformers', reason='transformers is not installed beside TensorFlow'
  )
  config = transformers.GPT2Config(
    vocab_size=_SIZES.vocabulary_size,
    n_positions=_SIZES.num_positions,
    n_embd=_SIZES.width,
    n_layer=_SIZES.num_blocks,
    n_head=_SIZES.num_heads,
  )
  theirs = transformers.TFGPT2LMHeadModel(config)
  theirs(_WORDS)
  for variable in theirs.weights:
    name = variable.name.rsplit('transformer/')[-1].removesuffix(':0')
    name = name.replace('h_._', 'h').replace('/', '_')
    for old, new in (
      ('_weight', '_kernel'),
      ('_gamma', '_scale'),
      ('_beta', '_offset'),
      ('_embeddings', ''),
    ):
      name = name.removesuffix(old) + new * name.endswith(old)
    variable.assign(weights[name].reshape(variable.shape))
  np.testing.assert_allclose(_logits(weights), theirs(_WORDS).logits, atol=1e-5)
