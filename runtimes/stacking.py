"""Runs a program on stacked clients: a cohort's round is one XLA program.

It is a loop over the clients that aggregates as it goes. `tf.vectorized_map`,
which works on all clients at once, was not faster, makes each client take as
many steps as the largest, and allows no loops within loops.
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any

import tensorflow as tf

from runtimes import private_api
from runtimes import programs
from runtimes import values

# A client that reads or returns more than this has so much to do that it is
# faster with a core of its own: TFF's LSTM for StackOverflow takes four times
# as long stacked.
MAX_CLIENT_BYTES = 2**20
# On a CPU, XLA's code for these is several times slower than TensorFlow's own
# kernels.
_SLOW_IN_XLA = ('Conv', 'DepthwiseConv', 'MaxPool', 'AvgPool', 'FusedBatchNorm')
# These are marked as stateful because the functions that they call may be.
_CALLS = ('Case', 'If', 'PartitionedCall', 'StatefulPartitionedCall', 'While')
_VARIANT = tf.variant.as_datatype_enum
_OPAQUE_TYPES = frozenset(
  dtype.as_datatype_enum for dtype in (tf.string, tf.variant, tf.resource)
)

Leaves = programs.Leaves


def _is_plain_arithmetic(function: programs.TracedFunction) -> bool:
  """Returns whether a function does the same when XLA compiles it."""
  graph_def = function.concrete.graph.as_graph_def()
  nodes = list(graph_def.node)
  for library_function in graph_def.library.function:
    nodes.extend(library_function.node_def)
  for node in nodes:
    if node.op in _CALLS:
      continue
    definition = private_api.op_definition(node.op)
    # Stateful operations draw unseeded numbers, or assert, or print. When XLA
    # compiles them they do something else, or nothing.
    if definition is None or definition.is_stateful:
      return False
    if node.op.startswith(_SLOW_IN_XLA):
      return False
    if node.op.startswith('TensorList'):
      continue
    types = {a.type for a in (*definition.input_arg, *definition.output_arg)}
    # A variant in an attribute is a TensorList that the operation passes on.
    types |= {a.type for a in node.attr.values()} - {_VARIANT}
    if _OPAQUE_TYPES.intersection(types):
      return False
  return all(leaf.dtype != tf.variant for leaf in function.concrete.inputs)


def _bytes(leaves: Sequence[Any]) -> int:
  """Returns the size of all leaves; dimensions that are unknown count as 1."""
  return sum(
    math.prod(size or 1 for size in leaf.shape) * leaf.dtype.size
    for leaf in leaves
  )


@dataclasses.dataclass(frozen=True)
class Stacking:
  """How a program can be run with its clients stacked.

  Attributes:
    whole: Whether XLA can compile the server's work too. It cannot with the
      aggregators of differential privacy, which keep strings in the state.
    client_bytes: The size of one client's results, or of what it reads of the
      server's results, such as the model, if that is more.
  """

  whole: bool
  client_bytes: int


def find_stacking(program: programs.Program) -> Stacking | None:
  """Finds out how to run `program` with its clients stacked.

  Args:
    program: The program.

  Returns:
    How; None if XLA cannot compile the clients' work or they have none.
  """
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
  """Runs a program on stacked clients.

  Attributes:
    stacking: How the program is run.
  """

  def __init__(self, program: programs.Program, stacking: Stacking):
    self.stacking = stacking
    self._program = program
    self._functions: dict[Any, programs.TracedFunction] = {}

  def __call__(
    self,
    arguments: programs.Arguments,
    stacked: programs.Arguments,
    size: int,
  ) -> list[Any]:
    """Runs the program.

    Args:
      arguments: The parts of the argument that are not one value for each
        client.
      stacked: The other parts, stacked.
      size: The number of clients.

    Returns:
      For each part of the result its leaves; if it is one value for each
      client, stacked `ClientLeaves`.
    """
    leaves = tf.nest.flatten((arguments, stacked))
    key = (size, *(tuple(leaf.shape) for leaf in leaves))
    if key not in self._functions:
      self._functions[key] = programs.TracedFunction(
        functools.partial(self.run_stages, size),
        tf.nest.map_structure(
          lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
          (arguments, stacked),
        ),
        jit_compile=self.stacking.whole or None,
      )
    result = self._functions[key](arguments, stacked)
    return [
      programs.ClientLeaves(leaves, stacked=True)
      if values.is_per_client(type_spec)
      else leaves
      for leaves, type_spec in zip(
        result, values.parts(self._program.result_type)
      )
    ]

  def run_stages(
    self,
    size: int,
    arguments: programs.Arguments,
    stacked: programs.Arguments,
  ) -> list[Leaves]:
    """Runs all stages in the graph that is being built.

    Args:
      size: The number of clients.
      arguments: The parts of the argument that are not one value for each
        client.
      stacked: The other parts, stacked.

    Returns:
      The leaves of each part of the result; if it is one value for each client,
      stacked.
    """
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
    of_clients = {name: programs.ClientLeaves(v) for name, v in kept.items()}
    everything = dict(arguments) | {
      part: programs.ClientLeaves(leaves) for part, leaves in stacked.items()
    }
    result = program.result(everything, server, of_clients)
    return [
      part.leaves if isinstance(part, programs.ClientLeaves) else part
      for part in result
    ]

  def _clients(
    self,
    i: int,
    size: int,
    arguments: programs.Arguments,
    stacked: programs.Arguments,
    server: dict[str, Leaves],
    kept: dict[str, Leaves],
  ) -> tuple[dict[str, Leaves], list[Leaves]]:
    """Runs the clients' work of stage `i`.

    Args:
      i: The number of the stage.
      size: The number of clients.
      arguments: As for `run_stages`.
      stacked: As for `run_stages`.
      server: The server's results so far.
      kept: What the clients kept in earlier stages, stacked.

    Returns:
      What the clients keep, stacked, and the aggregates.
    """
    program = self._program
    reads = {name: server[name] for name in program.stages[i].reads}

    def loop(
      arguments: programs.Arguments,
      stacked: programs.Arguments,
      reads: dict[str, Leaves],
      kept: dict[str, Leaves],
    ) -> tuple[dict[str, Leaves], list[Leaves]]:
      def client(k: Any) -> Any:
        own, own_kept = tf.nest.map_structure(
          lambda leaf: programs.gather_row(leaf, k), (dict(stacked), dict(kept))
        )
        return program.client_step(i, dict(arguments) | own, reads, own_kept)

      def body(k: Any, arrays: Any, aggregates: Any) -> Any:
        keep, parts = client(k)
        arrays = tf.nest.map_structure(
          lambda array, leaf: array.write(k, leaf), arrays, keep
        )
        return k + 1, arrays, program.merge(i, reads, aggregates, parts)

      # Only the structure, the shapes and the types of this are used.
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
