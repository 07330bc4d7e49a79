"""Helpers for tests of other processes."""

import time

import psutil


def is_gone(process: psutil.Process, within_seconds: float = 10.0) -> bool:
  """Waits for a process to end, and returns whether it has ended in time.

  A process that has ended stays a zombie until its parent asks for its status.
  """
  deadline = time.monotonic() + within_seconds
  while _is_running(process):
    if time.monotonic() > deadline:
      return False
    time.sleep(0.01)
  return True


def _is_running(process: psutil.Process) -> bool:
  try:
    # The first compares start times, as another process may have the id by now.
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False
