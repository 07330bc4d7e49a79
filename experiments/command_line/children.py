"""Processes that a program starts, and that do not outlive it."""

from collections.abc import Callable
import ctypes
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import multiprocessing.resource_tracker
import os
import signal

from experiments.command_line import launch

_PR_SET_PDEATHSIG = 1
_PROGRAM_SIGNALS = {signal.SIGINT, signal.SIGUSR2}


def start(
  target: Callable[..., None],
  *arguments: object,
  may_start_others: bool = False,
) -> tuple[
  multiprocessing.process.BaseProcess, multiprocessing.connection.Connection
]:
  """Starts a process that inherits nothing and imports what it needs itself.

  It receives neither the program's Ctrl-C nor the signal by which Slurm says
  that a job's time is over. When this process ends, for whatever reason, the
  kernel kills the new one.

  Args:
    target: The function to call in the new process. Its arguments are the other
      end of the connection, and `arguments`.
    *arguments: The arguments.
    may_start_others: Whether it may start processes itself. This process then
      waits for it before it ends.

  Returns:
    The process, and a connection to it. If it ends, reading from the connection
    raises an `EOFError`.
  """
  context = multiprocessing.get_context('spawn')
  ours, others = context.Pipe()
  process = context.Process(
    target=_work,
    args=(os.getpid(), target, others, *arguments),
    daemon=not may_start_others,
  )
  # A signal that is blocked here is blocked in the new process from its start.
  # The tracker is started first, as starting it unblocks the signal.
  multiprocessing.resource_tracker.ensure_running()
  before = signal.pthread_sigmask(signal.SIG_BLOCK, _PROGRAM_SIGNALS)
  try:
    process.start()
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
  others.close()
  return process, ours


def _work(
  parent: int,
  target: Callable[..., None],
  connection: multiprocessing.connection.Connection,
  *arguments: object,
) -> None:
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() == parent:  # The parent may have ended already.
    target(connection, *arguments)
  launch.end(0)
