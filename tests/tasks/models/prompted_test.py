"""Tests of the frozen GPT-2 and of what is trained before and behind it."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import frozen_models
from tasks.models import gpt2
from tasks.models import prompted
from tests.tasks.models import gpt2_source

_SIZES = gpt2_source.SIZES
_WIDTH, _CONTEXTS = _SIZES.width, 3
# Numbers from 1 on. The second is too short to be judged, the last is empty.
_UTTERANCES = [[5, 1, 19, 7, 3, 2], [4, 4, 8], [9, 2, 6, 11], []]


def _batch():
  words = np.zeros([4, 6], np.int32)
  for row, utterance in zip(words, _UTTERANCES):
    row[: len(utterance)] = utterance
  return {
    'x': tf.constant(words[:, :-1]),
    'y': tf.constant(words[:, 1:]),
    'context': tf.constant([2, 0, 2, 1]),
    # The fourth word of the text begins in the middle of the utterances.
    'bytes': 3 * (words[:, 1:] > 0) * np.array([0, 0, 1, 1, 1], np.int32),
    'begun': (words[:, 1:] > 0) * np.array([0, 0, 1, 0, 1], np.int32),
  }


def _model(cls, **changes):
  frozen = gpt2_source.weights()
  return cls(_SIZES, _CONTEXTS, sequence_length=5, frozen=frozen, **changes)


def _random(model):
  """Draws weights, also where the initial ones are zero."""
  rng = np.random.default_rng(1)
  return {
    name: rng.normal(size=weight.shape).astype(np.float32)
    for name, weight in model.init(tf.constant([1, 2])).items()
  }


@pytest.fixture(name='model', scope='module')
def _fixture_model():
  return _model(prompted.PromptedModel)


@pytest.fixture(name='weights', scope='module')
def _fixture_weights(model):
  return model.init(tf.constant([1, 2]))


def _log_probabilities(model, weights):
  """The log-probability of each word of each utterance, w_2, …, by GPT-2."""
  found = []
  for words, context in zip(_UTTERANCES, _batch()['context'].numpy()):
    words = np.array(words, int) - 1
    prefix = weights['psi'] * weights['phi'][context]
    features = _SIZES.encode(
      model.frozen,
      tf.constant(words[np.newaxis, :-1], tf.int32),
      prefix[np.newaxis, np.newaxis],
    )[0]
    logs = tf.nn.log_softmax(features @ tf.transpose(model.frozen['wte']))
    found.append(logs.numpy()[np.arange(len(words) - 1), words[1:]])
  return found[:3]


def test_loss_is_of_all_words_but_the_first(model, weights):
  logs = _log_probabilities(model, weights)
  np.testing.assert_allclose(
    model.loss(weights, _batch()), [*(-log.mean() for log in logs), 0], 1e-5
  )
  mean = model.mean_loss(weights, _batch(), tf.ones([4]))
  np.testing.assert_allclose(mean, -np.concatenate(logs).mean(), rtol=1e-5)


def test_perplexity_is_of_the_words_behind_the_prompt_of_three(model, weights):
  logs = _log_probabilities(model, weights)
  totals, numbers = model.statistics(weights, _batch())['perplexity']
  np.testing.assert_array_equal(numbers, [3, 0, 1, 0])
  expected = [-logs[0][2:].sum(), 0, -logs[2][2:].sum(), 0]
  np.testing.assert_allclose(totals, expected, rtol=1e-5)


def test_equal_logits_have_the_perplexity_of_the_vocabulary():
  sizes = dataclasses.replace(gpt2.DISTILGPT2, width=2, num_blocks=0)
  frozen = collections.OrderedDict(
    (name, np.zeros(shape, np.float32)) for name, shape in sizes.shapes.items()
  )
  model = frozen_models.FrozenModel(sizes, sequence_length=5, frozen=frozen)
  totals, numbers = model.statistics({}, _batch())['perplexity']
  sums = tf.reduce_sum(totals).numpy(), tf.reduce_sum(numbers).numpy()
  perplexity = model.metrics['perplexity'].value(sums)
  np.testing.assert_allclose(perplexity, 50_257, rtol=1e-5)


def test_padding_changes_nothing(model, weights):
  batch = _batch()
  wider = {
    name: tf.pad(feature, [[0, 0], [0, 2]]) if name != 'context' else feature
    for name, feature in batch.items()
  }
  wide = dataclasses.replace(model, sequence_length=7)
  np.testing.assert_allclose(
    wide.loss(weights, wider), model.loss(weights, batch), atol=1e-6
  )


@pytest.mark.parametrize(
  'cls',
  [
    frozen_models.FrozenModel,
    prompted.PromptedModel,
    prompted.ModelWithHead,
    prompted.ModelWithTwoHeads,
  ],
)
def test_no_word_changes_a_prediction_before_it(cls):
  model, batch = _model(cls), _batch()
  weights = _random(model)
  before = model.scores(weights, batch).logits().numpy().reshape(4, 5, -1)
  changed = {**batch, 'x': batch['x'] + [0, 0, 0, 1, 1]}
  after = model.scores(weights, changed).logits().numpy().reshape(4, 5, -1)
  np.testing.assert_array_equal(after[:, :3], before[:, :3])
  # Of the utterance that has so many words.
  assert not np.isclose(after[0, 3:], before[0, 3:]).all(-1).any()


def test_a_common_factor_may_be_in_either_vector(model, weights):
  scaled = {'psi': 4 * weights['psi'], 'phi': weights['phi'] / 4}
  np.testing.assert_array_equal(
    model.loss(scaled, _batch()), model.loss(weights, _batch())
  )


def test_gradients_are_those_of_the_prefix(model, weights):
  """∂psi = sum phi ∂e, ∂phi = psi ∂e, with ∂e from finite differences."""
  batch, step = _batch(), 1e-2
  e = weights['psi'] * weights['phi']  # One prefix for each context.

  def loss(e):
    # As psi is 1, phi is the prefix.
    changed = {'psi': tf.ones([_WIDTH]), 'phi': e}
    return model.mean_loss(changed, batch, tf.ones([4])).numpy().astype(float)

  of_e = np.zeros(e.shape)
  for place in np.ndindex(*e.shape):
    change = np.zeros(e.shape, np.float32)
    change[place] = step
    of_e[place] = (loss(e + change) - loss(e - change)) / (2 * step)
  with tf.GradientTape() as tape:
    tape.watch(weights)
    value = model.mean_loss(weights, batch, tf.ones([4]))
  gradient = tape.gradient(value, weights)
  np.testing.assert_allclose(
    gradient['psi'], (weights['phi'] * of_e).numpy().sum(0), atol=1e-3
  )
  np.testing.assert_allclose(gradient['phi'], weights['psi'] * of_e, atol=1e-3)
  assert np.abs(of_e[[0, 2]]).max(1).min() > 0.01
  # There is no word under context 1.
  np.testing.assert_array_equal(gradient['phi'][1], 0)


def test_without_a_prefix_it_is_the_frozen_model(model, weights):
  frozen = _model(frozen_models.FrozenModel)
  assert model.pretrained_models == {'pretrained': frozen}
  words = _batch()['x'].numpy()
  expected = _SIZES.encode(model.frozen, np.maximum(words - 1, 0)).numpy()
  features = tf.reshape(
    model.pretrained_models['pretrained'].encode({}, _batch()), expected.shape
  )
  followed = _batch()['y'].numpy() > 0
  np.testing.assert_allclose(
    features.numpy()[followed], expected[followed], atol=1e-6
  )


def test_an_untrained_head_is_the_frozen_model():
  model = _model(prompted.ModelWithHead)
  np.testing.assert_array_equal(
    model.loss(model.init(tf.constant([1, 2])), _batch()),
    _model(frozen_models.FrozenModel).loss({}, _batch()),
  )


def test_two_untrained_heads_are_the_frozen_model():
  model = _model(prompted.ModelWithTwoHeads)
  weights = model.init(tf.constant([1, 2]))
  np.testing.assert_allclose(
    model.loss(weights, _batch()),
    _model(frozen_models.FrozenModel).loss({}, _batch()),
    rtol=1e-5,
  )


@pytest.mark.parametrize('sums_heads', [False, True])
def test_two_heads_are_the_clients_and_that_of_the_context(sums_heads):
  model = _model(prompted.ModelWithTwoHeads, sums_heads=sums_heads)
  weights = _random(model)
  frozen, wte = (
    _model(frozen_models.FrozenModel),
    model.frozen['wte'],
  )
  x = frozen.encode({}, _batch()).numpy().reshape(4, 5, -1)
  own_head = wte + weights['own_head']
  expected = [
    features @ (own_head + wte + weights['context_heads'][context]).T
    for features, context in zip(x, _batch()['context'])
  ]
  logits = model.scores(weights, _batch()).logits().numpy().reshape(4, 5, -1)
  scale = 1 if sums_heads else 2
  np.testing.assert_allclose(scale * logits, expected, rtol=1e-4, atol=1e-4)


def test_vectors_start_as_in_pytorch():
  model = prompted.PromptedModel(dataclasses.replace(_SIZES, width=5_000), 20)
  weights = model.init(tf.constant([3, 4]))
  psi, phi = weights['psi'].numpy(), weights['phi'].numpy()
  assert 0 <= psi.min() < 0.01
  assert 0.99 < psi.max() < 1
  np.testing.assert_allclose([phi.mean(), phi.std()], [0, 1], atol=0.02)


def test_trained_weights_have_the_sizes_of_the_paper():
  prompt = prompted.PromptedModel(gpt2.DISTILGPT2, 57)
  head = prompted.ModelWithHead(gpt2.DISTILGPT2)
  seed = tf.TensorSpec([2], tf.int32)

  def sizes(model):
    shapes = tf.function(model.init).get_concrete_function(seed).output_shapes
    return {name: shape.num_elements() for name, shape in shapes.items()}

  assert sizes(prompt) == {'psi': 768, 'phi': 43_776}
  assert sizes(head) == {'head': 38_597_376}
