"""Tests of adapters of low rank on frozen language models."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import adapters
from tasks.models import frozen_models
from tests.tasks.models import gpt2_source
from tests.tasks.models import llama_source

_SOURCES = {'gpt2': gpt2_source, 'llama': llama_source}
_SEED = tf.constant([1, 2])


def _batch():
  words = np.array([[5, 1, 19, 7, 3, 2], [4, 4, 8, 0, 0, 0]], np.int32)
  is_word = (words[:, 1:] > 0).astype(np.int32)
  return {
    'x': tf.constant(words[:, :-1]),
    'y': tf.constant(words[:, 1:]),
    'context': tf.constant([0, 0]),
    'bytes': is_word,
    'begun': is_word,
  }


@pytest.fixture(name='source', params=list(_SOURCES))
def _source(request):
  return _SOURCES[request.param]


def _model(source, cls=adapters.AdaptedModel, **changes):
  return cls(
    source.SIZES, sequence_length=5, frozen=source.weights(), **changes
  )


def _draw(model):
  rng = np.random.default_rng(3)
  return collections.OrderedDict(
    (name, tf.constant(rng.normal(scale=0.3, size=w.shape), tf.float32))
    for name, w in model.init(_SEED).items()
  )


@pytest.mark.parametrize('has_own', [False, True])
def test_the_start_is_the_frozen_model_bit_for_bit(source, has_own):
  model = _model(source, has_own=has_own)
  frozen = _model(source, frozen_models.FrozenModel)
  np.testing.assert_array_equal(
    model.loss(model.init(_SEED), _batch()), frozen.loss({}, _batch())
  )


def test_every_matrix_can_be_adapted_as_if_it_was_changed(source):
  """W + scale down up has the logits of the adapted W."""
  sizes = source.SIZES
  model = _model(source, matrices=tuple(sizes.matrices), rank=2, scale=1.5)
  weights, changed = _draw(model), dict(source.weights())
  for i in range(sizes.num_blocks):
    for matrix, (inputs, outputs) in sizes.matrices.items():
      change = 1.5 * (weights[f'{matrix}_down'][i] @ weights[f'{matrix}_up'][i])
      assert change.shape == (inputs, outputs)
      _change(source, changed, i, matrix, change.numpy())
  frozen = _model(source, frozen_models.FrozenModel)
  words = tf.constant([[1, 2, 3]])
  expected = sizes.encode(changed, words)
  made = model.make_adapters(weights)
  found = sizes.encode(model.frozen, words, adapters=made)
  np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)
  assert not np.allclose(
    model.loss(weights, _batch()), frozen.loss({}, _batch())
  )


def _change(source, weights, block, matrix, change):
  """Adds a change to a matrix, in the layout of each form."""
  if source is llama_source:
    name, added = f'h{block}_{matrix}_proj', change.T
  elif matrix in 'qkv':
    name, width = f'h{block}_attn_c_attn_kernel', source.SIZES.width
    place = 'qkv'.index(matrix)
    added = np.pad(change, [(0, 0), (place * width, (2 - place) * width)])
  else:
    layer = {'o': 'attn_c_proj', 'up': 'mlp_c_fc', 'down': 'mlp_c_proj'}
    name, added = f'h{block}_{layer[matrix]}_kernel', change
  weights[name] = weights[name] + added


def test_own_adapters_are_added_to_the_shared_ones():
  model = _model(llama_source, has_own=True)
  weights = _draw(model)
  shared, own = (
    _model(llama_source).make_adapters(
      {
        name.replace(prefix, ''): weight
        for name, weight in weights.items()
        if ('own_' in name) == bool(prefix)
      }
    )
    for prefix in ('', 'own_')
  )
  x = tf.constant(np.random.default_rng(0).normal(size=[3, 32]), tf.float32)
  both, shared, own = (
    x @ a['q'].down[1] @ a['q'].up[1]
    for a in (model.make_adapters(weights), shared, own)
  )
  np.testing.assert_allclose(both, shared + own, atol=1e-5)


def test_first_factors_get_no_gradient_at_the_start(source):
  model = _model(source)
  weights = model.init(_SEED)
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = model.mean_loss(weights, _batch(), tf.ones([2]))
  slopes = tape.gradient(loss, weights)
  assert not np.any(slopes['q_down']) and not np.any(slopes['v_down'])
  assert np.any(slopes['q_up']) and np.any(slopes['v_up'])


def test_smollm2_has_the_published_numbers_of_weights():
  model = adapters.AdaptedModel(
    llama_source.SIZES.__class__(
      49152,
      8192,
      576,
      30,
      9,
      num_key_heads=3,
      head_width=64,
      hidden_width=1536,
      theta=1e5,
      epsilon=1e-5,
      tied=True,
    )
  )
  sizes = {
    part: sum(int(np.prod(model._shape(name))) for name in names)
    for part, names in model.parts.items()
  }
  assert (sizes['down'], sizes['up']) == (138_240, 92_160)


def test_first_factors_that_are_not_trained_are_frozen():
  model = _model(llama_source, trains_down=False)
  assert set(model.init(_SEED)) == {'q_up', 'v_up'}
  down = model.frozen_down(np.random.default_rng(0))
  # Inputs of size 1 stay of about this size.
  assert abs(np.mean(down['q_down'] ** 2) * 32 - 1) < 0.2


def test_a_word_before_the_utterances_is_one_of_the_pretrained_models():
  model = _model(llama_source, first_word=7)
  alone, behind = model.pretrained_models.values()
  words = tf.constant([[5, 1, 19, 7, 3]])
  expected = llama_source.SIZES.encode(
    model.frozen, tf.concat([[[7]], words - 1], axis=1)
  )[:, 1:]
  batch = {**_batch(), 'x': words, 'y': words}
  np.testing.assert_allclose(behind.encode({}, batch), expected[0], atol=1e-5)
  assert not np.allclose(alone.encode({}, batch), expected[0], atol=1e-2)


@pytest.mark.parametrize('share', [0.0, 0.3, 1.0])
def test_mixtures_are_of_the_changes_by_adapters(share):
  """Not of the factors, whose products are other changes."""
  model = _model(llama_source)
  first, second = _draw(model), _draw(model)
  second = {name: weight[:, ::-1] for name, weight in second.items()}
  x = tf.constant(np.random.default_rng(0).normal(size=[3, 32]), tf.float32)

  def change(a_model, weights):
    adapter = a_model.make_adapters(weights)['v']
    return x @ adapter.down[0] @ adapter.up[0]

  np.testing.assert_allclose(
    change(*model.mix(first, second, share)),
    (1 - share) * change(model, first) + share * change(model, second),
    atol=1e-5,
  )


def test_a_mixture_of_the_first_alone_is_the_first_bit_for_bit():
  model = _model(llama_source)
  first = _draw(model)
  mixed, weights = model.mix(first, _draw(model), 0.0)
  np.testing.assert_array_equal(
    mixed.loss(weights, _batch()), model.loss(first, _batch())
  )
