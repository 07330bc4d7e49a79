"""Runs a program on stacked clients: a cohort's round is one XLA program."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from personalization.runtime import program as program_lib
from personalization.runtime import values

# Stacked clients are worked on in groups of about this size, which bounds the
# memory whatever the number of clients.
_GROUP_BYTES = 64 * 2**20
# A client whose results are larger than this has so much to do that it is
# better off with a core of its own: TFF's LSTM for StackOverflow takes four
# times as long stacked.
MAX_CLIENT_BYTES = 2**20
# On a CPU, XLA makes code of these that is several times slower than
# TensorFlow's own kernels.
_SLOW_IN_XLA = ('Conv', 'DepthwiseConv', 'MaxPool', 'AvgPool', 'FusedBatchNorm')
# What is marked as stateful because what it calls may be.
_CALLS = ('Case', 'If', 'PartitionedCall', 'StatefulPartitionedCall', 'While')
_LOOPS = ('StatelessWhile', 'While')
_CONDITIONS = ('Case', 'If', 'StatelessCase', 'StatelessIf')
_OPAQUE_TYPES = frozenset(
  dtype.as_datatype_enum for dtype in (tf.string, tf.variant, tf.resource)
)

Leaves = program_lib.Leaves


def _is_plain_arithmetic(function: program_lib.Function) -> bool:
  """Whether XLA can compile a function without changing what it does."""
  graph_def = function.concrete.graph.as_graph_def()
  nodes = list(graph_def.node)
  for library_function in graph_def.library.function:
    nodes.extend(library_function.node_def)
  for node in nodes:
    if node.op in _CALLS:
      continue
    definition = op_def_registry.get(node.op)
    # What is stateful draws unseeded numbers, or asserts, or prints: compiled,
    # it would do something else, or nothing.
    if definition is None or definition.is_stateful:
      return False
    if node.op.startswith(_SLOW_IN_XLA):
      return False
    types = [
      arg.type for arg in (*definition.input_arg, *definition.output_arg)
    ]
    types += [attribute.type for attribute in node.attr.values()]
    if _OPAQUE_TYPES.intersection(types):
      return False
  return True


def _is_branched(function: program_lib.Function) -> bool:
  """Whether there are loops in loops, or conditions."""
  graph_def = function.concrete.graph.as_graph_def()
  inner = [
    node.op
    for library_function in graph_def.library.function
    for node in library_function.node_def
  ]
  outer = [node.op for node in graph_def.node]
  return not (
    set(_LOOPS).isdisjoint(inner) and set(_CONDITIONS).isdisjoint(inner + outer)
  )


def _map_clients(
  function: Callable[[Any], Any], clients: Any, branched: bool
) -> Any:
  """What `function` gives for each of several stacked clients, stacked.

  Vectorized over the clients if that can be had at a reasonable price. To
  convert a loop takes `tf.vectorized_map` two attempts, a loop in a loop four
  …: many seconds to gain at most a third of the time a program runs. And what
  it makes of a condition, XLA cannot compile.
  """
  if not branched:
    return tf.vectorized_map(function, clients)
  one = tf.nest.map_structure(
    lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), clients
  )
  function = tf.function(function, autograph=False)
  outputs = function.get_concrete_function(one).structured_outputs
  return tf.map_fn(
    function,
    clients,
    fn_output_signature=tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), outputs
    ),
  )


def _bytes(leaves: Sequence[Any]) -> int:
  """The size of what has these shapes; a size that is unknown counts as 1."""
  return sum(
    math.prod(size or 1 for size in leaf.shape) * leaf.dtype.size
    for leaf in leaves
  )


@dataclasses.dataclass(frozen=True)
class Stacking:
  """How a program can be run with its clients stacked.

  Attributes:
    whole: Whether XLA can compile the server's work too. The aggregators of
      differential privacy, for one, keep strings in the server's state.
    branched: Whether a client's work has loops in loops, or conditions.
    client_bytes: What one client's results take.
  """

  whole: bool
  branched: bool
  client_bytes: int


def find_stacking(program: program_lib.Program) -> Stacking | None:
  """How to run `program` with stacked clients; None if they cannot be."""
  active = [i for i, stage in enumerate(program.stages) if stage.is_federated]
  if not active:
    return None
  clients = [program.client_function(i, lane=0) for i in active]
  if not all(map(_is_plain_arithmetic, clients)):
    return None
  rest = [program.server_function(i) for i in range(len(program.stages))]
  rest += [program.merge_function(i) for i in active]
  return Stacking(
    whole=all(map(_is_plain_arithmetic, rest)),
    branched=any(map(_is_branched, clients)),
    client_bytes=sum(_bytes(client.concrete.outputs) for client in clients),
  )


class StackedRunner:
  """Runs a program on stacked clients."""

  def __init__(self, program: program_lib.Program, stacking: Stacking):
    self.stacking = stacking
    self._program = program
    self._functions: dict[Any, program_lib.Function] = {}

  def _group_size(self, stacked: program_lib.Arguments, size: int) -> int:
    """How many clients to work on at once, in groups that are about equal."""
    leaves = [leaf for part in stacked.values() for leaf in part]
    inputs = sum(
      math.prod(leaf.shape) * tf.as_dtype(leaf.dtype).size for leaf in leaves
    )
    per_client = inputs // max(size, 1) + self.stacking.client_bytes
    largest = max(_GROUP_BYTES // max(per_client, 1), 1)
    return -(-size // -(-size // largest))

  def __call__(
    self,
    arguments: program_lib.Arguments,
    stacked: program_lib.Arguments,
    size: int,
  ) -> list[Any]:
    """The parts of the result; those of the clients, stacked."""
    leaves = tf.nest.flatten((arguments, stacked))
    key = (size, *(tuple(leaf.shape) for leaf in leaves))
    if key not in self._functions:
      self._functions[key] = program_lib.Function(
        functools.partial(
          self._run_stages, size, self._group_size(stacked, size)
        ),
        tf.nest.map_structure(
          lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
          (arguments, stacked),
        ),
        jit_compile=self.stacking.whole or None,
      )
    result = self._functions[key](arguments, stacked)
    return [
      program_lib.OfClients(leaves, stacked=True)
      if values.is_per_client(type_spec)
      else leaves
      for leaves, type_spec in zip(
        result, values.parts(self._program.result_type)
      )
    ]

  def _run_stages(
    self,
    size: int,
    group: int,
    arguments: program_lib.Arguments,
    stacked: program_lib.Arguments,
  ) -> list[Leaves]:
    program = self._program
    server: dict[str, Leaves] = {}
    kept: dict[str, Leaves] = {}
    aggregates: list[Leaves] = []
    for i, stage in enumerate(program.stages):
      server |= program.server_step(i, arguments, server, aggregates)
      if stage.is_federated:
        keep, aggregates = self._clients(
          i, arguments, server, kept, stacked, size, group
        )
        kept |= keep
    of_clients = {name: program_lib.OfClients(v) for name, v in kept.items()}
    everything = dict(arguments) | {
      part: program_lib.OfClients(leaves) for part, leaves in stacked.items()
    }
    result = program.result(everything, server, of_clients)
    return [
      part.leaves if isinstance(part, program_lib.OfClients) else part
      for part in result
    ]

  def _clients(
    self, i, arguments, server, kept, stacked, size, group
  ) -> tuple[dict[str, Leaves], list[Leaves]]:
    """Stage `i` of all clients: what they keep, and the aggregates."""
    program = self._program
    reads = {name: server[name] for name in program.stages[i].reads}

    def client(inputs: Any) -> Any:
      own, own_reads, own_kept = inputs
      return program.client_step(i, own, own_reads, own_kept)

    def merge_all(parts: list[Leaves]) -> list[Leaves]:
      """Merges along the first axis, in pairs, all pairs at once."""
      leaves = tf.nest.flatten(parts)
      count = leaves[0].shape[0] if leaves else 1
      while count > 1:
        half = count // 2
        pairs = [
          tf.nest.map_structure(lambda leaf: leaf[start : start + half], parts)  # noqa: B023
          for start in (0, half)
        ]
        merged = tf.vectorized_map(
          lambda pair: program.merge(i, reads, *pair), tuple(pairs)
        )
        if count % 2:
          merged = tf.nest.map_structure(
            lambda done, leaf: tf.concat([done, leaf[-1:]], 0), merged, parts
          )
        parts, count = merged, half + count % 2
      return tf.nest.map_structure(lambda leaf: leaf[0], parts)

    def run_group(inputs: Any) -> Any:
      present, own = inputs
      keep, parts = _map_clients(client, own, self.stacking.branched)
      # The zero of an aggregation is what a client adds that is not there.
      zeros = program.zeros(i, arguments, reads)
      parts = tf.nest.map_structure(
        lambda leaf, zero: tf.where(
          tf.reshape(present, [-1] + [1] * (leaf.shape.rank - 1)),
          leaf,
          zero,
        ),
        parts,
        zeros,
      )
      return keep, merge_all(parts)

    if not self.stacking.whole:
      run_group = tf.function(run_group, jit_compile=True, autograph=False)

    # Each client gets its own copy of what all of them read, which XLA does not
    # make but `tf.vectorized_map` would have to find out to be needed.
    def copies(leaf):
      return tf.broadcast_to(leaf, [size, *leaf.shape])

    inputs = (
      tf.ones([size], tf.bool),
      (
        dict(stacked) | tf.nest.map_structure(copies, dict(arguments)),
        tf.nest.map_structure(copies, reads),
        dict(kept),
      ),
    )
    if group == size:
      return run_group(inputs)

    # All groups have the same size, so that they are one loop; who is missing
    # in the last one is absent.
    groups = -(-size // group)
    rows = np.minimum(np.arange(groups * group), size - 1)
    shape = [groups, group]
    grouped = tf.nest.map_structure(
      lambda leaf: tf.reshape(tf.gather(leaf, rows), shape + leaf.shape[1:]),
      inputs,
    )
    present = tf.reshape(tf.range(groups * group) < size, shape)
    keep, parts = _map_clients(run_group, (present, grouped[1]), branched=True)
    keep = tf.nest.map_structure(
      lambda leaf: tf.reshape(leaf, [-1, *leaf.shape[2:]])[:size], keep
    )
    return keep, merge_all(parts)
