"""The inputs that a model is given of the columns of a user's table.

A number is an input, and where the table lacks some, whether it is missing is
another one. A category is as many inputs as categories occur in the rows to
train on, of which one is 1; for another category all are 0. A text is the
counts of its words: of those of a vocabulary, or in as many inputs as the user
wants, which words are hashed to.

What is fitted, as means and categories, is fitted to the rows to train on.
"""

from collections.abc import Sequence
import dataclasses
import pathlib

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
  """The settings of what a model is given of the columns of a table."""

  feature_columns: tuple[str, ...] = settings.field(
    (),
    'The columns that are inputs; empty for all that no other setting names.',
  )
  ignored_columns: tuple[str, ...] = settings.field(
    (), 'Columns that are no inputs, such as a number of the row.'
  )
  category_columns: tuple[str, ...] = settings.field(
    (),
    'Columns of numbers that are categories, such as codes; columns of texts'
    ' are so unless text_columns names them.',
  )
  max_categories: int = settings.field(
    100,
    'The most categories of a column, each of which is an input.',
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
    'A file of words, one a line, which are counted in the place of hashed'
    ' words.',
    path=True,
  )
  missing: str = settings.field(
    'error',
    'What happens to a missing number: it is an error, or filled with the mean'
    ' of those to train on, and an input says so. A missing category is a'
    ' category.',
    choices=('error', 'fill'),
  )
  standardize: str = settings.field(
    'all',
    'By which examples to train on numbers are standardized: those of all'
    " clients, or the client's own; or none.",
    choices=('all', 'client', 'none'),
  )


@dataclasses.dataclass(frozen=True)
class Features:
  """The inputs of all rows, by columns, which take the least space.

  Attributes:
    numbers: The columns of numbers, each `[rows]` float32.
    are_missing: Where a number is missing, each `[rows]` bool.
    categories: The columns of categories: the place of each row's category
      among those to train on, or -1, `[rows]`; and how many these are.
    texts: The columns of texts, each `[rows, inputs]`, sparse.
    told: What became of each column, for the user.
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


def _check_categories(
  table: table_files.Table,
  name: str,
  found: table_columns.Categories,
  own: FeatureSettings,
) -> None:
  """Refuses a column of too many categories, or of numbers but for a few."""
  named = [category for category in found.names if category]
  if name not in own.category_columns:
    wrong = [text for text in named if not table_columns.is_number(text)]
    if wrong and 2 * len(wrong) < len(named):
      code = found.names.index(wrong[0])
      row = table_columns.first_row(found.codes == code)
      table_columns.refuse(
        table,
        row,
        name,
        f'has {wrong[0]!r}, which is no number, as most others are. Mend it, or'
        ' leave it empty and set task.missing=fill; or name the column in'
        ' task.category_columns.',
      )
  if len(named) > own.max_categories:
    raise errors.UserError(
      f'{table.path}: column {name!r} has {len(named)} categories, more than'
      f' task.max_categories={own.max_categories}. If it is a text, name it in'
      ' task.text_columns; if it says nothing, in task.ignored_columns.'
    )


@dataclasses.dataclass(frozen=True)
class _Fitting:
  """Makes inputs of columns, one column after another.

  Attributes:
    table: The table.
    own: The settings.
    train: Whether each row is to train on.
    made: The inputs made so far.
  """

  table: table_files.Table
  own: FeatureSettings
  train: np.ndarray
  made: Features = dataclasses.field(default_factory=Features)

  def number(self, name: str) -> None:
    """Adds a column of numbers."""
    values = table_columns.numbers(self.table, name, 'feature_columns')
    told = 'a number'
    is_missing = np.isnan(values)
    if is_missing.any():
      if self.own.missing == 'error':
        table_columns.refuse(
          self.table,
          table_columns.first_row(is_missing),
          name,
          'has no value. Set task.missing=fill to fill in the mean, or name the'
          ' column in task.ignored_columns.',
        )
      known = values[self.train & ~is_missing]
      values = np.where(is_missing, known.mean() if len(known) else 0, values)
      self.made.are_missing.append(is_missing)
      told += f', {is_missing.sum():,} missing'
    if self.own.standardize == 'all':
      mean, deviation = moments(values[self.train])
      values = values - mean
      values = values / deviation if deviation else np.zeros_like(values)
    self.made.numbers.append(values.astype(np.float32))
    self.made.told[name] = told

  def category(self, name: str) -> None:
    """Adds a column of categories."""
    found = table_columns.categories(
      self.table, name, 'feature_columns', missing=True
    )
    _check_categories(self.table, name, found, self.own)
    counts = np.bincount(found.codes[self.train], minlength=len(found.names))
    known = np.flatnonzero(counts)
    place = np.full(len(found.names), -1, np.int32)
    place[known] = np.arange(len(known))
    self.made.categories.append((place[found.codes], len(known)))
    names = [found.names[k] or '(missing)' for k in known]
    self.made.told[name] = f'{len(names)} categories: {table_notes.few(names)}'

  def text(self, name: str) -> None:
    """Adds a column of texts."""
    column = table_columns.texts(self.table, name, 'text_columns')
    count = _vectorizer(self.own)
    # A part at a time, as Python's texts take more space than Arrow's.
    parts = [count.transform(part.to_pylist()) for part in column.chunks]
    matrix = scipy.sparse.vstack(parts, 'csr', np.float32)
    self.made.texts.append(matrix)
    self.made.told[name] = f'a text, its words in {matrix.shape[1]} inputs'


def moments(values: np.ndarray) -> tuple[float, float]:
  """The mean and the deviation, in which constants have a deviation of zero."""
  return values.mean(dtype=np.float64), values.std(dtype=np.float64)


def _vectorizer(own: FeatureSettings) -> text.HashingVectorizer:
  """Makes what counts the words of texts."""
  if own.text_vocabulary is None:
    return text.HashingVectorizer(n_features=own.text_features)
  path = pathlib.Path(own.text_vocabulary)
  with files.reading(
    path, 'words, one a line', 'Name another file as task.text_vocabulary.'
  ):
    lines = path.read_text(encoding='utf-8').splitlines()
    words = dict.fromkeys(filter(None, map(str.strip, lines)))
    if not words:
      raise ValueError('it has no words')
  return text.CountVectorizer(vocabulary=list(words))


def make(
  table: table_files.Table,
  names: Sequence[str],
  own: FeatureSettings,
  train: np.ndarray,
) -> Features:
  """Makes the inputs of all rows.

  Args:
    table: The table.
    names: The columns that are inputs.
    own: The settings.
    train: Whether each row is to train on.

  Returns:
    The inputs.

  Raises:
    UserError: If a column cannot be an input.
  """
  fitting = _Fitting(table, own, train)
  for name in names:
    if name in own.text_columns:
      fitting.text(name)
    elif name not in own.category_columns and table_columns.is_numeric(
      table.column(name, 'feature_columns')
    ):
      fitting.number(name)
    else:
      fitting.category(name)
  return fitting.made
