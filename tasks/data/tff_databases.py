"""Clients of the databases that TFF downloads for its simulations.

`tff.simulation.datasets` finds a database in its cache or downloads it, and
lists its clients. This module reads their examples. TFF would build a `tf.data`
pipeline for each client, which parses one example at a time. One query and one
call of the parser take a small part of that time, work from any thread, and
keep nothing of a client in memory.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import pathlib
import sqlite3
from typing import Any

import numpy as np
import tensorflow as tf

from base import errors
from tasks.data import downloads
from tasks.data import files

_URL = 'https://storage.googleapis.com/tff-datasets-public'


@dataclasses.dataclass(frozen=True)
class DatabaseClients:
  """The clients in one split of a database.

  Attributes:
    path: The database.
    split: The name of the split.
    features: The features to parse of an example.
    num_examples: Each client's number of examples, in the order of the ids.
    advice: What the user can do if the database is damaged.
  """

  path: pathlib.Path
  split: str
  features: Mapping[str, tf.io.FixedLenFeature]
  num_examples: Mapping[str, int]
  advice: str

  def sizes(self, client_ids: Sequence[str]) -> np.ndarray:
    """Returns the number of examples of each client."""
    return np.array([self.num_examples[c] for c in client_ids], np.int64)

  def read(
    self, client_id: str, limit: int | None = None
  ) -> Mapping[str, np.ndarray]:
    """Reads a client's examples.

    Args:
      client_id: The client.
      limit: The number of examples to read, from the first on; None for all.

    Returns:
      The features, in the order of the database.

    Raises:
      UserError: If the database is damaged.
    """
    limit = self.num_examples[client_id] if limit is None else limit
    with reading(self.path, self.advice):
      rows = query(
        self.path,
        'SELECT serialized_example_proto FROM examples WHERE client_id = ?'
        ' AND split_name = ? ORDER BY rowid LIMIT ?',
        (client_id, self.split, limit),
      )
      wanted = min(limit, self.num_examples[client_id])
      if len(rows) != wanted:
        raise ValueError(f'{len(rows)} of the {wanted} examples of {client_id}')
      parsed = tf.io.parse_example([row[0] for row in rows], self.features)
    return {name: tensor.numpy() for name, tensor in parsed.items()}


def query(
  path: pathlib.Path, sql: str, values: Sequence[str | int] = ()
) -> list[tuple[Any, ...]]:
  """Finds rows of a database.

  Each query opens the database again, so that threads share nothing. This takes
  less time than the query itself.

  Args:
    path: The database, see `reading`.
    sql: The query.
    values: The values for its question marks.

  Returns:
    The rows, each a tuple.
  """
  uri = f'{path.absolute().as_uri()}?mode=ro'
  with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
    return connection.execute(sql, values).fetchall()


def reading(
  path: pathlib.Path, advice: str
) -> contextlib.AbstractContextManager[None]:
  """Converts any error that is raised while a database is read."""
  return files.reading(path, 'a whole database', advice)


def open_database(
  path: pathlib.Path,
  splits: Sequence[str],
  features: Mapping[str, tf.io.FixedLenFeature],
  advice: str,
) -> list[DatabaseClients]:
  """Opens a database.

  Args:
    path: The database.
    splits: The names of the splits.
    features: The features to parse of an example.
    advice: What the user can do if it is damaged.

  Returns:
    The clients of each split.

  Raises:
    UserError: If it is damaged.
  """
  all_clients = []
  for split in splits:
    with reading(path, advice):
      num_examples = query(
        path,
        'SELECT client_id, SUM(num_examples) FROM client_metadata'
        ' WHERE split_name = ? GROUP BY client_id ORDER BY client_id',
        (split,),
      )
      if not num_examples:
        raise ValueError(f'no clients of {split}')
      for client_id, number in num_examples:
        if not isinstance(client_id, str) or type(number) is not int:
          raise ValueError(f'client {client_id!r} has {number!r} examples')
    clients = DatabaseClients(path, split, features, dict(num_examples), advice)
    clients.read(num_examples[0][0])  # Finds damage before training.
    all_clients.append(clients)
  return all_clients


def open_splits(
  name: str,
  data_dir: str | None,
  load_data: Callable[..., object],
  splits: Sequence[str],
  features: Mapping[str, tf.io.FixedLenFeature],
) -> list[DatabaseClients]:
  """Has TFF find a database or download it, and opens it.

  Args:
    name: The name of the database's file.
    data_dir: The folder that is TFF's cache; None for TFF's default.
    load_data: TFF's function that loads it, with the argument `cache_dir`.
    splits: The names of the splits in the database.
    features: The features to parse of an example.

  Returns:
    The clients of each split.

  Raises:
    UserError: If the database cannot be found, downloaded or read.
  """
  if data_dir is None:
    path = pathlib.Path.home() / '.tff' / name
  else:
    path = downloads.existing_folder(data_dir) / name
  advice = (
    'Remove it to have it downloaded again, or replace it with'
    f' {_URL}/{name}.lzma, decompressed.'
  )
  if not path.exists():
    try:
      load_data(cache_dir=data_dir and str(path.parent))
    except Exception as error:  # A download fails in a dozen ways.
      with reading(path, advice):
        if path.exists():  # The download is incomplete.
          raise
      raise errors.UserError(
        f'There is no {path}, and TFF cannot download it'
        f' ({files.describe(error)}). Decompress {_URL}/{name}.lzma there, or'
        f' name the folder that has {name} as the data_dir.'
      ) from error
  return open_database(path, splits, features, advice)
