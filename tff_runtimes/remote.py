"""A runtime that divides the clients of a computation among TFF workers.

`python -m tff_runtimes.worker` starts a worker, on this machine or on another.
With one worker, computations run as on the native runtime. With several, the
first worker runs the first clients, the second worker the next ones, and so on.
Each worker aggregates the results of its clients. The first worker merges these
aggregates in the order of the workers, and does the server's work. So the
results are the same in every call. Another number of workers changes the order
of sums, and so their rounding.

If a worker ends or stops answering, calls raise a `WorkerError`. TFF itself
would try again without end.
"""

from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import functools
import itertools
import threading
from typing import TypeVar
import weakref

import grpc
import tensorflow_federated as tff

from tff_runtimes import aliases
from tff_runtimes import caches
from tff_runtimes import sharding
from tff_runtimes import values
from tff_runtimes import worker_contexts

_T = TypeVar('_T')

# How often a worker is asked whether it is there, and how long it may take to
# answer. Answering takes no time, but large messages may delay the answer.
_SECONDS_BETWEEN_CALLS = 10.0
_SECONDS_TO_ANSWER = 60.0
_SECONDS_TO_CONNECT = 10.0

# Number of computations that are kept in pieces.
_CACHE_SIZE = 64

_FINAL = frozenset(
  [
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAVAILABLE,
  ]
)


class WorkerError(grpc.RpcError):
  """The error for a worker that cannot be used, which the message names."""


def _reason(call: grpc.Call) -> str:
  """Says why a call failed, without what gRPC says of its own work."""
  reason: str = call.details().rpartition('last error: ')[2].rstrip('. ')
  # A server of HTTP/1 has said that all is well.
  return 'it speaks no gRPC' if reason in ('', 'OK') else reason


def _ask(channel: grpc.Channel, seconds: float) -> str | None:
  """Asks a worker whether it is there; returns why it is not, or None."""
  # It has no such method, and says so at once.
  ask = channel.unary_unary('/grpc.health.v1.Health/Check')
  try:
    ask(b'', timeout=seconds)
  except grpc.RpcError as error:
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
      return f'it did not answer within {seconds:g} s'
    if error.code() in _FINAL:
      return _reason(error)
  return None


class _Worker(grpc.UnaryUnaryClientInterceptor):
  """The connection to a worker, which is closed if the worker fails."""

  def __init__(self, address: str, credentials: grpc.ChannelCredentials | None):
    self._address = address
    options = worker_contexts.CHANNEL_OPTIONS
    if credentials is None:
      self._channel = grpc.insecure_channel(address, options)
    else:
      self._channel = grpc.secure_channel(address, credentials, options)
    self._reason: str | None = None

  def connect(self) -> None:
    """Connects with the worker.

    Raises:
      WorkerError: If it cannot be reached.
    """
    self._reason = _ask(self._channel, _SECONDS_TO_CONNECT)
    self.check()

  def check(self) -> None:
    """Raises a `WorkerError` if the worker has failed."""
    if self._reason is not None:
      raise WorkerError(
        f"TFF's worker at {self._address} cannot be used: {self._reason}."
      )

  def create_stub(self) -> tff.framework.RemoteExecutorGrpcStub:
    """Makes a stub for TFF, whose calls raise a `WorkerError` if they fail."""
    return tff.framework.RemoteExecutorGrpcStub(
      grpc.intercept_channel(self._channel, self)
    )

  def intercept_unary_unary(
    self,
    continuation: Callable[[grpc.ClientCallDetails, object], grpc.Call],
    client_call_details: grpc.ClientCallDetails,
    request: object,
  ) -> grpc.Call:
    """Calls the worker; gRPC calls this."""
    self.check()
    try:
      call = continuation(client_call_details, request)
    except ValueError:  # `watch` has closed the channel.
      self.check()
      raise
    if call.code() in _FINAL:
      self._reason = self._reason or _reason(call)
      self.check()
    return call

  def watch(self, is_over: threading.Event) -> None:
    """Ends all calls if the worker stops answering.

    Without this, calls would wait for ever if the worker's machine loses power.

    Args:
      is_over: Ends this.
    """
    while not is_over.wait(_SECONDS_BETWEEN_CALLS):
      self._reason = self._reason or _ask(self._channel, _SECONDS_TO_ANSWER)
      if self._reason is not None:
        break
    self._channel.close()


def _start_call(
  function: Callable[[], _T],
) -> concurrent.futures.Future[_T]:
  """Calls a function in a daemon thread, which does not delay the exit."""
  call: concurrent.futures.Future[_T] = concurrent.futures.Future()

  def run() -> None:
    try:
      call.set_result(function())
    except BaseException as error:  # pylint: disable=broad-except
      call.set_exception(error)

  threading.Thread(target=run, daemon=True).start()
  return call


class _RemoteContext(tff.framework.SyncContext):
  """Runs computations on several workers; see the module's docstring."""

  def __init__(self, workers: Sequence[_Worker]):
    first, stub = workers[0], workers[0].create_stub()
    self._first = worker_contexts.create_context(stub, first.check)
    self._of_pieces = [
      worker_contexts.create_context(
        worker.create_stub(), worker.check, is_compiled=True
      )
      for worker in workers
    ]
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
      return self._first.invoke(comp, arg)
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
      return self._first.invoke(comp, arg)
    known |= {k: list(part) for k, part in clients.items()}
    return self._run(sharded, known, size)

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
    num_workers = min(len(self._of_pieces), size)
    ends = [size * k // num_workers for k in range(num_workers + 1)]
    shares = [slice(start, end) for start, end in zip(ends, ends[1:])]
    for i in range(sharded.num_stages):
      if (piece := sharded.server(i, num_workers)) is not None:
        # One worker does it, with one client that receives broadcasts.
        (results,) = self._run_piece(piece, known, [slice(0, 1)])
        known |= {
          name: result for (name, _), result in zip(piece.outputs, results)
        }
      if (piece := sharded.clients(i)) is not None:
        of_workers = self._run_piece(piece, known, shares)
        for (name, is_per_client), from_workers in zip(
          piece.outputs, zip(*of_workers)
        ):
          if is_per_client:
            known[name] = list(itertools.chain(*from_workers))
          else:
            known |= {
              sharding.partial_name(name, worker): aggregate
              for worker, aggregate in enumerate(from_workers)
            }
    return _to_python(
      [known[name] for name in sharded.result], sharded.result_type
    )

  def _run_piece(
    self,
    piece: sharding.Piece,
    known: Mapping[sharding.Key, aliases.Value],
    shares: Sequence[slice],
  ) -> list[Sequence[aliases.Value]]:
    """Runs a piece on as many workers as there are shares of the clients."""

    def run(
      context: tff.framework.SyncContext, share: slice
    ) -> Sequence[aliases.Value]:
      inputs = [
        known[key][share] if is_per_client else known[key]
        for key, is_per_client in piece.inputs
      ]
      argument = [[0] * (share.stop - share.start), *inputs]
      return context.invoke(
        piece.computation,
        tff.structure.Struct((None, part) for part in argument),
      )

    calls = [
      _start_call(functools.partial(run, context, share))
      for context, share in zip(self._of_pieces, shares)
    ]
    try:
      for call in concurrent.futures.as_completed(calls):
        call.result()
    except WorkerError:
      raise  # The context is of no more use, so that nothing has to end first.
    except Exception:
      # The executors of other calls must not be closed during the next call.
      concurrent.futures.wait(calls)
      raise
    return [call.result() for call in calls]


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
) -> tff.framework.SyncContext:
  """Makes a context that runs TFF on workers that are already running.

  Args:
    addresses: The addresses of the workers, each HOST:PORT.
    credentials: The certificates for TLS, from `grpc.ssl_channel_credentials`.
      By default, TLS is not used.

  Returns:
    The context, for `tff.framework.set_default_context`.

  Raises:
    WorkerError: If a worker cannot be reached.
  """
  workers = [_Worker(address, credentials) for address in addresses]
  for worker in workers:
    worker.connect()
  if len(workers) > 1:
    context = _RemoteContext(workers)
  else:
    (worker,) = workers
    context = worker_contexts.create_context(worker.create_stub(), worker.check)
  is_over = threading.Event()
  weakref.finalize(context, is_over.set)
  for worker in workers:
    threading.Thread(target=worker.watch, args=(is_over,), daemon=True).start()
  return context
