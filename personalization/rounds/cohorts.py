"""The clients of a population, in the form that computations take."""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import TypeAlias, TypeVar

import numpy as np
import tensorflow as tf
import tree

from algorithms import methods
from base import aliases
from base import seeds
from tasks import task
from tasks.data import batches
from tasks.data import populations
from tff_runtimes import values

# Cohorts without the largest clients, which are this part of all, are padded to
# fewer examples if that is this many times fewer. A third size would save
# little, and need another program to compile.
_LARGEST = 0.1
_TIMES_LESS = 4

_Client = TypeVar('_Client', bound=tuple)
# The data of a cohort: stacked, or those of each client.
Data: TypeAlias = batches.ClientData | list[batches.ClientData]


@dataclasses.dataclass(frozen=True)
class Batching:
  """The way in which clients' examples are divided into batches.

  Attributes:
    batch_size: The number of examples in a batch.
    shuffle: The key for `seeds.generator`, which draws a new random order of
      the examples for each epoch. Without a key they keep their order.
    drop_partial: Whether to leave out a last batch that is not full.
    epochs: The number of passes over the examples.
    num_steps: If it is not 0, the number of batches, all of them full, instead
      of `epochs`.
    poisson: Whether each batch is a Poisson sample, see `index_poisson`,
      instead of a part of a pass; there must be a key.
  """

  batch_size: int
  shuffle: tuple[int | str, ...] = ()
  drop_partial: bool = False
  epochs: int = 1
  num_steps: int = 0
  poisson: bool = False


class Cohorts:
  """The clients of a population that have examples, by their row.

  Attributes:
    client_ids: The clients' ids.
    skipped: The ids of the clients that are left out, as they lack examples in
      a set.
    sizes: For each set, each client's number of examples.
    pad_to: For each set, the number of examples to which clients are padded.
    padded: Whether the clients of a cohort are padded to the same shapes.
    order: The rows, in the order in which to take them together.
    pad_most_to: For each set, the number of examples to which cohorts without
      the largest clients are padded; empty if they are padded as the others.
  """

  def __init__(
    self,
    population: populations.Population,
    padded: bool,
    num_kept: int = 1,
    by_size: bool = False,
  ):
    """Counts examples, without loading clients if the population has sizes.

    Args:
      population: The clients.
      padded: Whether the clients of a cohort are padded to the same shapes, so
        that a runtime can stack them.
      num_kept: The number of recent cohorts to cache for each set.
      by_size: Whether to order clients by size if a few are far larger than the
        others, and to pad cohorts without these to fewer examples. Otherwise
        all cohorts have the same shapes.
    """
    sizes = population.count_examples()
    usable = np.all([of_set > 0 for of_set in sizes.values()], axis=0)
    self.client_ids = tuple(itertools.compress(population.client_ids, usable))
    self.skipped = list(itertools.compress(population.client_ids, ~usable))
    self._sets = population.sets
    self.padded = padded
    self.sizes = {name: of_set[usable] for name, of_set in sizes.items()}
    self.pad_to = {
      name: int(of_set.max(initial=0)) for name, of_set in self.sizes.items()
    } | dict(population.pad_to)
    self.order = np.arange(len(self))
    self.pad_most_to: dict[str, int] = {}
    if by_size:
      self._order_by_size()
    most = num_kept * len(population.sets)
    self._stack = functools.lru_cache(most)(self._make_stack)
    self._batch_indices = functools.lru_cache(most)(self._make_batch_indices)

  def __len__(self) -> int:
    return len(self.client_ids)

  def _order_by_size(self) -> None:
    """Orders clients by size, if a few are far larger than the others."""
    order = np.argsort(sum(self.sizes.values()), kind='stable')
    self._are_most = np.ones(len(self), bool)
    self._are_most[order[int((1 - _LARGEST) * len(self)) :]] = False
    pad_most_to = {
      name: int(of_set[self._are_most].max(initial=1))
      for name, of_set in self.sizes.items()
    }
    if any(
      self.pad_to[name] >= _TIMES_LESS * padding
      for name, padding in pad_most_to.items()
    ):
      self.order, self.pad_most_to = order, pad_most_to

  def pad_as(self, others: 'Cohorts') -> None:
    """Pads to at least as many examples as others, to share their programs."""
    for padding, of_others in (
      (self.pad_to, others.pad_to),
      (self.pad_most_to, others.pad_most_to),
    ):
      for name in padding:
        padding[name] = max(padding[name], of_others.get(name, 0))

  def sample(
    self, name: str, size: int, rng: np.random.Generator
  ) -> populations.Examples:
    """Draws `size` examples of all clients, or takes all if they are fewer."""
    sizes = self.sizes[name]
    row = np.repeat(np.arange(len(self)), sizes)
    place = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    drawn = np.sort(rng.choice(len(row), min(size, len(row)), replace=False))
    parts = [
      {
        feature: array[place[drawn[row[drawn] == k]]]
        for feature, array in self._sets[name](self.client_ids[k]).items()
      }
      for k in np.unique(row[drawn])
    ]
    return {
      feature: np.concatenate([part[feature] for part in parts])
      for feature in parts[0]
    }

  def share(self, name: str, examples: populations.Examples) -> None:
    """Adds a set that all clients share."""
    size = populations.num_examples(examples)
    self._sets = {**self._sets, name: lambda _: examples}
    self.sizes[name] = np.full(len(self), size)
    self.pad_to[name] = size
    if self.pad_most_to:
      self.pad_most_to[name] = size

  def example_bytes(self, name: str) -> int:
    """Returns the size of an example in a set."""
    example = self._sets[name](self.client_ids[0])
    return sum(v[0].nbytes for v in example.values())

  def concatenate(self, name: str) -> Mapping[str, tf.Tensor]:
    """Returns the examples of all clients in a set, one after another."""
    parts = [self._sets[name](client_id) for client_id in self.client_ids]
    return {
      feature: tf.constant(np.concatenate([part[feature] for part in parts]))
      for feature in parts[0]
    }

  def attributes(
    self,
    attributes: Mapping[str, task.Attribute | methods.Protections],
    names: Sequence[str],
    rows: np.ndarray,
  ) -> collections.OrderedDict[str, np.ndarray]:
    """Returns attributes of clients, stacked, by name."""
    ids = [self.client_ids[row] for row in rows]
    counted_set = 'train' if 'train' in self.sizes else 'personalization'
    sizes = self.sizes[counted_set][rows]

    def values(name: str) -> np.ndarray:
      if name == task.SIZE:
        return sizes.astype(np.int32)
      known = attributes[name]
      if isinstance(known, task.Attribute):
        return known.gather(ids)
      return known.numbers(sizes)

    return collections.OrderedDict((name, values(name)) for name in names)

  def _padding(self, name: str, rows: np.ndarray) -> int:
    """Returns the number of examples to which a cohort is padded."""
    if self.pad_most_to and self._are_most[rows].all():
      return self.pad_most_to[name]
    return self.pad_to[name]

  def examples(self, name: str, rows: np.ndarray) -> Mapping[str, tf.Tensor]:
    """Returns the examples of clients, stacked and padded."""
    return self._stack(name, tuple(rows), self._padding(name, rows))

  def _make_stack(
    self, name: str, rows: tuple[int, ...], pad_to: int
  ) -> Mapping[str, tf.Tensor]:
    load = self._sets[name]
    examples = batches.stack_examples(
      [load(self.client_ids[row]) for row in rows], pad_to
    )
    # Tensors, which are not copied again in each round; in an OrderedDict, as
    # TFF would sort another mapping by its names.
    return collections.OrderedDict(
      (feature, tf.constant(array)) for feature, array in examples.items()
    )

  def batch_indices(
    self,
    name: str,
    rows: np.ndarray,
    batching: Batching,
    start: float = 0.0,
    stop: float = 1.0,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Makes the batches of clients, as indices and their mask.

    Args:
      name: The set.
      rows: The clients.
      batching: The way in which examples are divided into batches.
      start: The fraction of a client's examples that is left out at the front,
        rounded up to whole examples.
      stop: The fraction after which examples are left out, also rounded up, so
        that `stop=x` and `start=x` divide the examples.

    Returns:
      The indices and their mask, `[clients, steps, batch]`.
    """
    sizes = self.sizes[name][rows]
    first, last = _rows_before(start, sizes), _rows_before(stop, sizes)
    indices, mask = self._batch_indices(
      tuple(last - first), self._padding(name, rows), batching
    )
    if start:
      # Padding stays at zero, as there may be no example at `first`.
      indices = np.where(mask > 0, indices + first[:, None, None], 0)
    return indices, mask

  def _make_batch_indices(
    self, sizes: tuple[int, ...], pad_to: int, batching: Batching
  ) -> tuple[np.ndarray, np.ndarray]:
    batch_size, epochs = batching.batch_size, batching.epochs
    rng = seeds.generator(*batching.shuffle) if batching.shuffle else None
    if batching.num_steps:
      return batches.index_steps(sizes, batch_size, batching.num_steps, rng=rng)
    if batching.poisson:
      if rng is None:
        raise ValueError('Poisson samples need a key to be drawn by.')
      return batches.index_poisson(
        sizes,
        batch_size,
        epochs,
        rng,
        drop_partial=batching.drop_partial,
        pad_to=pad_to,
      )
    repeats = 1
    if batch_size >= pad_to:
      # All examples of a client are one batch, so that their order is nothing.
      rng, epochs, repeats = None, 1, epochs
    passes = [
      batches.index_batches(
        sizes,
        batch_size,
        rng=rng,
        drop_partial=batching.drop_partial,
        pad_to=pad_to,
      )
      for _ in range(epochs)
    ] * repeats
    if len(passes) == 1:
      return passes[0]
    indices, mask = (np.concatenate(part, axis=1) for part in zip(*passes))
    return indices, mask

  def data(
    self,
    name: str,
    rows: np.ndarray,
    batching: Batching,
    start: float = 0.0,
    stop: float = 1.0,
  ) -> Data:
    """Makes the data of clients, stacked if they are padded, or else a list.

    It may be called from any thread, for example to prepare a cohort while
    another one is in training. Its arguments are those of `batch_indices`.
    """
    indices, mask = self.batch_indices(name, rows, batching, start, stop)
    load = self._sets[name]
    if self.padded:
      if indices[0].size >= self._padding(name, rows):
        return _data(self.examples(name, rows), indices, mask)
      used, indices = batches.list_used(indices)
      examples = [
        populations.take(load(self.client_ids[row]), of_client)
        for row, of_client in zip(rows, used)
      ]
      return _data(batches.stack_examples(examples), indices, mask)
    clients = []
    for row, own_indices, own_mask in zip(rows, indices, mask):
      steps, places = (np.any(own_mask, axis=axis) for axis in (1, 0))
      part = np.ix_(steps, places)
      clients.append(
        _data(load(self.client_ids[row]), own_indices[part], own_mask[part])
      )
    return clients


def _rows_before(fraction: float, sizes: np.ndarray) -> np.ndarray:
  """Returns the number of examples in the first part of sets of these sizes."""
  # Rounded first, as 0.55 * 100 is slightly more than 55.
  return np.ceil(np.round(fraction * sizes, 6)).astype(np.int32)


def _data(
  examples: Mapping[str, aliases.Structure],
  indices: np.ndarray,
  mask: np.ndarray,
) -> batches.ClientData:
  return batches.ClientData(
    examples=collections.OrderedDict(examples), indices=indices, mask=mask
  )


def stack(values_of_clients: Sequence[aliases.Structure]) -> aliases.Structure:
  """Stacks clients' values of the same shapes."""
  if isinstance(values_of_clients, values.StackedClients):
    return values_of_clients.stacked
  return tree.map_structure(
    lambda *leaves: np.stack(leaves), *values_of_clients
  )


def clients(
  make: Callable[..., _Client], size: int, **parts: aliases.Structure
) -> Sequence[_Client]:
  """Makes the clients of a cohort from their parts.

  Args:
    make: The class of a client, a named tuple.
    size: The number of clients.
    **parts: The fields of the named tuple, each stacked (a structure of arrays)
      or a list with an element for each client.

  Returns:
    The clients, stacked if all parts are.
  """
  if not any(isinstance(part, list) for part in parts.values()):
    return values.StackedClients(make(**parts), size)
  rows = {
    name: part if isinstance(part, list) else values.StackedClients(part, size)
    for name, part in parts.items()
  }
  return [
    make(**{name: part[k] for name, part in rows.items()}) for k in range(size)
  ]
