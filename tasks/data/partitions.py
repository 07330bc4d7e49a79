"""Partitions: which client has which examples of a labeled data set.

A partition is by a column of the data, such as the writer of an image; or it is
drawn, so that clients differ in their classes:
- power_law, lognormal, classes: each client has `classes_per_client` classes;
  client u has the classes u, u + 1, … modulo their number.
    - power_law is FedProx's partition of MNIST (Li et al. 2020): a client has 5
      examples of each of its classes, and a lognormal(0, 2) share of the rest.
    - lognormal is FedProx's partition of FEMNIST: lognormal(4, 1) + 5 examples
      in all, with the same number of each class, at least 2. (FedProx gives the
      same examples to several clients; here a class with too few examples gives
      less to all of its clients.)
    - classes distributes all examples of a class evenly.
- dirichlet: the clients' shares of each class are drawn from Dirichlet(alpha)
  (Yurochkin et al. 2019).
- pfllib_dirichlet, pfllib_classes: those of PFLlib, example by example, where
  the data are in the order of their files and `partition_seed` is 1, see
  `pfllib_partitions`.

No example belongs to two clients. All randomness follows from `partition_seed`,
so that runs with different seeds have the same clients.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from base import errors
from base import seeds
from base import settings
from base import whole_files
from base import words
from tasks.data import arrays
from tasks.data import files
from tasks.data import pfllib_partitions
from tasks.data import silos

# Each client's examples, as sorted rows of the data.
Partition = Mapping[str, np.ndarray]

FILE = 'file'
PFLLIB = ('pfllib_dirichlet', 'pfllib_classes')
_DRAWN = ('power_law', 'lognormal', 'classes', 'dirichlet', *PFLLIB)
# FedProx's numbers.
_MIN_OF_POWER_LAW = 5
_POWER_LAW_DEVIATION = 2.0
_LOGNORMAL = 4.0, 1.0
_MORE_THAN_LOGNORMAL = 5
_MIN_OF_LOGNORMAL = 2


def field(default: str, *columns: str) -> str:
  """Defines the setting `partition` of a task.

  Args:
    default: The default.
    *columns: The columns of the data by which there can be a partition.

  Returns:
    The field of its settings.
  """
  return settings.field(
    default,
    'Which client has which examples: '
    + ''.join(f'by {column}, or ' for column in columns)
    + "drawn, see tasks/data/partitions; 'file' for those in partition_file.",
    choices=(*columns, *_DRAWN, FILE),
  )


def num_clients_field(default: int) -> int:
  """Defines the setting `num_clients` of a task."""
  return settings.field(
    default, 'The number of clients, if the partition is drawn.', minimum=1
  )


def classes_field(default: int) -> int:
  """Defines the setting `classes_per_client` of a task."""
  return settings.field(
    default,
    'The number of classes of a client, if the partition is by classes.',
    minimum=1,
  )


def seed_field(default: int) -> int:
  """Defines the setting `partition_seed` of a task."""
  return settings.field(
    default,
    'The seed of the partition, if it is drawn; it does not depend on the seed'
    ' of the run.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True)
class PartitionSettings(silos.SplitSettings):
  """The settings of a task whose data are partitioned."""

  partition: str = field('dirichlet')
  num_clients: int = num_clients_field(100)
  classes_per_client: int = classes_field(2)
  alpha: float = settings.field(
    0.5, 'How similar the clients are, if shares are drawn.', minimum=1e-6
  )
  partition_seed: int = seed_field(0)
  partition_file: str | None = settings.field(
    None,
    'A JSON file to save the partition to or, with the partition'
    " 'file', to restore it from; a relative path starts at the data_dir.",
  )


def group_by_column(values: np.ndarray) -> Partition:
  """Makes a client of each value of a column."""
  names, client = np.unique(values, return_inverse=True)
  return group_by_number(client, list(map(str, names)))


def group_by_number(client: np.ndarray, names: Sequence[str]) -> Partition:
  """Makes the clients with these names, given the client number of each row."""
  ends = np.cumsum(np.bincount(client, minlength=len(names)))[:-1]
  return dict(zip(names, np.split(np.argsort(client, kind='stable'), ends)))


def _deal(
  labels: np.ndarray,
  classes: np.ndarray,
  counts: np.ndarray,
  rng: np.random.Generator,
) -> list[np.ndarray]:
  """Distributes the examples of each class, in a random order.

  Args:
    labels: The class of each example.
    classes: The classes of each client, `[clients, k]`.
    counts: The number of examples of each of them, `[clients, k]`.
    rng: Draws the order.

  Returns:
    The rows of each client.
  """
  parts_of_clients: list[list[np.ndarray]] = [[] for _ in classes]
  for label in np.unique(classes):
    rows = rng.permutation(np.flatnonzero(labels == label))
    clients, places = np.nonzero(classes == label)
    ends = np.cumsum(counts[clients, places])
    for client, part in zip(clients, np.split(rows, ends)):
      parts_of_clients[client].append(part)
  return [np.sort(np.concatenate(parts)) for parts in parts_of_clients]


def _shared(total: int, shares: np.ndarray) -> np.ndarray:
  """Divides a number by shares, rounded down."""
  return (total * (shares / shares.sum())).astype(np.int64)


def _draw_classes(
  settings: PartitionSettings, labels: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
  """Draws a partition in which each client has some of the classes."""
  names = np.unique(labels)
  number = settings.num_clients
  shape = number, settings.classes_per_client
  classes = names[sum(np.ogrid[: shape[0], : shape[1]]) % len(names)]
  if settings.partition == 'lognormal':
    sizes = rng.lognormal(*_LOGNORMAL, number) + _MORE_THAN_LOGNORMAL
    each = np.maximum(sizes // settings.classes_per_client, _MIN_OF_LOGNORMAL)
    wanted = np.broadcast_to(each[:, np.newaxis], shape)
  else:
    wanted = rng.lognormal(0, _POWER_LAW_DEVIATION, shape)

  counts = np.zeros(shape, np.int64)
  for label in np.unique(classes):
    holders = classes == label
    available = np.count_nonzero(labels == label)
    asked = wanted[holders]
    if settings.partition == 'power_law':
      rest = available - _MIN_OF_POWER_LAW * len(asked)
      counts[holders] = (
        _MIN_OF_POWER_LAW + _shared(rest, asked) if rest >= 0 else 0
      )
    elif settings.partition == 'lognormal':
      enough = asked.sum() <= available
      counts[holders] = asked if enough else _shared(available, asked)
    else:
      counts[holders] = (available + np.arange(len(asked))) // len(asked)
    if not counts[holders].all():
      raise errors.UserError(
        f'Class {label} has {words.count(available, "examples")}, too few for'
        f' the {words.count(len(asked), "clients")} that'
        f' task.num_clients={number} and'
        f' task.classes_per_client={settings.classes_per_client} give it'
        ' to. Set smaller numbers.'
      )
  return _deal(labels, classes, counts, rng)


def _draw_dirichlet(
  settings: PartitionSettings, labels: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
  """Draws a partition with random shares of each class."""
  names = np.unique(labels)
  counts = np.zeros((settings.num_clients, len(names)), np.int64)
  for k, label in enumerate(names):
    shares = rng.dirichlet(np.full(settings.num_clients, settings.alpha))
    available = np.count_nonzero(labels == label)
    ends = np.round(np.cumsum(shares) * available).astype(np.int64)
    ends[-1] = available
    counts[:, k] = np.diff(ends, prepend=0)
  return _deal(labels, np.broadcast_to(names, counts.shape), counts, rng)


def _draw(settings: PartitionSettings, labels: np.ndarray) -> list[np.ndarray]:
  """Draws the partition that the settings name; returns each client's rows."""
  by_shares = settings.partition.endswith('dirichlet')
  num_classes = len(np.unique(labels))
  if not by_shares and settings.classes_per_client > num_classes:
    raise errors.UserError(
      f'task.classes_per_client is {settings.classes_per_client}, but the data'
      f' have {words.count(num_classes, "classes")}. Set it to at most that.'
    )
  if settings.partition in PFLLIB:
    return pfllib_partitions.draw(labels, **_of_pfllib(settings))
  rng = seeds.generator('partition', settings.partition_seed)
  draw = _draw_dirichlet if by_shares else _draw_classes
  return draw(settings, labels, rng)


def _of_pfllib(settings: PartitionSettings) -> dict[str, Any]:
  """Returns what a partition of PFLlib is drawn with."""
  by_shares = settings.partition == 'pfllib_dirichlet'
  return dict(
    num_clients=settings.num_clients,
    seed=settings.partition_seed,
    alpha=settings.alpha if by_shares else None,
    classes_per_client=settings.classes_per_client,
  )


def draw_tests(
  settings: PartitionSettings, labels: np.ndarray
) -> list[np.ndarray]:
  """Draws the rows that PFLlib's clients are tested on, client by client."""
  return pfllib_partitions.draw_tests(labels, **_of_pfllib(settings))


def _digest(labels: np.ndarray) -> str:
  """Computes a checksum of the data of a partition."""
  return hashlib.sha256(np.asarray(labels, np.int64).tobytes()).hexdigest()


def save(partition: Partition, labels: np.ndarray, path: pathlib.Path) -> None:
  """Saves a partition.

  Args:
    partition: The partition.
    labels: The labels of its data.
    path: The file.

  Raises:
    UserError: If the file cannot be written, or has another partition.
  """
  if path.exists():
    saved = restore(labels, path)
    if saved.keys() == partition.keys() and all(
      np.array_equal(saved[name], partition[name]) for name in saved
    ):
      return
    raise errors.UserError(
      f'{path}, which task.partition_file names, has another partition. Name'
      f' another file, remove it, or restore it with task.partition={FILE}.'
    )
  contents = {
    'labels_sha256': _digest(labels),
    'clients': {name: rows.tolist() for name, rows in partition.items()},
  }
  try:
    with whole_files.writing(path) as temporary:
      temporary.write_text(json.dumps(contents), encoding='utf-8')
  except errors.UserError as error:
    raise errors.UserError(f'task.partition_file: {error}') from error


def restore(labels: np.ndarray, path: pathlib.Path) -> Partition:
  """Restores a partition that was saved.

  Args:
    labels: The labels of the data.
    path: The file.

  Returns:
    The partition.

  Raises:
    UserError: If there is no partition of these data in the file.
  """
  if not path.exists():
    raise errors.UserError(
      f'There is no file {path}, which task.partition_file names. A relative'
      ' path starts at the data_dir.'
    )
  where = f'{path}, which task.partition_file names,'
  advice = 'Remove it, and make it again with another task.partition.'
  with files.reading(where, 'a partition', advice):
    contents = json.loads(path.read_text(encoding='utf-8'))
    digest = contents['labels_sha256']
    partition = {
      name: arrays.convert(rows, np.int64, name)
      for name, rows in contents['clients'].items()
    }
    rows = np.concatenate([np.zeros(0, np.int64), *partition.values()])
    if len(np.unique(rows)) < len(rows):
      raise ValueError('an example is at two clients')
    if rows.min(initial=0) < 0:
      raise ValueError('a row is negative')
  if digest != _digest(labels) or rows.max(initial=-1) >= len(labels):
    raise errors.UserError(
      f'{where} is a partition of other data. Name another file.'
    )
  return partition


def make(
  partition_settings: PartitionSettings,
  labels: np.ndarray,
  data_dir: str | None,
  columns: Mapping[str, np.ndarray] | None = None,
) -> Partition:
  """Makes or restores the partition that the settings ask for.

  Args:
    partition_settings: The settings.
    labels: The class of each example.
    data_dir: The folder of the user's data.
    columns: The columns that the settings may name.

  Returns:
    The partition.

  Raises:
    UserError: If there are too few data, or the file is wrong.
  """
  path = None
  if partition_settings.partition_file is not None:
    path = pathlib.Path(
      data_dir or '',
      pathlib.Path(partition_settings.partition_file).expanduser(),
    )
  if partition_settings.partition == FILE:
    if path is None:
      raise settings.SettingError(
        f'partition is {FILE}, but there is no task.partition_file.',
        'partition_file',
      )
    return restore(labels, path)
  if columns and partition_settings.partition in columns:
    partition = group_by_column(columns[partition_settings.partition])
  else:
    clients = _draw(partition_settings, labels)
    width = len(str(len(clients) - 1))
    partition = {
      f'client_{k:0{width}d}': rows for k, rows in enumerate(clients)
    }
  if path is not None:
    save(partition, labels, path)
  return partition
