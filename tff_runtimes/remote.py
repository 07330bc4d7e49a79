"""A runtime that divides the clients of a computation among TFF workers.

`python -m tff_runtimes.worker` starts a worker, on this machine or on another.
The clients are divided into blocks. Each block is given to some worker, which
aggregates the results of its clients. One of the workers merges these
aggregates in the order of the blocks, and does the server's work. The number of
blocks follows from the number of clients alone. So the results do not depend on
how many workers there are, and who does what.

If a worker ends or stops answering, the others do its blocks, and if it comes
again, it is given some again. A block that takes too long is given to a second
worker. Without any worker left, calls raise a `WorkerError`.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import itertools
import logging
import threading
import weakref

import grpc
import tensorflow_federated as tff

from tff_runtimes import aliases
from tff_runtimes import caches
from tff_runtimes import crews
from tff_runtimes import sharding
from tff_runtimes import values

WorkerError = crews.WorkerError

# The number of blocks is between these, if there are so many clients. Another
# number changes the order of sums, and so their rounding.
_MIN_BLOCKS, _MAX_BLOCKS = 8, 64
# Between them, blocks have so many clients.
_CLIENTS_PER_BLOCK = 16
# Number of computations that are kept in pieces.
_CACHE_SIZE = 64

_logger = logging.getLogger(__name__)


def _blocks(size: int) -> list[slice]:
  """Divides so many clients into blocks of about the same size."""
  wanted = size // _CLIENTS_PER_BLOCK
  number = min(size, max(_MIN_BLOCKS, min(_MAX_BLOCKS, wanted)))
  ends = [size * k // number for k in range(number + 1)]
  return [slice(start, end) for start, end in zip(ends, ends[1:])]


class _RemoteContext(tff.framework.SyncContext):
  """Runs computations on workers; see the module's docstring."""

  def __init__(self, crew: crews.Crew):
    self._crew = crew
    self._sharded = caches.Cache[sharding.ShardedComputation](_CACHE_SIZE)

  def invoke(
    self, comp: tff.framework.ConcreteComputation, arg: aliases.Value
  ) -> aliases.Value:
    """Runs a computation; TFF calls this."""
    try:
      # By identity, as to hash a computation TFF serializes it every time.
      sharded = self._sharded.get(
        id(comp), lambda: sharding.ShardedComputation(comp)
      )
    except NotImplementedError:  # It takes or returns a function.
      return self._run_whole(comp, arg)
    known: dict[sharding.Key, aliases.Value] = {}
    clients: dict[sharding.Key, Sequence[aliases.Value]] = {}
    for k, (part, type_spec) in enumerate(
      zip(
        values.split(arg, sharded.parameter_type),
        values.parts(sharded.parameter_type),
      )
    ):
      if values.is_per_client(type_spec):
        clients[k] = values.to_clients(part)
      else:
        known[k] = part
    size = values.count_clients(clients.values())
    if not size:
      return self._run_whole(comp, arg)
    known |= {k: list(part) for k, part in clients.items()}
    return self._run(sharded, known, size)

  def _run_whole(
    self, comp: tff.framework.ConcreteComputation, arg: aliases.Value
  ) -> aliases.Value:
    """Runs a computation on one worker."""
    (result,) = self._crew.run(
      [lambda context: context.invoke(comp, arg)], is_compiled=False
    )
    return result

  def _run(
    self,
    sharded: sharding.ShardedComputation,
    known: dict[sharding.Key, aliases.Value],
    size: int,
  ) -> aliases.Value:
    """Runs a computation.

    Args:
      sharded: The computation.
      known: The parts of its argument. Results of its pieces are added.
      size: The number of clients.

    Returns:
      Its result.
    """
    blocks = _blocks(size)
    for i in range(sharded.num_stages):
      if (piece := sharded.server(i, len(blocks))) is not None:
        # One worker does it, with one client that receives broadcasts.
        (results,) = self._run_piece(piece, known, [slice(0, 1)])
        known |= {
          name: result for (name, _), result in zip(piece.outputs, results)
        }
      if (piece := sharded.clients(i)) is not None:
        of_blocks = self._run_piece(piece, known, blocks)
        for (name, is_per_client), from_blocks in zip(
          piece.outputs, zip(*of_blocks)
        ):
          if is_per_client:
            known[name] = list(itertools.chain(*from_blocks))
          else:
            known |= {
              sharding.partial_name(name, block): aggregate
              for block, aggregate in enumerate(from_blocks)
            }
    return _to_python(
      [known[name] for name in sharded.result], sharded.result_type
    )

  def _run_piece(
    self,
    piece: sharding.Piece,
    known: Mapping[sharding.Key, aliases.Value],
    blocks: Sequence[slice],
  ) -> list[Sequence[aliases.Value]]:
    """Runs a piece once for each block of clients."""

    def run(
      block: slice, context: tff.framework.SyncContext
    ) -> Sequence[aliases.Value]:
      inputs = [
        known[key][block] if is_per_client else known[key]
        for key, is_per_client in piece.inputs
      ]
      argument = [[0] * (block.stop - block.start), *inputs]
      return context.invoke(
        piece.computation,
        tff.structure.Struct((None, part) for part in argument),
      )

    return self._crew.run([functools.partial(run, block) for block in blocks])


def _to_python(
  parts: Sequence[aliases.Value], type_spec: tff.Type
) -> aliases.Value:
  """Puts the parts of a result in the Python containers of its type."""

  def build(value: aliases.Value, part_type: tff.Type) -> aliases.Value:
    leaves = values.flatten(value, part_type)
    return values.to_python(leaves, part_type)

  return values.join_python(
    [
      [build(value, part_type) for value in part]
      if values.is_per_client(part_type)
      else build(part, part_type)
      for part, part_type in zip(parts, values.parts(type_spec))
    ],
    type_spec,
  )


def create_remote_context(
  addresses: Sequence[str],
  credentials: grpc.ChannelCredentials | None = None,
  tell: Callable[[str], None] = _logger.warning,
) -> tff.framework.SyncContext:
  """Makes a context that runs TFF on workers.

  Args:
    addresses: The addresses of the workers, each HOST:PORT. A worker that is
      not there yet takes part as soon as it is.
    credentials: The certificates for TLS, from `grpc.ssl_channel_credentials`.
      By default, TLS is not used.
    tell: Is told, in a sentence, of each worker that cannot be used, and of
      each that can be used again. By default this is a warning in the log.

  Returns:
    The context, for `tff.framework.set_default_context`.

  Raises:
    WorkerError: If no worker can be reached.
  """
  is_over = threading.Event()
  context = _RemoteContext(crews.Crew(addresses, credentials, tell, is_over))
  weakref.finalize(context, is_over.set)
  return context
