"""Tests of files of weights."""

import json
import zipfile

import h5py
import numpy as np
import pytest

from base import errors
from tasks.data import weight_files

_ARRAYS = {
  'b.weight': np.arange(6, dtype=np.float32).reshape(2, 3),
  'a.bias': np.array([True, False]),
  'none': np.zeros([0, 4], np.int64),
}


def _safetensors(path, header, data=b''):
  encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
  path.write_bytes(len(encoded).to_bytes(8, 'little') + encoded + data)
  return path


def _entry(shape, first, last, dtype='F32'):
  return {'dtype': dtype, 'shape': shape, 'data_offsets': [first, last]}


def _assert_equal(actual, expected):
  assert actual.keys() == expected.keys()
  for name, array in expected.items():
    assert actual[name].dtype == array.dtype
    np.testing.assert_array_equal(actual[name], array)


def test_what_is_written_is_read(tmp_path):
  path = tmp_path / 'model.safetensors'
  weight_files.write(path, _ARRAYS)
  _assert_equal(weight_files.read(path), _ARRAYS)
  assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_format_is_that_of_its_specification(tmp_path):
  path = tmp_path / 'model.safetensors'
  weight_files.write(path, _ARRAYS)
  contents = path.read_bytes()
  length = int.from_bytes(contents[:8], 'little')
  assert json.loads(contents[8 : 8 + length]) == {
    '__metadata__': {'format': 'pt'},
    'a.bias': _entry([2], 0, 2, 'BOOL'),
    'b.weight': _entry([2, 3], 2, 26),
    'none': _entry([0, 4], 26, 26, 'I64'),
  }
  assert contents[8 + length :] == b'\1\0' + _ARRAYS['b.weight'].tobytes()


def test_arrays_may_be_in_any_order(tmp_path):
  header = {'a': _entry([1], 4, 8), 'b': _entry([1], 0, 4)}
  data = np.array([1, 2], np.float32).tobytes()
  path = _safetensors(tmp_path / 'm.safetensors', header, data)
  _assert_equal(
    weight_files.read(path),
    {'a': np.float32([2]), 'b': np.float32([1])},
  )


def test_bfloat16_is_widened(tmp_path):
  header = {'a': _entry([2], 0, 4, 'BF16')}
  path = _safetensors(
    tmp_path / 'm.safetensors', header, bytes.fromhex('803f20c1')
  )
  _assert_equal(weight_files.read(path), {'a': np.float32([1, -10])})


def test_reads_npz(tmp_path):
  path = tmp_path / 'model.npz'
  np.savez(path, **_ARRAYS)
  _assert_equal(weight_files.read(path), _ARRAYS)


def test_reads_h5(tmp_path):
  path = tmp_path / 'model.h5'
  with h5py.File(path, 'w') as file:
    file['layer/weight:0'] = _ARRAYS['b.weight']
  expected = {'layer/weight:0': _ARRAYS['b.weight']}
  _assert_equal(weight_files.read(path), expected)


@pytest.mark.parametrize('suffix', weight_files.FORMATS)
def test_leaves_out_what_is_not_wanted(tmp_path, suffix):
  path = tmp_path / f'model{suffix}'
  arrays = {'a': np.float32([1]), 'b': np.float32([2])}
  if suffix == '.npz':
    np.savez(path, **arrays)
  elif suffix == '.h5':
    with h5py.File(path, 'w') as file:
      file.update(arrays)
  else:
    weight_files.write(path, arrays)
  assert list(weight_files.read(path, 'b'.__eq__)) == ['b']


@pytest.mark.parametrize(
  'header, message',
  [
    (b'{"a": ', 'Expecting value'),
    (b'[' * 100_000, 'recursion'),
    (b'{"\x80": 1}', 'utf-8'),
    (b'[]', 'not a JSON object'),
    ({'a': {'dtype': 'F32', 'shape': [1]}}, 'entry of a is not complete'),
    ({'a': 3}, 'entry of a is not complete'),
    ({'a': _entry([1], 0, 4, 'F8_E5M2')}, 'a has the type F8_E5M2'),
    ({'a': _entry([2], 0, 4)}, r'a has 4 bytes for the shape \[2\]'),
    ({'a': _entry([-1], 0, 4)}, 'shape or the place of a is invalid'),
    ({'a': _entry([True], 0, 4)}, 'shape or the place of a is invalid'),
    ({'a': _entry([1], -4, 0)}, 'shape or the place of a is invalid'),
    ({'a': _entry([2], 0, 8)}, 'a is outside of the file'),
    ({'a': _entry([10**12], 0, 4 * 10**12)}, 'a is outside of the file'),
    ({}, 'more data than its header says'),
    (b'{"a": 1, "a": 2}', 'header has a more than once'),
    ({'a': _entry([1], 0, 4), 'b': _entry([1], 0, 4)}, 'b overlaps a'),
    (
      {'a': _entry([4], 0, 4, 'U8'), 'b': _entry([2], 1, 3, 'U8')},
      'b overlaps a',
    ),
    ({'a': _entry([2], 2, 4, 'U8')}, 'hole between the header and a'),
    (
      {'a': _entry([1], 0, 1, 'U8'), 'b': _entry([2], 2, 4, 'U8')},
      'hole between a and b',
    ),
  ],
)
def test_refuses_a_damaged_header(tmp_path, header, message):
  path = _safetensors(tmp_path / 'm.safetensors', header, b'\0' * 4)
  with pytest.raises(errors.UserError, match=f'{path}.*({message})'):
    weight_files.read(path)


@pytest.mark.parametrize('size', [0, 7, 8, 30])
def test_refuses_a_file_that_was_cut(tmp_path, size):
  path = tmp_path / 'm.safetensors'
  weight_files.write(path, _ARRAYS)
  path.write_bytes(path.read_bytes()[:size])
  with pytest.raises(errors.UserError, match='header is not complete'):
    weight_files.read(path)


@pytest.mark.parametrize('suffix', weight_files.FORMATS)
def test_refuses_what_is_no_such_file(tmp_path, suffix):
  path = tmp_path / f'model{suffix}'
  path.write_bytes(b'text that is no weights')
  with pytest.raises(errors.UserError, match='cannot be read as'):
    weight_files.read(path)
  with pytest.raises(errors.UserError, match='There is no file'):
    weight_files.read(tmp_path / f'nothing{suffix}')


def test_refuses_another_format(tmp_path):
  with pytest.raises(errors.UserError, match='must end in .safetensors, .h5'):
    weight_files.read(tmp_path / 'pytorch_model.bin')


def test_runs_nothing_that_is_pickled(tmp_path):
  path = tmp_path / 'model.npz'
  np.savez(path, a=np.array([{}], object))
  with pytest.raises(errors.UserError, match='Object arrays'):
    weight_files.read(path)


def test_opens_no_other_file(tmp_path):
  secret = tmp_path / 'secret'
  secret.write_bytes(b'1234')
  path = tmp_path / 'model.h5'
  with h5py.File(path, 'w') as file:
    file.create_dataset('a', (1,), 'f4', external=[(str(secret), 0, 4)])
  with pytest.raises(errors.UserError, match='a is not in the file'):
    weight_files.read(path)


def test_unpacks_no_more_than_a_file_can_hold(tmp_path):
  zeros = np.zeros(1_000_000, np.float32)
  path = tmp_path / 'model.h5'
  with h5py.File(path, 'w') as file:
    file.create_dataset('a', data=zeros, compression='gzip')
  with pytest.raises(errors.UserError, match='compressed'):
    weight_files.read(path)
  path = tmp_path / 'models.h5'
  with h5py.File(path, 'w') as file:
    for k in range(1000):
      file.create_dataset(f'{k}', data=zeros[:20_000], compression='gzip')
  assert path.stat().st_size > zeros[:20_000].nbytes
  with pytest.raises(errors.UserError, match='compressed'):
    weight_files.read(path)
  path = tmp_path / 'model.npz'
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    archive.writestr('a.npy', bytes(zeros))
  with pytest.raises(errors.UserError, match='unpacks to far more data'):
    weight_files.read(path)
