"""Stops a program at Ctrl-C, or at SIGTERM, which clusters send.

Python handles a signal only between two of its own instructions. There are none
while TensorFlow runs, so that an answer could take minutes. Here a thread
receives the signals and answers at once.

Programs write their files such that a kill at any time does no harm. So a
program ends at once, with a message: an exception lets it clean up, but only
for a short time. Nothing is shown of the exception, as it may be raised in the
middle of an import. Only work inside `finishing` may continue to a point where
less is lost; a second signal ends that, too.

A program listens before it imports anything else. So this module imports
nothing that takes long.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
import signal
import sys
import threading
import time
import types

_SIGNALS = signal.SIGINT, signal.SIGTERM
# How long a program may clean up.
_SECONDS_TO_TIDY = 0.5
_SHOW_CURSOR = '\x1b[?25h'

# Guards the variables below, which two threads use.
_lock = threading.Lock()
# The signal that was received, if any.
_asked: int | None = None
# The work that is finished before the program stops, if any.
_unfinished: str | None = None
_outlook = ''
_is_ending = False


class Stopped(SystemExit):
  """Raised to stop a program after a signal.

  Attributes:
    exit_status: The exit status of a process that was stopped by this signal.
  """

  def __init__(self, number: int):
    self.exit_status = 128 + number
    super().__init__(self.exit_status)


def listen() -> None:
  """Starts to answer signals."""
  # Otherwise a file could take the number of a closed stdin, stdout or stderr.
  while (unused := os.open(os.devnull, os.O_RDWR)) <= 2:
    pass
  os.close(unused)
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  for number in _SIGNALS:
    # Shells start background programs such that they ignore SIGINT.
    if signal.getsignal(number) is not signal.SIG_IGN:
      signal.signal(number, _raise)
  threading.Thread(
    target=_answer, args=(reader,), name='signals', daemon=True
  ).start()


def _raise(number: int, frame: types.FrameType | None) -> None:
  del number, frame  # They may be those of an earlier signal.
  if _is_ending and _asked is not None:
    raise Stopped(_asked)


def _answer(reader: int) -> None:
  global _asked
  while True:
    (number,) = os.read(reader, 1)
    if number not in _SIGNALS:
      continue
    with _lock:
      unfinished = _unfinished if _asked is None else None
      _asked = number
    if unfinished is None:
      _end(number)
    _say(
      f'{_new_line()}Stopping after {unfinished}; Ctrl-C again ends at once.'
    )


def _end(number: int) -> None:
  """Ends the process, whatever it is doing."""
  global _is_ending
  # A progress bar hides the cursor.
  _say(f'{_SHOW_CURSOR if os.isatty(2) else ""}{message()}')
  os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
  _is_ending = True
  signal.pthread_kill(threading.main_thread().ident or 0, number)
  time.sleep(_SECONDS_TO_TIDY)
  os._exit(Stopped(number).exit_status)


def _say(text: str) -> None:
  """Writes to stderr, but not through `sys.stderr`, which may be locked."""
  encoding = sys.stderr.encoding if sys.stderr else 'ascii'
  with contextlib.suppress(OSError):
    os.write(2, f'{text}\n'.encode(encoding, errors='replace'))


def say_outlook(outlook: str) -> None:
  """Sets the advice that a user gets if the program does not finish."""
  global _outlook
  _outlook = outlook


def outlook() -> str:
  """Returns the advice that a user gets if the program does not finish."""
  return _outlook


def message() -> str:
  """Returns the message to a user who has stopped the program."""
  return f'{_new_line()}Stopped. {_outlook}'.rstrip()


def _new_line() -> str:
  """Ends the line in which a terminal shows ^C."""
  return '\n' if os.isatty(2) else ''


@contextlib.contextmanager
def finishing(what: str) -> Iterator[Callable[[], bool]]:
  """Lets work in progress be finished before the program stops.

  Args:
    what: The name of the work, for the message to the user.

  Yields:
    A function that tells whether the program is to stop. Until its first call,
    for example after the first round, nothing could be lost, and the program
    stops at once.

  Raises:
    Stopped: At the end, if the program is to stop.
  """

  def should_stop() -> bool:
    _set_unfinished(what)
    return _asked is not None

  try:
    yield should_stop
  finally:
    _set_unfinished(None)
  if _asked is not None:
    raise Stopped(_asked)


def _set_unfinished(what: str | None) -> None:
  global _unfinished
  with _lock:
    _unfinished = what
