"""A user's own table as a task, without any code.

One column has the client of each row, another one the target, and the others
are the inputs, see `tasks.data.tables.features`. Without a column of
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
from tasks import registry
from tasks import task
from tasks.data import populations
from tasks.data import silos
from tasks.data.tables import doubts
from tasks.data.tables import encodings
from tasks.data.tables import features
from tasks.data.tables import images
from tasks.data.tables import notes
from tasks.data.tables import table_clients
from tasks.data.tables import table_columns
from tasks.data.tables import table_files
from tasks.models import networks

_CLASSES, _NUMBER, _PREFERENCE = 'classes', 'number', 'preference'
# Whole numbers are classes if they have at most this many values.
_MOST_CLASSES = 20
_BATCH_SIZE = 32
# The filters of the convolutions of a CNN.
_FILTERS = 16, 32
# The settings of these columns end in `_column`. Their values are names.
_TEXT_ROLES = 'client', task.GROUP, 'type', 'context', 'split', 'image'


@dataclasses.dataclass(frozen=True)
class TableSettings(
  features.FeatureSettings,
  images.ImageSettings,
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
  doubts: str = settings.field(
    'note',
    'Whether what looks like a mistake in the table is noted before training,'
    ' or is an error: columns that tell the target alone or have one value,'
    ' classes or clients that are hardly meant, rows that quotes have joined.',
    choices=('note', 'error'),
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
    description: A description, for the user.
  """

  values: np.ndarray
  encoding: encodings.Target
  description: str

  @property
  def classes(self) -> Sequence[str]:
    """The names of the classes; none for numbers."""
    return self.encoding.classes


def _check(table_settings: TableSettings) -> None:
  """Refuses settings that contradict each other."""
  if (
    table_settings.hold_out == table_clients.ALL_CLIENTS
    and table_settings.encoding_file is None
  ):
    raise settings.SettingError(
      f'task.hold_out={table_settings.hold_out} leaves nobody to train on. It'
      ' is for clients that experiments:evaluate judges a finished run by.',
      'hold_out',
    )
  if (
    table_settings.hold_out != 'examples'
    and table_settings.standardize == 'client'
  ):
    raise settings.SettingError(
      'task.standardize=client uses the examples that a client trains on, which'
      ' held-out clients do not have. Set it to all or none.',
      'standardize',
    )
  if table_settings.model == 'cnn' and table_settings.image_column is None:
    raise settings.SettingError(
      'task.model=cnn is for images, but task.image_column names none.', 'model'
    )
  for role in _TEXT_ROLES:
    if table_settings.target_column and table_settings.target_column == getattr(
      table_settings, f'{role}_column'
    ):
      raise settings.SettingError(
        f'task.{role}_column names the target, {table_settings.target_column}.',
        f'{role}_column',
      )
  if table_settings.target_column in table_settings.feature_columns:
    raise settings.SettingError(
      f'task.feature_columns names the target, {table_settings.target_column}.',
      'feature_columns',
    )
  lists = {
    name: getattr(table_settings, name)
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


def _required(table_settings: TableSettings, name: str) -> str:
  value: str | None = getattr(table_settings, name)
  if value is None:
    raise settings.SettingError(
      f'task.{name} is not set. Name it: --set task.path=FILE --set'
      ' task.client_column=NAME --set task.target_column=NAME.',
      name,
    )
  return value


def _has_classes(
  table_settings: TableSettings, table: table_files.Table
) -> bool:
  name = str(table_settings.target_column)
  column = table.column(name, 'target_column')
  if table_settings.target != 'auto':
    return table_settings.target != _NUMBER
  if not table_columns.is_numeric(column):
    return True
  if not table_columns.is_whole(column):
    return False
  return len(column.unique().drop_null()) <= _MOST_CLASSES


def _read_classes(
  table_settings: TableSettings,
  table: table_files.Table,
  known: Sequence[str] | None,
) -> _Target:
  """Reads a target of classes, which may be known already."""
  name = str(table_settings.target_column)
  found = table_columns.categories(table, name, 'target_column', known=known)
  counts = np.bincount(found.codes, minlength=len(found.names))
  sizes = [f'{c} {n:,}' for c, n in zip(found.names, counts)]
  classes = words.count(len(counts), 'classes')
  if len(counts) < 2 or (
    table_settings.target == _PREFERENCE and len(counts) > 2
  ):
    wanted = 'two' if table_settings.target == _PREFERENCE else 'several'
    raise errors.UserError(
      f'{table.path}: column {name!r} has {classes}, but must have {wanted}:'
      f' {notes.few(sizes)}.'
    )
  return _Target(
    found.codes,
    encodings.Target(name, found.names),
    f'{classes}: {notes.few(sizes)}',
  )


def _read_numbers(
  table_settings: TableSettings, table: table_files.Table
) -> _Target:
  """Reads a target of numbers."""
  name = str(table_settings.target_column)
  values = table_columns.numbers(table, name, 'target_column')
  missing = np.isnan(values)
  if missing.any():
    row = table_columns.first_row(missing)
    table_columns.refuse(table, row, name, 'has no value to be predicted.')
  return _Target(values, encodings.Target(name), 'a number')


def _read_target(
  table_settings: TableSettings,
  table: table_files.Table,
  known: encodings.Encoding | None,
) -> _Target:
  if known is not None:
    classes = known.target.classes
    if classes:
      return _read_classes(table_settings, table, classes)
  elif _has_classes(table_settings, table):
    return _read_classes(table_settings, table, None)
  return _read_numbers(table_settings, table)


def _standardize_target(
  target: _Target,
  train: np.ndarray,
  known: encodings.Encoding | None,
) -> _Target:
  if known is None:
    mean, deviation = features.moments(target.values[train])
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


def _inputs(
  table_settings: TableSettings, table: table_files.Table
) -> list[str]:
  """Lists the columns that are inputs, in the order of the table."""
  roles = {
    getattr(table_settings, f'{role}_column')
    for role in ('target', *_TEXT_ROLES)
  }
  for name in (
    'feature_columns',
    'ignored_columns',
    'category_columns',
    'text_columns',
  ):
    for column in getattr(table_settings, name):
      table.column(column, name)
  chosen = table_settings.feature_columns or [
    c for c in table.columns if c not in roles
  ]
  names = [c for c in chosen if c not in table_settings.ignored_columns]
  for kind in ('category_columns', 'text_columns'):
    for column in getattr(table_settings, kind):
      if column not in names:
        raise errors.UserError(
          f'task.{kind} names {column}, which is not an input. Leave it out.'
        )
  if not names:
    raise errors.UserError(
      f'{table.path} has no columns to predict'
      f' {table_settings.target_column} from.'
    )
  return names


def _make_model(
  table_settings: TableSettings,
  target: _Target,
  shape: tuple[int, ...],
  num_names: Mapping[str, int],
) -> networks.Network:
  kind = table_settings.model or (
    'cnn' if table_settings.image_column else 'linear'
  )
  layers: dict[str, Any] = {
    'filters': _FILTERS if kind == 'cnn' else (),
    'hidden': () if kind == 'linear' else table_settings.hidden,
    'types': num_names.get('type', 0),
    'num_contexts': num_names.get('context', 0),
  }
  if not target.classes:
    return networks.NetworkRegressor(shape, **layers)
  make = (
    networks.PreferenceNetwork
    if table_settings.target == _PREFERENCE
    else networks.NetworkClassifier
  )
  return make(shape, len(target.classes), **layers)


def _metric(table_settings: TableSettings, target: _Target) -> str:
  if not target.classes:
    return 'squared_error'
  return 'macro_f1' if table_settings.target == _PREFERENCE else 'accuracy'


def _describe(
  table_settings: TableSettings,
  table: table_files.Table,
  target: _Target,
  split: table_clients.Split,
  columns: Mapping[str, str],
  found: Sequence[str],
) -> str:
  """Describes the data, for the user."""
  sizes = np.array([len(rows) for rows in split.clients.values()])
  small = np.count_nonzero(split.train_sizes() < _BATCH_SIZE)
  files = words.count(len(table.files), 'files')
  where = f' in {files}' if table.path.is_dir() else ''
  return '\n'.join(
    [
      f'{table.path}{where}:',
      notes.entry('rows', f'{table.num_rows:,}: {split.description}'),
      notes.entry(
        'clients',
        f'{len(sizes):,}, of {sizes.min():,} to {sizes.max():,} rows, median'
        f' {np.median(sizes):,.0f}',
      ),
      notes.entry('figures', split.describe_figures()),
      *(
        [
          notes.entry(
            'small clients',
            f'{small:,} with fewer than {_BATCH_SIZE} rows to train on, a'
            ' batch by default',
          )
        ]
        if small
        else []
      ),
      notes.entry(
        'target', f'{table_settings.target_column}: {target.description}'
      ),
      'Inputs:',
      notes.columns(columns),
      'Clients by their number of rows:',
      notes.histogram(sizes),
      *(['Look at this:'] if found else []),
      *map(notes.item, found),
    ]
  )


def load(
  table_settings: TableSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  path = pathlib.Path(_required(table_settings, 'path')).expanduser()
  _required(table_settings, 'target_column')
  _check(table_settings)
  named = {
    role: getattr(table_settings, f'{role}_column') for role in _TEXT_ROLES
  }
  texts = [name for name in named.values() if name is not None]
  table = table_files.read(path, (*texts, *table_settings.text_columns))
  seed = table_settings.seed(seed)
  known = None
  if table_settings.encoding_file is not None:
    known = encodings.read(pathlib.Path(table_settings.encoding_file))

  target = _read_target(table_settings, table, known)
  clients = table_clients.find(
    table_settings, table, target.values, bool(target.classes), data_dir
  )
  split = table_clients.hold_out(table_settings, table, clients, seed)
  train = split.train_rows(table.num_rows)
  if not target.classes and table_settings.standardize_target:
    target = _standardize_target(target, train, known)
  named_values = {
    role: table_columns.categories(
      table,
      name,
      f'{role}_column',
      known=None if known is None else known.names.get(role),
    )
    for role, name in named.items()
    if role in (task.GROUP, 'type', 'context') and name is not None
  }
  names = {role: found.names for role, found in named_values.items()}
  attributes = {}
  if task.GROUP in named_values:
    group = named_values.pop(task.GROUP)
    name = str(table_settings.group_column)
    of_clients = table_clients.read_of_clients(
      table, name, group.codes, clients
    )
    attributes[task.GROUP] = task.Attribute(group.names, of_clients)
  columns: Sequence[features.Column] = ()
  inputs: features.Features | images.Images
  if table_settings.image_column is not None:
    inputs = images.read(table, table_settings)
  elif known is None:
    names_of_inputs = _inputs(table_settings, table)
    columns, inputs = features.fit(
      table, names_of_inputs, table_settings, train
    )
  else:
    columns = known.columns
    inputs = features.encode(table, columns)
  labels = {
    'y': target.values.astype(np.int32 if target.classes else np.float32),
    **{role: found.codes for role, found in named_values.items()},
  }

  def take(rows: np.ndarray, like: np.ndarray) -> populations.Examples:
    x = inputs.take(rows)
    if table_settings.standardize == 'client':
      numbers = slice(inputs.num_numbers)
      of_client = inputs.take(like)[:, numbers]
      x[:, numbers] = silos.standardize(x[:, numbers], of_client)
    return {
      'x': x,
      **{name: values[rows] for name, values in labels.items()},
    }

  num_names = {role: len(found.names) for role, found in named_values.items()}
  found = doubts.find(
    table,
    [column.column for column in columns],
    target.classes,
    target.values,
    split.clients,
    train,
  )
  if found and table_settings.doubts == 'error':
    raise errors.UserError(
      f'{table.path}: {" ".join(found)} If all of this is meant, set'
      ' task.doubts=note.'
    )
  description = _describe(
    table_settings, table, target, split, inputs.descriptions, found
  )
  del table
  table_files.release()
  return task.Task(
    name='table',
    model=_make_model(table_settings, target, inputs.shape, num_names),
    metric=_metric(table_settings, target),
    higher_is_better=bool(target.classes),
    batch_size=_BATCH_SIZE,
    padded=table_settings.image_column is None,
    attributes=attributes,
    contexts=names.get('context', ()),
    classes=target.classes,
    notes=description,
    encoding=encodings.Encoding(target.encoding, columns, names).to_dict(),
    **table_clients.make_populations(split, take, seed),
  )


registry.register_task('table', TableSettings)
