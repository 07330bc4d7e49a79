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
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
from sklearn.feature_extraction import text

from base import errors
from base import settings
from tasks.data import files
from tasks.data import table_columns
from tasks.data import table_files
from tasks.data import table_notes


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
    told: A description of each column, for the user.
  """

  numbers: list[np.ndarray] = dataclasses.field(default_factory=list)
  are_missing: list[np.ndarray] = dataclasses.field(default_factory=list)
  categories: list[tuple[np.ndarray, int]] = dataclasses.field(
    default_factory=list
  )
  texts: list[scipy.sparse.csr_matrix] = dataclasses.field(default_factory=list)
  told: dict[str, str] = dataclasses.field(default_factory=dict)

  @property
  def num_numbers(self) -> int:
    """The number of inputs that are numbers of the table, which come first."""
    return len(self.numbers)

  @property
  def shape(self) -> tuple[int]:
    """The shape of the inputs of a row."""
    size = len(self.numbers) + len(self.are_missing)
    size += sum(own for _, own in self.categories)
    return (size + sum(matrix.shape[1] for matrix in self.texts),)

  def take(self, rows: np.ndarray) -> np.ndarray:
    """Returns the inputs of some rows, `[n, inputs]` float32."""
    inputs = np.empty([len(rows), *self.shape], np.float32)
    start = 0
    for column in (*self.numbers, *self.are_missing):
      inputs[:, start] = column[rows]
      start += 1
    for codes, size in self.categories:
      own = codes[rows, np.newaxis] == np.arange(size)
      inputs[:, start : start + size] = own
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
    missing: The number that a missing one is taken for; None if none may be
      missing.
    has_missing_input: Whether another input is 1 where a number is missing.
  """

  column: str
  mean: float = 0.0
  deviation: float = 1.0
  missing: float | None = None
  has_missing_input: bool = False
  kind: ClassVar[str] = 'number'

  @classmethod
  def fit(
    cls,
    table: table_files.Table,
    name: str,
    own: FeatureSettings,
    train: np.ndarray,
  ) -> 'Number':
    """Fits how the column is standardized, and what is missing."""
    values = table_columns.numbers(table, name, 'feature_columns')
    is_missing = np.isnan(values)
    missing = None
    if own.missing == 'fill':
      known = values[train & ~is_missing]
      missing = float(known.mean()) if len(known) else 0.0
      values = np.where(is_missing, missing, values)
    mean, deviation = 0.0, 1.0
    if own.standardize == 'all':
      mean, deviation = moments(values[train])
    return cls(name, mean, deviation, missing, bool(is_missing.any()))

  def encode(self, table: table_files.Table, made: Features) -> None:
    """Adds the inputs of the column."""
    values = table_columns.numbers(table, self.column, 'feature_columns')
    told = 'a number'
    is_missing = np.isnan(values)
    if is_missing.any():
      if self.missing is None:
        table_columns.refuse(
          table,
          table_columns.first_row(is_missing),
          self.column,
          'has no value. Set task.missing=fill to fill in the mean, or name the'
          ' column in task.ignored_columns.',
        )
      values = np.where(is_missing, self.missing, values)
      told += f', {is_missing.sum():,} missing'
    if self.has_missing_input:
      made.are_missing.append(is_missing)
    values = values - self.mean
    values = values / self.deviation if self.deviation else 0 * values
    made.numbers.append(values.astype(np.float32))
    made.told[self.column] = told


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

  @classmethod
  def fit(
    cls,
    table: table_files.Table,
    name: str,
    own: FeatureSettings,
    train: np.ndarray,
  ) -> 'Category':
    """Finds the categories of the rows to train on."""
    found = table_columns.categories(
      table, name, 'feature_columns', missing=True
    )
    _check_categories(table, name, found, own)
    counts = np.bincount(found.codes[train], minlength=len(found.names))
    return cls(name, [found.names[k] for k in np.flatnonzero(counts)])

  def encode(self, table: table_files.Table, made: Features) -> None:
    """Adds the inputs of the column."""
    found = table_columns.categories(
      table, self.column, 'feature_columns', missing=True
    )
    place = {name: k for k, name in enumerate(self.categories)}
    codes = np.array([place.get(name, -1) for name in found.names], np.int32)
    made.categories.append((codes[found.codes], len(place)))
    names = [name or '(missing)' for name in self.categories]
    made.told[self.column] = (
      f'{len(names)} categories: {table_notes.few(names)}'
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

  @classmethod
  def fit(
    cls,
    table: table_files.Table,
    name: str,
    own: FeatureSettings,
    train: np.ndarray,
  ) -> 'Text':
    """Reads the words to count; nothing of the table is needed for them."""
    del table, train
    if own.text_vocabulary is None:
      return cls(name, own.text_features)
    words = _read_words(pathlib.Path(own.text_vocabulary))
    return cls(name, len(words), words)

  def encode(self, table: table_files.Table, made: Features) -> None:
    """Adds the inputs of the column."""
    column = table_columns.texts(table, self.column, 'text_columns')
    count = (
      text.CountVectorizer(vocabulary=self.words)
      if self.words
      else text.HashingVectorizer(n_features=self.inputs)
    )
    # A part at a time, as Python's texts take more space than Arrow's.
    parts = [count.transform(part.to_pylist()) for part in column.chunks]
    matrix = scipy.sparse.vstack(parts, 'csr', np.float32)
    made.texts.append(matrix)
    told = f'a text, its words in {self.inputs:,} inputs'
    if self.words:
      absent = self.inputs - np.count_nonzero(matrix.getnnz(axis=0))
      told = f'a text, {self.inputs:,} words, {absent:,} of them in no text'
    made.told[self.column] = told


Column = Number | Category | Text
_KINDS: dict[str, Any] = {
  Number.kind: Number,
  Category.kind: Category,
  Text.kind: Text,
}


def to_dict(column: Column) -> dict[str, Any]:
  """Writes how a column is encoded, for JSON."""
  return {'kind': column.kind, **dataclasses.asdict(column)}


def from_dict(values: dict[str, Any]) -> Column:
  """Reads what `to_dict` wrote; raises any exception if it is damaged."""
  values = dict(values)
  column: Column = _KINDS[values.pop('kind')](**values)
  return column


def input_names(columns: Sequence[Column]) -> list[str]:
  """Names the inputs of a row, in their order."""
  numbers = [own for own in columns if isinstance(own, Number)]
  return [
    *(own.column for own in numbers),
    *(f'{own.column} is missing' for own in numbers if own.has_missing_input),
    *(
      f'{own.column} is {category or "missing"}'
      for own in columns
      if isinstance(own, Category)
      for category in own.categories
    ),
    *(
      f'{own.column} has {own.words[k] if own.words else f"words of hash {k}"}'
      for own in columns
      if isinstance(own, Text)
      for k in range(own.inputs)
    ),
  ]


def _check_categories(
  table: table_files.Table,
  name: str,
  found: table_columns.Categories,
  own: FeatureSettings,
) -> None:
  """Refuses a column with too many categories, or of numbers as texts."""
  named = [category for category in found.names if category]
  if name not in own.category_columns:
    if named and all(map(table_columns.has_commas, named)):
      code = found.names.index(named[0])
      row = table_columns.first_row(found.codes == code)
      table_columns.refuse(
        table,
        row,
        name,
        f'has {named[0]!r}. Write numbers without commas, with a point before'
        ' the decimals; or name the column in task.category_columns.',
      )
    wrong = [text for text in named if not table_columns.is_number(text)]
    if wrong and 2 * len(wrong) < len(named):
      code = found.names.index(wrong[0])
      row = table_columns.first_row(found.codes == code)
      table_columns.refuse(
        table,
        row,
        name,
        f'has {wrong[0]!r}, while most other values are numbers. Correct it, or'
        ' leave it empty and set task.missing=fill; or name the column in'
        ' task.category_columns.',
      )
  if len(named) > own.max_categories:
    raise errors.UserError(
      f'{table.path}: column {name!r} has {len(named)} categories, more than'
      f' task.max_categories={own.max_categories}. If it is a text, name it in'
      ' task.text_columns; if it is useless, in task.ignored_columns.'
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


def fit(
  table: table_files.Table,
  names: Sequence[str],
  own: FeatureSettings,
  train: np.ndarray,
) -> list[Column]:
  """Fits how columns become inputs to the rows to train on.

  Args:
    table: The table.
    names: The columns that are inputs.
    own: The settings.
    train: Whether each row is to train on.

  Returns:
    What becomes of each column.

  Raises:
    UserError: If a column cannot be an input.
  """

  def kind(name: str) -> Any:
    if name in own.text_columns:
      return Text
    column = table.column(name, 'feature_columns')
    if name not in own.category_columns and table_columns.is_numeric(column):
      return Number
    return Category

  return [kind(name).fit(table, name, own, train) for name in names]


def encode(table: table_files.Table, columns: Sequence[Column]) -> Features:
  """Makes the inputs of all rows.

  Args:
    table: The table, which may be another one than that of `fit`.
    columns: What becomes of each column.

  Returns:
    The inputs.

  Raises:
    UserError: If there is no such column, or it has what it had not in `fit`.
  """
  made = Features()
  for column in columns:
    column.encode(table, made)
  return made
