"""TFF's own C++ runtime, in a worker process that ends when its program ends.

TFF's default context starts the same worker, but lets it inherit the program's
output and outlive the program, so that `experiment | tail` waits for ever and
every killed run leaves a process behind. Here the worker

- is killed by the kernel when the program dies, even by `kill -9`, and by this
  module when the program ends or deletes the context;
- holds none of the program's files or pipes, and does not get its Ctrl-C. What
  it prints, for instance with `tf.print`, goes to a log;
- causes a RuntimeError with the end of its log if it dies, where TFF would try
  again without end;
- cannot be reached by others. TFF's worker listens on all interfaces and asks
  for no password, and who reaches it can read and write files. So it is started
  in a network namespace, by the program `tff_runtimes.worker`, which forwards
  what this process sends to a socket that nobody else sees.
"""

from collections.abc import Iterator
import contextlib
import os
import sys
import tempfile
import time
import weakref

import grpc
import tensorflow_federated as tff

from tff_runtimes import private_api
from tff_runtimes import processes
from tff_runtimes import worker
from tff_runtimes import worker_contexts

_BINARY = private_api.worker_binary()

_START_TIMEOUT_SECONDS = 60.0
# gRPC would disconnect after half an hour without work.
_STAYS_CONNECTED = ('grpc.client_idle_timeout_ms', 2**31 - 1)


class ExposedWorkerError(RuntimeError):
  """The error for a worker that others could reach, as the system is."""


# Runs `tff_runtimes.worker` where this module is found.
_PROGRAM = """
import sys
sys.path[:] = {path!r}
from tff_runtimes import worker
sys.exit(worker.main({arguments!r}))
"""
# The path of a socket has at most 107 characters.
_LONGEST_FOLDER = 80


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
  """Makes a folder that only this user can enter."""
  is_short = len(tempfile.gettempdir()) <= _LONGEST_FOLDER
  with tempfile.TemporaryDirectory(
    prefix='tff-', dir=None if is_short else '/tmp'
  ) as folder:
    yield folder


class _NativeWorker:
  """A running worker process.

  Attributes:
    stub: Reaches it.
  """

  def __init__(self, allow_exposed: bool) -> None:
    """Starts the worker.

    Args:
      allow_exposed: Whether others may reach it, if the system allows no
        network namespaces.

    Raises:
      RuntimeError: If it does not start.
    """
    self._log = tempfile.TemporaryFile()
    with _private_folder() as folder:
      path = os.path.join(folder, 'worker')
      arguments = [f'--unix_socket={path}', f'--worker_binary={_BINARY}']
      arguments += ['--allow_exposed'] if allow_exposed else []
      program = _PROGRAM.format(path=sys.path, arguments=arguments)
      self._process = processes.start(
        [sys.executable, '-c', program], self._log
      )
      weakref.finalize(self, processes.stop, self._process)
      # Once it is connected, nobody else can be.
      channel = grpc.insecure_channel(
        f'unix:{path}', (*worker_contexts.CHANNEL_OPTIONS, _STAYS_CONNECTED)
      )
      self.stub = tff.framework.RemoteExecutorGrpcStub(channel)
      self._wait_until_ready()

  def _wait_until_ready(self) -> None:
    """Waits until the worker answers, and raises an error if it does not."""
    give_up = time.monotonic() + _START_TIMEOUT_SECONDS
    while not self.stub.is_ready:
      if time.monotonic() > give_up:
        raise RuntimeError(
          f'{_BINARY} did not answer within {_START_TIMEOUT_SECONDS:g} s.'
          f'{self._last_words()}'
        )
      self.check()
      time.sleep(0.005)

  def check(self) -> None:
    """Raises a RuntimeError if the worker has ended."""
    status = self._process.poll()
    if status == worker.EXPOSED:
      raise ExposedWorkerError(
        "This system does not allow a network namespace, which would hide TFF's"
        ' worker: everybody who reaches this machine could read and write files'
        ' with it.'
      )
    if status is not None:
      raise RuntimeError(
        f"TFF's worker process, {_BINARY}, has ended. Make a new context to go"
        f' on.{self._last_words()}'
      )

  def _last_words(self) -> str:
    """Returns a sentence with the end of the worker's log."""
    size = self._log.seek(0, os.SEEK_END)
    self._log.seek(max(0, size - 2000))
    words = self._log.read().decode(errors='replace').strip()
    return f' The end of its log:\n{words}' if words else ' Its log is empty.'


def create_native_context(
  allow_exposed: bool = False,
) -> tff.framework.SyncContext:
  """Starts TFF's worker process and makes a context that runs TFF there.

  The worker lives as long as the context and this process do.

  Args:
    allow_exposed: Whether to start it, too, where the system allows no network
      namespaces: then its port is open to the network without a password, so
      that a firewall is needed.

  Returns:
    The context, for `tff.framework.set_default_context`.

  Raises:
    ExposedWorkerError: If the system allows no network namespaces.
    RuntimeError: If the worker does not start.
  """
  native_worker = _NativeWorker(allow_exposed)
  return worker_contexts.create_context(native_worker.stub, native_worker.check)
