"""Tests of checkpoints."""

import asyncio
import collections
import os
import pathlib
import pickle
from typing import Any, NamedTuple
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from personalization.rounds import checkpoints


class NamedLeaves(NamedTuple):
  first: Any
  second: Any


@pytest.fixture(name='manager')
def _manager(tmp_path: pathlib.Path) -> checkpoints.NpzProgramStateManager:
  return checkpoints.NpzProgramStateManager(tmp_path)


def _save(
  manager: checkpoints.NpzProgramStateManager, state: Any, version: int = 1
) -> None:
  asyncio.run(manager.save(state, version))


def _load(
  manager: checkpoints.NpzProgramStateManager, structure: Any, version: int = 1
) -> Any:
  return asyncio.run(manager.load(version, structure))


def test_a_part_of_a_state_can_be_loaded(manager):
  _save(manager, (dict(a=np.arange(3), b=dict(c=5)), 6.0))
  part = asyncio.run(manager.load(1, {'0/b': dict(c=0)}, is_part=True))
  assert part == {'0/b': dict(c=5)}
  with pytest.raises(checkpoints.CheckpointError, match="'0/d' is not in it"):
    asyncio.run(manager.load(1, {'0/d': 0}, is_part=True))


def _round_trip(manager: checkpoints.NpzProgramStateManager, state: Any) -> Any:
  _save(manager, state)
  return _load(manager, state)


@pytest.mark.parametrize(
  'array',
  [
    np.array([0.0, -0.0, np.nan, np.inf, 1e-45], np.float32),
    np.array([0x7FF8000000000001, 0xFFF0000000000002], np.uint64).view(
      np.float64  # Two NaNs with something in them.
    ),
    np.array([1.5, -0.0], np.float16),
    np.array([True, False]),
    np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max]),
    np.array([0, 255], np.uint8),
    np.zeros([0, 3], np.float32),
    np.arange(6.0).reshape(2, 3).T,
  ],
  ids=lambda array: f'{array.dtype}{list(array.shape)}',
)
def test_an_array_comes_back_bit_for_bit(manager, array):
  restored = _round_trip(manager, array)
  assert isinstance(restored, np.ndarray)
  assert (restored.dtype, restored.shape) == (array.dtype, array.shape)
  assert restored.tobytes() == array.tobytes()


@pytest.mark.parametrize(
  'leaf',
  [
    np.float32(0.1),
    np.uint64(2**64 - 1),
    np.bool_(True),
    np.int64(-1),
  ],
  ids=repr,
)
def test_a_number_comes_back_as_what_it_was(manager, leaf):
  restored = _round_trip(manager, leaf)
  assert type(restored) is type(leaf)
  assert restored == leaf


def test_a_tensor_comes_back_as_an_array(manager):
  restored = _round_trip(manager, tf.constant([1, 2]))
  np.testing.assert_array_equal(restored, np.array([1, 2], np.int32))


def test_a_reference_is_stored_as_its_value(manager):
  class Reference(tff.program.MaterializableValueReference):
    type_signature = tff.TensorType(np.int32)

    async def get_value(self):
      return np.int32(7)

  _save(manager, NamedLeaves(Reference(), 1))
  assert _load(manager, NamedLeaves(np.int32(0), 0)) == NamedLeaves(7, 1)


@pytest.mark.parametrize(
  'state',
  [
    [1, (2, 3), []],
    NamedLeaves(1, NamedLeaves(2, (3,))),
    {'of': {'names/with': 1, 'slashes': 2}},
  ],
  ids=repr,
)
def test_a_structure_comes_back(manager, state):
  restored = _round_trip(manager, state)
  assert type(restored) is type(state)
  assert restored == state


@pytest.mark.parametrize('mapping', [dict, collections.OrderedDict])
def test_a_mapping_keeps_its_order(manager, mapping):
  state = mapping([('z', 1), ('a', 2), ('m', 3)])
  assert list(_round_trip(manager, state).items()) == list(state.items())


def test_a_saved_state_needs_no_program_to_be_looked_at(manager, tmp_path):
  _save(manager, {'weights': [np.ones(2)]}, 3)
  with np.load(tmp_path / 'program_state_3.npz') as arrays:
    np.testing.assert_array_equal(arrays['array/weights/0'], np.ones(2))


def test_the_same_state_gives_the_same_file(manager, tmp_path):
  for version in (1, 2):
    _save(manager, {'a': np.arange(3), 'b': 4}, version)
  first, second = sorted(tmp_path.iterdir())
  assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
  'leaf', [None, object(), 2**70, b'bytes', 'text', 1j], ids=repr
)
def test_what_cannot_be_stored_is_named(manager, leaf):
  with pytest.raises(TypeError, match='deep/1'):
    _save(manager, {'deep': [0, leaf]})


def test_two_leaves_of_one_name_are_refused(manager):
  with pytest.raises(ValueError, match="'a/b'"):
    _save(manager, {'a/b': 1, 'a': {'b': 2}})


def test_a_version_is_not_overwritten(manager):
  _save(manager, 1)
  with pytest.raises(tff.program.ProgramStateExistsError):
    _save(manager, 2)


def test_an_unknown_version_is_not_found(manager):
  with pytest.raises(tff.program.ProgramStateNotFoundError):
    _load(manager, 0, version=4)


def test_versions_are_listed_by_number(manager, tmp_path):
  (tmp_path / 'program_state_3.txt').touch()
  (tmp_path / 'program_state_x.npz').touch()
  for version in (2, 10, 1):
    _save(manager, version, version)
  assert asyncio.run(manager.get_versions()) == [1, 2, 10]


def test_without_a_folder_there_are_no_versions(tmp_path):
  (tmp_path / 'file').write_text('')
  for folder in ('not', 'file'):
    manager = checkpoints.NpzProgramStateManager(tmp_path / folder / 'there')
    assert asyncio.run(manager.get_versions()) is None
  assert asyncio.run(manager.load_latest(0)) == (None, 0)


def test_the_folder_is_made(tmp_path):
  manager = checkpoints.NpzProgramStateManager(tmp_path / 'not' / 'there')
  assert _round_trip(manager, 1) == 1


def test_the_latest_version_is_loaded(manager):
  for version in (9, 10):
    _save(manager, {'round': version}, version)
  latest = asyncio.run(manager.load_latest({'round': 0}))
  assert latest == ({'round': 10}, 10)


@pytest.mark.parametrize(
  ('keep_total', 'kept'), [(1, [4]), (2, [3, 4]), (None, [0, 1, 2, 3, 4])]
)
def test_the_latest_versions_are_kept(tmp_path, keep_total, kept):
  manager = checkpoints.NpzProgramStateManager(tmp_path, keep_total=keep_total)
  for version in range(5):
    _save(manager, version, version)
  assert asyncio.run(manager.get_versions()) == kept


def test_a_program_killed_while_writing_leaves_no_version(
  manager, monkeypatch, tmp_path
):
  class Killed(BaseException):
    pass

  def kill(*_: Any) -> None:
    raise Killed

  with monkeypatch.context() as patch:
    patch.setattr(os, 'replace', kill)
    with pytest.raises(Killed):
      _save(manager, 1, version=1)
  assert asyncio.run(manager.get_versions()) is None


def test_what_a_killed_program_had_written_is_removed(manager, tmp_path):
  (tmp_path / '.program_state_1.npz.4711.tmp').write_bytes(b'half of it')
  (tmp_path / '.not_ours.npz.4711.tmp').touch()
  _save(manager, 1, version=2)
  names = {path.name for path in tmp_path.iterdir()}
  assert names == {'program_state_2.npz', '.not_ours.npz.4711.tmp'}


def test_a_file_has_its_content_before_its_name(manager, monkeypatch):
  calls = []

  def spy_on(name: str) -> None:
    function = getattr(os, name)

    def spy(*args: Any) -> Any:
      calls.append(name)
      return function(*args)

    monkeypatch.setattr(os, name, spy)

  spy_on('fsync')
  spy_on('replace')
  _save(manager, 1)
  assert calls == ['fsync', 'replace', 'fsync']


@pytest.mark.parametrize('end', [0, 1, 50, -30, -1])
def test_a_truncated_file_is_an_error_that_names_it(manager, tmp_path, end):
  _save(manager, np.arange(100))
  path = tmp_path / 'program_state_1.npz'
  path.write_bytes(path.read_bytes()[:end])
  with pytest.raises(checkpoints.CheckpointError, match=str(path)):
    _load(manager, np.arange(100))


def test_no_changed_byte_changes_the_state_unseen(manager, tmp_path):
  state = collections.OrderedDict(a=np.arange(3), b=np.float32(4))
  _save(manager, state)
  path = tmp_path / 'program_state_1.npz'
  whole = path.read_bytes()
  for place in range(len(whole)):
    changed = bytearray(whole)
    changed[place] ^= 1  # Makes a 3 a 2, also in the shape.
    path.write_bytes(changed)
    try:
      restored = _load(manager, state)
    except checkpoints.CheckpointError:
      continue  # All other bytes, a date or such, mean nothing.
    np.testing.assert_equal(restored, state)


def test_a_changed_size_is_seen_though_all_that_is_read_is_whole(
  manager, tmp_path
):
  _save(manager, np.arange(2000))
  path = tmp_path / 'program_state_1.npz'
  path.write_bytes(path.read_bytes().replace(b'(2000,)', b'(1000,)'))
  with pytest.raises(checkpoints.CheckpointError, match='damaged'):
    _load(manager, np.arange(1000))


class _Bomb:
  """Runs something when it is unpickled."""

  def __reduce__(self) -> Any:
    return (pytest.fail, ('Something from the file was run.',))


def test_nothing_from_a_file_is_unpickled(manager, tmp_path):
  path = tmp_path / 'program_state_1.npz'
  np.savez(path, **{'array/a': np.array(_Bomb(), object)})
  with pytest.raises(checkpoints.CheckpointError, match='Object arrays'):
    _load(manager, {'a': 0})


def test_a_pickle_by_the_name_of_a_checkpoint_is_not_loaded(manager, tmp_path):
  (tmp_path / 'program_state_1.npz').write_bytes(pickle.dumps(_Bomb()))
  with pytest.raises(checkpoints.CheckpointError):
    _load(manager, 0)


@pytest.mark.parametrize(
  ('structure', 'message'),
  [
    ({'a': 1}, "'b/0' is in it, and not in the state"),
    ({'a': 1, 'b': [np.ones(2)], 'c': 1}, "'c' is not in it"),
    (
      {'a': 1, 'b': [np.ones(3)]},
      r"'b/0' is float64\[2\] in it, not float64\[3\]",
    ),
    (
      {'a': 1, 'b': [np.ones(2, np.float32)]},
      r"'b/0' is float64\[2\] in it, not float32\[2\]",
    ),
    ({'a': 1.0, 'b': [np.ones(2)]}, r"'a' is int64\[\] in it, not float64"),
  ],
)
def test_another_structure_is_an_error_that_names_the_leaf(
  manager, structure, message
):
  _save(manager, {'a': 1, 'b': [np.ones(2)]})
  with pytest.raises(checkpoints.CheckpointError, match=message):
    _load(manager, structure)


def test_a_checkpoint_of_an_earlier_version_can_be_read(manager, tmp_path):
  with zipfile.ZipFile(tmp_path / 'program_state_5.npz', 'w') as archive:
    for name, array in (('0/b', np.ones(2)), ('0/a/1', np.int32(3))):
      with archive.open(f'array/{name}.npy', 'w') as stream:
        np.lib.format.write_array(stream, np.asarray(array))
  wanted = (collections.OrderedDict(b=np.zeros(2), a=((), np.int32(0))),)
  (restored,) = _load(manager, wanted, 5)
  np.testing.assert_array_equal(restored['b'], np.ones(2))
  assert restored['a'] == ((), 3)
