"""Tests of files of the Llama form."""

import numpy as np
import pytest

from base import errors
from tasks.models import language_model_files
from tests.tasks.models import llama_source


def _assert_loaded(path, expected=None):
  sizes, weights = language_model_files.load(path)
  assert sizes == llama_source.SIZES
  expected = expected or llama_source.weights()
  assert list(weights) == list(expected)
  for name, array in expected.items():
    np.testing.assert_array_equal(weights[name], array, strict=True)


def test_reads_published_names(tmp_path):
  _assert_loaded(llama_source.write(tmp_path))


def test_a_head_may_be_the_embedding_again(tmp_path):
  arrays = llama_source.published()
  arrays['lm_head.weight'] = arrays['model.embed_tokens.weight']
  _assert_loaded(llama_source.write(tmp_path, arrays))


def test_half_floats_are_widened(tmp_path):
  arrays = {
    name: array.astype(np.float16)
    for name, array in llama_source.published().items()
  }
  halves = {
    name: array.astype(np.float16).astype(np.float32)
    for name, array in llama_source.weights().items()
  }
  _assert_loaded(llama_source.write(tmp_path, arrays), halves)


def test_the_base_of_the_turns_may_be_in_newer_settings(tmp_path):
  path = llama_source.write(
    tmp_path,
    rope_theta=None,
    rope_parameters={'rope_theta': 1e4, 'rope_type': 'default'},
  )
  _assert_loaded(path)


def test_a_head_of_its_own_is_read(tmp_path):
  arrays = llama_source.published()
  arrays['lm_head.weight'] = np.ones([40, 32], np.float32)
  path = llama_source.write(tmp_path, arrays, tie_word_embeddings=False)
  sizes, weights = language_model_files.load(path)
  np.testing.assert_array_equal(weights[sizes.head], arrays['lm_head.weight'])


@pytest.mark.parametrize(
  'config, message',
  [
    ({'hidden_act': 'gelu'}, "hidden_act is 'gelu', of which only 'silu'"),
    ({'attention_bias': True}, 'attention_bias is True'),
    ({'rope_scaling': {'factor': 2}}, 'rope_scaling is'),
    (
      {'rope_parameters': {'rope_type': 'yarn', 'rope_theta': 1.0}},
      "rope_type is 'yarn'",
    ),
    ({'hidden_size': '32'}, "hidden_size is '32'"),
    ({'rope_theta': 0}, 'rope_theta is 0'),
    ({'num_key_value_heads': 3}, 'cannot share 3 heads of keys'),
    ({'num_attention_heads': 5}, '5 heads do not divide its width 32'),
    ({'model_type': 'mistral'}, "model_type is 'mistral'; known are 'gpt2'"),
  ],
)
def test_refuses_other_forms(tmp_path, config, message):
  path = llama_source.write(tmp_path, **config)
  with pytest.raises(errors.UserError, match=f'config.json .*{message}'):
    language_model_files.load(path)


def _without(name):
  arrays = llama_source.published()
  del arrays[name]
  return arrays


@pytest.mark.parametrize(
  'arrays, message',
  [
    (_without('model.norm.weight'), 'has no model.norm.weight'),
    (
      llama_source.published() | {'model.norm.weight': np.ones(3, 'f4')},
      r'model.norm.weight has the shape \(3,\), not \(32,\)',
    ),
    (
      llama_source.published() | {'model.norm.bias': np.ones(32, 'f4')},
      'has model.norm.bias',
    ),
    (
      llama_source.published() | {'lm_head.weight': np.ones([40, 32], 'f4')},
      'lm_head.weight is not model.embed_tokens.weight',
    ),
    (
      llama_source.published() | {'model.norm.weight': np.ones(32, np.int32)},
      'model.norm.weight is of int32',
    ),
  ],
)
def test_refuses_other_weights(tmp_path, arrays, message):
  path = llama_source.write(tmp_path, arrays)
  with pytest.raises(errors.UserError, match=f'Llama form: .*{message}'):
    language_model_files.load(path)
