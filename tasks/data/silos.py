"""What Motley's cross-silo tasks share: clients whose examples are split."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np
import scipy.io
from sklearn import model_selection

from base import errors
from base import settings
from tasks import task
from tasks.data import client_data

_HELD_OUT = 0.15

# The examples of a client that are for 'train', 'validation' and 'test'.
Split = Mapping[str, client_data.Examples]


@dataclasses.dataclass(frozen=True)
class Parameters(settings.Settings):
  """The settings of a task whose examples are split at random."""

  split_seed: int | None = settings.field(
    None,
    'The seed of the split into train, validation and test; none for the'
    ' seed of the run, as in Motley, whose repeats differ in the split too.',
    minimum=0,
    maximum=2**32 - 1,
  )

  def seed(self, seed_of_run: int) -> int:
    """The seed of the split."""
    return seed_of_run if self.split_seed is None else self.split_seed


def read_mat(
  path: pathlib.Path, num_features: int, source: str
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Reads the clients of a MATLAB file that has one in each cell of X and Y.

  Args:
    path: The file.
    num_features: The number of features.
    source: Where the user finds a file that is not damaged.

  Returns:
    The features and the labels of each client.

  Raises:
    UserError: If the file is not like that.
  """
  try:
    contents = scipy.io.loadmat(path)
    clients = [
      (features.astype(np.float32), labels.astype(np.float32).ravel())
      for features, labels in zip(
        contents['X'].ravel(), contents['Y'].ravel(), strict=True
      )
    ]
    for features, labels in clients:
      if features.shape != (len(labels), num_features):
        raise ValueError(f'a client has features of shape {features.shape}')
  except Exception as error:  # SciPy raises a dozen kinds for a damaged file.
    raise errors.UserError(
      f"{path} cannot be read as clients' data ({error}). Replace it with"
      f' {source}'
    ) from error
  return clients


def split(features: np.ndarray, labels: np.ndarray, seed: int) -> Split:
  """Splits a client's examples, 70/15/15, and standardizes the features."""
  rest, test = model_selection.train_test_split(
    np.arange(len(labels)), test_size=_HELD_OUT, random_state=seed
  )
  train, validation = model_selection.train_test_split(
    rest, test_size=_HELD_OUT / (1 - _HELD_OUT), random_state=seed
  )
  # In float64, where a constant column has no rounding error for a deviation.
  mean = features[train].mean(axis=0, dtype=np.float64)
  deviation = features[train].std(axis=0, dtype=np.float64)
  x = np.divide(
    features - mean,
    deviation,
    out=np.zeros(features.shape),
    where=deviation > 0,
  ).astype(np.float32)
  return {
    name: {'x': x[rows], 'y': labels[rows]}
    for name, rows in (
      ('train', train),
      ('validation', validation),
      ('test', test),
    )
  }


def numbered(name: str, clients: Sequence[Split]) -> dict[str, Split]:
  """The clients by an id each, from their common name and their number."""
  return {f'{name}_{i:03d}': client for i, client in enumerate(clients)}


def make_task(clients: Mapping[str, Split], **attributes: Any) -> task.Task:
  """The task of these clients; `attributes` are what else a task has."""

  def population(**sets: str) -> client_data.Population:
    """The clients, with each set being the given part of their examples."""

    def loader(part: str) -> client_data.Load:
      return lambda client_id: clients[client_id][part]

    return client_data.Population(
      tuple(clients), {name: loader(part) for name, part in sets.items()}
    )

  return task.Task(
    train=population(train='train'),
    validation=population(personalization='train', evaluation='validation'),
    test=population(personalization='train', evaluation='test'),
    cross_silo=True,
    **attributes,
  )
