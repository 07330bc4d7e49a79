"""Runs a program on stacked clients: a cohort's round is one XLA program.

In it is a loop over the clients that aggregates as it goes. Working on all of
them at once, by `tf.vectorized_map`, was no faster, and made each take as many
steps as the largest; nor could it have loops in loops.
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from runtimes import program as program_lib
from runtimes import values

# A client that reads or gives more than this has so much to do that it is
# better off with a core of its own: TFF's LSTM for StackOverflow takes four
# times as long stacked.
MAX_CLIENT_BYTES = 2**20
# On a CPU, XLA makes code of these that is several times slower than
# TensorFlow's own kernels.
_SLOW_IN_XLA = ('Conv', 'DepthwiseConv', 'MaxPool', 'AvgPool', 'FusedBatchNorm')
# What is marked as stateful because what it calls may be.
_CALLS = ('Case', 'If', 'PartitionedCall', 'StatefulPartitionedCall', 'While')
_VARIANT = tf.variant.as_datatype_enum
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
    if node.op.startswith('TensorList'):
      continue
    types = [
      arg.type for arg in (*definition.input_arg, *definition.output_arg)
    ]
    # What passes any type on may pass on a list.
    types += {a.type for a in node.attr.values()} - {_VARIANT}
    if _OPAQUE_TYPES.intersection(types):
      return False
  return all(leaf.dtype != tf.variant for leaf in function.concrete.inputs)


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
    client_bytes: What one client's results take, or what it reads of the
      server's, as the model, if that is more.
  """

  whole: bool
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
    client_bytes=max(
      sum(_bytes(client.concrete.outputs) for client in clients),
      sum(_bytes(tf.nest.flatten(program.read_specs(i))) for i in active),
    ),
  )


class StackedRunner:
  """Runs a program on stacked clients."""

  def __init__(self, program: program_lib.Program, stacking: Stacking):
    self.stacking = stacking
    self._program = program
    self._functions: dict[Any, program_lib.Function] = {}

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
        functools.partial(self.run_stages, size),
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

  def run_stages(
    self,
    size: int,
    arguments: program_lib.Arguments,
    stacked: program_lib.Arguments,
  ) -> list[Leaves]:
    """The parts of the result, to be traced; those of the clients, stacked."""
    program = self._program
    server: dict[str, Leaves] = {}
    kept: dict[str, Leaves] = {}
    aggregates: list[Leaves] = []
    for i, stage in enumerate(program.stages):
      server |= program.server_step(i, arguments, server, aggregates)
      if stage.is_federated:
        keep, aggregates = self._clients(
          i, size, arguments, stacked, server, kept
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
    self,
    i: int,
    size: int,
    arguments: program_lib.Arguments,
    stacked: program_lib.Arguments,
    server: dict[str, Leaves],
    kept: dict[str, Leaves],
  ) -> tuple[dict[str, Leaves], list[Leaves]]:
    """Stage `i` of all clients: what they keep, and the aggregates."""
    program = self._program
    reads = {name: server[name] for name in program.stages[i].reads}

    def loop(arguments, stacked, reads, kept):
      def client(k: tf.Tensor) -> Any:
        own, own_kept = tf.nest.map_structure(
          lambda leaf: tf.gather(leaf, k), (dict(stacked), dict(kept))
        )
        return program.client_step(i, dict(arguments) | own, reads, own_kept)

      def body(k: tf.Tensor, arrays: Any, aggregates: Any) -> Any:
        keep, parts = client(k)
        arrays = tf.nest.map_structure(
          lambda array, leaf: array.write(k, leaf), arrays, keep
        )
        return k + 1, arrays, program.merge(i, reads, aggregates, parts)

      # Only the structure, shapes and types of this are used.
      example, _ = client(tf.constant(0))
      arrays = tf.nest.map_structure(
        lambda leaf: tf.TensorArray(leaf.dtype, size, element_shape=leaf.shape),
        example,
      )
      _, arrays, aggregates = tf.while_loop(
        lambda k, *_: k < size,
        body,
        (0, arrays, program.zeros(i, arguments, reads)),
      )
      return tf.nest.map_structure(
        lambda array: array.stack(), arrays
      ), aggregates

    if not self.stacking.whole:
      loop = tf.function(loop, jit_compile=True, autograph=False)
    return loop(dict(arguments), dict(stacked), reads, dict(kept))
