"""Runs a program with its clients stacked: a cohort's round as one XLA program."""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, Optional

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from personalization.runtime import program as program_lib
from personalization.runtime import values

# Stacked clients are worked on in groups of about this size, which bounds the
# memory whatever the number of clients.
_GROUP_BYTES = 64 * 2**20
# A smaller group than this has nothing to gain from stacking.
MIN_GROUP = 4
# On a CPU, XLA makes code of these that is several times slower than
# TensorFlow's own kernels.
_SLOW_IN_XLA = ('Conv', 'DepthwiseConv', 'MaxPool', 'AvgPool', 'FusedBatchNorm')
_CALLS = ('Case', 'If', 'PartitionedCall', 'StatefulPartitionedCall', 'While')
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
    types = [arg.type for arg in (*definition.input_arg, *definition.output_arg)]
    types += [attribute.type for attribute in node.attr.values()]
    if _OPAQUE_TYPES.intersection(types):
      return False
  return True


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
    client_bytes: About what one client's results take.
  """

  whole: bool
  client_bytes: int


def find_stacking(program: program_lib.Program) -> Optional[Stacking]:
  """How to run `program` with stacked clients; None if they cannot be."""
  active = [
      i for i, stage in enumerate(program.stages) if stage.is_federated
  ]
  if not active:
    return None
  clients = [program.client_function(i, lane=0) for i in active]
  if not all(map(_is_plain_arithmetic, clients)):
    return None
  rest = [program.server_function(i) for i in range(len(program.stages))]
  rest += [program.merge_function(i) for i in active]
  return Stacking(
      whole=all(map(_is_plain_arithmetic, rest)),
      client_bytes=sum(
          _bytes(client.concrete.outputs) for client in clients
      ),
  )


class StackedRunner:
  """Runs a program on stacked clients."""

  def __init__(self, program: program_lib.Program, stacking: Stacking):
    self._program = program
    self._stacking = stacking
    self._functions: dict[Any, program_lib.Function] = {}

  def group_size(self, stacked: program_lib.Arguments, size: int) -> int:
    leaves = [leaf for part in stacked.values() for leaf in part]
    inputs = sum(
        math.prod(leaf.shape) * tf.as_dtype(leaf.dtype).size for leaf in leaves
    )
    per_client = inputs // max(size, 1) + self._stacking.client_bytes
    return min(size, _GROUP_BYTES // max(per_client, 1))

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
              self._run_stages, size, self.group_size(stacked, size)
          ),
          tf.nest.map_structure(
              lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
              (arguments, stacked),
          ),
          jit_compile=self._stacking.whole or None,
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
        merged = tf.vectorized_map(
            lambda pair: program.merge(i, reads, *pair),
            (
                tf.nest.map_structure(lambda leaf: leaf[:half], parts),  # noqa: B023
                tf.nest.map_structure(lambda leaf: leaf[half : 2 * half], parts),  # noqa: B023
            ),
        )
        if count % 2:
          merged = tf.nest.map_structure(
              lambda done, leaf: tf.concat([done, leaf[-1:]], 0), merged, parts
          )
        parts, count = merged, half + count % 2
      return tf.nest.map_structure(lambda leaf: leaf[0], parts)

    def run_group(inputs: Any) -> Any:
      keep, parts = tf.vectorized_map(client, inputs)
      return keep, merge_all(parts)

    if not self._stacking.whole:
      run_group = tf.function(run_group, jit_compile=True, autograph=False)
    # Each client gets its own copy of what all of them read, which XLA does not
    # make but `tf.vectorized_map` would have to find out to be needed.
    copies = lambda leaf: tf.broadcast_to(leaf, [size, *leaf.shape])
    inputs = (
        dict(stacked) | tf.nest.map_structure(copies, dict(arguments)),
        tf.nest.map_structure(copies, reads),
        dict(kept),
    )
    full = size // group
    if full == 1 and size == group:
      return run_group(inputs)
    head = tf.nest.map_structure(
        lambda leaf: tf.reshape(
            leaf[: full * group], [full, group, *leaf.shape[1:]]
        ),
        inputs,
    )
    tail = tf.nest.map_structure(lambda leaf: leaf[full * group :], inputs)
    spec = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype),
        tf.function(run_group, autograph=False)
        .get_concrete_function(
            tf.nest.map_structure(
                lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), head
            )
        )
        .structured_outputs,
    )
    keep, parts = tf.map_fn(run_group, head, fn_output_signature=spec)
    keep = tf.nest.map_structure(
        lambda leaf: tf.reshape(leaf, [full * group, *leaf.shape[2:]]), keep
    )
    if size % group:
      tail_keep, tail_parts = run_group(tail)
      keep = tf.nest.map_structure(
          lambda a, b: tf.concat([a, b], 0), keep, tail_keep
      )
      parts = tf.nest.map_structure(
          lambda all_parts, part: tf.concat([all_parts, part[tf.newaxis]], 0),
          parts,
          tail_parts,
      )
    return keep, merge_all(parts)
