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

import os
import tempfile
import time
import weakref

import grpc
import tensorflow_federated as tff

from tff_runtimes import private_api
from tff_runtimes import processes
from tff_runtimes import worker_contexts

_BINARY = private_api.worker_binary()

_START_TIMEOUT_SECONDS = 60.0


class _NativeWorker:
  """A running worker process.

  Attributes:
    stub: Reaches it.
  """

  def __init__(self) -> None:
    """Starts the worker.

    Raises:
      RuntimeError: If it does not start.
    """
    self._log = tempfile.TemporaryFile()
    with processes.reserved_port() as port:
      self._process = processes.start([_BINARY, f'--port={port}'], self._log)
      weakref.finalize(self, processes.stop, self._process)
      channel = grpc.insecure_channel(
        f'127.0.0.1:{port}', worker_contexts.CHANNEL_OPTIONS
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
    if status is not None:
      raise RuntimeError(
        f"TFF's worker process, {_BINARY}, {processes.describe_end(status)}."
        f' Make a new context to go on.{self._last_words()}'
      )

  def _last_words(self) -> str:
    """Returns a sentence with the end of the worker's log."""
    size = self._log.seek(0, os.SEEK_END)
    self._log.seek(max(0, size - 2000))
    words = self._log.read().decode(errors='replace').strip()
    return f' The end of its log:\n{words}' if words else ' Its log is empty.'


def create_native_context() -> tff.framework.SyncContext:
  """Starts TFF's worker process and makes a context that runs TFF there.

  The worker lives as long as the context and this process do.

  Returns:
    The context, for `tff.framework.set_default_context`.

  Raises:
    RuntimeError: If the worker does not start.
  """
  worker = _NativeWorker()
  return worker_contexts.create_context(worker.stub, worker.check)
