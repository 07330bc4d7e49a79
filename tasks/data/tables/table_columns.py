"""Reads columns of a user's table as numbers or as categories."""

from collections.abc import Sequence
import dataclasses
import re
from typing import NoReturn

import numpy as np
import pyarrow as pa
from pyarrow import compute

from base import errors
from tasks.data.tables import notes
from tasks.data.tables import table_files

_NUMBER = re.compile(r'\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*')
# As in 1,234.5 or, where a comma is the decimal point, 1.234,5.
_NUMBER_WITH_COMMAS = re.compile(r'\s*[+-]?[\d.]*\d,[\d,]*\d(\.\d*)?\s*')
# Models compute in float32.
_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Categories:
  """A column whose values are categories.

  Attributes:
    names: The categories, sorted, as numbers if all are numbers.
    codes: The place of each row's category among the names, `[rows]` int32.
  """

  names: Sequence[str]
  codes: np.ndarray


def is_number(text: str) -> bool:
  """Tells whether a text is a number."""
  return _NUMBER.fullmatch(text) is not None


def has_commas(text: str) -> bool:
  """Tells whether a text is a number with commas, which Arrow does not read."""
  return _NUMBER_WITH_COMMAS.fullmatch(text) is not None


def is_numeric(column: pa.ChunkedArray) -> bool:
  """Tells whether a column was read as numbers."""
  kind = column.type
  return is_whole(column) or bool(
    pa.types.is_floating(kind) or pa.types.is_decimal(kind)
  )


def is_whole(column: pa.ChunkedArray) -> bool:
  """Tells whether a column was read as whole numbers."""
  return bool(pa.types.is_integer(column.type))


def refuse(
  table: table_files.Table, row: int, name: str, problem: str
) -> NoReturn:
  """Raises the error for the value in a row and a column."""
  raise errors.UserError(f'{table.where(row)}: column {name!r} {problem}')


def sort(names: Sequence[str]) -> list[str]:
  """Sorts texts, as numbers if all of them are numbers."""
  if all(map(is_number, names)):
    return sorted(names, key=lambda name: (float(name), name))
  return sorted(names)


def texts(table: table_files.Table, name: str, setting: str) -> pa.ChunkedArray:
  """Returns a column as texts, in which a missing value is ''.

  Args:
    table: The table.
    name: The name of the column.
    setting: The setting that names it.

  Returns:
    The column.

  Raises:
    UserError: If there is no such column, or it has values like lists.
  """
  column = table.column(name, setting)
  try:
    return compute.fill_null(column.cast(pa.string()), '')
  except pa.ArrowException as error:
    raise errors.UserError(
      f'{table.path}: column {name!r} is of the type {column.type}, which is'
      ' neither a text nor a number. Leave it out, as one of'
      ' task.ignored_columns.'
    ) from error


def categories(
  table: table_files.Table,
  name: str,
  setting: str,
  *,
  missing: bool = False,
  known: Sequence[str] | None = None,
) -> Categories:
  """Reads a column of categories.

  Args:
    table: The table.
    name: The name of the column.
    setting: The setting that names it.
    missing: Whether '' is a category; if not, a missing value is refused.
    known: All possible categories, in their order; by default those of the
      column.

  Returns:
    The categories.

  Raises:
    UserError: As in `texts`, or for a missing value or a category that is not
      known.
  """
  encoded = texts(table, name, setting).dictionary_encode().combine_chunks()
  found: list[str] = encoded.dictionary.to_pylist()
  if '' in found and not missing:
    row = first_row(encoded.indices.to_numpy() == found.index(''))
    refuse(table, row, name, f'has no value, but task.{setting} needs one.')
  names = sort(found) if known is None else known
  place = {category: k for k, category in enumerate(names)}
  for code, category in enumerate(found):
    if category not in place:
      row = first_row(encoded.indices.to_numpy() == code)
      refuse(
        table,
        row,
        name,
        f'has {category!r}, but task.encoding_file has only'
        f' {notes.few(names)}.',
      )
  order = np.array([place[category] for category in found], np.int32)
  return Categories(names, order[encoded.indices.to_numpy()])


def numbers(table: table_files.Table, name: str, setting: str) -> np.ndarray:
  """Reads a column of numbers.

  Args:
    table: The table.
    name: The name of the column.
    setting: The setting that names it.

  Returns:
    The numbers, `[rows]`; NaN where one is missing.

  Raises:
    UserError: If there is no such column, or a value is not a number, or too
      large for a model.
  """
  column = table.column(name, setting)
  # A column without any value may be of numbers in another table.
  if not (is_numeric(column) or pa.types.is_null(column.type)):
    found = categories(table, name, setting, missing=True)
    wrong = [
      k for k, text in enumerate(found.names) if text and not is_number(text)
    ]
    row = first_row(np.isin(found.codes, wrong))
    value = found.names[found.codes[row]]
    refuse(table, row, name, f'has {value!r}, which is not a number.')
  # Whole numbers above 2^53 are rounded, as in Python's floats.
  values = column.cast(pa.float64(), safe=False).to_numpy()
  too_large = np.abs(values) > _LARGEST
  if too_large.any():
    row = first_row(too_large)
    refuse(
      table,
      row,
      name,
      f'has {values[row]:g}, but models take numbers of up to {_LARGEST:.2g}.',
    )
  return values


def first_row(which: np.ndarray) -> int:
  """Returns the first row of those that are True."""
  return int(np.argmax(which))
