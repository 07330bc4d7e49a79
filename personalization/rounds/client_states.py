"""The states that clients keep from round to round, by the clients' rows.

A round reads and writes the states of its clients. States that do not fit into
memory are in a database, a single file. At a checkpoint, all changed states are
written to it:

  states(row, client, round, checksum, state)  a client's state after a round
  leaves(name, dtype, shape)                   the arrays of a state
  checkpoints(round)                           the checkpoints with all states

A state is the bytes of its arrays, one after another. Writes between two
checkpoints are not committed, and the states of each checkpoint stay until they
are pruned. A run that is killed at any time thus finds the states of the
checkpoint from which it resumes.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import functools
import json
import math
import pathlib
import sqlite3
import tempfile
import zlib

import numpy as np
import tree

from base import aliases
from base import errors

FILE_NAME = 'client_states.sqlite'
# The size of the states that are kept in memory.
_MOST_BYTES = 2**29

_SCHEMA = """
CREATE TABLE IF NOT EXISTS states
  (row INTEGER, client TEXT, round INTEGER, checksum INTEGER, state BLOB);
CREATE UNIQUE INDEX IF NOT EXISTS by_row ON states (row, round);
CREATE TABLE IF NOT EXISTS leaves (name TEXT, dtype TEXT, shape TEXT);
CREATE TABLE IF NOT EXISTS checkpoints (round INTEGER PRIMARY KEY);
"""

# The dtype and the shape of each array of a state.
_Specs = Sequence[tuple[np.dtype, tuple[int, ...]]]


class ClientStates:
  """The states of clients, by row; each is initialized when it is first read.

  Call `restore` before the first round. At each checkpoint call `commit` and,
  once older checkpoints are gone, `prune`.

  Attributes:
    client_ids: The clients that can be trained on.
  """

  def __init__(
    self,
    client_ids: Sequence[str],
    initialize: Callable[[int], aliases.ClientState],
    folder: pathlib.Path | None = None,
    most_bytes: int | None = None,
  ):
    """Makes the states of clients.

    Args:
      client_ids: The clients.
      initialize: Returns the state of a client before its first round, given
        its row. It is also called for rows beyond those of `client_ids`, which
        belong to clients that are never trained on.
      folder: The folder of the database. By default nothing outlasts this
        object, and a temporary database is made if the states outgrow memory.
      most_bytes: The size of the states that are kept in memory.
    """
    self.client_ids = tuple(client_ids)
    self._initialize = initialize
    self._folder = folder
    self._most_bytes = _MOST_BYTES if most_bytes is None else most_bytes
    # All states have the structure of the first.
    self._like = tree.map_structure(np.asarray, initialize(0))
    self._specs = [(a.dtype, a.shape) for a in tree.flatten(self._like)]
    self._recent: collections.OrderedDict[int, np.ndarray] = (
      collections.OrderedDict()  # The bytes of states; the last used is last.
    )
    # Rows that differ from the database, and the rounds of their states.
    self._changed: dict[int, int] = {}
    self._committed_round = -1
    self._database: sqlite3.Connection | None = None
    self._temporary: tempfile.TemporaryDirectory[str] | None = None

  @property
  def is_empty(self) -> bool:
    """Whether clients keep nothing."""
    return not self._specs

  @functools.cached_property
  def bytes_per_client(self) -> int:
    """The size of a client's state."""
    return sum(dtype.itemsize * math.prod(s) for dtype, s in self._specs)

  @functools.cached_property
  def rows(self) -> Mapping[str, int]:
    """The row of each client."""
    return {client_id: row for row, client_id in enumerate(self.client_ids)}

  def read(self, rows: Sequence[int] | np.ndarray) -> aliases.ClientState:
    """Returns the states of the clients in these rows, stacked."""
    if self.is_empty:
      return self._like
    stacked = [np.empty([len(rows), *s], dtype) for dtype, s in self._specs]
    for k, row in enumerate(rows):
      state = self._read_row(int(row))
      for leaves, leaf in zip(stacked, _split(state, self._specs)):
        leaves[k] = leaf
    return tree.unflatten_as(self._like, stacked)

  def write(
    self,
    rows: Sequence[int] | np.ndarray,
    states: aliases.ClientState,
    round_num: int,
  ) -> None:
    """Replaces the states of the clients in these rows.

    Args:
      rows: The rows.
      states: The states, stacked.
      round_num: The round after which clients have these states.
    """
    if self.is_empty:
      return
    stacked = [np.asarray(leaf) for leaf in tree.flatten(states)]
    for k, row in enumerate(map(int, rows)):
      # Copied, as a view would keep the states of the whole cohort alive.
      state = self._pack([leaves[k] for leaves in stacked])
      self._changed[row] = round_num
      self._keep(row, state)

  def commit(self, round_num: int) -> None:
    """Saves the states for a checkpoint, so that they survive a kill.

    Call it before the checkpoint itself is written: states of a checkpoint that
    does not exist do no harm.

    Args:
      round_num: The round of the checkpoint.
    """
    if self.is_empty or self._folder is None:
      return
    with self._open() as database:
      for row in list(self._changed):
        self._store(row)
      database.execute(
        'INSERT OR REPLACE INTO checkpoints VALUES (?)', (round_num,)
      )
      database.commit()
    self._committed_round = round_num

  def prune(self, oldest_round: int) -> None:
    """Removes the states that only older checkpoints need.

    Args:
      oldest_round: The round of the oldest checkpoint that a run may resume
        from.
    """
    if self.is_empty or self._folder is None:
      return
    with self._open() as database:
      database.execute(
        'DELETE FROM states WHERE round < (SELECT MAX(newer.round) FROM states'
        ' AS newer WHERE newer.row = states.row AND newer.round <= ?)',
        (oldest_round,),
      )
      database.execute(
        'DELETE FROM checkpoints WHERE round < ?', (oldest_round,)
      )
      database.commit()

  def restore(self, round_num: int) -> None:
    """Returns to the states of a checkpoint, and deletes all later ones.

    Args:
      round_num: The round of the checkpoint; 0 for the initial states.

    Raises:
      UserError: If the database lacks the states, belongs to another method, or
        is damaged.
    """
    self._recent.clear()
    self._changed.clear()
    self._committed_round = round_num
    if self.is_empty or self._folder is None:
      return
    found = (self._folder / FILE_NAME).exists()
    if found:
      with self._open() as database:
        database.execute('DELETE FROM states WHERE round > ?', (round_num,))
        database.execute(
          'DELETE FROM checkpoints WHERE round > ?', (round_num,)
        )
        database.commit()
        found = round_num in _checkpoints(database)
    if round_num and not found:
      raise errors.UserError(
        f'{self._folder} lacks the states of the clients after round'
        f' {round_num}. Delete it to train anew.'
      )

  def close(self) -> None:
    """Closes the database, and drops all that was not committed."""
    if self._database is not None:
      self._database.close()
      self._database = None
    if self._temporary is not None:
      self._temporary.cleanup()
      self._temporary = None

  def _pack(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
    """Copies the arrays of a state into its bytes."""
    state = np.empty(self.bytes_per_client, np.uint8)
    for part, leaf in zip(_split(state, self._specs), leaves, strict=True):
      part[...] = leaf
    return state

  def _read_row(self, row: int) -> np.ndarray:
    if row in self._recent:
      self._recent.move_to_end(row)
      return self._recent[row]
    state = self._load(row) if self._database is not None else None
    if state is None:
      state = self._pack(tree.flatten(self._initialize(row)))
    if row < len(self.client_ids):
      self._keep(row, state)
    return state

  def _keep(self, row: int, state: np.ndarray) -> None:
    """Keeps a row in memory, and makes room for it."""
    self._recent[row] = state
    self._recent.move_to_end(row)
    most = max(1, self._most_bytes // max(1, self.bytes_per_client))
    while len(self._recent) > most:
      oldest = next(iter(self._recent))
      if oldest in self._changed:
        self._store(oldest)
      del self._recent[oldest]

  @contextlib.contextmanager
  def _open(self) -> Iterator[sqlite3.Connection]:
    """Opens or makes the database, unless it is open, and yields it."""
    folder = self._folder
    if folder is None:
      self._temporary = self._temporary or tempfile.TemporaryDirectory()
      folder = pathlib.Path(self._temporary.name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    with _user_errors(path):
      self._database = self._database or self._connect(path)
      yield self._database

  def _connect(self, path: pathlib.Path) -> sqlite3.Connection:
    with contextlib.ExitStack() as stack:
      database = stack.enter_context(contextlib.closing(sqlite3.connect(path)))
      # Large pages, as states are large; a state is appended, not overwritten.
      database.execute('PRAGMA page_size = 65536')
      # Some builds of SQLite overwrite deleted data with zeros.
      database.execute('PRAGMA secure_delete = OFF')
      if self._folder is None:
        # Nobody reads a temporary database after a kill.
        database.execute('PRAGMA journal_mode = OFF')
        database.execute('PRAGMA synchronous = OFF')
      database.executescript(_SCHEMA)
      expected = [
        (name, str(dtype), json.dumps(shape))
        for name, (dtype, shape) in zip(_names(self._like), self._specs)
      ]
      found = database.execute('SELECT * FROM leaves ORDER BY rowid').fetchall()
      if not found:
        database.executemany('INSERT INTO leaves VALUES (?, ?, ?)', expected)
      elif found != expected:
        raise errors.UserError(
          f'{path} holds the states of another method or model. Name another'
          ' folder.'
        )
      database.commit()
      stack.pop_all()
    return database

  def _load(self, row: int) -> np.ndarray | None:
    with self._open() as database:
      found = database.execute(
        'SELECT state, checksum FROM states WHERE row = ?'
        ' ORDER BY round DESC LIMIT 1',
        (row,),
      ).fetchone()
      if found is None:
        return None
      state, checksum = found
      return _checked(state, checksum, self.bytes_per_client)

  def _store(self, row: int) -> None:
    state = self._recent[row]
    with self._open() as database:
      # No checkpoint needs the client's states since the last checkpoint.
      database.execute(
        'DELETE FROM states WHERE row = ? AND round > ?',
        (row, self._committed_round),
      )
      database.execute(
        'INSERT INTO states VALUES (?, ?, ?, ?, ?)',
        (
          row,
          self.client_ids[row],
          self._changed[row],
          zlib.crc32(state.data),
          state.data,
        ),
      )
    del self._changed[row]


@contextlib.contextmanager
def _user_errors(path: pathlib.Path) -> Iterator[None]:
  """Raises errors of a database as a `UserError`."""
  try:
    yield
  except sqlite3.OperationalError as error:  # A full disk, another process.
    advice = ' Make room on the disk.' if 'full' in str(error) else ''
    raise errors.ResourceError(
      f'{path} cannot be used: {error}.{advice}'
    ) from error
  except sqlite3.DatabaseError as error:
    raise errors.UserError(
      f'{path} is damaged: {error}. Delete {path.parent} to train anew.'
    ) from error


def _checkpoints(database: sqlite3.Connection) -> list[int]:
  """Returns the rounds of the checkpoints whose states are in the database."""
  query = 'SELECT round FROM checkpoints ORDER BY round'
  return [round_num for (round_num,) in database.execute(query)]


def _names(structure: aliases.ClientState) -> list[str]:
  """Returns the names of the leaves of a structure, from their places."""
  return [
    '/'.join(map(str, path)) for path, _ in tree.flatten_with_path(structure)
  ]


def _checked(state: bytes, checksum: int, size: int) -> np.ndarray:
  """Returns the bytes of a stored state, if its checksum is right."""
  if (
    not isinstance(state, bytes)
    or len(state) != size
    or zlib.crc32(state) != checksum
  ):
    raise sqlite3.DatabaseError('a state is not as it was written')
  return np.frombuffer(state, np.uint8)


def _split(state: np.ndarray, specs: _Specs) -> list[np.ndarray]:
  """Returns the arrays of a state as views of its bytes."""
  leaves: list[np.ndarray] = []
  start = 0
  for dtype, shape in specs:
    stop = start + dtype.itemsize * math.prod(shape)
    leaves.append(np.ndarray(shape, dtype, state.data, start))
    start = stop
  return leaves


def read_saved(
  folder: pathlib.Path, round_num: int
) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
  """Reads the states of a checkpoint, client by client.

  Args:
    folder: The folder of the checkpoints.
    round_num: The round of the checkpoint.

  Yields:
    The id of each client that has taken part, and its arrays by name.

  Raises:
    UserError: If there are none.
  """
  path = folder / FILE_NAME
  if not path.exists():
    raise errors.UserError(f'{folder} has no states of clients.')
  # Not read-only, as SQLite must first undo the last writes of a killed run.
  uri = f'{path.absolute().as_uri()}?mode=rw'
  with (
    _user_errors(path),
    contextlib.closing(sqlite3.connect(uri, uri=True)) as database,
  ):
    rounds = _checkpoints(database)
    if round_num not in rounds:
      raise errors.UserError(
        f'{folder} has no states of round {round_num}, only of'
        f' {", ".join(map(str, rounds)) or "none"}.'
      )
    leaves = database.execute('SELECT * FROM leaves ORDER BY rowid').fetchall()
    names = [name for name, _, _ in leaves]
    try:
      specs = [(np.dtype(d), tuple(json.loads(s))) for _, d, s in leaves]
      size = sum(dtype.itemsize * math.prod(shape) for dtype, shape in specs)
    except (
      ValueError,
      TypeError,
      RecursionError,
    ) as error:  # They may be of any type.
      raise sqlite3.DatabaseError(f'invalid leaves ({error})') from error
    states = database.execute(
      'SELECT client, state, checksum FROM states WHERE round = (SELECT'
      ' MAX(other.round) FROM states AS other WHERE other.row = states.row AND'
      ' other.round <= ?) ORDER BY row',
      (round_num,),
    )
    for client_id, state, checksum in states:
      arrays = _split(_checked(state, checksum, size), specs)
      yield client_id, dict(zip(names, arrays))
