"""The partitions of PFLlib (Zhang et al. 2025), example by example.

Its tables, and those of the papers that use it, are of these clients. They are
drawn by NumPy's old generator, from the data in the order of its files, those
for training first.

  by shares    the shares of the clients in each class are drawn from
               Dirichlet(alpha), one class after another; a client that has its
               equal share of all examples already gets no more
  by classes   each client has some of the classes; of how many examples is
               drawn, and the last client of a class has the rest

The shares are drawn again until each client has enough examples. Then a quarter
of the examples of each client is drawn for tests.
"""

import math

import numpy as np

from base import errors

_TRAIN = 0.75
# A batch of 10 is in the quarter of a client's examples that is for tests.
_ENOUGH = 40
# PFLlib would draw for ever.
_MOST_ATTEMPTS = 1000


def draw(
  labels: np.ndarray,
  num_clients: int,
  seed: int,
  *,
  alpha: float | None = None,
  classes_per_client: int = 2,
) -> list[np.ndarray]:
  """Draws a partition.

  Args:
    labels: The class of each example.
    num_clients: The number of clients.
    seed: The seed, which is 1 in PFLlib.
    alpha: How similar the shares of clients are; None for a partition by
      classes.
    classes_per_client: The number of classes of a client, otherwise.

  Returns:
    The rows of each client.

  Raises:
    UserError: If there are too few examples for so many clients.
  """
  random = np.random.RandomState(seed)
  return _draw(labels, num_clients, random, alpha, classes_per_client)


def draw_tests(
  labels: np.ndarray,
  num_clients: int,
  seed: int,
  *,
  alpha: float | None = None,
  classes_per_client: int = 2,
) -> list[np.ndarray]:
  """Draws a partition, see `draw`, and returns the rows of each client's test.

  They are the quarter of a client's rows on which PFLlib evaluates.
  """
  random = np.random.RandomState(seed)
  tests = []
  for rows in _draw(labels, num_clients, random, alpha, classes_per_client):
    # As in scikit-learn's train_test_split, with a train_size.
    order = random.permutation(len(rows))
    tests.append(rows[order[: len(rows) - int(_TRAIN * len(rows))]])
  return tests


def _draw(
  labels: np.ndarray,
  num_clients: int,
  random: np.random.RandomState,
  alpha: float | None,
  classes_per_client: int,
) -> list[np.ndarray]:
  enough = int(min(_ENOUGH, len(labels) / num_clients / 2))
  if alpha is None:
    return _draw_classes(
      labels, num_clients, classes_per_client, enough, random
    )
  for _ in range(_MOST_ATTEMPTS):
    rows = _draw_shares(labels, num_clients, alpha, random)
    if min(map(len, rows)) >= enough:
      return rows
  raise errors.UserError(
    f'task.alpha={alpha:g} gives some of {num_clients} clients fewer than'
    f' {enough} of the {len(labels)} examples, however often it is drawn. Set a'
    ' larger alpha, or a smaller num_clients.'
  )


def _draw_shares(
  labels: np.ndarray,
  num_clients: int,
  alpha: float,
  random: np.random.RandomState,
) -> list[np.ndarray]:
  rows = [np.zeros(0, np.int64)] * num_clients
  for label in np.unique(labels):
    of_class = np.flatnonzero(labels == label)
    random.shuffle(of_class)
    shares = random.dirichlet(np.full(num_clients, alpha))
    shares *= [len(own) < len(labels) / num_clients for own in rows]
    shares /= shares.sum()
    ends = (np.cumsum(shares) * len(of_class)).astype(int)[:-1]
    rows = [
      np.concatenate([own, more])
      for own, more in zip(rows, np.split(of_class, ends))
    ]
  return rows


def _draw_classes(
  labels: np.ndarray,
  num_clients: int,
  classes_per_client: int,
  enough: int,
  random: np.random.RandomState,
) -> list[np.ndarray]:
  classes = np.unique(labels)
  per_class = math.ceil(num_clients / len(classes) * classes_per_client)
  rows = [np.zeros(0, np.int64)] * num_clients
  left = np.full(num_clients, classes_per_client)
  for label in classes:
    of_class = np.flatnonzero(labels == label)
    clients = np.flatnonzero(left > 0)[:per_class]
    equal_share = len(of_class) / max(len(clients), 1)
    least = int(max(equal_share / 10, enough / len(classes)))
    if not len(clients) or least >= int(equal_share):
      raise errors.UserError(
        f'Class {label} has {len(of_class)} examples, which pfllib_classes'
        f' cannot divide among the {len(clients)} clients that are left for it.'
        ' Set another task.num_clients or task.classes_per_client.'
      )
    ends = np.cumsum(random.randint(least, int(equal_share), len(clients) - 1))
    for client, more in zip(clients, np.split(of_class, ends)):
      rows[client] = np.concatenate([rows[client], more])
    left[clients] -= 1
  return rows
