"""Tests of the store of clients' states."""

import collections
from collections.abc import Iterator
import contextlib
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
import tree

from base import errors
from personalization.rounds import client_states

_IDS = tuple(f'client_{k}' for k in range(12))


def _initial(row: int) -> dict[str, Any]:
  """A state of several shapes and types, 29 bytes, that tells the row."""
  return collections.OrderedDict(
    flag=np.bool_(row % 2),
    rounds=np.int32(row),
    model=(np.full([2, 3], row, np.float32),),
  )


_STATE_BYTES = 1 + 4 + 24


def _make_states(rows: np.ndarray, round_num: int) -> dict[str, Any]:
  """States that tell their rows and a round."""
  rows = np.asarray(rows)
  model = 1000.0 * round_num + np.arange(6).reshape(2, 3) / 8
  return collections.OrderedDict(
    flag=rows % 2 == round_num % 2,
    rounds=(100 * round_num + rows).astype(np.int32),
    model=((model + rows[:, None, None]).astype(np.float32),),
  )


def _stacked(states: list[Any]) -> Any:
  return tree.map_structure(lambda *leaves: np.stack(leaves), *states)


def _assert_same(found: Any, expected: Any) -> None:
  """Compares two structures bit for bit."""
  tree.assert_same_structure(found, expected)
  for a, b in zip(tree.flatten(found), tree.flatten(expected), strict=True):
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


def _make(
  folder: pathlib.Path | None = None, states_in_memory: int = 3, **other: Any
) -> client_states.ClientStates:
  return client_states.ClientStates(
    _IDS,
    other.pop('initialize', _initial),
    folder,
    most_bytes=states_in_memory * _STATE_BYTES,
    **other,
  )


def _resumed(
  folder: pathlib.Path, round_num: int, states_in_memory: int = 3
) -> client_states.ClientStates:
  """The states of a checkpoint, in the next run."""
  states = _make(folder, states_in_memory)
  states.restore(round_num)
  return states


class _StatesInADictionary:
  """The expected contents of the store, in a dictionary."""

  def __init__(self) -> None:
    self.now = {row: _initial(row) for row in range(len(_IDS))}
    self.checkpoints = {0: dict(self.now)}

  def read(self, rows: Any) -> Any:
    return _stacked([self.now[row] for row in rows])

  def write(self, rows: Any, states: Any) -> None:
    for k, row in enumerate(rows):
      self.now[row] = tree.map_structure(
        lambda leaf: leaf[k],  # noqa: B023
        states,
      )


_ALL = np.arange(len(_IDS))


@contextlib.contextmanager
def _database(folder: pathlib.Path) -> Iterator[sqlite3.Connection]:
  path = folder / client_states.FILE_NAME
  with contextlib.closing(sqlite3.connect(path)) as database:
    yield database
    database.commit()


def _rounds_of(folder: pathlib.Path, row: int) -> list[int]:
  """The rounds of which the database has the state of a row."""
  with _database(folder) as database:
    found = database.execute(
      'SELECT round FROM states WHERE row = ? ORDER BY round', (row,)
    )
    return [round_num for (round_num,) in found]


# Reading and writing.


def test_a_client_is_initialized_when_it_is_first_read():
  calls: list[int] = []

  def initialize(row: int) -> Any:
    calls.append(row)
    return _initial(row)

  states = _make(initialize=initialize)
  assert calls == [0]  # For the structure.
  states.read([5, 3])
  states.read([3, 5])
  assert calls == [0, 5, 3]


def test_a_client_that_was_written_is_not_initialized():
  calls: list[int] = []

  def initialize(row: int) -> Any:
    calls.append(row)
    return _initial(row)

  states = _make(initialize=initialize, states_in_memory=1)
  states.write(_ALL, _make_states(_ALL, 1), 1)
  _assert_same(states.read(_ALL), _make_states(_ALL, 1))
  assert calls == [0]


def test_clients_that_were_not_trained_on_have_rows_after_the_others():
  states = _make()
  rows = [len(_IDS), 2, len(_IDS) + 100]
  _assert_same(states.read(rows), _stacked([_initial(row) for row in rows]))


def test_a_row_may_be_read_twice_at_once():
  states = _make()
  states.write([4], _make_states(np.array([4]), 2), 2)
  _assert_same(states.read([4, 4]), _make_states(np.array([4, 4]), 2))


def test_what_was_read_or_written_can_be_changed_by_the_caller():
  states = _make(states_in_memory=100)
  written = _make_states(_ALL, 1)
  states.write(_ALL, written, 1)
  for leaf in (written['model'][0], states.read(_ALL)['model'][0]):
    leaf[:] = -1
  _assert_same(states.read(_ALL), _make_states(_ALL, 1))


def test_states_come_back_in_their_own_types():
  states = _make()
  written = _make_states(_ALL, 1)
  written['rounds'] = written['rounds'].astype(np.int64)
  states.write(_ALL, written, 1)
  _assert_same(states.read(_ALL), _make_states(_ALL, 1))


def test_the_row_of_a_client_is_known_by_its_id():
  assert [_make().rows[c] for c in ('client_0', 'client_11')] == [0, 11]


def test_the_size_of_a_state_is_known():
  assert _make().bytes_per_client == _STATE_BYTES


@pytest.mark.parametrize('states_in_memory', [0, 1, 3, 100])
@pytest.mark.parametrize('in_folder', [True, False])
@pytest.mark.parametrize('seed', [0, 1])
def test_the_store_behaves_as_a_dictionary(
  tmp_path, states_in_memory, in_folder, seed
):
  rng = np.random.default_rng(seed)
  states = _make(tmp_path if in_folder else None, states_in_memory)
  states.restore(0)
  model = _StatesInADictionary()
  for round_num in range(1, 41):
    rows = rng.choice(len(_IDS), rng.integers(1, 8), replace=False)
    _assert_same(states.read(rows), model.read(rows))
    if rng.random() < 0.8:
      states.write(rows, _make_states(rows, round_num), round_num)
      model.write(rows, _make_states(rows, round_num))
    if rng.random() < 0.2:
      states.commit(round_num)
      model.checkpoints[round_num] = dict(model.now)
      states.prune(max(model.checkpoints))
  _assert_same(states.read(_ALL), model.read(_ALL))
  if in_folder:
    states.close()
    last = max(model.checkpoints)
    model.now = model.checkpoints[last]
    _assert_same(_resumed(tmp_path, last).read(_ALL), model.read(_ALL))


# Clients that keep nothing.


def test_methods_without_client_states_need_no_database(tmp_path):
  states = client_states.ClientStates(
    _IDS, lambda row: collections.OrderedDict(), tmp_path, most_bytes=0
  )
  states.restore(7)
  assert states.is_empty
  assert states.bytes_per_client == 0
  states.write(_ALL, collections.OrderedDict(), 8)
  states.commit(8)
  states.prune(8)
  assert states.read(_ALL) == collections.OrderedDict()
  assert not list(tmp_path.iterdir())


def test_a_state_may_have_no_elements(tmp_path):
  states = client_states.ClientStates(
    _IDS, lambda row: {'slots': np.zeros([0, 3])}, tmp_path
  )
  states.write([1], {'slots': np.zeros([1, 0, 3])}, 1)
  states.commit(1)
  assert states.read([1, 2])['slots'].shape == (2, 0, 3)


# Memory and disk.


def test_only_the_clients_of_a_round_are_in_memory(tmp_path):
  num_clients, size, in_round = 100, 2**20, 10
  most_bytes = 10 * size
  states = client_states.ClientStates(
    [str(k) for k in range(num_clients)],
    lambda row: {'model': np.zeros(size // 4, np.float32)},
    tmp_path,
    most_bytes=most_bytes,
  )
  states.restore(0)
  rng = np.random.default_rng(0)
  rounds = np.zeros(num_clients)
  tracemalloc.start()
  try:
    for round_num in range(1, 31):
      rows = rng.choice(num_clients, in_round, replace=False)
      model = states.read(rows)['model']
      np.testing.assert_array_equal(model[:, -1], rounds[rows])
      states.write(rows, {'model': model + 1}, round_num)
      rounds[rows] += 1
      del model
      if round_num % 10 == 0:
        states.commit(round_num)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert rounds.sum() == 300
  # What is kept, what is read and what is written, and a little.
  assert peak < 2 * in_round * size + most_bytes + 5 * size


def test_without_a_folder_nothing_is_left_on_disk(tmp_path, monkeypatch):
  monkeypatch.setattr(client_states.tempfile, 'tempdir', str(tmp_path))
  states = _make(states_in_memory=1)
  states.write(_ALL, _make_states(_ALL, 1), 1)
  assert len(list(tmp_path.rglob(client_states.FILE_NAME))) == 1
  states.close()
  assert not list(tmp_path.iterdir())


def test_states_that_fit_into_memory_are_on_no_disk(tmp_path, monkeypatch):
  monkeypatch.setattr(client_states.tempfile, 'tempdir', str(tmp_path))
  states = _make(states_in_memory=len(_IDS))
  for round_num in range(1, 5):
    states.write(_ALL, _make_states(_ALL, round_num), round_num)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('in_folder', [True, False])
def test_the_database_does_not_grow_from_round_to_round(
  tmp_path, monkeypatch, in_folder
):
  monkeypatch.setattr(client_states.tempfile, 'tempdir', str(tmp_path))
  size = 2**18
  states = client_states.ClientStates(
    _IDS,
    lambda row: {'model': np.zeros(size, np.uint8)},
    tmp_path if in_folder else None,
    most_bytes=2 * size,
  )
  states.restore(0)
  used = []
  for round_num in range(1, 61):
    rows = np.roll(_ALL, round_num)[:6]
    model = states.read(rows)['model']
    states.write(rows, {'model': model + 1}, round_num)
    if round_num % 5 == 0:
      states.commit(round_num)
      states.prune(max(round_num - 5, 5))
      files = tmp_path.rglob('client_states*')
      used.append(sum(path.stat().st_size for path in files))
  # At most two checkpoints and what was written since, of all clients.
  assert used[-1] == used[len(used) // 2]
  assert used[-1] < (3 if in_folder else 1) * len(_IDS) * size + 2**20


# Checkpoints.


def test_what_is_not_committed_is_gone(tmp_path):
  states = _make(tmp_path)
  states.write(_ALL, _make_states(_ALL, 1), 1)
  states.commit(1)
  states.write(_ALL, _make_states(_ALL, 2), 2)
  states.close()
  _assert_same(_resumed(tmp_path, 1).read(_ALL), _make_states(_ALL, 1))


@pytest.mark.parametrize('states_in_memory', [1, 100])
def test_a_checkpoint_can_be_restored_in_the_same_run(
  tmp_path, states_in_memory
):
  states = _make(tmp_path, states_in_memory)
  states.write(_ALL[:6], _make_states(_ALL[:6], 1), 1)
  states.commit(1)
  states.write(_ALL, _make_states(_ALL, 2), 2)
  states.restore(1)
  _assert_same(states.read(_ALL[:6]), _make_states(_ALL[:6], 1))
  initial = _stacked([_initial(row) for row in _ALL[6:]])
  _assert_same(states.read(_ALL[6:]), initial)


def test_the_older_checkpoint_can_be_restored_as_well(tmp_path):
  states = _make(tmp_path)
  for round_num, rows in ((3, _ALL), (6, _ALL[:5]), (9, _ALL[:2])):
    states.write(rows, _make_states(rows, round_num), round_num)
    states.commit(round_num)
    states.prune(max(round_num - 3, 3))
  states.close()
  resumed = _resumed(tmp_path, 6)
  _assert_same(resumed.read(_ALL[:5]), _make_states(_ALL[:5], 6))
  _assert_same(resumed.read(_ALL[5:]), _make_states(_ALL[5:], 3))


def test_a_restored_run_commits_in_the_place_of_the_first(tmp_path):
  states = _make(tmp_path)
  for round_num in (3, 6):
    states.write(_ALL, _make_states(_ALL, round_num), round_num)
    states.commit(round_num)
  states.close()
  states = _resumed(tmp_path, 3)
  states.write(_ALL, _make_states(_ALL, 7), 6)
  states.commit(6)
  states.close()
  _assert_same(_resumed(tmp_path, 6).read(_ALL), _make_states(_ALL, 7))


def test_the_initial_states_can_be_restored(tmp_path):
  states = _make(tmp_path)
  states.write(_ALL, _make_states(_ALL, 3), 3)
  states.commit(3)
  states.close()
  initial = _stacked([_initial(row) for row in _ALL])
  _assert_same(_resumed(tmp_path, 0).read(_ALL), initial)


def test_states_that_no_checkpoint_needs_are_removed(tmp_path):
  states = _make(tmp_path)
  for round_num in (1, 2, 3, 4):
    rows = _ALL if round_num < 4 else _ALL[:1]
    states.write(rows, _make_states(rows, round_num), round_num)
    states.commit(round_num)
  states.prune(3)
  assert _rounds_of(tmp_path, 0) == [3, 4]
  assert _rounds_of(tmp_path, 1) == [3]


def test_between_two_checkpoints_only_the_last_state_is_kept(tmp_path):
  states = _make(tmp_path, states_in_memory=1)
  states.restore(0)
  for round_num in range(1, 5):
    states.write(_ALL[:3], _make_states(_ALL[:3], round_num), round_num)
  states.commit(4)
  assert [_rounds_of(tmp_path, row) for row in range(3)] == [[4]] * 3


@pytest.mark.parametrize('oldest', [1, 2])
def test_a_checkpoint_that_is_not_there_is_an_error(tmp_path, oldest):
  states = _make(tmp_path)
  for round_num in (1, 2):
    states.write(_ALL, _make_states(_ALL, round_num), round_num)
    states.commit(round_num)
  states.prune(oldest)
  states.close()
  with pytest.raises(errors.UserError, match=f'{tmp_path} lacks the states'):
    _resumed(tmp_path, oldest - 1 or 7)


def test_a_checkpoint_without_a_database_is_an_error(tmp_path):
  with pytest.raises(errors.UserError, match='after round 3. Delete it'):
    _resumed(tmp_path, 3)


def _run_until_killed(code: str, *arguments: Any) -> None:
  root = pathlib.Path(__file__).parents[3]
  killed = subprocess.run(
    [sys.executable, '-c', code, *map(str, arguments)],
    cwd=root,
    env={'PYTHONPATH': ':'.join([str(root), *sys.path])},
    check=False,
  )
  assert killed.returncode == -signal.SIGKILL


_KILLED = """
import os, pathlib, signal, sys
import numpy as np
from tests.personalization.rounds import client_states_test as test

states = test._make(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
states.restore(0)
for round_num in range(1, 10):
  rows = np.roll(test._ALL, round_num)[:8]
  states.write(rows, test._make_states(rows, round_num), round_num)
  if round_num in (3, 6):
    states.commit(round_num)
    states.prune(3)
  if round_num == int(sys.argv[3]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize('states_in_memory', [1, 100])
@pytest.mark.parametrize('last_round', [2, 4, 8])
def test_a_run_that_is_killed_finds_the_states_of_its_checkpoints(
  tmp_path, states_in_memory, last_round
):
  _run_until_killed(_KILLED, tmp_path, states_in_memory, last_round)
  model = _StatesInADictionary()
  for round_num in range(1, 7):
    rows = np.roll(_ALL, round_num)[:8]
    model.write(rows, _make_states(rows, round_num))
    model.checkpoints[round_num] = dict(model.now)
  for checkpoint in (6, 3, 0):  # Each may be followed by an older one.
    if checkpoint <= last_round:
      model.now = model.checkpoints[checkpoint]
      states = _resumed(tmp_path, checkpoint, states_in_memory)
      _assert_same(states.read(_ALL), model.read(_ALL))
      states.close()


# States that are large, so that what is not committed reaches the disk.
_KILLED_WITH_LARGE_STATES = """
import os, pathlib, signal, sys
import numpy as np
from tests.personalization.rounds import client_states_test as test

states = test._make_large(pathlib.Path(sys.argv[1]))
for round_num in (1, 2, 3, 4):
  states.write(test._ALL, test._large(round_num), round_num)
  if round_num < 4:
    states.commit(round_num)
    states.prune(max(round_num - 1, 1))
os.kill(os.getpid(), signal.SIGKILL)
"""


def _large(round_num: int) -> dict[str, np.ndarray]:
  return {'model': np.full([len(_IDS), 2**18], round_num, np.float32)}


def _make_large(folder: pathlib.Path) -> client_states.ClientStates:
  return client_states.ClientStates(
    _IDS, lambda row: {'model': np.zeros(2**18, np.float32)}, folder, 0
  )


@pytest.fixture(name='killed_folder', scope='module')
def _killed_folder(tmp_path_factory: Any) -> pathlib.Path:
  folder = tmp_path_factory.mktemp('killed')
  _run_until_killed(_KILLED_WITH_LARGE_STATES, folder)
  # SQLite keeps there how to take back what was written and not committed.
  assert (folder / f'{client_states.FILE_NAME}-journal').stat().st_size > 0
  return folder


def test_what_a_killed_run_had_written_is_not_restored(killed_folder, tmp_path):
  folder = shutil.copytree(killed_folder, tmp_path / 'copy')
  for round_num in (3, 2, 0):
    states = _make_large(folder)
    states.restore(round_num)
    _assert_same(states.read(_ALL), _large(round_num))
    states.close()


def test_what_a_killed_run_had_written_is_not_read(killed_folder, tmp_path):
  folder = shutil.copytree(killed_folder, tmp_path / 'copy')
  found = dict(client_states.read_saved(folder, 3))
  assert tuple(found) == _IDS
  for leaves in found.values():
    np.testing.assert_array_equal(leaves['model'], 3)


# What is wrong with a database.


def test_the_database_of_another_method_is_refused(tmp_path):
  states = _make(tmp_path)
  states.write(_ALL, _make_states(_ALL, 1), 1)
  states.commit(1)
  states.close()
  for other in (
    {'model': np.zeros([2, 3], np.float32)},
    _initial(0) | {'rounds': np.int64(0)},
    _initial(0) | {'model': (np.zeros([3, 2], np.float32),)},
  ):
    states = _make(tmp_path, initialize=lambda row: other)  # noqa: B023
    with pytest.raises(errors.UserError, match='another method or model'):
      states.restore(1)
  _assert_same(_resumed(tmp_path, 1).read(_ALL), _make_states(_ALL, 1))


def _saved_file(folder: pathlib.Path) -> pathlib.Path:
  states = _make(folder)
  states.write(_ALL, _make_states(_ALL, 1), 1)
  states.commit(1)
  states.close()
  return folder / client_states.FILE_NAME


@pytest.mark.parametrize(
  'damage',
  [
    pytest.param(lambda whole: b'not a database' * 99, id='overwritten'),
    pytest.param(lambda whole: whole[: len(whole) // 2], id='truncated'),
    pytest.param(
      lambda whole: whole.replace(
        np.float32(1000.125).tobytes(), np.float32(1000.5).tobytes()
      ),
      id='changed',
    ),
  ],
)
@pytest.mark.parametrize('reader', ['resumed', 'saved'])
def test_a_damaged_database_is_an_error_that_names_it(tmp_path, damage, reader):
  path = _saved_file(tmp_path)
  whole = path.read_bytes()
  assert damage(whole) != whole
  path.write_bytes(damage(whole))
  with pytest.raises(errors.UserError, match=f'{path} is damaged'):
    if reader == 'saved':
      list(client_states.read_saved(tmp_path, 1))
    else:
      _resumed(tmp_path, 1).read(_ALL)


@pytest.mark.parametrize(
  'change',
  [
    "leaves SET dtype = 'float31'",
    "leaves SET shape = '['",
    'leaves SET shape = \'["x"]\'',
    'states SET state = NULL',
    'states SET checksum = NULL',
  ],
)
def test_what_makes_no_sense_in_a_database_is_damage(tmp_path, change):
  path = _saved_file(tmp_path)
  with contextlib.closing(sqlite3.connect(path)) as database:
    database.execute(f'UPDATE {change}')
    database.commit()
  with pytest.raises(errors.UserError, match=f'{path} is damaged'):
    list(client_states.read_saved(tmp_path, 1))


def test_a_database_that_another_process_uses_is_an_error(
  tmp_path, monkeypatch
):
  path = _saved_file(tmp_path)
  connect = sqlite3.connect
  with contextlib.closing(connect(path)) as other:
    other.execute('BEGIN EXCLUSIVE')
    monkeypatch.setattr(
      sqlite3,
      'connect',
      lambda *args, **kwargs: connect(*args, **kwargs, timeout=0),
    )
    with pytest.raises(
      errors.UserError, match=f'{path} cannot be used: .*lock'
    ):
      _resumed(tmp_path, 1)


# Reading the states afterwards.


def test_saved_states_are_read_by_client_and_leaf(tmp_path):
  states = _make(tmp_path)
  for round_num, rows in ((1, _ALL[1:4]), (2, _ALL[2:3])):
    states.write(rows, _make_states(rows, round_num), round_num)
    states.commit(round_num)
  states.close()
  for last, rounds in ((1, (1, 1, 1)), (2, (1, 2, 1))):
    found = dict(client_states.read_saved(tmp_path, last))
    # Clients that have not taken part have no state.
    assert list(found) == ['client_1', 'client_2', 'client_3']
    for row, round_num, leaves in zip((1, 2, 3), rounds, found.values()):
      expected = _make_states(np.array([row]), round_num)
      assert list(leaves) == ['flag', 'model/0', 'rounds']
      _assert_same(
        list(leaves.values()), [a[0] for a in tree.flatten(expected)]
      )


def test_states_can_be_read_while_training_goes_on(tmp_path):
  states = _make(tmp_path, states_in_memory=100)
  states.write(_ALL, _make_states(_ALL, 1), 1)
  states.commit(1)
  states.write(_ALL, _make_states(_ALL, 2), 2)
  assert len(list(client_states.read_saved(tmp_path, 1))) == len(_IDS)


def test_a_folder_without_states_is_an_error(tmp_path):
  with pytest.raises(errors.UserError, match=f'{tmp_path} has no states of cl'):
    list(client_states.read_saved(tmp_path, 1))


def test_a_round_without_a_checkpoint_is_an_error(tmp_path):
  _saved_file(tmp_path)
  with pytest.raises(errors.UserError, match='no states of round 2, only of 1'):
    list(client_states.read_saved(tmp_path, 2))
