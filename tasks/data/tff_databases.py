"""Clients of the databases that TFF downloads for its simulations.

`tff.simulation.datasets` finds a database in its cache or downloads it, and
names its clients. Their examples are read here: a client of TFF's is a
`tf.data` pipeline, which is built anew for each, and which parses example by
example. A query and one call of the parser do the same in a small part of the
time, from any thread, and nothing is kept of a client that was read.
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
from base import settings
from tasks.data import downloads

_URL = 'https://storage.googleapis.com/tff-datasets-public'


@dataclasses.dataclass(frozen=True)
class Parameters(settings.Settings):
  """The settings of a task of which some clients are held out."""

  num_validation_clients: int | None = settings.field(
    None,
    'The number of clients to choose by; none for as large a share of all'
    ' clients as in Motley, which is its number if it is its database.',
    minimum=1,
  )
  num_test_clients: int | None = settings.field(
    None,
    'The number of clients to report; none for as large a share as in Motley.',
    minimum=1,
  )
  split_seed: int = settings.field(
    13,
    'The seed of the split into clients to train on, to choose by and to'
    ' report, whatever the seed of the run. With 13 it is that of Motley.',
    minimum=0,
    maximum=2**32 - 1,
  )

  def permuted(self, client_ids: Sequence[str]) -> list[str]:
    """The clients in the order in which they are dealt out."""
    # NumPy's old generator, as that is what Motley has.
    rng = np.random.RandomState(self.split_seed)
    return rng.permutation(client_ids).tolist()

  def split(
    self, client_ids: Sequence[str], validation: float, test: float
  ) -> tuple[list[str], list[str], list[str]]:
    """Deals clients out.

    Args:
      client_ids: The clients, as permuted.
      validation: The share of those to choose by, if no number is set.
      test: The share of those to report.

    Returns:
      The clients to choose by, those to report, and the rest.

    Raises:
      UserError: If there are not as many.
    """
    there_are = len(client_ids)
    first = self.num_validation_clients or max(1, round(there_are * validation))
    second = self.num_test_clients or min(
      max(1, round(there_are * test)), there_are - first
    )
    if second < 1 or first + second > there_are:
      raise errors.UserError(
        f'num_validation_clients is {first} and num_test_clients {second}, but'
        f' there are {there_are} clients to take them from. Name smaller'
        ' numbers.'
      )
    ends = first, first + second
    return (
      list(client_ids[: ends[0]]),
      list(client_ids[ends[0] : ends[1]]),
      list(client_ids[ends[1] :]),
    )


@dataclasses.dataclass(frozen=True)
class Clients:
  """The clients of one split of a database.

  Attributes:
    path: The database.
    split: The name of the split.
    features: What to parse of an example.
    num_examples: Each client's number of examples, in the order of the ids.
    advice: What to do if the database is damaged.
  """

  path: pathlib.Path
  split: str
  features: Mapping[str, tf.io.FixedLenFeature]
  num_examples: Mapping[str, int]
  advice: str

  def sizes(self, client_ids: Sequence[str]) -> np.ndarray:
    """Each of these clients' number of examples."""
    return np.array([self.num_examples[c] for c in client_ids], np.int64)

  def read(
    self, client_id: str, limit: int | None = None
  ) -> Mapping[str, np.ndarray]:
    """Reads a client's examples, the first `limit` of them.

    Args:
      client_id: The client.
      limit: The most examples to read; None for all.

    Returns:
      The features, in the order of the database.

    Raises:
      UserError: If the database is damaged.
    """
    limit = self.num_examples[client_id] if limit is None else limit
    try:
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
    except (sqlite3.Error, tf.errors.OpError, ValueError) as error:
      raise _damaged(self.path, error, self.advice) from error
    return {name: tensor.numpy() for name, tensor in parsed.items()}


def query(
  path: pathlib.Path, sql: str, values: Sequence[Any] = ()
) -> list[Any]:
  """The rows that a query finds.

  It opens the database for itself, which takes less than the query does, so
  that threads have nothing in common.

  Args:
    path: The database.
    sql: The query.
    values: What its question marks stand for.

  Returns:
    The rows, each a tuple.
  """
  uri = f'{path.absolute().as_uri()}?mode=ro'
  with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
    return connection.execute(sql, values).fetchall()


def _damaged(
  path: pathlib.Path, error: Exception, advice: str
) -> errors.UserError:
  return errors.UserError(
    f'{path} is damaged, or not complete ({_describe(error)}). {advice}'
  )


def _describe(error: Exception) -> str:
  """What an error says, or else its name."""
  return str(error) or type(error).__name__


def open_database(
  path: pathlib.Path,
  splits: Sequence[str],
  features: Mapping[str, tf.io.FixedLenFeature],
  advice: str,
) -> list[Clients]:
  """Opens a database.

  Args:
    path: The database.
    splits: The names of the splits.
    features: What to parse of an example.
    advice: What to do if it is damaged.

  Returns:
    The clients of each split.

  Raises:
    UserError: If it is damaged.
  """
  all_clients = []
  for split in splits:
    try:
      num_examples = query(
        path,
        'SELECT client_id, SUM(num_examples) FROM client_metadata'
        ' WHERE split_name = ? GROUP BY client_id ORDER BY client_id',
        (split,),
      )
      if not num_examples:
        raise ValueError(f'no clients of {split}')
    except (sqlite3.Error, ValueError) as error:
      raise _damaged(path, error, advice) from error
    clients = Clients(path, split, features, dict(num_examples), advice)
    clients.read(num_examples[0][0])  # Before any training, rather than in it.
    all_clients.append(clients)
  return all_clients


def open_splits(
  name: str,
  data_dir: str | None,
  load_data: Callable[..., Any],
  splits: Sequence[str],
  features: Mapping[str, tf.io.FixedLenFeature],
) -> list[Clients]:
  """Has TFF find a database or download it, and opens it.

  Args:
    name: The name of the database's file.
    data_dir: The folder that is TFF's cache; None for the one that TFF has.
    load_data: What TFF offers to load it, but for `cache_dir`.
    splits: The names of the splits in the database.
    features: What to parse of an example.

  Returns:
    The clients of each split.

  Raises:
    UserError: If the database is not to be had.
  """
  if data_dir is None:
    path = pathlib.Path.home() / '.tff' / name
  else:
    path = downloads.existing_folder(data_dir) / name
  advice = (
    'Remove it to have it downloaded again, or replace it with'
    f' {_URL}/{name}.lzma, decompressed.'
  )
  try:
    load_data(cache_dir=data_dir and str(path.parent))
  except Exception as error:  # A download can go wrong in a dozen ways.
    if path.exists():
      raise _damaged(path, error, advice) from error
    raise errors.UserError(
      f'There is no {path}, and TFF cannot download it ({_describe(error)}).'
      f' Decompress {_URL}/{name}.lzma to there, or name the folder that has'
      f' {name} as the data_dir.'
    ) from error
  return open_database(path, splits, features, advice)
