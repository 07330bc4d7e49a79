"""Data sets of clients as arrays, which a program of XLA can read.

A data set is read once, and its elements are sorted by the shapes of their
tensors: XLA knows the shape of each tensor. For instance, the batches of a
client are of two kinds, full ones and the last one.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import math
from typing import NamedTuple, TypeAlias
import weakref

import numpy as np
import tensorflow as tf

from tff_runtimes import aliases
from tff_runtimes import operations

# Full batches, and a last one. With more kinds of elements, XLA takes long to
# compile a program, which has the work on an element once for each kind; and
# where there are many, there will be more in the next cohort.
MAX_KINDS = 2

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
  """The elements of a data set, as they were read from it.

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


@functools.cache
def _plain_options() -> bytes:
  """Returns the options of a data set that is read as it is.

  By default TensorFlow optimizes a data set before it reads it, which takes
  much longer than to read the few elements of a client.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False
  any_data = tf.data.Dataset.range(1).with_options(options)
  graph = tf.raw_ops.DatasetToGraphV2(
    input_dataset=tf.data.experimental.to_variant(any_data)
  )
  nodes = tf.compat.v1.GraphDef.FromString(graph.numpy()).node
  (found,) = (node for node in nodes if node.op == 'OptionsDataset')
  return bytes(found.attr['serialized_options'].s)


def _elements(
  variant: tf.Tensor, spec: aliases.Structure
) -> Iterator[list[np.ndarray]]:
  """Yields the leaves of the elements of a data set."""
  leaves = tf.nest.flatten(spec)
  # Much faster than a `tf.data.Dataset`.
  output = dict(
    output_types=[leaf.dtype for leaf in leaves],
    output_shapes=[leaf.shape for leaf in leaves],
  )
  plain = tf.raw_ops.OptionsDataset(
    input_dataset=variant, serialized_options=_plain_options(), **output
  )
  iterator = tf.raw_ops.AnonymousIteratorV3(**output)
  tf.raw_ops.MakeIterator(dataset=plain, iterator=iterator)
  while True:
    try:
      element = tf.raw_ops.IteratorGetNext(iterator=iterator, **output)
    except tf.errors.OutOfRangeError:
      return
    yield [np.asarray(leaf.numpy()) for leaf in element]


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
  variant = tf.data.experimental.to_variant(data_set)
  graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant)
  nodes = list(
    operations.all_nodes(tf.compat.v1.GraphDef.FromString(graph.numpy()))
  )
  effect = operations.find_effect(nodes)
  if effect is not None:
    raise CannotReadError(f'{effect} in a data set may have effects')
  if operations.may_change(nodes):
    # A copy, so that random numbers start again at each call, as in TFF.
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
  rows: dict[_Shapes, list[list[np.ndarray]]] = {}
  order, num_bytes = [], 0
  try:
    for leaves in _elements(variant, data_set.element_spec):
      num_bytes += sum(leaf.nbytes for leaf in leaves)
      if num_bytes > max_bytes:
        raise CannotReadError(f'a data set has more than {max_bytes} bytes')
      shapes = tuple(leaf.shape for leaf in leaves)
      same_kind = rows.setdefault(shapes, [])
      order.append((shapes, len(same_kind)))
      same_kind.append(leaves)
  except tf.errors.OpError as error:
    # The client for itself raises it again, and is named then.
    raise CannotReadError('an element of a data set has an error') from error
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


class Stacker:
  """Stacks the elements of the data sets of several clients.

  A program is compiled for the sizes and shapes of the arrays. So the arrays
  have room for all kinds of elements that there were in earlier calls, and for
  as many of them: the programs for most cohorts are there after some calls.
  """

  def __init__(self) -> None:
    # How many elements of each kind a client has at most, and of all kinds.
    self._most: dict[_Shapes, int] = {}
    self._longest = 0

  def __call__(
    self, data_sets: Sequence[tf.data.Dataset], max_bytes: int
  ) -> Elements:
    """Stacks elements.

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
    most = dict(self._most)
    for client in clients:
      for kind, rows in client.rows.items():
        most[kind] = max(most.get(kind, 0), _round_up(len(rows)))
    if not 0 < len(most) <= MAX_KINDS:
      raise CannotReadError(
        f'their elements have {len(most)} shapes, and not 1 to {MAX_KINDS}'
      )
    self._most = most
    longest = max(len(client.order) for client in clients)
    self._longest = max(self._longest, _round_up(longest))

    numbers = {kind: number for number, kind in enumerate(most)}
    order = np.zeros([len(clients), self._longest, 2], np.int32)
    for k, client in enumerate(clients):
      for i, (kind, place) in enumerate(client.order):
        order[k, i] = numbers[kind], place
    columns = []
    specs = tf.nest.flatten(data_sets[0].element_spec)
    for kind, size in most.items():
      leaves = [
        np.zeros([len(clients), size, *shape], spec.dtype.as_numpy_dtype)
        for shape, spec in zip(kind, specs, strict=True)
      ]
      for k, client in enumerate(clients):
        for place, row in enumerate(client.rows.get(kind, [])):
          for leaf, value in zip(leaves, row):
            leaf[k, place] = value
      columns.append(leaves)
    sizes = np.array([len(client.order) for client in clients], np.int32)
    return Elements(sizes, order, columns)
