"""TFF's own C++ runtime, in a worker process that ends when its program ends.

TFF's default context starts the same worker, but lets it inherit the program's
output and outlive the program, so that `experiment | tail` waits for ever and
every killed run leaves a process behind. Here the worker

- is killed by the kernel when the program dies, even by `kill -9`, and by this
  module when the program ends or deletes the context;
- holds none of the program's files or pipes, and does not get its Ctrl-C. What
  it prints, for instance with `tf.print`, goes to a log;
- is alone on its port, whatever else starts on this machine;
- causes a RuntimeError with the end of its log if it dies, where TFF would try
  again without end.

The worker, as TFF builds it, listens on all interfaces and asks for no
password. Put a firewall before a machine that others can reach.
"""

from collections.abc import Sequence
import concurrent.futures
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, BinaryIO
import weakref

import grpc
import tensorflow_federated as tff

from tff_runtimes import private_api

_BINARY = private_api.worker_binary()

_START_TIMEOUT_SECONDS = 60.0

_MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
_CHANNEL_OPTIONS = [
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  # The first attempt comes before the worker listens; gRPC would otherwise
  # let a whole second pass before the next.
  ('grpc.initial_reconnect_backoff_ms', 20),
  ('grpc.max_reconnect_backoff_ms', 200),
  # The worker is on this machine, whatever proxy the environment names.
  ('grpc.enable_http_proxy', 0),
]

# Asks the kernel to kill this process when its parent dies (PR_SET_PDEATHSIG),
# makes sure that the parent did not die before that, and becomes the worker. It
# is a program of its own because `preexec_fn` is not safe in a process that has
# threads, and TensorFlow has many.
_LAUNCHER = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {signal.SIGKILL:d})
if os.getppid() == int(sys.argv[1]):
  os.execv(sys.argv[2], sys.argv[2:])
"""


def _start(command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
  """Starts a process that does not outlive this one, writing into `log`."""
  launcher = [sys.executable, '-I', '-S', '-c', _LAUNCHER, str(os.getpid())]
  started: concurrent.futures.Future[subprocess.Popen[bytes]] = (
    concurrent.futures.Future()
  )

  def start_and_wait() -> None:
    try:
      process = subprocess.Popen(
        [*launcher, *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
      )
    except BaseException as error:  # pylint: disable=broad-except
      started.set_exception(error)
      return
    started.set_result(process)
    # `_stop` may be faster.
    with contextlib.suppress(ChildProcessError):
      os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

  # To the kernel the parent is a thread, not a process: it kills the worker at
  # the end of the thread that started it. So this is a thread that waits.
  threading.Thread(target=start_and_wait, daemon=True).start()
  return started.result()


def _stop(process: subprocess.Popen[bytes]) -> None:
  """Kills a process."""
  process.kill()  # There is no state in it to save.
  process.wait()


class _NativeWorker:
  """A running worker process, which makes executors."""

  def __init__(self) -> None:
    """Starts the worker.

    Raises:
      RuntimeError: If it does not start.
    """
    self._log = tempfile.TemporaryFile()
    with socket.socket() as reservation:
      # Nobody else is given this port while it is reserved. The worker can
      # still listen there, as it sets SO_REUSEPORT too. That is also why it
      # would silently share a port that another worker has.
      reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      reservation.bind(('', 0))
      port = reservation.getsockname()[1]
      self._process = _start([_BINARY, f'--port={port}'], self._log)
      weakref.finalize(self, _stop, self._process)
      channel = grpc.insecure_channel(f'127.0.0.1:{port}', _CHANNEL_OPTIONS)
      self._stub = tff.framework.RemoteExecutorGrpcStub(channel)
      self._wait_until_ready()

  def _wait_until_ready(self) -> None:
    """Waits until the worker answers, and raises an error if it does not."""
    give_up = time.monotonic() + _START_TIMEOUT_SECONDS
    while not self._stub.is_ready:
      if time.monotonic() > give_up:
        raise RuntimeError(
          f'{_BINARY} did not answer within {_START_TIMEOUT_SECONDS:g} s.'
          f'{self._last_words()}'
        )
      self._check()
      time.sleep(0.005)

  def create_executor(
    self, cardinalities: tff.framework.CardinalitiesType
  ) -> tff.framework.RemoteExecutor:
    """Makes an executor for given numbers of clients.

    After an error TFF asks for a new executor and tries again. If the worker is
    gone, the error that is raised here ends that.

    Args:
      cardinalities: The number of clients by placement.

    Returns:
      The executor.

    Raises:
      RuntimeError: If the worker has ended.
    """
    self._check()
    # A computation whose argument tells no number of clients has none.
    cardinalities.setdefault(tff.CLIENTS, 0)
    executor = tff.framework.RemoteExecutor(self._stub)
    executor.set_cardinalities(cardinalities)
    return executor

  def _check(self) -> None:
    """Raises an error if the worker has ended."""
    status = self._process.poll()
    if status is None:
      return
    if status < 0:
      how = f'was killed by {signal.Signals(-status).name}'
      if status == -signal.SIGKILL:
        how += ' (by the kernel, if the machine ran out of memory)'
    else:
      how = f'ended with exit status {status}'
    raise RuntimeError(
      f"TFF's worker process, {_BINARY}, {how}. Make a new context to go on."
      f'{self._last_words()}'
    )

  def _last_words(self) -> str:
    """Returns a sentence with the end of the worker's log."""
    size = self._log.seek(0, os.SEEK_END)
    self._log.seek(max(0, size - 2000))
    words = self._log.read().decode(errors='replace').strip()
    return f' The end of its log:\n{words}' if words else ' Its log is empty.'


def _with_client_lists(value: Any, value_type: tff.Type) -> Any:
  """Turns the sequences of clients in an argument into lists, as TFF wants.

  Args:
    value: The argument. Whether a tuple in it is two clients or two parts of
      one client's value depends on the type.
    value_type: Its type.

  Returns:
    The argument with lists; nothing else is changed.
  """
  if isinstance(value_type, tff.FederatedType):
    is_sequence = isinstance(value, Sequence) and not isinstance(
      value, (str, bytes)
    )
    return list(value) if is_sequence and not value_type.all_equal else value
  if isinstance(value_type, tff.StructType) and tff.types.contains(
    value_type, lambda part: isinstance(part, tff.FederatedType)
  ):
    parts = tff.structure.to_elements(tff.structure.from_container(value))
    types = tff.structure.to_elements(value_type)
    if len(parts) == len(types):  # Otherwise TFF says what is wrong.
      return tff.structure.Struct(
        (name, _with_client_lists(part, part_type))
        for (name, part), (_, part_type) in zip(parts, types)
      )
  return value


class _NativeContext(tff.framework.SyncExecutionContext):
  """An execution context that takes any sequence of clients."""

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Runs a computation; TFF calls this."""
    parameter_type = comp.type_signature.parameter
    if parameter_type is not None:
      arg = _with_client_lists(arg, parameter_type)
    return super().invoke(comp, arg)


def _compile(
  comp: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
  return tff.backends.native.desugar_and_transform_to_native(
    private_api.replace_secure_sums(comp)
  )


def create_native_context() -> tff.framework.SyncContext:
  """Starts TFF's worker process and makes a context that runs TFF there.

  The worker lives as long as the context and this process do.

  Returns:
    The context, for `tff.framework.set_default_context`.

  Raises:
    RuntimeError: If the worker does not start.
  """
  return _NativeContext(
    executor_fn=tff.framework.ResourceManagingExecutorFactory(
      _NativeWorker().create_executor
    ),
    compiler_fn=_compile,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )
