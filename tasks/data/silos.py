"""Cross-silo tasks: each client's examples are split.

`devices` is its counterpart for cross-device tasks.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import pathlib

import numpy as np
import scipy.io

from base import seeds
from base import settings
from tasks.data import arrays
from tasks.data import files
from tasks.data import populations

_HELD_OUT = 0.15
PARTS = 'train', 'validation', 'test'

# A client's examples for 'train', for 'validation' and for 'test'.
Split = Mapping[str, populations.Examples]


@dataclasses.dataclass(frozen=True)
class SplitSettings(settings.Settings):
  """The settings of a task that splits each client's examples at random."""

  split_seed: int | None = settings.field(
    None,
    'The seed of the split into train, validation and test; none for the seed'
    ' of the run, as in Motley, whose repeats also differ in the split.',
    minimum=0,
    maximum=2**32 - 1,
  )

  def seed(self, seed_of_run: int) -> int:
    """Returns the seed of the split."""
    return seed_of_run if self.split_seed is None else self.split_seed


def read_mat(
  path: pathlib.Path, num_features: int, source: str
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Reads the clients of a MATLAB file with a client in each cell of X and Y.

  Args:
    path: The file.
    num_features: The number of features.
    source: The source of an undamaged file, for the error.

  Returns:
    The features and the labels of each client.

  Raises:
    UserError: If the file does not have this form.
  """
  clients = []
  with files.reading(path, "clients' data", f'Replace it with {source}'):
    contents = scipy.io.loadmat(path)
    cells = zip(contents['X'].ravel(), contents['Y'].ravel(), strict=True)
    for number, (x, y) in enumerate(cells):
      features = arrays.convert(x, np.float32, f'X of client {number}')
      labels = arrays.convert(y, np.float32, f'Y of client {number}').ravel()
      if features.shape != (len(labels), num_features):
        raise ValueError(
          f'client {number} has {len(labels)} labels and features of shape'
          f' {features.shape}'
        )
      clients.append((features, labels))
    if not clients:
      raise ValueError('it has no clients')
  return clients


def split(
  features: np.ndarray,
  labels: np.ndarray,
  seed: int,
  only_test: float | None = None,
) -> Split:
  """Splits a client's examples and standardizes the features.

  Means and deviations are computed on the examples to train on.

  Args:
    features: The features, `[n, features]`.
    labels: The labels, `[n]`.
    seed: The seed of the split.
    only_test: The share of the test examples, if these are also the validation
      examples; None for a split of 70/15/15.

  Returns:
    The three parts.
  """
  if not len(labels):
    return {part: {'x': features, 'y': labels} for part in PARTS}
  if only_test is None:
    parts = hold_out(np.arange(len(labels)), _HELD_OUT, _HELD_OUT, seed)
  else:
    parts = hold_out(np.arange(len(labels)), 0, only_test, seed)
    parts['validation'] = parts['test']
  x = standardize(features, features[parts['train']])
  return {
    name: {'x': x[rows], 'y': labels[rows]} for name, rows in parts.items()
  }


def hold_out(
  rows: np.ndarray, validation: float, test: float, seed: int
) -> dict[str, np.ndarray]:
  """Splits a client's examples as Motley does.

  The held-out parts are rounded up, but at least one example is to train on: of
  two examples, one is for the test.

  Args:
    rows: The examples.
    validation: The share of the validation examples.
    test: The share of the test examples.
    seed: The seed of the split.

  Returns:
    The rows for 'train', for 'validation' and for 'test'.
  """

  def split(rows: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    # As in scikit-learn's train_test_split, which Motley uses, though
    # .15 / .85 * 85 is a little more than 15.
    size = min(math.ceil(share * len(rows)), len(rows) - 1)
    if size < 1:
      return rows, rows[:0]
    order = np.random.RandomState(seed).permutation(len(rows))
    return rows[order[size:]], rows[order[:size]]

  rest, own_test = split(rows, test)
  train, own_validation = split(rest, validation / (1 - test))
  return dict(train=train, validation=own_validation, test=own_test)


def standardize(features: np.ndarray, like: np.ndarray) -> np.ndarray:
  """Standardizes features by the means and deviations of others.

  Args:
    features: The features, `[n, features]`.
    like: The features whose means and deviations are used, `[m, features]`.

  Returns:
    The standardized features; those that are constant in `like` are zero.
  """
  # In float64, where the deviation of a constant column is exactly zero.
  mean = like.mean(axis=0, dtype=np.float64)
  deviation = like.std(axis=0, dtype=np.float64)
  return np.divide(
    features - mean,
    deviation,
    out=np.zeros(features.shape),
    where=deviation > 0,
  ).astype(np.float32)


def numbered(name: str, clients: Sequence[Split]) -> dict[str, Split]:
  """Gives each client an id, made from a common name and its number."""
  return {f'{name}_{i:03d}': client for i, client in enumerate(clients)}


def split_rows(
  rows: np.ndarray, rng: np.random.Generator
) -> Mapping[str, np.ndarray]:
  """Splits a client's examples as FedProx does, with a validation part.

  A tenth, rounded up, is for the test as in FedProx, and another tenth for
  validation. Of two examples, one is for the test.

  Args:
    rows: The examples.
    rng: Draws the parts.

  Returns:
    The rows for 'train', for 'validation' and for 'test'.
  """
  order = rng.permutation(rows)
  held_out = -(-len(order) // 10)
  test = min(held_out, max(len(order) - 1, 0))
  validation = min(held_out, max(len(order) - 1 - test, 0))
  return dict(
    test=order[:test],
    validation=order[test : test + validation],
    train=order[test + validation :],
  )


def make_populations_of_rows(
  clients: Mapping[str, np.ndarray],
  take: Callable[[np.ndarray], populations.Examples],
  seed: int,
  strata: np.ndarray | None = None,
) -> populations.Populations:
  """Makes the populations of a cross-silo task whose clients have rows.

  Args:
    clients: The rows of the data that each client has.
    take: Returns the examples of some rows. It may be called from any thread.
    seed: The seed of the split of each client's examples, see `split_rows`.
    strata: The label of each row, if the rows of each label are to be split
      separately.

  Returns:
    The populations, each with all clients.
  """
  splits = {}
  for client_id, rows in clients.items():
    rng = seeds.generator('split', seed, client_id)
    strata_of_client = [rows]
    if strata is not None and len(rows):
      labels = strata[rows]
      strata_of_client = [rows[labels == label] for label in np.unique(labels)]
    by_stratum = [split_rows(stratum, rng) for stratum in strata_of_client]
    splits[client_id] = {
      part: np.concatenate([split[part] for split in by_stratum])
      for part in PARTS
    }
  return make_populations_of_splits(splits, take)


def make_populations_of_splits(
  splits: Mapping[str, Mapping[str, np.ndarray]],
  take: Callable[[np.ndarray], populations.Examples],
) -> populations.Populations:
  """Makes the populations of a cross-silo task whose clients' rows are split.

  Args:
    splits: The rows of each part of each client.
    take: As in `make_populations_of_rows`.

  Returns:
    The populations, each with all clients.
  """
  return make_lazy_populations(
    tuple(splits),
    lambda client_id, part: take(splits[client_id][part]),
    sizes_of_parts(splits),
  )


def sizes_of_parts(
  splits: Mapping[str, Mapping[str, np.ndarray]],
) -> Mapping[str, np.ndarray]:
  """Counts the rows of each client in each part."""
  return {
    part: np.array([len(split[part]) for split in splits.values()], np.int64)
    for part in PARTS
  }


def make_populations(clients: Mapping[str, Split]) -> populations.Populations:
  """Makes the populations of a cross-silo task.

  Args:
    clients: Each client's split examples.

  Returns:
    The populations, each with all clients.
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
    load: Returns the examples of a client and a part: 'train', 'validation' or
      'test'. It may be called from any thread.
    sizes: For each part, each client's number of examples. If it is None, all
      clients are loaded before the first round to count them.

  Returns:
    The populations, each with all clients.
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
