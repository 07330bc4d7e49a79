"""The states that clients keep from round to round, by the clients' rows.

Only what is in use is in memory: a round reads and writes the states of its
clients. What does not fit into memory is in a database, a single file, as are
all states at a checkpoint:

  states(row, client, round, state)    what a client had after a round
  leaves(name, dtype, shape)           the arrays that a state consists of

A state is the bytes of its arrays, one after another. Between two checkpoints
nothing is committed, and the last two checkpoints' states are there, so that a
run that is killed at any time finds those of the checkpoint that it goes on
from.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import json
import math
import pathlib
import sqlite3
import tempfile
from typing import Any

import numpy as np
import tree

from base import errors

FILE_NAME = 'client_states.sqlite'
# The states that are kept in memory, in bytes.
_MOST_BYTES = 2**29


class ClientStates:
  """The states of clients, by row; a client that has none yet is initialized.

  Use `commit` at each checkpoint, and `restore` where a run goes on.
  """

  def __init__(
    self,
    client_ids: Sequence[str],
    initialize: Callable[[int], Any],
    folder: pathlib.Path | None = None,
    most_bytes: int = _MOST_BYTES,
  ):
    """Makes the states of clients; no client is initialized yet.

    Args:
      client_ids: The clients.
      initialize: From the row of a client to its state before its first round.
        It is asked for rows beyond those of `client_ids` as well, which are
        those of clients that were never trained on.
      folder: Where the database is; by default a temporary one is made when
        the states outgrow memory.
      most_bytes: The size of the states that are kept in memory.
    """
    self.client_ids = tuple(client_ids)
    self._initialize = initialize
    self._folder = folder
    self._most_bytes = most_bytes
    # A first state tells the structure.
    self._like = tree.map_structure(np.asarray, initialize(0))
    self._leaves = [np.asarray(leaf) for leaf in tree.flatten(self._like)]
    self._bytes = sum(leaf.nbytes for leaf in self._leaves)
    # The arrays of each row, those used last at the end.
    self._recent: collections.OrderedDict[int, list[np.ndarray]] = (
      collections.OrderedDict()
    )
    # The rows that the database does not have as they are, and their rounds.
    self._changed: dict[int, int] = {}
    self._database: sqlite3.Connection | None = None
    self._temporary: tempfile.TemporaryDirectory[str] | None = None

  @property
  def is_empty(self) -> bool:
    """Whether clients keep nothing at all."""
    return not self._leaves

  def read(self, rows: Sequence[int] | np.ndarray) -> Any:
    """Returns the states of the clients in these rows, stacked."""
    if self.is_empty:
      return self._like
    states = [self._read_row(int(row)) for row in rows]
    stacked = [np.stack(leaves) for leaves in zip(*states)]
    return tree.unflatten_as(self._like, stacked)

  def write(
    self, rows: Sequence[int] | np.ndarray, states: Any, round_num: int
  ) -> None:
    """Replaces the states of the clients in these rows.

    Args:
      rows: The rows.
      states: The states, stacked.
      round_num: The round that they are from.
    """
    if self.is_empty:
      return
    leaves = [np.asarray(leaf) for leaf in tree.flatten(states)]
    for k, row in enumerate(map(int, rows)):
      # Copied, as a view would keep the states of the whole cohort alive.
      self._keep(row, [np.array(leaf[k]) for leaf in leaves])
      self._changed[row] = round_num

  def commit(self, round_num: int, oldest_round: int) -> None:
    """Makes the states those of a checkpoint.

    Args:
      round_num: The round of the checkpoint.
      oldest_round: The round of the oldest checkpoint that a run may go on
        from; what only older ones need is removed.
    """
    if self.is_empty or self._folder is None:
      return
    database = self._open()
    for row in list(self._changed):
      self._store(row)
    database.execute(
      'DELETE FROM states WHERE round < (SELECT MAX(newer.round) FROM states AS'
      ' newer WHERE newer.row = states.row AND newer.round <= ?)',
      (min(oldest_round, round_num),),
    )
    database.commit()

  def restore(self, round_num: int) -> None:
    """Takes the states back to those of a checkpoint."""
    self._recent.clear()
    self._changed.clear()
    if not self.is_empty and self._folder is not None:
      self._open().execute('DELETE FROM states WHERE round > ?', (round_num,))

  def _read_row(self, row: int) -> list[np.ndarray]:
    if row in self._recent:
      self._recent.move_to_end(row)
      return self._recent[row]
    stored = self._load(row) if self._database is not None else None
    if stored is None:
      stored = [np.asarray(a) for a in tree.flatten(self._initialize(row))]
    self._keep(row, stored)
    return stored

  def _keep(self, row: int, leaves: list[np.ndarray]) -> None:
    """Keeps a row in memory, and makes room for it."""
    self._recent[row] = leaves
    self._recent.move_to_end(row)
    most = max(1, self._most_bytes // max(self._bytes, 1))
    while len(self._recent) > most:
      oldest = next(iter(self._recent))
      if oldest in self._changed:
        self._open()
        self._store(oldest)
      del self._recent[oldest]

  def _open(self) -> sqlite3.Connection:
    """Opens the database, or makes it."""
    if self._database is None:
      folder = self._folder
      if folder is None:
        self._temporary = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._temporary.name)
      folder.mkdir(parents=True, exist_ok=True)
      path = folder / FILE_NAME
      try:
        self._database = self._connect(path)
      except sqlite3.Error as error:
        raise errors.UserError(
          f'{path} is damaged ({error}). Delete {folder} to train anew.'
        ) from error
    return self._database

  def _connect(self, path: pathlib.Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    # Large pages, as states are large; a state is appended, not overwritten.
    database.execute('PRAGMA page_size = 32768')
    database.execute(
      'CREATE TABLE IF NOT EXISTS states (row INTEGER, client TEXT, round'
      ' INTEGER, state BLOB)'
    )
    database.execute(
      'CREATE UNIQUE INDEX IF NOT EXISTS by_row ON states (row, round)'
    )
    database.execute(
      'CREATE TABLE IF NOT EXISTS leaves (name TEXT, dtype TEXT, shape TEXT)'
    )
    expected = [
      (name, str(leaf.dtype), json.dumps(leaf.shape))
      for name, leaf in zip(_names(self._like), self._leaves)
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
    return database

  def _load(self, row: int) -> list[np.ndarray] | None:
    found = self._open().execute(
      'SELECT state FROM states WHERE row = ? ORDER BY round DESC LIMIT 1',
      (row,),
    )
    state = found.fetchone()
    return state and _split(
      state[0], [(leaf.dtype, leaf.shape) for leaf in self._leaves]
    )

  def _store(self, row: int) -> None:
    state = b''.join(leaf.tobytes() for leaf in self._recent[row])
    self._open().execute(
      'INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?)',
      (row, self.client_ids[row], self._changed.pop(row), state),
    )


def _names(structure: Any) -> list[str]:
  """The names of the leaves of a structure, from their places."""
  return [
    '/'.join(map(str, path)) for path, _ in tree.flatten_with_path(structure)
  ]


def _split(
  state: bytes, specs: Sequence[tuple[Any, tuple[int, ...]]]
) -> list[np.ndarray]:
  """The arrays of a state that was stored."""
  leaves, start = [], 0
  for dtype, shape in specs:
    size = math.prod(shape)
    leaf = np.frombuffer(state, dtype, size, start).reshape(shape)
    leaves.append(leaf)
    start += leaf.nbytes
  return leaves


def saved(
  folder: pathlib.Path, round_num: int
) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
  """Reads the states of a checkpoint, client by client.

  Args:
    folder: The folder of the checkpoints.
    round_num: The round of the checkpoint.

  Yields:
    Each client that has taken part, and its arrays by name.

  Raises:
    UserError: If there are none.
  """
  path = folder / FILE_NAME
  if not path.exists():
    raise errors.UserError(f'{folder} has no states of clients.')
  uri = f'{path.absolute().as_uri()}?mode=ro'
  with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
    rows = database.execute('SELECT * FROM leaves ORDER BY rowid').fetchall()
    specs = [(dtype, tuple(json.loads(shape))) for _, dtype, shape in rows]
    # Of one MAX, SQLite takes the other columns from its row.
    states = database.execute(
      'SELECT client, state, MAX(round) FROM states WHERE round <= ? GROUP BY'
      ' row ORDER BY row',
      (round_num,),
    )
    for client_id, state, _ in states:
      names = (name for name, *_ in rows)
      yield client_id, dict(zip(names, _split(state, specs)))
