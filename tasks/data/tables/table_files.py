"""Reads tables of users: CSV, Parquet and JSON lines.

A table is a file, or a folder of files with the same columns, which are read in
the order of their names. The ending of a name tells the format:

  .csv, .tsv                 the first line has the names of the columns
  .parquet
  .jsonl, .ndjson            an object a line

All but Parquet may be compressed, such as .csv.gz. Texts are UTF-8.

Arrow does not say where it failed. So if it fails, the file is read again, line
by line, to find the error.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import csv
import dataclasses
import functools
import gzip
import io
import json
import pathlib
from typing import TextIO

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json
from pyarrow import parquet

from base import errors
from tasks.data.tables import notes

_GZ = '.gz'
# A line of JSON must fit into a block.
_JSON_BLOCK = 1 << 24
# How much of a file is read at a time, to count its lines.
_BLOCK = 1 << 20


def _open_text(path: pathlib.Path) -> TextIO:
  return io.TextIOWrapper(_open(path), encoding='utf-8-sig', newline='')


def _open(path: pathlib.Path) -> gzip.GzipFile | io.BufferedReader:
  return gzip.open(path) if path.suffix == _GZ else path.open('rb')


def _csv_rows(
  path: pathlib.Path, delimiter: str
) -> Iterator[tuple[int, list[str]]]:
  """Yields the first line of each row of a CSV file, and its fields."""
  with _open_text(path) as file:
    reader = csv.reader(file, delimiter=delimiter)
    first = 1
    for fields in reader:
      # Empty lines are not rows.
      if fields:
        yield first, fields
      first = reader.line_num + 1


def _explain_bytes(path: pathlib.Path) -> str | None:
  """Finds the line that is not UTF-8; None if there is none."""
  with _open(path) as file:
    for number, line in enumerate(file, 1):
      try:
        line.decode('utf-8')
      except UnicodeDecodeError as error:
        return f'line {number} is not UTF-8 ({error.reason})'
  return None


def _explain_csv(path: pathlib.Path, delimiter: str) -> str | None:
  """Finds the error in a CSV file; None if it is not one of these."""
  if problem := _explain_bytes(path):
    return problem
  header: list[str] = []
  for line, fields in _csv_rows(path, delimiter):
    header = header or fields
    if len(fields) != len(header):
      return (
        f'line {line} has {len(fields)} columns, but the first line has'
        f' {len(header)}'
      )
  return None if header else 'it is empty'


def _check_delimiter(names: Sequence[str]) -> None:
  """Raises a `ValueError` if a CSV file has another delimiter."""
  for other in ';\t|':
    if len(names) == 1 and other in names[0]:
      advice = 'end its name in .tsv' if other == '\t' else 'write commas'
      raise ValueError(
        f'its columns are separated by {other!r} rather than commas; {advice}'
      )


def _explain_jsonl(path: pathlib.Path) -> str | None:
  """Finds the error in a file of JSON lines; None if not one of these."""
  if problem := _explain_bytes(path):
    return problem
  kinds: dict[str, tuple[str, int]] = {}
  names = {
    bool: 'true or false',
    int: 'a number',
    float: 'a number',
    str: 'a text',
  }
  with _open_text(path) as file:
    for number, line in enumerate(file, 1):
      if not line.strip():
        continue
      if line.strip() == '[':
        return f'line {number} begins an array, but must be an object'
      try:
        row = json.loads(line)
      except (ValueError, RecursionError) as error:
        return f'line {number} is not JSON ({error})'
      if not isinstance(row, dict):
        return f'line {number} is not an object'
      for name, value in row.items():
        if value is None:
          continue
        kind = names.get(type(value), f'of type {type(value).__name__}')
        first, since = kinds.setdefault(name, (kind, number))
        if first != kind:
          return (
            f'in line {number}, column {name!r} is {kind}, but {first} in line'
            f' {since}'
          )
  return None if kinds else 'it is empty'


def _read_csv(
  path: pathlib.Path, as_text: Sequence[str], delimiter: str
) -> pa.Table:
  with pa.input_stream(str(path), compression='detect') as file:
    table = arrow_csv.read_csv(
      file,
      parse_options=arrow_csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True
      ),
      convert_options=arrow_csv.ConvertOptions(
        column_types={name: pa.string() for name in as_text}
      ),
    )
  if any(pa.types.is_binary(field.type) for field in table.schema):
    raise ValueError('it is not UTF-8')
  if delimiter == ',':
    _check_delimiter(table.column_names)
  return table


def _read_jsonl(path: pathlib.Path, as_text: Sequence[str]) -> pa.Table:
  del as_text  # JSON knows which values are texts.
  with pa.input_stream(str(path), compression='detect') as file:
    return arrow_json.read_json(
      file, arrow_json.ReadOptions(block_size=_JSON_BLOCK)
    )


def _read_parquet(path: pathlib.Path, as_text: Sequence[str]) -> pa.Table:
  del as_text  # Parquet knows which values are texts.
  # With `filters` or a data set, Arrow would make columns of folders' names.
  return parquet.ParquetFile(path).read()


def _line_of_json(path: pathlib.Path, row: int) -> int:
  with _open_text(path) as file:
    lines = [number for number, line in enumerate(file, 1) if line.strip()]
  return lines[row]


def _line_of_csv(path: pathlib.Path, row: int, delimiter: str) -> int:
  # The header is row 0 here.
  for number, (line, _) in enumerate(_csv_rows(path, delimiter), -1):
    if number == row:
      return line
  raise ValueError(f'{path} has no row {row}')


def _count_lines(path: pathlib.Path) -> int:
  """Counts the lines of a file that are not empty, roughly."""
  number, last = 0, b''
  with _open(path) as file:
    while block := file.read(_BLOCK):
      number += block.count(b'\n') - block.count(b'\n\n')
      number -= block.count(b'\n\r\n')
      last = block
  return number + (not last.endswith(b'\n'))


def _joined_line(
  path: pathlib.Path, num_rows: int, delimiter: str
) -> int | None:
  """Finds the first row that goes over several lines; None if none does."""
  if _count_lines(path) > num_rows + 1:
    for line, fields in _csv_rows(path, delimiter):
      if any('\n' in field for field in fields):
        return line
  return None


@dataclasses.dataclass(frozen=True)
class _Format:
  """The functions that read the files of a format.

  Attributes:
    read: Reads a file, given the columns that are texts.
    explain: Finds the error in a file that cannot be read.
    line: Finds the line of a row; None if there are no lines.
    joined: Finds the first of the rows that goes over several lines, given
      their number.
  """

  read: Callable[[pathlib.Path, Sequence[str]], pa.Table]
  explain: Callable[[pathlib.Path], str | None] = lambda _: None
  line: Callable[[pathlib.Path, int], int] | None = None
  joined: Callable[[pathlib.Path, int], int | None] = lambda *_: None


def _delimited(delimiter: str) -> _Format:
  return _Format(
    functools.partial(_read_csv, delimiter=delimiter),
    functools.partial(_explain_csv, delimiter=delimiter),
    functools.partial(_line_of_csv, delimiter=delimiter),
    functools.partial(_joined_line, delimiter=delimiter),
  )


_JSON_LINES = _Format(_read_jsonl, _explain_jsonl, _line_of_json)
_FORMATS: Mapping[str, _Format] = {
  '.csv': _delimited(','),
  '.tsv': _delimited('\t'),
  '.parquet': _Format(_read_parquet),
  '.jsonl': _JSON_LINES,
  '.ndjson': _JSON_LINES,
}


def _ending(path: pathlib.Path) -> str:
  return pathlib.Path(path.name.removesuffix(_GZ)).suffix


def stem(path: pathlib.Path) -> str:
  """Returns the name of a file without the ending that tells its format."""
  return path.name.removesuffix(_GZ).removesuffix(_ending(path))


@dataclasses.dataclass(frozen=True)
class Table:
  """A table that was read.

  Attributes:
    path: The file or folder.
    columns: The columns, by name.
    files: The files, in their order.
    sizes: The number of rows of each file.
  """

  path: pathlib.Path
  columns: Mapping[str, pa.ChunkedArray]
  files: Sequence[pathlib.Path]
  sizes: Sequence[int]

  @property
  def num_rows(self) -> int:
    """The number of rows."""
    return sum(self.sizes)

  def where(self, row: int) -> str:
    """Returns the place of a row in its file, for the user."""
    ends = np.cumsum(self.sizes)
    k = int(np.searchsorted(ends, row, side='right'))
    path, within = self.files[k], int(row - ends[k] + self.sizes[k])
    line = _FORMATS[_ending(path)].line
    if line is None:
      return f'{path}, row {within + 1}'
    return f'{path}, line {line(path, within)}'

  def joined_rows(self) -> str | None:
    """Returns the place of the first row over several lines, if there is one.

    It may be meant so, or be rows that a quote has joined.
    """
    for path, size in zip(self.files, self.sizes):
      if line := _FORMATS[_ending(path)].joined(path, size):
        return f'{path}, line {line}'
    return None

  def column(self, name: str, setting: str) -> pa.ChunkedArray:
    """Returns the column that a setting names, or raises a `UserError`."""
    if name not in self.columns:
      unknown = errors.unknown('column', name, self.columns)
      raise errors.UserError(f'{self.path}: task.{setting}: {unknown}')
    return self.columns[name]


def _read_file(path: pathlib.Path, as_text: Sequence[str]) -> pa.Table:
  format_ = _FORMATS[_ending(path)]
  if not path.is_file():
    raise errors.UserError(f'{path} is not a regular file. Remove it.')
  try:
    table = format_.read(path, as_text)
    names = table.column_names
  except (pa.ArrowException, ValueError, OSError, EOFError) as error:
    problem = None
    with contextlib.suppress(ValueError, OSError, EOFError, csv.Error):
      problem = format_.explain(path)
    problem = (problem or str(error)).rstrip('.')
    raise errors.UserError(
      f'{path} cannot be read: {problem}. Correct the file.'
    ) from error
  for name, number in collections.Counter(names).items():
    if number > 1:
      raise errors.UserError(
        f'{path} has several columns {name!r}. Give each another name.'
      )
  if not len(table):
    raise errors.UserError(f'{path} has no rows. Correct or remove the file.')
  return table


def _join(tables: Mapping[pathlib.Path, pa.Table]) -> pa.Table:
  """Concatenates the rows of files."""
  (first_path, first), *others = tables.items()
  for path, table in others:
    if set(table.column_names) != set(first.column_names):
      differing = set(table.column_names) ^ set(first.column_names)
      raise errors.UserError(
        f'{path} and {first_path} do not have the same columns:'
        f' {notes.few(sorted(differing))} is in one of them only.'
      )
    for name in first.column_names:
      try:
        pa.unify_schemas(
          [t.select([name]).schema for t in (first, table)],
          promote_options='permissive',
        )
      except pa.ArrowException as error:
        raise errors.UserError(
          f'{path}: column {name!r} is {table.schema.field(name).type}, but'
          f' {first.schema.field(name).type} in {first_path}.'
        ) from error
  return pa.concat_tables(tables.values(), promote_options='permissive')


def read(path: pathlib.Path, as_text: Sequence[str] = ()) -> Table:
  """Reads a table.

  Args:
    path: The file, or the folder of files.
    as_text: The columns whose values are texts even if they look like numbers:
      a client may be named 007.

  Returns:
    The table.

  Raises:
    UserError: If there is no such file, or it is damaged. The error names the
      file and the line.
  """
  known = f'The endings are {", ".join(_FORMATS)}, also with {_GZ}.'
  if path.is_dir():
    # Hidden files are of the system, such as ._a.csv of a Mac.
    files = [
      inside
      for inside in sorted(path.iterdir())
      if _ending(inside) in _FORMATS and not inside.name.startswith('.')
    ]
    if not files:
      raise errors.UserError(f'There is no table in the folder {path}. {known}')
  elif not path.exists():
    raise errors.UserError(
      f'There is no file or folder {path}, which task.path names.'
    )
  elif not path.is_file():
    raise errors.UserError(
      f'{path}, which task.path names, is not a regular file. Name another one.'
    )
  elif _ending(path) not in _FORMATS:
    raise errors.UserError(
      f'The ending of {path} is not that of a table. {known}'
    )
  else:
    files = [path]
  tables = {file: _read_file(file, as_text) for file in files}
  sizes = [len(table) for table in tables.values()]
  joined = _join(tables)
  columns = dict(zip(joined.column_names, joined.columns))
  return Table(path, columns, files, sizes)


def release() -> None:
  """Frees the memory of earlier tables, which Arrow would keep."""
  pa.default_memory_pool().release_unused()
