"""A user's own table: rows of clients, to be learned without any code.

A column says whose a row is, another one what is to be predicted, and the
others are the inputs; `tasks.data.table_features` says what becomes of them.
Where no column tells the clients, each file of a folder is one, or the rows are
dealt out, see `tasks.data.partitions`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np

from base import errors
from base import settings
from tasks import task
from tasks.data import populations
from tasks.data import silos
from tasks.data import table_clients
from tasks.data import table_columns
from tasks.data import table_features
from tasks.data import table_files
from tasks.data import table_images
from tasks.data import table_notes
from tasks.models import networks

_CLASSES, _NUMBER, _PREFERENCE = 'classes', 'number', 'preference'
# Whole numbers are classes if they have so few values.
_MOST_CLASSES = 20
# Of the convolutions of a CNN.
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
    'What it has: classes; a number; or a preference, which is one of two'
    ' classes and judged by the macro F1. By default it is classes if its'
    f' values are texts, or whole numbers of at most {_MOST_CLASSES} values.',
    choices=('auto', _CLASSES, _NUMBER, _PREFERENCE),
  )
  standardize_target: bool = settings.field(
    True,
    'Whether a number to be predicted is standardized by the examples to train'
    ' on. Then the error of predicting their mean is about 1.',
  )
  group_column: str | None = settings.field(
    None, 'The column of the groups of clients, for methods that know them.'
  )
  type_column: str | None = settings.field(
    None, 'The column of the types of examples, for methods that know them.'
  )
  context_column: str | None = settings.field(
    None, 'The column of the contexts of examples, for methods that know them.'
  )
  model: str | None = settings.field(
    None,
    'A linear model; a network of dense layers; or a CNN, which is for images.'
    ' none for a CNN of images, and else a linear model.',
    choices=('linear', 'dense', 'cnn'),
  )
  hidden: tuple[int, ...] = settings.field(
    (64,),
    'The widths of the dense layers of a dense network or a CNN, but for the'
    ' last.',
    minimum=1,
  )


@dataclasses.dataclass(frozen=True)
class _Target:
  """The target, which is to be predicted.

  Attributes:
    values: The number of each row, float32, or its class, int32.
    classes: The names of the classes; none for numbers.
    told: What it is, for the user.
  """

  values: np.ndarray
  classes: Sequence[str]
  told: str


def _check(own: TableSettings) -> None:
  """Refuses settings that do not go together."""
  if own.hold_out == 'clients' and own.standardize == 'client':
    raise settings.SettingError(
      'task.standardize=client is by what a client trains on, which clients'
      ' that are held out do not. Set it to all or none.',
      'standardize',
    )
  if own.model == 'cnn' and own.image_column is None:
    raise settings.SettingError(
      'task.model=cnn is for images, but task.image_column names none.', 'model'
    )
  if own.target_column in own.feature_columns:
    raise settings.SettingError(
      f'task.feature_columns names the target, {own.target_column}.',
      'feature_columns',
    )


def _required(own: TableSettings, name: str) -> str:
  value: str | None = getattr(own, name)
  if value is None:
    raise settings.SettingError(
      f'task.{name} is not set. Name it: --set task.path=FILE --set'
      ' task.client_column=NAME --set task.target_column=NAME.',
      name,
    )
  return value


def _has_classes(own: TableSettings, table: table_files.Table) -> bool:
  name = str(own.target_column)
  column = table.column(name, 'target_column')
  if own.target != 'auto':
    return own.target != _NUMBER
  if not table_columns.is_numeric(column):
    return True
  if not table_columns.is_whole(column):
    return False
  return len(column.unique().drop_null()) <= _MOST_CLASSES


def _read_target(own: TableSettings, table: table_files.Table) -> _Target:
  name = str(own.target_column)
  if _has_classes(own, table):
    found = table_columns.categories(table, name, 'target_column')
    counts = np.bincount(found.codes)
    told = [f'{c} {n:,}' for c, n in zip(found.names, counts)]
    if len(counts) < 2 or (own.target == _PREFERENCE and len(counts) > 2):
      wanted = 'two' if own.target == _PREFERENCE else 'several'
      raise errors.UserError(
        f'{table.path}: column {name!r} has {len(counts)} classes, but must'
        f' have {wanted}: {table_notes.few(told)}.'
      )
    return _Target(
      found.codes,
      found.names,
      f'{len(counts)} classes: {table_notes.few(told)}',
    )
  values = table_columns.numbers(table, name, 'target_column')
  missing = np.isnan(values)
  if missing.any():
    row = table_columns.first_row(missing)
    table_columns.refuse(table, row, name, 'has no value to be predicted.')
  return _Target(values, (), 'a number')


def _standardize_target(target: _Target, train: np.ndarray) -> _Target:
  mean, deviation = table_features.moments(target.values[train])
  if not deviation:
    raise errors.UserError(
      f'All examples to train on have the target {mean:g}. Name another'
      ' task.target_column.'
    )
  told = f'a number, mean {mean:.4g}, deviation {deviation:.4g}'
  return _Target((target.values - mean) / deviation, (), told)


def _inputs(own: TableSettings, table: table_files.Table) -> list[str]:
  """Lists the columns that are inputs, in the order of the table."""
  roles = {getattr(own, f'{role}_column') for role in ('target', *_TEXT_ROLES)}
  for name in (
    'feature_columns',
    'ignored_columns',
    'category_columns',
    'text_columns',
  ):
    for column in getattr(own, name):
      table.column(column, name)
  chosen = own.feature_columns or [c for c in table.columns if c not in roles]
  names = [c for c in chosen if c not in own.ignored_columns]
  if not names:
    raise errors.UserError(
      f'{table.path} has no columns to predict {own.target_column} from.'
    )
  return names


def _make_model(
  own: TableSettings,
  target: _Target,
  shape: tuple[int, ...],
  num_names: Mapping[str, int],
) -> networks.Network:
  kind = own.model or ('cnn' if own.image_column else 'linear')
  layers: dict[str, Any] = {
    'filters': _FILTERS if kind == 'cnn' else (),
    'hidden': () if kind == 'linear' else own.hidden,
    'types': num_names.get('type', 0),
    'num_contexts': num_names.get('context', 0),
  }
  if not target.classes:
    return networks.NetworkRegressor(shape, **layers)
  make = (
    networks.PreferenceNetwork
    if own.target == _PREFERENCE
    else networks.NetworkClassifier
  )
  return make(shape, len(target.classes), **layers)


def _metric(own: TableSettings, target: _Target) -> str:
  if not target.classes:
    return 'squared_error'
  return 'macro_f1' if own.target == _PREFERENCE else 'accuracy'


def _describe(
  own: TableSettings,
  table: table_files.Table,
  target: _Target,
  split: table_clients.Split,
  columns: Mapping[str, str],
) -> str:
  """Writes what was read."""
  sizes = np.array([len(rows) for rows in split.clients.values()])
  files = f' in {len(table.files)} files' if table.path.is_dir() else ''
  return '\n'.join(
    [
      f'{table.path}{files}:',
      table_notes.entry('rows', f'{table.num_rows:,}: {split.told}'),
      table_notes.entry(
        'clients',
        f'{len(sizes):,}, of {sizes.min():,} to {sizes.max():,} rows, median'
        f' {np.median(sizes):,.0f}',
      ),
      table_notes.entry('target', f'{own.target_column}: {target.told}'),
      'Inputs:',
      table_notes.columns(columns),
      'Clients by their number of rows:',
      table_notes.histogram(sizes),
    ]
  )


def load(own: TableSettings, data_dir: str | None, seed: int) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  path = pathlib.Path(_required(own, 'path')).expanduser()
  _required(own, 'target_column')
  _check(own)
  named = {role: getattr(own, f'{role}_column') for role in _TEXT_ROLES}
  texts = [name for name in named.values() if name is not None]
  table = table_files.read(path, (*texts, *own.text_columns))
  seed = own.seed(seed)

  target = _read_target(own, table)
  clients = table_clients.find(
    own, table, target.values, bool(target.classes), data_dir
  )
  split = table_clients.hold_out(own, table, clients, seed)
  train = split.train_rows(table.num_rows)
  if not target.classes and own.standardize_target:
    target = _standardize_target(target, train)
  told = {
    role: table_columns.categories(table, name, f'{role}_column')
    for role, name in named.items()
    if role in (task.GROUP, 'type', 'context') and name is not None
  }
  attributes = {}
  if task.GROUP in told:
    group = told.pop(task.GROUP)
    name = str(own.group_column)
    of_clients = table_clients.of_each(table, name, group.codes, clients)
    attributes[task.GROUP] = task.Attribute(group.names, of_clients)
  inputs: table_features.Features | table_images.Images = (
    table_features.make(table, _inputs(own, table), own, train)
    if own.image_column is None
    else table_images.read(table, own)
  )
  labels = {
    'y': target.values.astype(np.int32 if target.classes else np.float32),
    **{role: found.codes for role, found in told.items()},
  }

  def take(rows: np.ndarray, like: np.ndarray) -> populations.Examples:
    x = inputs.take(rows)
    if own.standardize == 'client':
      numbers = slice(inputs.num_numbers)
      of_client = inputs.take(like)[:, numbers]
      x[:, numbers] = silos.standardize(x[:, numbers], of_client)
    return {
      'x': x,
      **{name: values[rows] for name, values in labels.items()},
    }

  num_names = {role: len(found.names) for role, found in told.items()}
  notes = _describe(own, table, target, split, inputs.told)
  del table
  table_files.release()
  return task.Task(
    name='table',
    model=_make_model(own, target, inputs.shape, num_names),
    metric=_metric(own, target),
    higher_is_better=bool(target.classes),
    batch_size=32,
    padded=own.image_column is None,
    attributes=attributes,
    contexts=told['context'].names if 'context' in told else (),
    notes=notes,
    **table_clients.make_populations(split, take, seed),
  )
