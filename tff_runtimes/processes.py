"""Processes that end when the program that started them ends.

This module imports neither TensorFlow nor TFF, so that a program that needs
only this starts at once.
"""

from collections.abc import Iterator, Sequence
import concurrent.futures
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import BinaryIO

# Asks the kernel to kill this process when its parent dies (PR_SET_PDEATHSIG),
# makes sure that the parent did not die before that, and becomes the program.
# It is a program of its own because `preexec_fn` is not safe in a process that
# has threads, and TensorFlow has many.
_LAUNCHER = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {signal.SIGKILL:d})
if os.getppid() == int(sys.argv[1]):
  os.execv(sys.argv[2], sys.argv[2:])
"""


def start(command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
  """Starts a process that does not outlive this one.

  It holds none of this program's files or pipes but `log`, and does not get its
  Ctrl-C.

  Args:
    command: The path of the program, and its arguments.
    log: The file that it writes into.

  Returns:
    The process.
  """
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
    # `stop` may be faster.
    with contextlib.suppress(ChildProcessError):
      os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

  # To the kernel the parent is a thread, not a process: it kills the process at
  # the end of the thread that started it. So this is a thread that waits.
  threading.Thread(target=start_and_wait, daemon=True).start()
  return started.result()


def stop(process: subprocess.Popen[bytes]) -> None:
  """Kills a process."""
  process.kill()  # There is no state in it to save.
  process.wait()


def describe_end(status: int) -> str:
  """Says how a process ended, as in 'ended with exit status 1'."""
  if status >= 0:
    return f'ended with exit status {status}'
  end = f'was killed by {signal.Signals(-status).name}'
  if status == -signal.SIGKILL:
    end += ' (by the kernel, if the machine ran out of memory)'
  return end


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
  """Yields a port for TFF's worker that nobody else is given meanwhile.

  The worker can still listen there, as it sets SO_REUSEPORT too. That is also
  why it would silently share a port that another worker has.
  """
  with socket.socket() as reservation:
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind(('', 0))
    yield reservation.getsockname()[1]
