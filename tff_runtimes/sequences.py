"""Data sets of clients as arrays, which a program of XLA can read.

A data set is read once, and its elements are sorted by the shapes of their
tensors: XLA knows the shape of each tensor. For instance, the batches of a
client are of two kinds, full ones and the last one.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import NamedTuple, TypeAlias
import weakref

import numpy as np
import tensorflow as tf

from tff_runtimes import aliases
from tff_runtimes import operations

# With more kinds of elements, XLA takes long to compile a program, as it has
# the work on an element once for each kind.
MAX_KINDS = 4

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class CannotReadError(Exception):
  """Data sets cannot be read into arrays; the message says why."""


class Elements(NamedTuple):
  """The elements of a data set, or, stacked, of those of several clients.

  Attributes:
    size: The number of elements.
    order: For each element its kind, and its place among those of this kind.
      There may be more rows than elements.
    kinds: For each kind, the leaves of its elements, stacked.
  """

  size: aliases.Leaf
  order: aliases.Leaf
  kinds: list[aliases.Leaves]

  def use(
    self,
    i: tf.Tensor,
    step: Callable[[aliases.Leaves], aliases.Structure],
  ) -> aliases.Structure:
    """Calls a function, in a graph that is being built, with an element.

    Args:
      i: The place of the element.
      step: The function. It is called for each kind of elements.

    Returns:
      What it returns.
    """
    kind, place = tf.unstack(tf.gather(self.order, i))

    def branch(leaves: aliases.Leaves) -> Callable[[], aliases.Structure]:
      return lambda: step([tf.gather(leaf, place) for leaf in leaves])

    branches = list(map(branch, self.kinds))
    return (
      branches[0]() if len(branches) == 1 else tf.switch_case(kind, branches)
    )


@dataclasses.dataclass(frozen=True)
class Read:
  """What was read from a data set.

  Attributes:
    rows: The leaves of the elements of each kind. A kind is named by the shapes
      of its leaves.
    order: For each element its kind, and its place among those of this kind.
    num_bytes: The size of all leaves.
  """

  rows: dict[_Shapes, list[list[np.ndarray]]]
  order: list[tuple[_Shapes, int]]
  num_bytes: int


# What was read from data sets that are the same each time, while they live; of
# so many at most.
_MAX_KNOWN = 2**12
_MAX_KNOWN_BYTES = 2**28
_known: weakref.WeakKeyDictionary[tf.data.Dataset, Read] = (
  weakref.WeakKeyDictionary()
)


def _read(data_set: tf.data.Dataset, max_bytes: int) -> Read:
  """Reads a data set.

  Args:
    data_set: The data set.
    max_bytes: How large it may be.

  Returns:
    Its elements.

  Raises:
    CannotReadError: If it is larger, or if to read it has other effects, as it
      may have to be read again where the clients cannot be stacked.
  """
  if data_set in _known:
    return _known[data_set]
  # A copy, so that random numbers start again at each call, as in TFF.
  graph = tf.raw_ops.DatasetToGraphV2(
    input_dataset=tf.data.experimental.to_variant(data_set)
  )
  nodes = list(
    operations.all_nodes(tf.compat.v1.GraphDef.FromString(graph.numpy()))
  )
  effect = operations.find_effect(nodes)
  if effect is not None:
    raise CannotReadError(f'{effect} in a data set may have effects')
  rows: dict[_Shapes, list[list[np.ndarray]]] = {}
  order, num_bytes = [], 0
  copy = tf.data.experimental.from_variant(
    tf.raw_ops.DatasetFromGraph(graph_def=graph), data_set.element_spec
  )
  for element in copy.as_numpy_iterator():
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(element)]
    num_bytes += sum(leaf.nbytes for leaf in leaves)
    if num_bytes > max_bytes:
      raise CannotReadError(f'a data set has more than {max_bytes} bytes')
    shapes = tuple(leaf.shape for leaf in leaves)
    same_kind = rows.setdefault(shapes, [])
    order.append((shapes, len(same_kind)))
    same_kind.append(leaves)
  found = Read(rows, order, num_bytes)
  known_bytes = sum(other.num_bytes for other in list(_known.values()))
  if (
    not operations.may_change(nodes)
    and len(_known) < _MAX_KNOWN
    and known_bytes + num_bytes <= _MAX_KNOWN_BYTES
  ):
    _known[data_set] = found
  return found


def _round_up(size: int) -> int:
  """Rounds a size up to one of a few, for which programs are compiled."""
  step = 2 ** max(0, size.bit_length() - 3)
  return math.ceil(size / step) * step


def stack(data_sets: Sequence[tf.data.Dataset], max_bytes: int) -> Elements:
  """Stacks the elements of the data sets of several clients.

  Args:
    data_sets: The data sets.
    max_bytes: How large each of them may be.

  Returns:
    The elements of all, with the clients as the first axis.

  Raises:
    CannotReadError: If there are none, or of too many kinds, or if a data set
      cannot be read.
  """
  clients = [_read(data_set, max_bytes) for data_set in data_sets]
  specs = tf.nest.flatten(data_sets[0].element_spec)
  kinds = sorted({kind for client in clients for kind in client.rows})
  if not 0 < len(kinds) <= MAX_KINDS:
    raise CannotReadError(
      f'their elements have {len(kinds)} shapes, and not 1 to {MAX_KINDS}'
    )
  numbers = {kind: number for number, kind in enumerate(kinds)}
  longest = _round_up(max(len(client.order) for client in clients))
  order = np.zeros([len(clients), longest, 2], np.int32)
  for k, client in enumerate(clients):
    for i, (kind, place) in enumerate(client.order):
      order[k, i] = numbers[kind], place
  columns = []
  for kind in kinds:
    most = _round_up(max(len(client.rows.get(kind, [])) for client in clients))
    leaves = [
      np.zeros([len(clients), most, *shape], spec.dtype.as_numpy_dtype)
      for shape, spec in zip(kind, specs, strict=True)
    ]
    for k, client in enumerate(clients):
      for place, row in enumerate(client.rows.get(kind, [])):
        for leaf, value in zip(leaves, row):
          leaf[k, place] = value
    columns.append(leaves)
  counts = np.array([len(client.order) for client in clients], np.int32)
  return Elements(counts, order, columns)
