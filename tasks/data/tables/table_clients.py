"""Assigns the rows of a user's table to clients, and holds some out."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses

import numpy as np

from base import errors
from base import settings
from base import words
from tasks.data import devices
from tasks.data import partitions
from tasks.data import populations
from tasks.data import silos
from tasks.data.tables import table_columns
from tasks.data.tables import table_files

_CLIENT = 'client'
ALL_CLIENTS = 'all_clients'


@dataclasses.dataclass(frozen=True)
class ClientSettings(partitions.PartitionSettings):
  """The settings of the clients of a table, and of held-out rows or clients."""

  client_column: str | None = settings.field(
    None,
    'The column with the names of clients; none if each file of a folder is a'
    ' client, or if the partition is drawn.',
  )
  partition: str = partitions.field(_CLIENT, _CLIENT)
  split_column: str | None = settings.field(
    None,
    'The column that says what a row is for: train, validation or test; none'
    ' for a random split.',
  )
  hold_out: str = settings.field(
    'examples',
    'Whether examples of each client are held out, or clients; or all clients,'
    ' who are all reported then, with a run that was trained before.',
    choices=('examples', 'clients', ALL_CLIENTS),
  )
  validation_fraction: float = settings.field(
    0.15,
    "The share of each client's examples, or of the clients, for validation.",
    above=0,
    maximum=0.45,
  )
  test_fraction: float = settings.field(
    0.15,
    "The share of each client's examples, or of the clients, for the test.",
    above=0,
    maximum=0.45,
  )


def find(
  client_settings: ClientSettings,
  table: table_files.Table,
  target: np.ndarray,
  is_class: bool,
  data_dir: str | None,
) -> Mapping[str, np.ndarray]:
  """Finds the rows of each client.

  Args:
    client_settings: The settings.
    table: The table.
    target: The number or class of each row that is to be predicted.
    is_class: Whether it is a class.
    data_dir: The folder of the user's data.

  Returns:
    The rows of each client, by its name.

  Raises:
    UserError: If no setting says which client has a row, or two do.
  """
  if client_settings.partition != _CLIENT:
    if client_settings.client_column is not None:
      raise settings.SettingError(
        f'Both task.partition={client_settings.partition} and'
        f' task.client_column={client_settings.client_column} assign rows to'
        ' clients. Leave out one of the two.',
        'partition',
      )
    if not is_class and client_settings.partition != partitions.FILE:
      raise settings.SettingError(
        f'task.partition={client_settings.partition} needs classes, but the'
        ' target is a number. Name the column of the clients as'
        ' task.client_column.',
        'partition',
      )
    clients = partitions.make(client_settings, target, data_dir)
    # A client may get no rows.
    return {name: rows for name, rows in clients.items() if len(rows)}
  if client_settings.partition_file is not None:
    raise settings.SettingError(
      'task.partition_file is for a partition that is drawn, for example by'
      ' task.partition=dirichlet, or restored by task.partition=file.',
      'partition_file',
    )
  if client_settings.client_column is not None:
    found = table_columns.categories(
      table, client_settings.client_column, 'client_column'
    )
    return partitions.group_by_number(found.codes, found.names)
  if not table.path.is_dir():
    raise settings.SettingError(
      'task.client_column is not set. Name the column of the clients, or draw'
      ' a partition of the rows, for example by task.partition=dirichlet.',
      'client_column',
    )
  names = [table_files.stem(path) for path in table.files]
  for name in names:
    if names.count(name) > 1:
      raise errors.UserError(
        f'{table.path} has several files {name}, each of which is a client.'
        ' Give each another name.'
      )
  ends = np.cumsum(table.sizes)
  return dict(zip(names, np.split(np.arange(table.num_rows), ends[:-1])))


@dataclasses.dataclass(frozen=True)
class Split:
  """The rows of each client, and what they are for.

  Attributes:
    clients: The rows of each client.
    parts: For each client of a cross-silo task, its rows in each part.
    held_out: The clients for 'train', 'validation' and 'test' of a cross-device
      task; empty if the task is cross-silo.
  """

  clients: Mapping[str, np.ndarray]
  parts: Mapping[str, Mapping[str, np.ndarray]]
  held_out: Mapping[str, Sequence[str]]

  @property
  def description(self) -> str:
    """The numbers of examples or clients in each part, for the user."""
    if not self.parts:
      return ', '.join(
        f'{len(ids):,} {words.noun(len(ids), "clients")} for {part}'
        for part, ids in self.held_out.items()
      )
    return ', '.join(
      f'{sizes.sum():,} {words.noun(sizes.sum(), "examples")} for {part}'
      for part, sizes in silos.sizes_of_parts(self.parts).items()
    )

  def describe_figures(self) -> str:
    """Says how many clients the figures of a run will rest on."""
    if self.parts:
      found = silos.sizes_of_parts(self.parts)
      clients = {part: np.count_nonzero(found[part]) for part in found}
    else:
      clients = {part: len(ids) for part, ids in self.held_out.items()}
    test, others = clients['test'], clients['validation']
    return (
      f'of {test:,} test {words.noun(test, "clients")}, with candidates chosen'
      f' by {others:,}'
    )

  def train_sizes(self) -> np.ndarray:
    """Returns the number of rows of each client that can be trained on."""
    if self.parts:
      sizes = silos.sizes_of_parts(self.parts)['train']
    else:
      train = self.held_out['train']
      sizes = np.array([len(self.clients[name]) for name in train], int)
    return sizes[sizes > 0]

  def train_rows(self, num_rows: int) -> np.ndarray:
    """Tells which rows are to train on, `[rows]`."""
    mask = np.zeros(num_rows, bool)
    for parts in self.parts.values():
      mask[parts['train']] = True
    for client_id in self.held_out.get('train', ()):
      mask[self.clients[client_id]] = True
    return mask


def _read_split(
  client_settings: ClientSettings, table: table_files.Table
) -> np.ndarray:
  """Reads each row's part, as its place in `silos.PARTS`, `[rows]`."""
  name = str(client_settings.split_column)
  found = table_columns.categories(table, name, 'split_column')
  for code, part in enumerate(found.names):
    if part not in silos.PARTS:
      row = table_columns.first_row(found.codes == code)
      known = ', '.join(silos.PARTS)
      table_columns.refuse(
        table, row, name, f'has {part!r}, but must have one of {known}.'
      )
  for part in silos.PARTS:
    if part not in found.names:
      raise errors.UserError(
        f'{table.path}: column {name!r} has no {part!r}. Name another one as'
        ' task.split_column, or none for a random split.'
      )
  return np.array([silos.PARTS.index(part) for part in found.names])[
    found.codes
  ]


def read_of_clients(
  table: table_files.Table,
  name: str,
  codes: np.ndarray,
  clients: Mapping[str, np.ndarray],
) -> dict[str, int]:
  """Returns the value that all rows of a client have in a column.

  Args:
    table: The table.
    name: The name of the column.
    codes: The value of each row.
    clients: The rows of each client.

  Returns:
    The value of each client.

  Raises:
    UserError: If it is not the same in all rows of a client.
  """
  values = {}
  for client_id, rows in clients.items():
    differs = codes[rows] != codes[rows[0]]
    if differs.any():
      row = rows[table_columns.first_row(differs)]
      table_columns.refuse(
        table,
        row,
        name,
        f'differs from another row of client {client_id}, but must be the same'
        ' in all rows of a client.',
      )
    values[client_id] = int(codes[rows[0]])
  return values


def hold_out(
  client_settings: ClientSettings,
  table: table_files.Table,
  clients: Mapping[str, np.ndarray],
  seed: int,
) -> Split:
  """Splits the rows of each client, or the clients.

  Args:
    client_settings: The settings.
    table: The table.
    clients: The rows of each client.
    seed: The seed of a random split.

  Returns:
    The split.

  Raises:
    UserError: If the split column is invalid, or there are too few clients.
  """
  if client_settings.hold_out == ALL_CLIENTS:
    return Split(clients, {}, dict(train=(), validation=(), test=list(clients)))
  codes = (
    None
    if client_settings.split_column is None
    else _read_split(client_settings, table)
  )
  if client_settings.hold_out == 'examples':
    parts: dict[str, Mapping[str, np.ndarray]] = {}
    for client_id, rows in clients.items():
      if codes is None:
        parts[client_id] = silos.hold_out(
          rows,
          client_settings.validation_fraction,
          client_settings.test_fraction,
          seed,
        )
      else:
        of_rows = codes[rows]
        parts[client_id] = {
          part: rows[of_rows == k] for k, part in enumerate(silos.PARTS)
        }
    return Split(clients, parts, {})

  if len(clients) < len(silos.PARTS):
    raise errors.UserError(
      f'{table.path} has {words.count(len(clients), "clients")}, too few to'
      ' hold out clients. Set task.hold_out=examples.'
    )
  if codes is not None:
    of_clients = read_of_clients(
      table, str(client_settings.split_column), codes, clients
    )
    held_out = {
      part: [name for name, place in of_clients.items() if place == k]
      for k, part in enumerate(silos.PARTS)
    }
  else:
    random = devices.HeldOutSettings(split_seed=seed)
    validation, test, train = random.split(
      random.permuted(list(clients)),
      client_settings.validation_fraction,
      client_settings.test_fraction,
    )
    held_out = dict(train=train, validation=validation, test=test)
  for part, client_ids in held_out.items():
    if not client_ids:
      raise errors.UserError(
        f'Of the {len(clients)} clients of {table.path} none is left for'
        f' {part}. Set smaller shares, or task.hold_out=examples.'
      )
  return Split(clients, {}, held_out)


def make_populations(
  split: Split,
  take: Callable[[np.ndarray, np.ndarray], populations.Examples],
  seed: int,
) -> populations.Populations:
  """Makes the populations of a table.

  Args:
    split: The clients' rows in each part.
    take: Returns the examples of a client's rows, given these and the rows that
      it trains on. It may be called from any thread.
    seed: The seed of the order in which held-out clients' examples are halved.

  Returns:
    The populations.
  """
  if split.parts:
    parts = split.parts
    return silos.make_lazy_populations(
      tuple(parts),
      lambda client_id, part: take(
        parts[client_id][part], parts[client_id]['train']
      ),
      silos.sizes_of_parts(parts),
    )

  def load(client_id: str, limit: int | None) -> populations.Examples:
    rows = split.clients[client_id][:limit]
    return take(rows, rows)

  def make_devices(client_ids: Sequence[str]) -> devices.Devices:
    sizes = [len(split.clients[client_id]) for client_id in client_ids]
    return devices.Devices(tuple(client_ids), load, np.array(sizes, int))

  return devices.make_populations(
    train=make_devices(split.held_out['train']),
    validation=make_devices(split.held_out['validation']),
    test=make_devices(split.held_out['test']),
    shuffle_key=('table', seed),
  )
