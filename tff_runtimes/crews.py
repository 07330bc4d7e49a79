"""TFF workers that do calls for one another.

Each call is done by some worker of the crew. A call of a worker that is lost is
done by another worker, and so is one that takes much longer than the others of
its kind. A worker that is lost is asked again and again, so that it takes part
once it is started again or can be reached again.
"""

from collections.abc import Callable, Sequence
import concurrent.futures
import functools
import threading
import time
from typing import Generic, TypeAlias, TypeVar

import grpc
import tensorflow_federated as tff

from tff_runtimes import private_api
from tff_runtimes import worker_contexts

_T = TypeVar('_T')
# A call of a worker, by a context that runs computations there.
_Function: TypeAlias = Callable[[tff.framework.SyncContext], _T]

# How often a worker is asked whether it is there, and how long it may take to
# answer. Answering takes no time, but large messages may delay the answer.
_SECONDS_BETWEEN_CALLS = 10.0
_SECONDS_TO_ANSWER = 60.0
_SECONDS_TO_CONNECT = 10.0

# A call is late after twice the time of the slowest that is done, and this.
_SECONDS_OF_GRACE = 1.0
# So many workers may be lost at the same call, whose work may be the reason.
_MAX_LOST = 3

_FINAL = frozenset(
  [
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAVAILABLE,
  ]
)

# What gRPC says of an answer that only a server of HTTP/2 gives.
_OF_HTTP = 'http2 header with status'


class WorkerError(grpc.RpcError):
  """The error for workers that cannot be used, which the message names."""


def _reason(call: grpc.Call) -> str:
  """Says why a call failed, without what gRPC says of its own work."""
  reason: str = call.details().rpartition('last error: ')[2].rstrip('. ')
  # A server of HTTP/1 has said that all is well.
  speaks_no_grpc = reason in ('', 'OK') or _OF_HTTP in reason
  return 'it speaks no gRPC' if speaks_no_grpc else reason


class _Connection(grpc.UnaryUnaryClientInterceptor):
  """A connection to a worker, which is of no more use once it has failed.

  Attributes:
    reason: Why it has failed; None if it has not.
    failed: Is set when it fails.
    num_replaced: The number of calls that are still under way here although
      others have done them.
  """

  def __init__(self, address: str, credentials: grpc.ChannelCredentials | None):
    self._address = address
    options = worker_contexts.CHANNEL_OPTIONS
    if credentials is None:
      self._channel = grpc.insecure_channel(address, options)
    else:
      self._channel = grpc.secure_channel(address, credentials, options)
    self._stub = private_api.RemoteExecutorStub(
      grpc.intercept_channel(self._channel, self)
    )
    # Those that are not in use, by whether they are for compiled computations.
    self._contexts: dict[bool, list[tff.framework.SyncContext]] = {
      False: [],
      True: [],
    }
    self.reason: str | None = None
    self.failed = threading.Event()
    self.num_replaced = 0

  def _fail(self, reason: str) -> None:
    self.reason = self.reason or reason
    self.failed.set()

  def ask(self, seconds: float) -> bool:
    """Asks the worker whether it is there, and waits so long for its answer."""
    # It has no such method, and says so at once.
    ask = self._channel.unary_unary('/grpc.health.v1.Health/Check')
    try:
      ask(b'', timeout=seconds)
    except grpc.RpcError as error:
      if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        self._fail(f'it did not answer within {seconds:g} s')
      elif error.code() in _FINAL or _OF_HTTP in error.details():
        self._fail(_reason(error))
    return self.reason is None

  def close(self) -> None:
    """Ends all calls."""
    self._channel.close()

  def check(self) -> None:
    """Raises a `WorkerError` if the connection has failed."""
    if self.reason is not None:
      raise WorkerError(
        f"TFF's worker at {self._address} cannot be used: {self.reason}."
      )

  def call(self, function: _Function[_T], is_compiled: bool) -> _T:
    """Calls a function with a context that no other call uses meanwhile."""
    contexts = self._contexts[is_compiled]
    context = (
      contexts.pop()
      if contexts
      else worker_contexts.create_context(self._stub, self.check, is_compiled)
    )
    result = function(context)
    contexts.append(context)
    return result

  def intercept_unary_unary(
    self,
    continuation: Callable[[grpc.ClientCallDetails, object], grpc.Call],
    client_call_details: grpc.ClientCallDetails,
    request: object,
  ) -> grpc.Call:
    """Calls the worker; gRPC calls this.

    Raises:
      WorkerError: If the worker fails. After other errors TFF would try again.
    """
    self.check()
    try:
      call = continuation(client_call_details, request)
    except ValueError:  # The channel has been closed.
      self.check()
      raise
    if call.code() in _FINAL:
      self._fail(_reason(call))
      self.check()
    return call


class _Member:
  """A worker of a crew, which may be lost and come again.

  Attributes:
    connection: The last connection to it.
  """

  def __init__(self, address: str, credentials: grpc.ChannelCredentials | None):
    self._connect = functools.partial(_Connection, address, credentials)
    self._address = address
    self.connection = self._connect()

  def look_after(
    self,
    changed: threading.Condition,
    tell: Callable[[str], None],
    is_over: threading.Event,
  ) -> None:
    """Asks the worker from time to time, and connects again if it is lost.

    Without this, calls would wait for ever if the worker's machine loses power.

    Args:
      changed: Is notified when the worker comes again.
      tell: Is told of that, and of its loss.
      is_over: Ends this.
    """
    while not is_over.is_set():
      if not self.connection.failed.wait(_SECONDS_BETWEEN_CALLS):
        self.connection.ask(_SECONDS_TO_ANSWER)
        continue
      self.connection.close()
      tell(
        f"TFF's worker at {self._address} cannot be used:"
        f' {self.connection.reason}. Others do its work until it answers.'
      )
      while not self._is_there_again(changed):
        if is_over.wait(_SECONDS_BETWEEN_CALLS):
          return
      tell(f"TFF's worker at {self._address} is used again.")
    self.connection.close()

  def _is_there_again(self, changed: threading.Condition) -> bool:
    connection = self._connect()
    if not connection.ask(_SECONDS_TO_CONNECT):
      connection.close()
      return False
    with changed:
      self.connection = connection
      changed.notify_all()
    return True


class _Task(Generic[_T]):
  """A call that some worker has to do.

  Attributes:
    function: The call.
    at_work: The workers that are at it, with the time when each began.
    num_lost: The number of workers that were lost at it.
    error: Its error, if it has failed.
    results: Its result, if it is done.
  """

  def __init__(self, function: _Function[_T]):
    self.function = function
    self.at_work: dict[_Connection, float] = {}
    self.num_lost = 0
    self.error: BaseException | None = None
    self.results: list[_T] = []


class Crew:
  """Workers that do calls for one another; see the module's docstring."""

  def __init__(
    self,
    addresses: Sequence[str],
    credentials: grpc.ChannelCredentials | None,
    tell: Callable[[str], None],
    is_over: threading.Event,
  ):
    """Connects with workers.

    Args:
      addresses: Their addresses. Some may be of workers that are yet to come.
      credentials: The certificates for TLS; None for none.
      tell: Is told of workers that are lost or come.
      is_over: Ends the connections.

    Raises:
      WorkerError: If no worker can be reached.
    """
    self._changed = threading.Condition()
    self._members = [_Member(address, credentials) for address in addresses]
    with concurrent.futures.ThreadPoolExecutor(len(addresses)) as pool:
      for member in self._members:
        pool.submit(member.connection.ask, _SECONDS_TO_CONNECT)
    if not self._connections():
      raise self._error()
    for member in self._members:
      threading.Thread(
        target=member.look_after,
        args=(self._changed, tell, is_over),
        daemon=True,
      ).start()

  def _connections(self) -> list[_Connection]:
    """Returns the connections that have not failed."""
    connections = [member.connection for member in self._members]
    return [one for one in connections if one.reason is None]

  def _error(self) -> WorkerError:
    """Makes an error that says of each worker why it is lost."""
    reasons = []
    for member in self._members:
      try:
        member.connection.check()
      except WorkerError as error:
        reasons.append(str(error))
    return WorkerError(' '.join(reasons))

  def run(
    self, functions: Sequence[_Function[_T]], is_compiled: bool = True
  ) -> list[_T]:
    """Does calls, as many at once as there are.

    Args:
      functions: The calls. Several workers may do the same one, so that it has
        to give the same each time.
      is_compiled: Whether they run only computations that are compiled already.

    Returns:
      Their results.

    Raises:
      WorkerError: If no worker is left, or several were lost at one call.
    """
    tasks = [_Task(function) for function in functions]
    seconds_of_calls: list[float] = []
    while True:
      with self._changed:
        for task in tasks:
          if task.error is not None:
            raise task.error
        undone = [task for task in tasks if not task.results]
        if not undone:
          return [task.results[0] for task in tasks]
        wait_seconds = self._assign(tasks, seconds_of_calls, is_compiled)
        self._changed.wait(wait_seconds)

  def _assign(
    self,
    tasks: Sequence[_Task[_T]],
    seconds_of_calls: list[float],
    is_compiled: bool,
  ) -> float | None:
    """Gives tasks to workers: those that nobody does, and those that are late.

    Args:
      tasks: All tasks.
      seconds_of_calls: What the calls took that are done. More are added.
      is_compiled: As for `run`.

    Returns:
      The seconds until a task is late; None if none will be.

    Raises:
      WorkerError: If nobody is left to do them.
    """
    connections = self._connections()
    undone = [task for task in tasks if not task.results]
    if not connections and not any(task.at_work for task in undone):
      raise self._error()
    # All at once, in equal shares. A worker that was replaced is still busy.
    loads = {
      one: one.num_replaced + sum(one in task.at_work for task in undone)
      for one in connections
    }
    share = -(-len(tasks) // max(1, len(connections)))
    now = time.monotonic()
    waits = []
    for task in undone:
      if task.at_work:
        if not seconds_of_calls or len(task.at_work) > 1:
          continue
        (start,) = task.at_work.values()
        wait = start - now + 2 * max(seconds_of_calls) + _SECONDS_OF_GRACE
        if wait > 0:
          waits.append(wait)
          continue
      free = [
        one for one in loads if loads[one] < share and one not in task.at_work
      ]
      if free:
        chosen = min(free, key=lambda one: loads[one])
        loads[chosen] += 1
        task.at_work[chosen] = now
        threading.Thread(
          target=self._do,
          args=(task, chosen, seconds_of_calls, is_compiled),
          daemon=True,  # It does not delay the exit.
        ).start()
    return min(waits, default=None)

  def _do(
    self,
    task: _Task[_T],
    connection: _Connection,
    seconds_of_calls: list[float],
    is_compiled: bool,
  ) -> None:
    """Does a task, unless another worker is faster."""
    result: list[_T] = []
    error: BaseException | None = None
    try:
      result.append(connection.call(task.function, is_compiled))
    except BaseException as raised:  # pylint: disable=broad-except
      error = raised
    with self._changed:
      start = task.at_work.pop(connection, None)
      if start is None:  # Another one has done it.
        connection.num_replaced -= 1
      elif isinstance(error, WorkerError):
        task.num_lost += 1
        if task.num_lost == _MAX_LOST:
          task.error = error
      else:
        task.error = error
        task.results = result
        seconds_of_calls.append(time.monotonic() - start)
        for other in task.at_work:
          other.num_replaced += 1
        task.at_work = {}
      self._changed.notify_all()
