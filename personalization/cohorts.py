"""Clients of a population in the form in which computations take them."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from personalization.runtime import values
from tasks import client_data

Data = Mapping[str, Any]


class Cohorts:
  """The clients of a population that have examples, by their row.

  Attributes:
    client_ids: The clients' ids.
    skipped: The ids of the clients that lack examples; they are left out.
    sizes: For each set, each client's number of examples.
  """

  def __init__(self, population: client_data.Population, padded: bool):
    """Looks at all clients.

    Args:
      population: The clients.
      padded: Whether the clients of a cohort are padded to the same shapes, so
        that a runtime can stack them.
    """
    with_examples, self.skipped = client_data.split_by_examples(
      population, population.client_ids
    )
    self.client_ids = tuple(with_examples)
    self._sets = population.sets
    self._padded = padded
    self.sizes = {
      name: np.array(
        [client_data.num_examples(load(c)) for c in self.client_ids]
      )
      for name, load in population.sets.items()
    }
    self.pad_to = {
      name: int(sizes.max(initial=0)) for name, sizes in self.sizes.items()
    }
    self._stacked: dict[str, tuple[bytes, Any]] = {}

  def __len__(self) -> int:
    return len(self.client_ids)

  def sample(
    self, name: str, size: int, rng: np.random.Generator
  ) -> client_data.Examples:
    """Draws from the examples of all clients, or takes all if they are few."""
    last = np.cumsum(self.sizes[name])
    drawn = rng.choice(last[-1], min(size, last[-1]), replace=False)
    clients, counts = np.unique(
      np.searchsorted(last, np.sort(drawn), side='right'), return_counts=True
    )
    parts = []
    for row, own in zip(clients, np.split(np.sort(drawn), np.cumsum(counts))):
      examples = self._sets[name](self.client_ids[row])
      own = own - (last[row] - self.sizes[name][row])
      parts.append({feature: array[own] for feature, array in examples.items()})
    return {
      feature: np.concatenate([part[feature] for part in parts])
      for feature in parts[0]
    }

  def share(self, name: str, examples: client_data.Examples) -> None:
    """Gives all clients one more set, the same for all."""
    size = client_data.num_examples(examples)
    self._sets = {**self._sets, name: lambda _: examples}
    self.sizes[name] = np.full(len(self), size)
    self.pad_to[name] = size

  def _examples(self, name: str, rows: np.ndarray) -> Mapping[str, tf.Tensor]:
    """The examples of clients, stacked; those of the last call are kept."""
    key = rows.tobytes()
    if name not in self._stacked or self._stacked[name][0] != key:
      load = self._sets[name]
      examples = client_data.stack_examples(
        [load(self.client_ids[row]) for row in rows], self.pad_to[name]
      )
      # As tensors they are not copied again in the next round.
      self._stacked[name] = (
        key,
        {feature: tf.constant(array) for feature, array in examples.items()},
      )
    return self._stacked[name][1]

  def data(
    self,
    name: str,
    rows: np.ndarray,
    batch_size: int,
    *,
    rng: np.random.Generator | None = None,
    drop_partial: bool = False,
    epochs: int = 1,
    start: float = 0.0,
    stop: float = 1.0,
  ) -> Data | list[Data]:
    """A set of the clients in `rows`: stacked if padded, else one by one.

    Args:
      name: The set.
      rows: The clients.
      batch_size: The number of examples in a batch.
      rng: Shuffles each client's examples; None keeps their order.
      drop_partial: Whether to leave out a last batch that is not full.
      epochs: How often each example comes.
      start: Where a client's examples start, as a fraction of their number.
      stop: Where they stop. What comes before a fraction is rounded up, and
        what starts there is the rest.

    Returns:
      The clients' data.
    """
    sizes = self.sizes[name][rows]
    first, last = _rows_before(start, sizes), _rows_before(stop, sizes)
    batches = [
      client_data.index_batches(
        last - first,
        batch_size,
        rng=rng,
        drop_partial=drop_partial,
        pad_to=self.pad_to[name],
      )
      for _ in range(epochs)
    ]
    indices, weights = (
      batches[0]
      if epochs == 1
      else (np.concatenate(part, axis=1) for part in zip(*batches))
    )
    if start:
      # Padding stays at zero, as there may be no example at `first`.
      indices = np.where(weights > 0, indices + first[:, None, None], 0)
    if self._padded:
      examples = self._examples(name, rows)
      return _data(examples, indices, weights)
    load = self._sets[name]
    clients = []
    for row, own_indices, own_weights in zip(rows, indices, weights):
      steps = np.any(own_weights, axis=1)
      clients.append(
        _data(
          load(self.client_ids[row]), own_indices[steps], own_weights[steps]
        )
      )
    return clients


def _rows_before(fraction: float, sizes: np.ndarray) -> np.ndarray:
  """How many examples the first part of sets of such sizes has."""
  # Rounded twice, as .55 * 100 is a bit more than 55.
  return np.ceil(np.round(fraction * sizes, 6)).astype(np.int32)


def _data(
  examples: Mapping[str, Any], indices: np.ndarray, weights: np.ndarray
) -> Data:
  return collections.OrderedDict(
    examples=collections.OrderedDict(examples),
    indices=indices,
    weights=weights,
  )


def stack(values_of_clients: Sequence[Any]) -> Any:
  """Clients' values of the same shapes, stacked."""
  if isinstance(values_of_clients, values.StackedClients):
    return values_of_clients.stacked
  return tree.map_structure(
    lambda *leaves: np.stack(leaves), *values_of_clients
  )


def clients(size: int, **parts: Any) -> Sequence[Any]:
  """The values of a cohort's clients, from what each part of them is.

  Args:
    size: The number of clients.
    **parts: The parts by name: stacked (a structure of arrays), or a list.

  Returns:
    The clients, stacked if all parts are.
  """
  if not any(isinstance(part, list) for part in parts.values()):
    return values.StackedClients(collections.OrderedDict(parts), size)
  rows = {
    name: part if isinstance(part, list) else values.StackedClients(part, size)
    for name, part in parts.items()
  }
  return [
    collections.OrderedDict((name, part[k]) for name, part in rows.items())
    for k in range(size)
  ]


def seeds(rng: np.random.Generator, size: int) -> np.ndarray:
  """A seed for each client of a cohort."""
  return rng.integers(2**31, size=(size, 2), dtype=np.int32)
