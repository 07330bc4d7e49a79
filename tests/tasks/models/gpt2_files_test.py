"""Tests of files of a GPT-2: all layouts hold the same weights."""

import json

import h5py
import numpy as np
import pytest

from base import errors
from tasks.data import downloads
from tasks.data import weight_files
from tasks.models import gpt2
from tasks.models import gpt2_files
from tasks.models import language_model_files
from tests.tasks.models import gpt2_source

_SIZES = gpt2_source.SIZES


def _published():
  """The weights by their published names."""
  return {
    gpt2_files.published_name(name): array
    for name, array in gpt2_source.weights().items()
  }


def _write_config(folder, **config):
  (folder / 'config.json').write_text(json.dumps(config), encoding='utf-8')


def _save(folder, arrays, suffix='.safetensors'):
  _write_config(folder, n_head=_SIZES.num_heads)
  path = folder / f'model{suffix}'
  if suffix == '.npz':
    np.savez(path, **arrays)
  elif suffix == '.h5':
    with h5py.File(path, 'w') as file:
      file.update(arrays)
  else:
    weight_files.write(path, arrays)
  return path


def _assert_loaded(path):
  sizes, weights = language_model_files.load(path)
  assert sizes == _SIZES
  expected = gpt2_source.weights()
  assert list(weights) == list(expected)
  for name, array in expected.items():
    assert weights[name].dtype == np.float32
    np.testing.assert_array_equal(weights[name], array)


def _keras_name(name):
  """The name in tf_model.h5, written out by rules of its own."""
  layers, kind = name.rsplit('.', 1)
  if 'ln_' in layers:
    kind = {'weight': 'gamma', 'bias': 'beta'}[kind]
  elif layers in ('wte', 'wpe'):
    kind = 'embeddings'
  path = layers.replace('h.0', 'h_._0').replace('h.1', 'h_._1')
  path = path.replace('.attn.', '/attn/').replace('.mlp.', '/mlp/')
  path = path.replace('.ln_1', '/ln_1').replace('.ln_2', '/ln_2')
  return f'transformer/tfgpt2lm_head_model/transformer/{path}/{kind}:0'


def test_names_are_the_published_ones():
  names = {gpt2_files.published_name(name) for name in gpt2.DISTILGPT2.shapes}
  of_block = [
    f'{layer}.{kind}'
    for layer in (
      'ln_1',
      'attn.c_attn',
      'attn.c_proj',
      'ln_2',
      'mlp.c_fc',
      'mlp.c_proj',
    )
    for kind in ('weight', 'bias')
  ]
  assert names == {
    'wte.weight',
    'wpe.weight',
    'ln_f.weight',
    'ln_f.bias',
    *(f'h.{i}.{name}' for i in range(6) for name in of_block),
  }


def test_a_file_of_distilgpt2_would_have_the_published_size():
  shapes = {
    f'transformer.{gpt2_files.published_name(name)}': shape
    for name, shape in gpt2.DISTILGPT2.shapes.items()
  } | {f'transformer.h.{i}.attn.bias': (1, 1, 1024, 1024) for i in range(6)}
  arrays = {
    name: np.broadcast_to(np.float32(0), shape)
    for name, shape in shapes.items()
  }
  header = len(weight_files._header(arrays))
  assert len(arrays) == 82
  assert header == 8_277
  size = 8 + header + sum(array.nbytes for array in arrays.values())
  assert size == 352_824_413


def test_reads_what_it_saves(tmp_path):
  _write_config(tmp_path, n_head=2)
  path = tmp_path / 'model.safetensors'
  gpt2_files.save(path, gpt2_source.weights())
  _assert_loaded(path)


@pytest.mark.parametrize('suffix', weight_files.FORMATS)
@pytest.mark.parametrize('prefix', ['', 'transformer.'])
def test_reads_published_names(tmp_path, suffix, prefix):
  arrays = {prefix + name: array for name, array in _published().items()}
  _assert_loaded(_save(tmp_path, arrays, suffix))


def test_reads_files_of_keras(tmp_path):
  arrays = {
    _keras_name(name): array[np.newaxis]
    if name.endswith('c_fc.bias')
    else array
    for name, array in _published().items()
  }
  _assert_loaded(_save(tmp_path, arrays, '.h5'))


def test_reads_old_files_of_keras(tmp_path):
  arrays = {_keras_name(name): array for name, array in _published().items()}
  name = _keras_name('wte.weight')
  arrays[name.replace('embeddings', 'weight')] = arrays.pop(name)
  _assert_loaded(_save(tmp_path, arrays, '.h5'))


def test_leaves_out_masks_and_a_head_that_is_the_embedding(tmp_path):
  arrays = _published()
  arrays['h.0.attn.bias'] = np.ones([1, 1, 9, 9], bool)
  arrays['h.1.attn.masked_bias'] = np.float32(-1e4)
  arrays['lm_head.weight'] = arrays['wte.weight']
  _assert_loaded(_save(tmp_path, arrays))


def test_heads_are_of_width_64_where_there_is_no_configuration(tmp_path):
  path = _save(tmp_path, _published())
  (tmp_path / 'config.json').unlink()
  assert language_model_files.load(path)[0].num_heads == 1


def _without(name):
  arrays = _published()
  del arrays[name]
  return arrays


@pytest.mark.parametrize(
  'arrays, message',
  [
    (_without('wte.weight'), 'has no wte.weight'),
    (_without('h.1.mlp.c_fc.bias'), 'has no h.1.mlp.c_fc.bias'),
    (
      {'wte.weight': np.zeros(3, np.float32)},
      r'wte.weight has the shape \(3,\)',
    ),
    (
      _published() | {'h.0.ln_1.bias': np.float32([1])},
      r'h.0.ln_1.bias has the shape \(1,\), not \(8,\)',
    ),
    (
      _published() | {'ln_f.bias': np.zeros(8)},
      'ln_f.bias is of float64, not float32 or half of it',
    ),
    (
      _published() | {'ln_f.bias': np.full(8, np.nan, np.float32)},
      'ln_f.bias has numbers that are not finite',
    ),
    (_published() | {'score.weight': np.float32([1])}, 'has score.weight'),
    (
      _published() | {'lm_head.weight': np.zeros([19, 8], np.float32)},
      'lm_head.weight must be equal',
    ),
    (
      _published() | {'transformer.ln_f.bias': np.zeros(8, np.float32)},
      'has ln_f.bias twice',
    ),
  ],
)
def test_refuses_other_weights(tmp_path, arrays, message):
  path = _save(tmp_path, arrays)
  with pytest.raises(errors.UserError, match=f'{path} does not .*{message}'):
    language_model_files.load(path)


@pytest.mark.parametrize('config', [{}, {'n_head': 'two'}, {'n_head': 0}])
def test_refuses_a_configuration_without_heads(tmp_path, config):
  path = _save(tmp_path, _published())
  _write_config(tmp_path, **config)
  with pytest.raises(errors.UserError, match='config.json cannot be read'):
    language_model_files.load(path)


def test_refuses_heads_that_do_not_divide_the_width(tmp_path):
  path = _save(tmp_path, _published())
  _write_config(tmp_path, n_head=3)
  with pytest.raises(errors.UserError, match='3 heads do not divide'):
    language_model_files.load(path)


def test_refuses_another_checksum(tmp_path):
  path = _save(tmp_path, _published())
  checksum = downloads.compute_sha256(path)
  assert language_model_files.load(path, checksum)[0] == _SIZES
  with pytest.raises(errors.UserError, match='not the right file'):
    language_model_files.load(path, '0' * 64)


def test_refuses_a_file_that_is_not_there(tmp_path):
  with pytest.raises(errors.UserError, match='There is no file .*Name a file'):
    language_model_files.load(tmp_path / 'model.safetensors')
