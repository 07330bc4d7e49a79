"""Cross-silo tasks: each client's examples are split.

`devices` is its counterpart for cross-device tasks.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib

import numpy as np
import scipy.io
from sklearn import model_selection

from base import errors
from base import settings
from tasks.data import populations

_HELD_OUT = 0.15

# A client's examples for 'train', for 'validation' and for 'test'.
Split = Mapping[str, populations.Examples]


@dataclasses.dataclass(frozen=True)
class SplitSettings(settings.Settings):
  """The settings of a task that splits each client's examples at random."""

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
    source: Where the user finds a file that is not damaged, for the error.

  Returns:
    The features and the labels of each client.

  Raises:
    UserError: If the file does not have this form.
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
  except Exception as error:  # SciPy raises a dozen kinds of errors.
    raise errors.UserError(
      f"{path} cannot be read as clients' data ({error}). Replace it with"
      f' {source}'
    ) from error
  return clients


def split(features: np.ndarray, labels: np.ndarray, seed: int) -> Split:
  """Splits a client's examples, 70/15/15, and standardizes the features.

  Means and deviations are those of the examples to train on.

  Args:
    features: The features, `[n, features]`.
    labels: The labels, `[n]`.
    seed: The seed of the split.

  Returns:
    The three parts.
  """
  rest, test = model_selection.train_test_split(
    np.arange(len(labels)), test_size=_HELD_OUT, random_state=seed
  )
  train, validation = model_selection.train_test_split(
    rest, test_size=_HELD_OUT / (1 - _HELD_OUT), random_state=seed
  )
  # In float64, in which the deviation of a constant column is zero exactly.
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
  """Gives each client an id, made of their common name and its number."""
  return {f'{name}_{i:03d}': client for i, client in enumerate(clients)}


def make_populations(clients: Mapping[str, Split]) -> populations.Populations:
  """Makes the populations of a cross-silo task.

  Args:
    clients: Each client's split examples.

  Returns:
    The populations, all of these clients.
  """
  return make_lazy_populations(
    tuple(clients), lambda client_id, part: clients[client_id][part]
  )


def make_lazy_populations(
  client_ids: Sequence[str],
  load: Callable[[str, str], populations.Examples],
  sizes: Mapping[str, np.ndarray] | None = None,
) -> populations.Populations:
  """Makes the populations of a cross-silo task whose clients are loaded later.

  Args:
    client_ids: The clients.
    load: From a client and a part, 'train', 'validation' or 'test', to the
      examples. It may be called from any thread.
    sizes: For each part, each client's number of examples. If it is None, all
      clients are loaded before the first round to count them.

  Returns:
    The populations, all of these clients.
  """

  def population(**sets: str) -> populations.Population:
    """Makes a population from the part of the examples that is each set."""

    def loader(part: str) -> populations.Load:
      return lambda client_id: load(client_id, part)

    return populations.Population(
      client_ids,
      {name: loader(part) for name, part in sets.items()},
      sizes and {name: sizes[part] for name, part in sets.items()},
    )

  return populations.Populations(
    train=population(train='train'),
    validation=population(personalization='train', evaluation='validation'),
    test=population(personalization='train', evaluation='test'),
    cross_silo=True,
  )
