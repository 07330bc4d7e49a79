"""Runs a program on stacked clients: a cohort's round is one XLA program.

The program is a loop over the clients that aggregates as it goes.
`tf.vectorized_map`, which works on all clients at once, was not faster, makes
each client take as many steps as the largest, and allows no nested loops.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
import dataclasses
import math

import numpy as np
import tensorflow as tf

from tff_runtimes import aliases
from tff_runtimes import caches
from tff_runtimes import interpreting
from tff_runtimes import operations
from tff_runtimes import programs
from tff_runtimes import values

# A client that reads or returns more than this has so much work that one client
# on each core is faster: TFF's LSTM for StackOverflow takes four times as long
# stacked. Besides, stacking copies everything that clients read.
MAX_CLIENT_BYTES = 2**20
# The number of sizes and shapes of cohorts whose programs are kept.
_MAX_COMPILED = 16


class CannotStackError(Exception):
  """The clients cannot be stacked; the message says why."""


class NotFiniteError(Exception):
  """XLA returned infinity or NaN, where TensorFlow may return another value."""


@dataclasses.dataclass(frozen=True)
class Stacking:
  """How a program can be run with its clients stacked.

  Attributes:
    against: Why the clients cannot be stacked; None if they can.
    against_whole: Why the server's work cannot be part of the XLA program; None
      if it can. The clients' work is then one XLA program for each stage.
    client_bytes: The bytes that one client reads or returns, whichever is more,
      without unknown sizes and data sets.
    reads_data: Whether clients read data sets. Then it is only known when these
      are read whether the clients can be stacked.
  """

  against: str | None = None
  against_whole: str | None = None
  client_bytes: int = 0
  reads_data: bool = False


def _bytes(specs: aliases.Structure) -> int:
  """Returns the size of all leaves; unknown dimensions count as 1."""
  return sum(
    math.prod(size or 1 for size in spec.shape) * spec.dtype.size
    for spec in tf.nest.flatten(specs)
  )


def _are_known(specs: aliases.Structure) -> bool:
  """Tells whether all shapes are fully defined."""
  return all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(specs))


def _has_data_sets(program: programs.Program, parts: Iterable[str]) -> bool:
  """Tells whether clients have data sets in some parts of the argument."""
  return any(
    spec.dtype == tf.variant
    for part in parts
    if values.is_per_client(program.part_types[part])
    for spec in values.leaf_specs(program.part_types[part])
  )


def find_stacking(program: programs.Program, trust_xla: bool) -> Stacking:
  """Finds out how to run `program` with its clients stacked.

  Args:
    program: The program.
    trust_xla: Whether to stack clients even if XLA is not known to compute
      their work in the same way.

  Returns:
    The way, or the reason why there is none.
  """
  active = [i for i, stage in enumerate(program.stages) if stage.is_federated]
  if not active:
    return Stacking('no client has anything to do')
  client_bytes = 0
  if _has_data_sets(program, program.result_arguments):
    return Stacking('data sets of the clients are in the result')
  reads_data = any(
    _has_data_sets(program, program.client_arguments(i)) for i in active
  )
  for i in active:
    # Whether operations on arrays of data are fit is seen when these are read.
    pieces = (
      []
      if reads_data
      else [program.client_function, program.accumulate_function]
    )
    for piece in pieces:
      against = operations.find_unfit_for_xla(piece(i).graph_def, trust_xla)
      if against is not None:
        return Stacking(against)
    needs, gives = program.client_specs(i), program.client_result_specs(i)
    for spec in tf.nest.flatten([needs, gives, program.partial_specs(i)]):
      if spec.shape.rank is None:
        return Stacking('a tensor of the clients has an unknown rank')
      if not ((trust_xla and not reads_data) or spec.shape.is_fully_defined()):
        return Stacking('a tensor of the clients has an unknown shape')
    client_bytes = max(client_bytes, _bytes(needs), _bytes(gives))
  if reads_data:
    return Stacking(client_bytes=client_bytes, reads_data=True)
  servers = [program.server_function(i) for i in range(len(program.stages))]
  servers += [program.zeros_function(i) for i in active]
  whole = (
    operations.find_unfit_for_xla(server.graph_def, trust_xla)
    for server in servers
  )
  return Stacking(
    against_whole=next(filter(None, whole), None), client_bytes=client_bytes
  )


def _is_finite(array: np.ndarray) -> bool:
  return array.dtype.kind != 'f' or bool(np.isfinite(array).all())


class StackedRunner:
  """Runs the work of stacked clients, or a whole program, as XLA programs."""

  def __init__(
    self,
    program: programs.Program,
    trust_xla: bool = True,
    interprets: bool = False,
  ):
    """Makes the runner.

    Args:
      program: The program.
      trust_xla: As for `find_stacking`.
      interprets: Whether data sets are arrays; see `interpreting`.
    """
    self._program = program
    self.interprets = interprets
    self._trust_xla = trust_xla
    self._functions = caches.Cache[programs.SessionFunction](_MAX_COMPILED)
    self._first_size: int | None = None

  def capacity(self, size: int) -> int:
    """Returns the number of rows in which a cohort is stacked.

    A program is compiled for this number. For the first cohort it is the number
    of clients. For others it is rounded up, so that cohorts of many sizes need
    few programs.

    Args:
      size: The number of clients.
    """
    self._first_size = self._first_size or size
    if size == self._first_size:
      return size
    step = 2 ** max(0, size.bit_length() - 3)
    return math.ceil(size / step) * step

  def run_whole(
    self,
    size: int,
    arguments: programs.Arguments,
    stacked: programs.Arguments,
  ) -> list[programs.Part]:
    """Runs the whole program.

    Args:
      size: The number of clients.
      arguments: The parts of the argument that are not one value for each
        client.
      stacked: The other parts, stacked; there may be more rows than clients.

    Returns:
      The parts of the result.
    """
    capacity = self.capacity(size)

    def run(
      size: tf.Tensor,
      arguments: programs.Arguments,
      stacked: programs.Arguments,
    ) -> list[aliases.Leaves]:
      return self.run_stages(size, capacity, arguments, stacked)

    result = self._call('whole', run, np.int32(size), arguments, stacked)
    return [
      programs.ClientColumns([leaf[:size] for leaf in leaves], size)
      if values.is_per_client(type_spec)
      else leaves
      for leaves, type_spec in zip(
        result, values.parts(self._program.result_type)
      )
    ]

  def run_clients(
    self,
    i: int,
    size: int,
    arguments: programs.Arguments,
    stacked: programs.Arguments,
    reads: Mapping[str, aliases.Leaves],
    kept: Mapping[str, aliases.Leaves],
  ) -> tuple[dict[str, aliases.Leaves], list[aliases.Leaves]]:
    """Runs the clients' work of stage `i`.

    Args:
      i: The number of the stage.
      size: The number of clients.
      arguments: The parts of the argument that are the same for all clients.
      stacked: The other parts, stacked; there may be more rows than clients.
      reads: The server's results that the stage reads.
      kept: The clients' results of earlier stages, stacked likewise.

    Returns:
      The results that the clients keep, stacked likewise, and the aggregates.
    """
    capacity = self.capacity(size)

    def run(
      size: tf.Tensor, *parts: programs.Arguments
    ) -> tuple[dict[str, aliases.Leaves], list[aliases.Leaves]]:
      return self._clients(i, size, capacity, *parts)

    return self._call(
      ('clients', i), run, np.int32(size), arguments, stacked, reads, kept
    )

  def _call(
    self,
    name: Hashable,
    run: Callable[..., aliases.Structure],
    *arguments: aliases.Structure,
  ) -> aliases.Structure:
    """Calls a function that XLA compiles once for all arguments of a shape.

    Args:
      name: A key of the function.
      run: The function.
      *arguments: Its arguments.

    Returns:
      Its result.

    Raises:
      CannotStackError: If clients read data sets, and an operation is unfit.
      NotFiniteError: If the result is not finite, and XLA is not trusted, or if
        a guard of `interpreting` is false.
    """
    leaves = tf.nest.flatten(arguments)
    key = (name, *(tuple(leaf.shape) for leaf in leaves))

    def run_guarded(
      *arguments: aliases.Structure,
    ) -> tuple[aliases.Structure, tf.Tensor]:
      return run(*arguments), interpreting.guards()

    def make() -> programs.SessionFunction:
      specs = [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves]
      try:
        with interpreting.switched(self.interprets):
          function = programs.SessionFunction(
            run_guarded,
            tf.nest.pack_sequence_as(arguments, specs),
            jit_compile=True,
          )
      except (TypeError, ValueError) as error:
        if not self.interprets:
          raise
        # Of a shape that changes in a loop, or differs between branches.
        reason = str(error).strip().splitlines()[0]
        raise CannotStackError(reason) from error
      if self.interprets:
        against = operations.find_unfit_for_xla(
          function.graph_def, trust=False, guarded=True
        )
        if against is not None:
          raise CannotStackError(against)
      return function

    result, is_same = self._functions.get(key, make)(*arguments)
    trusted = self._trust_xla and not self.interprets
    if not (
      is_same and (trusted or all(map(_is_finite, tf.nest.flatten(result))))
    ):
      raise NotFiniteError()
    return result

  def run_stages(
    self,
    size: tf.Tensor,
    capacity: int,
    arguments: programs.Arguments,
    stacked: programs.Arguments,
  ) -> list[aliases.Leaves]:
    """Runs all stages in the graph that is being built.

    Args:
      size: The number of clients.
      capacity: The number of rows in which they are stacked.
      arguments: The parts of the argument that are not one value for each
        client.
      stacked: The other parts, stacked.

    Returns:
      The leaves of each part of the result; if it is one value for each client,
      stacked.
    """
    program = self._program
    server: dict[str, aliases.Leaves] = {}
    kept: dict[str, aliases.Leaves] = {}
    aggregates: list[aliases.Leaves] = []
    for i, stage in enumerate(program.stages):
      server |= program.server_step(i, arguments, server, aggregates)
      if stage.is_federated:
        reads = {name: server[name] for name in stage.reads}
        keep, aggregates = self._clients(
          i, size, capacity, arguments, stacked, reads, kept
        )
        kept |= keep
    of_clients = {
      name: programs.ClientColumns(leaves, capacity)
      for name, leaves in (kept | dict(stacked)).items()
    }
    result = program.result(arguments, server, of_clients)
    return [
      part.columns if isinstance(part, programs.ClientColumns) else part
      for part in result
    ]

  def _clients(
    self,
    i: int,
    size: tf.Tensor,
    capacity: int,
    arguments: programs.Arguments,
    stacked: programs.Arguments,
    reads: Mapping[str, aliases.Leaves],
    kept: Mapping[str, aliases.Leaves],
  ) -> tuple[dict[str, aliases.Leaves], list[aliases.Leaves]]:
    """Runs the clients' work in the graph that is being built."""
    program = self._program

    def client(
      k: tf.Tensor,
    ) -> tuple[dict[str, aliases.Leaves], list[aliases.Leaves]]:
      own_arguments, own_kept = tf.nest.map_structure(
        lambda leaf: tf.gather(leaf, k), (dict(stacked), dict(kept))
      )
      return program.client_step(
        i, dict(arguments) | own_arguments, reads, own_kept
      )

    def body(
      k: tf.Tensor,
      is_same: tf.Tensor,
      arrays: aliases.Structure,
      aggregates: list[aliases.Leaves],
    ) -> tuple[tf.Tensor, tf.Tensor, aliases.Structure, list[aliases.Leaves]]:
      keep, added = client(k)
      arrays = tf.nest.map_structure(
        lambda array, leaf: array.write(k, leaf), arrays, keep
      )
      aggregates = program.accumulate(i, arguments, reads, aggregates, added)
      return k + 1, is_same & interpreting.guards(), arrays, aggregates

    # Only the structure, the shapes and the types of this are used.
    example: aliases.Structure = program.client_result_specs(i)[0]
    if not _are_known(example):  # They may follow from the argument's.
      example, _ = client(tf.constant(0))
      if not _are_known(example):
        raise CannotStackError('the size of a result depends on the data')
    arrays = tf.nest.map_structure(
      lambda leaf: tf.TensorArray(
        leaf.dtype, capacity, element_shape=leaf.shape
      ),
      example,
    )
    _, is_same, arrays, aggregates = tf.while_loop(
      lambda k, *_: k < size,
      body,
      (0, True, arrays, program.zeros(i, arguments, reads)),
    )
    interpreting.guard(is_same)
    return tf.nest.map_structure(
      lambda array: array.stack(), arrays
    ), aggregates
