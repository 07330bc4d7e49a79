"""A user's own table as a task, without any code.

One column has the client of each row, another one the target, and the others
are the inputs, see `tasks.data.tables.table_features`. Without a column of
clients, each file of a folder is a client, or rows are assigned by a partition,
see `tasks.data.partitions`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np

from base import errors
from base import settings
from base import words
from tasks import task
from tasks.data import populations
from tasks.data import silos
from tasks.data.tables import table_clients
from tasks.data.tables import table_columns
from tasks.data.tables import table_encodings
from tasks.data.tables import table_features
from tasks.data.tables import table_files
from tasks.data.tables import table_images
from tasks.data.tables import table_notes
from tasks.models import networks

_CLASSES, _NUMBER, _PREFERENCE = 'classes', 'number', 'preference'
# Whole numbers are classes if they have at most this many values.
_MOST_CLASSES = 20
# The filters of the convolutions of a CNN.
_FILTERS = 16, 32
# The settings of these columns end in `_column`. Their values are names.
_TEXT_ROLES = 'client', task.GROUP, 'type', 'context', 'split', 'image'


@dataclasses.dataclass(frozen=True)
class TableSettings(
  table_features.FeatureSettings,
  table_images.ImageSettings,
  table_clients.ClientSettings,
):
  """The settings of a table."""

  path: str | None = settings.field(
    None,
    'The table: a file of CSV, Parquet or JSON lines, or a folder of such'
    ' files.',
    path=True,
  )
  target_column: str | None = settings.field(
    None, 'The column that is to be predicted.'
  )
  target: str = settings.field(
    'auto',
    'The kind of target: classes; a number; or a preference, which is one of'
    ' two classes, with the macro F1 as its metric. By default it is classes if'
    ' its values are texts, or whole numbers with at most'
    f' {_MOST_CLASSES} values.',
    choices=('auto', _CLASSES, _NUMBER, _PREFERENCE),
  )
  standardize_target: bool = settings.field(
    True,
    'Whether a number to be predicted is standardized by the examples to train'
    ' on. Predicting their mean then has an error of about 1.',
  )
  group_column: str | None = settings.field(
    None, 'The column of the groups of clients, for methods that need them.'
  )
  type_column: str | None = settings.field(
    None, 'The column of the types of examples, for methods that need them.'
  )
  context_column: str | None = settings.field(
    None, 'The column of the contexts of examples, for methods that need them.'
  )
  model: str | None = settings.field(
    None,
    'A linear model; a network of dense layers; or a CNN, which is for images.'
    ' none for a CNN with images, and otherwise a linear model.',
    choices=('linear', 'dense', 'cnn'),
  )
  hidden: tuple[int, ...] = settings.field(
    (64,),
    'The widths of the dense layers of a dense network or a CNN, without the'
    ' last layer.',
    minimum=1,
  )
  encoding_file: str | None = settings.field(
    None,
    'The encoding.json of a run of a table. This table is then encoded by the'
    " run's means, categories and classes, rather than by its own.",
    path=True,
  )


@dataclasses.dataclass(frozen=True)
class _Target:
  """The target, which is to be predicted.

  Attributes:
    values: The number of each row, float32, or its class, int32.
    encoding: How the column becomes these values.
    told: A description, for the user.
  """

  values: np.ndarray
  encoding: table_encodings.Target
  told: str

  @property
  def classes(self) -> Sequence[str]:
    """The names of the classes; none for numbers."""
    return self.encoding.classes


def _check(how: TableSettings) -> None:
  """Refuses settings that contradict each other."""
  if how.hold_out == table_clients.ALL_CLIENTS and how.encoding_file is None:
    raise settings.SettingError(
      f'task.hold_out={how.hold_out} leaves nobody to train on. It is for'
      ' clients that experiments:evaluate judges a finished run by.',
      'hold_out',
    )
  if how.hold_out != 'examples' and how.standardize == 'client':
    raise settings.SettingError(
      'task.standardize=client uses the examples that a client trains on, which'
      ' held-out clients do not have. Set it to all or none.',
      'standardize',
    )
  if how.model == 'cnn' and how.image_column is None:
    raise settings.SettingError(
      'task.model=cnn is for images, but task.image_column names none.', 'model'
    )
  for role in _TEXT_ROLES:
    if how.target_column and how.target_column == getattr(
      how, f'{role}_column'
    ):
      raise settings.SettingError(
        f'task.{role}_column names the target, {how.target_column}.',
        f'{role}_column',
      )
  if how.target_column in how.feature_columns:
    raise settings.SettingError(
      f'task.feature_columns names the target, {how.target_column}.',
      'feature_columns',
    )
  lists = {
    name: getattr(how, name)
    for name in (
      'feature_columns',
      'ignored_columns',
      'category_columns',
      'text_columns',
    )
  }
  for name, columns in lists.items():
    for column in columns:
      if columns.count(column) > 1:
        raise settings.SettingError(f'task.{name} names {column} twice.', name)
  for first, second in (
    ('feature_columns', 'ignored_columns'),
    ('category_columns', 'text_columns'),
  ):
    for column in lists[first]:
      if column in lists[second]:
        raise settings.SettingError(
          f'task.{first} and task.{second} both name {column}. Leave it out of'
          ' one of them.',
          second,
        )


def _required(how: TableSettings, name: str) -> str:
  value: str | None = getattr(how, name)
  if value is None:
    raise settings.SettingError(
      f'task.{name} is not set. Name it: --set task.path=FILE --set'
      ' task.client_column=NAME --set task.target_column=NAME.',
      name,
    )
  return value


def _has_classes(how: TableSettings, table: table_files.Table) -> bool:
  name = str(how.target_column)
  column = table.column(name, 'target_column')
  if how.target != 'auto':
    return how.target != _NUMBER
  if not table_columns.is_numeric(column):
    return True
  if not table_columns.is_whole(column):
    return False
  return len(column.unique().drop_null()) <= _MOST_CLASSES


def _read_classes(
  how: TableSettings, table: table_files.Table, known: Sequence[str] | None
) -> _Target:
  """Reads a target of classes, which may be known already."""
  name = str(how.target_column)
  found = table_columns.categories(table, name, 'target_column', known=known)
  counts = np.bincount(found.codes, minlength=len(found.names))
  told = [f'{c} {n:,}' for c, n in zip(found.names, counts)]
  classes = words.counted(len(counts), 'classes')
  if len(counts) < 2 or (how.target == _PREFERENCE and len(counts) > 2):
    wanted = 'two' if how.target == _PREFERENCE else 'several'
    raise errors.UserError(
      f'{table.path}: column {name!r} has {classes}, but must have {wanted}:'
      f' {table_notes.few(told)}.'
    )
  return _Target(
    found.codes,
    table_encodings.Target(name, found.names),
    f'{classes}: {table_notes.few(told)}',
  )


def _read_numbers(how: TableSettings, table: table_files.Table) -> _Target:
  """Reads a target of numbers."""
  name = str(how.target_column)
  values = table_columns.numbers(table, name, 'target_column')
  missing = np.isnan(values)
  if missing.any():
    row = table_columns.first_row(missing)
    table_columns.refuse(table, row, name, 'has no value to be predicted.')
  return _Target(values, table_encodings.Target(name), 'a number')


def _read_target(
  how: TableSettings,
  table: table_files.Table,
  known: table_encodings.Encoding | None,
) -> _Target:
  if known is not None:
    classes = known.target.classes
    if classes:
      return _read_classes(how, table, classes)
  elif _has_classes(how, table):
    return _read_classes(how, table, None)
  return _read_numbers(how, table)


def _standardize_target(
  target: _Target,
  train: np.ndarray,
  known: table_encodings.Encoding | None,
) -> _Target:
  if known is None:
    mean, deviation = table_features.moments(target.values[train])
  else:
    mean, deviation = known.target.mean, known.target.deviation
  if not deviation:
    raise errors.UserError(
      f'All examples to train on have the target {mean:g}. Name another'
      ' task.target_column.'
    )
  return _Target(
    (target.values - mean) / deviation,
    dataclasses.replace(target.encoding, mean=mean, deviation=deviation),
    f'a number, mean {mean:.4g}, deviation {deviation:.4g}',
  )


def _inputs(how: TableSettings, table: table_files.Table) -> list[str]:
  """Lists the columns that are inputs, in the order of the table."""
  roles = {getattr(how, f'{role}_column') for role in ('target', *_TEXT_ROLES)}
  for name in (
    'feature_columns',
    'ignored_columns',
    'category_columns',
    'text_columns',
  ):
    for column in getattr(how, name):
      table.column(column, name)
  chosen = how.feature_columns or [c for c in table.columns if c not in roles]
  names = [c for c in chosen if c not in how.ignored_columns]
  for kind in ('category_columns', 'text_columns'):
    for column in getattr(how, kind):
      if column not in names:
        raise errors.UserError(
          f'task.{kind} names {column}, which is not an input. Leave it out.'
        )
  if not names:
    raise errors.UserError(
      f'{table.path} has no columns to predict {how.target_column} from.'
    )
  return names


def _make_model(
  how: TableSettings,
  target: _Target,
  shape: tuple[int, ...],
  num_names: Mapping[str, int],
) -> networks.Network:
  kind = how.model or ('cnn' if how.image_column else 'linear')
  layers: dict[str, Any] = {
    'filters': _FILTERS if kind == 'cnn' else (),
    'hidden': () if kind == 'linear' else how.hidden,
    'types': num_names.get('type', 0),
    'num_contexts': num_names.get('context', 0),
  }
  if not target.classes:
    return networks.NetworkRegressor(shape, **layers)
  make = (
    networks.PreferenceNetwork
    if how.target == _PREFERENCE
    else networks.NetworkClassifier
  )
  return make(shape, len(target.classes), **layers)


def _metric(how: TableSettings, target: _Target) -> str:
  if not target.classes:
    return 'squared_error'
  return 'macro_f1' if how.target == _PREFERENCE else 'accuracy'


def _describe(
  how: TableSettings,
  table: table_files.Table,
  target: _Target,
  split: table_clients.Split,
  columns: Mapping[str, str],
) -> str:
  """Describes the data, for the user."""
  sizes = np.array([len(rows) for rows in split.clients.values()])
  files = words.counted(len(table.files), 'files')
  where = f' in {files}' if table.path.is_dir() else ''
  return '\n'.join(
    [
      f'{table.path}{where}:',
      table_notes.entry('rows', f'{table.num_rows:,}: {split.told}'),
      table_notes.entry(
        'clients',
        f'{len(sizes):,}, of {sizes.min():,} to {sizes.max():,} rows, median'
        f' {np.median(sizes):,.0f}',
      ),
      table_notes.entry('target', f'{how.target_column}: {target.told}'),
      'Inputs:',
      table_notes.columns(columns),
      'Clients by their number of rows:',
      table_notes.histogram(sizes),
    ]
  )


def load(how: TableSettings, data_dir: str | None, seed: int) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  path = pathlib.Path(_required(how, 'path')).expanduser()
  _required(how, 'target_column')
  _check(how)
  named = {role: getattr(how, f'{role}_column') for role in _TEXT_ROLES}
  texts = [name for name in named.values() if name is not None]
  table = table_files.read(path, (*texts, *how.text_columns))
  seed = how.seed(seed)
  known = None
  if how.encoding_file is not None:
    known = table_encodings.read(pathlib.Path(how.encoding_file))

  target = _read_target(how, table, known)
  clients = table_clients.find(
    how, table, target.values, bool(target.classes), data_dir
  )
  split = table_clients.hold_out(how, table, clients, seed)
  train = split.train_rows(table.num_rows)
  if not target.classes and how.standardize_target:
    target = _standardize_target(target, train, known)
  told = {
    role: table_columns.categories(
      table,
      name,
      f'{role}_column',
      known=None if known is None else known.names.get(role),
    )
    for role, name in named.items()
    if role in (task.GROUP, 'type', 'context') and name is not None
  }
  names = {role: found.names for role, found in told.items()}
  attributes = {}
  if task.GROUP in told:
    group = told.pop(task.GROUP)
    name = str(how.group_column)
    of_clients = table_clients.of_each(table, name, group.codes, clients)
    attributes[task.GROUP] = task.Attribute(group.names, of_clients)
  columns: Sequence[table_features.Column] = ()
  inputs: table_features.Features | table_images.Images
  if how.image_column is not None:
    inputs = table_images.read(table, how)
  elif known is None:
    names_of_inputs = _inputs(how, table)
    columns, inputs = table_features.fit(table, names_of_inputs, how, train)
  else:
    columns = known.columns
    inputs = table_features.encode(table, columns)
  labels = {
    'y': target.values.astype(np.int32 if target.classes else np.float32),
    **{role: found.codes for role, found in told.items()},
  }

  def take(rows: np.ndarray, like: np.ndarray) -> populations.Examples:
    x = inputs.take(rows)
    if how.standardize == 'client':
      numbers = slice(inputs.num_numbers)
      of_client = inputs.take(like)[:, numbers]
      x[:, numbers] = silos.standardize(x[:, numbers], of_client)
    return {
      'x': x,
      **{name: values[rows] for name, values in labels.items()},
    }

  num_names = {role: len(found.names) for role, found in told.items()}
  notes = _describe(how, table, target, split, inputs.told)
  del table
  table_files.release()
  return task.Task(
    name='table',
    model=_make_model(how, target, inputs.shape, num_names),
    metric=_metric(how, target),
    higher_is_better=bool(target.classes),
    batch_size=32,
    padded=how.image_column is None,
    attributes=attributes,
    contexts=names.get('context', ()),
    classes=target.classes,
    notes=notes,
    encoding=table_encodings.Encoding(
      target.encoding, columns, names
    ).to_dict(),
    **table_clients.make_populations(split, take, seed),
  )
