"""Looks for what may be wrong with a user's table, though it can be read.

Nothing of this is an error in itself: a column may well tell the target, and a
client may well be named 01 beside 1. But most often it is a mistake, and the
results look fine all the same.
"""

from collections.abc import Iterator, Mapping, Sequence
import re

import numpy as np
import pyarrow as pa
from pyarrow import compute

from base import words
from tasks.data.tables import notes
from tasks.data.tables import table_columns
from tasks.data.tables import table_files

# In fewer rows, a column may tell the target by chance.
_FEWEST_ROWS = 50
# Columns are first tried on so many rows.
_SAMPLE = 10_000
# A value of a column that tells the target has so many rows on average: the
# number of a row tells everything.
_ROWS_PER_VALUE = 3
# A number that is the target in another unit is so close to it.
_NEARLY_ONE = 1 - 1e-9
_LEADING_ZEROS = re.compile(r'(?<!\d)0+(?=\d)')


def _list(names: Sequence[str]) -> str:
  return f'{words.noun(len(names), "columns")} {notes.few(names)}'


def _is_told_by_values(column: pa.ChunkedArray, target: np.ndarray) -> bool:
  """Tells whether rows with the same value have the same target."""
  # A missing value is one, too.
  encoded = column.dictionary_encode('encode').combine_chunks()
  codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
  number = len(np.unique(codes))
  if number < 2 or len(codes) < _ROWS_PER_VALUE * number:
    return False
  _, of_target = np.unique(target, return_inverse=True)
  return len(np.unique(codes * (of_target.max() + 1) + of_target)) == number


def _is_told_by_order(numbers: np.ndarray, classes: np.ndarray) -> bool:
  """Tells whether each class has a range of numbers to itself."""
  order = np.lexsort([classes, numbers])
  numbers, classes = numbers[order], classes[order]
  changes = np.flatnonzero(classes[1:] != classes[:-1])
  return len(changes) == len(np.unique(classes)) - 1 and bool(
    np.all(numbers[changes] < numbers[changes + 1])
  )


def _is_scaled(numbers: np.ndarray, target: np.ndarray) -> bool:
  """Tells whether numbers are the target in another unit."""
  deviations = numbers.std(), target.std()
  if not all(deviations):
    return False
  product = np.mean((numbers - numbers.mean()) * (target - target.mean()))
  return abs(product / deviations[0] / deviations[1]) > _NEARLY_ONE


def _tells(
  column: pa.ChunkedArray, target: np.ndarray, has_classes: bool
) -> bool:
  """Tells whether a column tells the target without any other."""
  if len(target) < _FEWEST_ROWS:
    return False
  if _is_told_by_values(column, target):
    return True
  if not table_columns.is_numeric(column) or column.null_count:
    return False
  numbers = column.cast(pa.float64(), safe=False).to_numpy()
  return (_is_told_by_order if has_classes else _is_scaled)(numbers, target)


def _is_constant(column: pa.ChunkedArray) -> bool:
  return compute.count_distinct(column, mode='all').as_py() == 1


def _of_columns(
  table: table_files.Table,
  inputs: Sequence[str],
  target: np.ndarray,
  has_classes: bool,
) -> Iterator[str]:
  """Yields what is odd about inputs."""
  empty, constant, telling = [], [], []
  # What is not so in some rows is not so in all.
  some = np.arange(0, len(target), max(1, len(target) // _SAMPLE))
  taken = pa.array(some)
  for name in inputs:
    column = table.columns[name]
    part = column if len(some) == len(target) else column.take(taken)
    if column.null_count == len(column):
      empty.append(name)
    elif _is_constant(part) and _is_constant(column):
      constant.append(name)
    elif _tells(part, target[some], has_classes) and (
      part is column or _tells(column, target, has_classes)
    ):
      telling.append(name)
  if telling:
    yield (
      f'The target follows from {_list(telling)} alone. What is known only once'
      ' the target is known is no input: name it in task.ignored_columns.'
    )
  for names, what in ((constant, 'has one value only'), (empty, 'is empty')):
    if names:
      each = 'each ' if len(names) > 1 else ''
      yield (
        f'{_list(names).capitalize()} {each}{what}. Name it in'
        ' task.ignored_columns.'
      )


def _of_classes(
  classes: Sequence[str], target: np.ndarray, train: np.ndarray
) -> Iterator[str]:
  """Yields what is odd about classes."""
  if not classes:
    return
  if 2 * len(classes) > len(target):
    yield (
      f'{len(target):,} rows have {len(classes):,} classes, so that most are of'
      ' a row alone. If the target is a number, set task.target=number.'
    )
    return
  found = np.bincount(target, minlength=len(classes))
  learned = np.bincount(target[train], minlength=len(classes))
  # Those of another table's encoding need not be here at all.
  unknown = [c for c, n, k in zip(classes, found, learned) if n and not k]
  if unknown and train.any():
    yield (
      f'No row to train on has the {words.noun(len(unknown), "classes")}'
      f' {notes.few(unknown)}, which others have, so that they cannot be'
      ' learned. Set another task.split_seed, or leave out their rows.'
    )


def _of_names(clients: Sequence[str]) -> Iterator[str]:
  """Yields names of clients that may mean the same one."""
  alike: dict[str, list[str]] = {}
  for name in clients:
    plain = ' '.join(name.split()).casefold()
    alike.setdefault(_LEADING_ZEROS.sub('', plain), []).append(name)
  same = [names for names in alike.values() if len(names) > 1]
  if same:
    shown = notes.few([' and '.join(map(repr, names)) for names in same], 3)
    yield (
      'Names of clients differ by blanks, case or zeros only:'
      f' {shown}. If they are the same client, write them alike.'
    )


def _of_quotes(table: table_files.Table) -> Iterator[str]:
  """Yields where rows may have been lost to quotes."""
  joined = table.joined_rows()
  if joined is not None:
    yield (
      f'{joined}: from a quote on, several lines are one row, as in a text with'
      ' lines. If these are rows, write the quote as two, in quotes.'
    )


def find(
  table: table_files.Table,
  inputs: Sequence[str],
  classes: Sequence[str],
  target: np.ndarray,
  clients: Mapping[str, np.ndarray],
  train: np.ndarray,
) -> list[str]:
  """Finds what may be wrong with a table.

  Args:
    table: The table.
    inputs: The columns that are inputs.
    classes: The names of the classes of the target; none for a number.
    target: The class or the number of each row.
    clients: The rows of each client.
    train: Whether each row is to train on.

  Returns:
    A sentence or two for each doubt, with what to do about it.
  """
  return [
    *_of_quotes(table),
    *_of_columns(table, inputs, target, bool(classes)),
    *_of_classes(classes, target, train),
    *_of_names(list(clients)),
  ]
