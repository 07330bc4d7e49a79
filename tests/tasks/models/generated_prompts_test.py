"""Tests of prompts that two networks make of the words."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import generated_prompts
from tasks.models import gpt2
from tasks.models import prompted
from tests.tasks.models import gpt2_source

_SIZES = gpt2_source.SIZES
_WIDTH, _CONTEXTS, _TIME = _SIZES.width, 3, 5
# Numbers from 1 on. The second is too short to be judged, the last is empty.
_UTTERANCES = [[5, 1, 18, 7, 3, 2], [4, 4, 8], [9, 2, 6, 11], []]
_OF_CONTEXTS = [2, 0, 2, 1]


def _batch():
  words = np.zeros([len(_UTTERANCES), _TIME + 1], np.int32)
  for row, utterance in zip(words, _UTTERANCES):
    row[: len(utterance)] = utterance
  return {
    'x': tf.constant(words[:, :-1]),
    'y': tf.constant(words[:, 1:]),
    'context': tf.constant(_OF_CONTEXTS),
    'bytes': tf.cast(words[:, 1:] > 0, tf.int32),
    'begun': tf.cast(words[:, 1:] > 0, tf.int32),
  }


@pytest.fixture(name='model', params=[False, True], ids=['each', 'once'])
def _model(request):
  return generated_prompts.ModelWithGeneratedPrompts(
    _SIZES,
    _CONTEXTS,
    sequence_length=_TIME,
    frozen=gpt2_source.weights(),
    once=request.param,
  )


@pytest.fixture(name='weights')
def _weights(model):
  """Draws weights of which none is zero or one."""
  rng = np.random.default_rng(0)
  return {
    name: tf.constant(rng.normal(weight, 0.3), tf.float32)
    for name, weight in model.init(tf.constant([1, 2])).items()
  }


def _norm(w, name, x):
  x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
  return x * w[f'{name}_scale'] + w[f'{name}_offset']


def _dense(w, name, x):
  return x @ w[f'{name}_kernel'] + w[f'{name}_bias']


def _step(w, name, e, words):
  """Makes e_t of e_(t-1) and w_<t, as appendix A has it, head by head."""
  w = {key: np.array(weight, float) for key, weight in w.items()}
  a = _norm(w, f'{name}_norm_1', e)
  query = _dense(w, f'{name}_query', a)
  keys, values = (
    _dense(w, f'{name}_{part}', words) for part in ('key', 'value')
  )
  mixed = []
  for head in np.split(np.arange(_WIDTH), _SIZES.num_heads):
    scores = np.exp(keys[:, head] @ query[head] / np.sqrt(len(head)))
    mixed.append(scores / scores.sum() @ values[:, head])
  attended = _dense(w, f'{name}_output', np.concatenate(mixed))
  b = _norm(w, f'{name}_norm_3', _norm(w, f'{name}_norm_2', attended) + a)
  z = _dense(w, f'{name}_hidden', b)
  z = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
  return _norm(w, f'{name}_norm_4', _dense(w, f'{name}_projection', z) + a)


def _vectors(model, w, utterance, context):
  """Makes psi_t and phi_t for t = 1, …, T."""
  words = np.array(model.frozen['wte'], float)[np.array(utterance, int) - 1]
  made = [(np.array(w['psi'], float), np.array(w['phi'][context], float))]
  for t in range(2, len(utterance) + 1):
    seen = words[: t - 1]
    if model.once and t > model.prompt_length + 1:
      made.append(made[-1])
    else:
      made.append(
        tuple(_step(w, n, e, seen) for n, e in zip(('psi', 'phi'), made[-1]))
      )
  return made


def test_words_are_predicted_behind_what_was_made_of_those_before(
  model, weights
):
  totals, numbers = model.statistics(weights, _batch())['perplexity']
  wte = model.frozen['wte']
  for utterance, context, total, number in zip(
    _UTTERANCES, _OF_CONTEXTS, totals, numbers
  ):
    expected = []
    made = _vectors(model, weights, utterance, context)
    for t in range(4, len(utterance) + 1):
      psi, phi = made[t - 1]
      prefix = tf.constant((psi * phi)[np.newaxis, np.newaxis], tf.float32)
      before = tf.constant([utterance[: t - 1]]) - 1
      feature = _SIZES.encode(model.frozen, before, prefix)[0, -1]
      logs = tf.nn.log_softmax(tf.linalg.matvec(wte, feature))
      expected.append(-logs[utterance[t - 1] - 1])
    np.testing.assert_allclose(total, np.sum(expected), rtol=1e-4)
    assert number == len(expected)


def test_the_client_has_the_last_of_its_vectors(model, weights):
  made = model.generate(weights, _batch())['psi']
  expected = [
    _vectors(model, weights, utterance, context)[-1][0]
    for utterance, context in zip(_UTTERANCES, _OF_CONTEXTS)
  ]
  np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


def test_no_word_changes_a_prediction_of_itself_or_before_it(model, weights):
  batch = _batch()
  entries = model.entry_mask(batch).numpy() > 0

  def logits(x):
    scores = model.scores(weights, {**batch, 'x': x})
    return scores.logits().numpy().reshape(4, _TIME, -1)

  before = logits(batch['x'])
  for t in range(_TIME):
    after = logits(batch['x'] + tf.one_hot(t, _TIME, dtype=tf.int32))
    # The words after x_0, …, x_(t-1) are x_1, …, x_t.
    earlier = entries[:, :t]
    np.testing.assert_array_equal(after[:, :t][earlier], before[:, :t][earlier])
    later = entries[0, t:]
    assert not np.isclose(after[0, t:], before[0, t:])[later].all(1).any()


def test_the_cheaper_form_predicts_only_what_is_behind_its_prompt(model):
  entries = model.entry_mask(_batch()).numpy()
  number = [3, 0, 1, 0] if model.once else [5, 2, 3, 0]
  np.testing.assert_array_equal(entries.sum(1), number)


def test_padding_changes_nothing(model, weights):
  batch = _batch()
  wider = {
    name: tf.pad(feature, [[0, 0], [0, 2]]) if name != 'context' else feature
    for name, feature in batch.items()
  }
  wide = dataclasses.replace(model, sequence_length=_TIME + 2)
  np.testing.assert_allclose(
    wide.loss(weights, wider), model.loss(weights, batch), atol=1e-5
  )
  np.testing.assert_allclose(
    wide.generate(weights, wider)['psi'],
    model.generate(weights, batch)['psi'],
    atol=1e-5,
  )


def test_gradients_are_of_the_generators_alone(model, weights):
  """Gradients through the recurrence, by finite differences."""
  batch, step = _batch(), 1e-2

  def loss(w):
    return model.mean_loss(w, batch, tf.ones([4]))

  with tf.GradientTape() as tape:
    tape.watch(weights)
    value = loss(weights)
  gradient = tape.gradient(
    value, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  for name in ('psi', 'phi'):
    np.testing.assert_array_equal(gradient[name], 0)
    # Though the loss is a function of it.
    other = weights | {name: tf.reverse(weights[name], [-1])}
    assert loss(other) != value
  rng = np.random.default_rng(3)
  for name in ('psi_query_kernel', 'phi_norm_1_scale', 'psi_hidden_bias'):
    way = rng.normal(size=weights[name].shape).astype(np.float32)
    up, down = (
      loss({**weights, name: weights[name] + sign * step * way})
      for sign in (1, -1)
    )
    np.testing.assert_allclose(
      tf.reduce_sum(gradient[name] * way),
      (up - down) / (2 * step),
      rtol=2e-2,
      atol=1e-3,
    )


def test_a_generator_has_7_090_944_weights():
  model = generated_prompts.ModelWithGeneratedPrompts(gpt2.DISTILGPT2, 57)
  shapes = (
    tf.function(model.init)
    .get_concrete_function(tf.TensorSpec([2], tf.int32))
    .output_shapes
  )
  sizes = {name: math.prod(shape) for name, shape in shapes.items()}
  assert {name for names in model.parts.values() for name in names} == {*sizes}
  generators = model.parts['encoder']
  for name in ('psi_', 'phi_'):
    of_generator = [
      sizes[weight] for weight in generators if weight.startswith(name)
    ]
    assert sum(of_generator) == 7_090_944
  assert (sizes['psi'], sizes['phi']) == (768, 43_776)


def test_vectors_start_as_those_that_are_trained(model):
  seed = tf.constant([1, 2])
  weights = model.init(seed)
  first = tf.random.experimental.stateless_split(seed, 3)[0]
  expected = prompted.PromptedModel(_SIZES, _CONTEXTS).init(first)
  for name in ('psi', 'phi'):
    np.testing.assert_array_equal(weights[name], expected[name])
