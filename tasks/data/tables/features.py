"""Makes a model's inputs from the columns of a user's table.

A column of numbers is one input. If some are missing, another input marks them.
A column of categories is one-hot, with an input for each category in the rows
to train on; for other categories all inputs are 0. A column of texts becomes
counts of words: of the words of a vocabulary, or of all words, hashed to a
number of inputs.

Means, deviations and categories are fitted to the rows to train on, and can be
applied to the columns of another table.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse
from sklearn.feature_extraction import text

from base import aliases
from base import errors
from base import settings
from base import words
from tasks.data import files
from tasks.data.tables import notes
from tasks.data.tables import table_columns
from tasks.data.tables import table_files


@dataclasses.dataclass(frozen=True)
class FeatureSettings(settings.Settings):
  """The settings of a model's inputs from the columns of a table."""

  feature_columns: tuple[str, ...] = settings.field(
    (),
    'The columns that are inputs; empty for all that no other setting names.',
  )
  ignored_columns: tuple[str, ...] = settings.field(
    (), 'Columns that are not inputs, such as the number of a row.'
  )
  category_columns: tuple[str, ...] = settings.field(
    (),
    'Columns of numbers that are categories, such as codes. Columns of texts'
    ' are always categories, unless text_columns names them.',
  )
  max_categories: int = settings.field(
    100,
    'The largest number of categories of a column, each of which is an input.',
    minimum=2,
  )
  text_columns: tuple[str, ...] = settings.field(
    (), 'Columns of texts whose words are counted.'
  )
  text_features: int = settings.field(
    256,
    'The number of inputs that the words of a text are hashed to.',
    minimum=1,
  )
  text_vocabulary: str | None = settings.field(
    None,
    'A file of words, one a line, which are counted instead of hashed words.',
    path=True,
  )
  missing: str = settings.field(
    'error',
    'What happens to a missing number: it is an error, or replaced by the mean'
    ' of the rows to train on, and marked by another input. A missing category'
    ' is a category.',
    choices=('error', 'fill'),
  )
  standardize: str = settings.field(
    'all',
    'Whether numbers are standardized by the examples to train on of all'
    " clients, by the client's own, or not at all (none).",
    choices=('all', 'client', 'none'),
  )


@dataclasses.dataclass(frozen=True)
class Features:
  """The inputs of all rows, stored by column to take little space.

  Attributes:
    numbers: The columns of numbers, each `[rows]` float32.
    are_missing: The masks of missing numbers, each `[rows]` bool.
    categories: The columns of categories: the place of each row's category
      among those in the rows to train on, or -1, `[rows]`; and the number of
      these categories.
    texts: The columns of texts, each `[rows, inputs]`, sparse.
    descriptions: A description of each column, for the user.
  """

  numbers: list[np.ndarray] = dataclasses.field(default_factory=list)
  are_missing: list[np.ndarray] = dataclasses.field(default_factory=list)
  categories: list[tuple[np.ndarray, int]] = dataclasses.field(
    default_factory=list
  )
  texts: list[scipy.sparse.csr_matrix] = dataclasses.field(default_factory=list)
  descriptions: dict[str, str] = dataclasses.field(default_factory=dict)

  @property
  def num_numbers(self) -> int:
    """The number of inputs that are numbers of the table, which come first."""
    return len(self.numbers)

  @property
  def shape(self) -> tuple[int]:
    """The shape of the inputs of a row."""
    size = len(self.numbers) + len(self.are_missing)
    size += sum(num_inputs for _, num_inputs in self.categories)
    return (size + sum(matrix.shape[1] for matrix in self.texts),)

  def take(self, rows: np.ndarray) -> np.ndarray:
    """Returns the inputs of some rows, `[n, inputs]` float32."""
    inputs = np.empty([len(rows), *self.shape], np.float32)
    start = 0
    for column in (*self.numbers, *self.are_missing):
      inputs[:, start] = column[rows]
      start += 1
    for codes, size in self.categories:
      is_category = codes[rows, np.newaxis] == np.arange(size)
      inputs[:, start : start + size] = is_category
      start += size
    for matrix in self.texts:
      inputs[:, start : start + matrix.shape[1]] = matrix[rows].toarray()
      start += matrix.shape[1]
    return inputs


@dataclasses.dataclass(frozen=True)
class Number:
  """A column of numbers: (value - mean) / deviation, or 0 without a deviation.

  Attributes:
    column: Its name.
    mean: What is subtracted.
    deviation: What it is divided by.
    missing: The number that replaces a missing one; None if none may be
      missing.
    has_missing_input: Whether another input is 1 where a number is missing.
  """

  column: str
  mean: float = 0.0
  deviation: float = 1.0
  missing: float | None = None
  has_missing_input: bool = False
  kind: ClassVar[str] = 'number'

  def read(self, table: table_files.Table) -> np.ndarray:
    """Reads the numbers of all rows, NaN for a missing one."""
    return _read_numbers(table, self.column, self.missing is not None)

  def encode(self, values: np.ndarray, made: Features) -> None:
    """Adds the inputs of the column, of which these are the values."""
    description = 'a number'
    is_missing = np.isnan(values)
    if is_missing.any():
      # Otherwise `read` would have refused the column.
      assert self.missing is not None
      values = np.where(is_missing, self.missing, values)
      description += f', {is_missing.sum():,} missing'
    if self.has_missing_input:
      made.are_missing.append(is_missing)
    values = values - self.mean
    values = values / self.deviation if self.deviation else 0 * values
    made.numbers.append(values.astype(np.float32))
    made.descriptions[self.column] = description


@dataclasses.dataclass(frozen=True)
class Category:
  """A column of categories, each of which is an input of its own.

  Attributes:
    column: Its name.
    categories: The categories, '' for a missing one.
  """

  column: str
  categories: Sequence[str]
  kind: ClassVar[str] = 'category'

  def read(self, table: table_files.Table) -> table_columns.Categories:
    """Reads the categories of all rows."""
    return _read_categories(table, self.column)

  def encode(self, values: table_columns.Categories, made: Features) -> None:
    """Adds the inputs of the column, of which these are the values."""
    place = {name: k for k, name in enumerate(self.categories)}
    codes = np.array([place.get(name, -1) for name in values.names], np.int32)
    made.categories.append((codes[values.codes], len(place)))
    names = [name or '(missing)' for name in self.categories]
    made.descriptions[self.column] = (
      f'{words.count(len(names), "categories")}: {notes.few(names)}'
    )


@dataclasses.dataclass(frozen=True)
class Text:
  """A column of texts whose words are counted.

  Attributes:
    column: Its name.
    inputs: The number of inputs.
    words: The word that each of them counts; none if words are hashed to them.
  """

  column: str
  inputs: int
  words: Sequence[str] = ()
  kind: ClassVar[str] = 'text'

  def read(self, table: table_files.Table) -> pa.ChunkedArray:
    """Reads the texts of all rows."""
    return table_columns.texts(table, self.column, 'text_columns')

  def encode(self, values: pa.ChunkedArray, made: Features) -> None:
    """Adds the inputs of the column, of which these are the values."""
    count = (
      text.CountVectorizer(vocabulary=self.words)
      if self.words
      else text.HashingVectorizer(n_features=self.inputs)
    )
    # A part at a time, as Python's texts take more space than Arrow's.
    parts = [count.transform(part.to_pylist()) for part in values.chunks]
    matrix = scipy.sparse.vstack(parts, 'csr', np.float32)
    made.texts.append(matrix)
    inputs = words.noun(self.inputs, 'inputs')
    description = f'a text, its words in {self.inputs:,} {inputs}'
    if self.words:
      absent = self.inputs - np.count_nonzero(matrix.getnnz(axis=0))
      description = (
        f'a text, {self.inputs:,} {words.noun(self.inputs, "words")},'
        f' {absent:,} of them in no text'
      )
    made.descriptions[self.column] = description


Column: TypeAlias = Number | Category | Text
# The values of all rows in a column of numbers, categories or texts.
_Values: TypeAlias = Any
_KINDS: dict[str, type[Column]] = {
  Number.kind: Number,
  Category.kind: Category,
  Text.kind: Text,
}


def to_dict(column: Column) -> dict[str, aliases.Json]:
  """Writes how a column is encoded, for JSON."""
  return {'kind': column.kind, **dataclasses.asdict(column)}


def parse(values: dict[str, aliases.Json]) -> Column:
  """Reads what `to_dict` wrote; raises any exception if it is damaged."""
  values = dict(values)
  return _KINDS[values.pop('kind')](**values)


def input_names(columns: Sequence[Column]) -> list[str]:
  """Names the inputs of a row, in their order."""
  numbers = [column for column in columns if isinstance(column, Number)]
  names = [number.column for number in numbers]
  names += [f'{n.column} is missing' for n in numbers if n.has_missing_input]
  for column in columns:
    if isinstance(column, Category):
      names += [
        f'{column.column} is {c or "missing"}' for c in column.categories
      ]
  for column in columns:
    if isinstance(column, Text):
      hashed = [f'words of hash {k}' for k in range(column.inputs)]
      names += [f'{column.column} has {w}' for w in column.words or hashed]
  return names


def _read_numbers(
  table: table_files.Table, name: str, may_be_missing: bool
) -> np.ndarray:
  """Reads a column of numbers; refuses missing ones if they may not be."""
  values = table_columns.numbers(table, name, 'feature_columns')
  is_missing = np.isnan(values)
  if is_missing.any() and not may_be_missing:
    table_columns.refuse(
      table,
      table_columns.first_row(is_missing),
      name,
      'has no value. Set task.missing=fill to fill in the mean, or name the'
      ' column in task.ignored_columns.',
    )
  return values


def _read_categories(
  table: table_files.Table, name: str
) -> table_columns.Categories:
  return table_columns.categories(table, name, 'feature_columns', missing=True)


def _check_categories(
  table: table_files.Table,
  name: str,
  found: table_columns.Categories,
  settings: FeatureSettings,
) -> None:
  """Refuses a column with too many categories, or of numbers as texts."""
  named = [category for category in found.names if category]

  def refuse(text: str, advice: str) -> None:
    row = table_columns.first_row(found.codes == found.names.index(text))
    table_columns.refuse(
      table,
      row,
      name,
      f'has {text!r}{advice}; or name the column in task.category_columns.',
    )

  if name not in settings.category_columns:
    if named and all(map(table_columns.has_commas, named)):
      refuse(
        named[0],
        '. Write numbers without commas, with a point before the decimals',
      )
    wrong = [text for text in named if not table_columns.is_number(text)]
    if wrong and 2 * len(wrong) < len(named):
      refuse(
        wrong[0],
        ', while most other values are numbers. Correct it, or leave it empty'
        ' and set task.missing=fill',
      )
  if len(named) > settings.max_categories:
    raise errors.UserError(
      f'{table.path}: column {name!r} has {len(named)} categories, more than'
      f' task.max_categories={settings.max_categories}. If it is a text, name'
      ' it in task.text_columns; if it is useless, in task.ignored_columns.'
    )


def moments(values: np.ndarray) -> tuple[float, float]:
  """Returns the mean and the deviation in float64, exactly 0 for constants."""
  return float(values.mean(dtype=np.float64)), float(
    values.std(dtype=np.float64)
  )


def _read_words(path: pathlib.Path) -> list[str]:
  """Reads the words to count."""
  with files.reading(
    path, 'words, one a line', 'Name another file as task.text_vocabulary.'
  ):
    lines = path.read_text(encoding='utf-8').splitlines()
    # In lower case, as the words of texts are counted.
    words = dict.fromkeys(
      line.strip().lower() for line in lines if line.strip()
    )
    if not words:
      raise ValueError('it has no words')
  return list(words)


def _fit_number(
  name: str, values: np.ndarray, settings: FeatureSettings, train: np.ndarray
) -> Number:
  """Fits the standardization, and the number that replaces missing ones."""
  is_missing = np.isnan(values)
  missing = None
  if settings.missing == 'fill':
    known = values[train & ~is_missing]
    missing = float(known.mean()) if len(known) else 0.0
    values = np.where(is_missing, missing, values)
  mean, deviation = 0.0, 1.0
  if settings.standardize == 'all':
    mean, deviation = moments(values[train])
  return Number(name, mean, deviation, missing, bool(is_missing.any()))


def _fit_category(
  name: str, values: table_columns.Categories, train: np.ndarray
) -> Category:
  """Finds the categories of the rows to train on."""
  counts = np.bincount(values.codes[train], minlength=len(values.names))
  return Category(name, [values.names[k] for k in np.flatnonzero(counts)])


def _make_text(name: str, settings: FeatureSettings) -> Text:
  """Reads the words to count, which do not depend on the table."""
  if settings.text_vocabulary is None:
    return Text(name, settings.text_features)
  words = _read_words(pathlib.Path(settings.text_vocabulary))
  return Text(name, len(words), words)


def _fit_column(
  table: table_files.Table,
  name: str,
  settings: FeatureSettings,
  train: np.ndarray,
) -> tuple[Column, _Values]:
  """Fits how a column becomes inputs; also returns its values."""
  if name in settings.text_columns:
    made = _make_text(name, settings)
    return made, made.read(table)
  column = table.column(name, 'feature_columns')
  if name not in settings.category_columns and table_columns.is_numeric(column):
    numbers = _read_numbers(table, name, settings.missing == 'fill')
    return _fit_number(name, numbers, settings, train), numbers
  categories = _read_categories(table, name)
  _check_categories(table, name, categories, settings)
  return _fit_category(name, categories, train), categories


def fit(
  table: table_files.Table,
  names: Sequence[str],
  settings: FeatureSettings,
  train: np.ndarray,
) -> tuple[list[Column], Features]:
  """Fits how columns become inputs to the rows to train on.

  Args:
    table: The table.
    names: The columns that are inputs.
    settings: The settings.
    train: Whether each row is to train on.

  Returns:
    What becomes of each column, and the inputs of all rows.

  Raises:
    UserError: If a column cannot be an input.
  """
  columns, made = [], Features()
  for name in names:
    column, values = _fit_column(table, name, settings, train)
    column.encode(values, made)
    columns.append(column)
  return columns, made


def encode(table: table_files.Table, columns: Sequence[Column]) -> Features:
  """Makes the inputs of all rows of another table than that of `fit`.

  Args:
    table: The table.
    columns: What becomes of each column.

  Returns:
    The inputs.

  Raises:
    UserError: If a column is missing, or has values that it cannot have.
  """
  made = Features()
  for column in columns:
    values: _Values = column.read(table)
    column.encode(values, made)
  return made
