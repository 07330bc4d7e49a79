"""Processes that a program starts, and that do not outlive it."""

import ctypes
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import multiprocessing.resource_tracker
import os
import signal
from typing import Any

from experiments.command_line import launch

_PR_SET_PDEATHSIG = 1


def start(
  target: Any, *arguments: Any
) -> tuple[
  multiprocessing.process.BaseProcess, multiprocessing.connection.Connection
]:
  """Starts a process that begins with nothing but what it imports itself.

  It does not get the program's Ctrl-C. When this process ends, however that is,
  the kernel kills it.

  Args:
    target: The function to call, in the new process. It is given the other end
      of the connection, and the arguments.
    *arguments: The arguments.

  Returns:
    The process, and a connection to it. If it ends, reading from the connection
    raises an `EOFError`.
  """
  context = multiprocessing.get_context('spawn')
  own, others = context.Pipe()
  process = context.Process(
    target=_work, args=(os.getpid(), target, others, *arguments), daemon=True
  )
  # What is blocked here is blocked there from the beginning; to start the
  # tracker, which this would do, unblocks it.
  multiprocessing.resource_tracker.ensure_running()
  before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    process.start()
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
  others.close()
  return process, own


def _work(
  parent: int,
  target: Any,
  connection: multiprocessing.connection.Connection,
  *arguments: Any,
) -> None:
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() == parent:  # It may have ended before.
    target(connection, *arguments)
  launch.end(0)
