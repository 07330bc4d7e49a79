"""How a program is stopped: by Ctrl-C, or by SIGTERM, as clusters send it.

Python handles a signal between two of its own steps, and there are none while
TensorFlow runs, so that an answer could take minutes. Here a thread hears the
signals, and answers at once.

What programs write is such that a kill at any time does no harm. So a program
ends at once, with a message: an exception has it tidy up, but it is not waited
for long, nor is anything said of it, as it may come in the middle of an import.
Only what is done under `finishing` may go on to where less is lost; a second
signal ends that, too.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
import signal
import sys
import threading
import time
import types

from experiments.command_line import terminal

_SIGNALS = signal.SIGINT, signal.SIGTERM
# How long a program may tidy up.
_SECONDS_TO_TIDY = 0.5
_SHOW_CURSOR = '\x1b[?25h'

# For what follows, which two threads use.
_lock = threading.Lock()
# The signal that there was, if there was one.
_asked: int | None = None
# What is finished before the program stops, if there is something.
_unfinished: str | None = None
_outlook = ''
_is_ending = False


class Stopped(BaseException):
  """Raised where a program stops that was asked to.

  Attributes:
    exit_status: The exit status of a process that was stopped by this signal.
  """

  def __init__(self, number: int):
    super().__init__(number)
    self.exit_status = 128 + number


def listen() -> None:
  """Begins to answer signals."""
  heard, told = os.pipe()
  os.set_blocking(told, False)
  signal.set_wakeup_fd(told, warn_on_full_buffer=False)
  for number in _SIGNALS:
    # Shells start what is in the background without SIGINT.
    if signal.getsignal(number) is not signal.SIG_IGN:
      signal.signal(number, _raise)
  threading.Thread(
    target=_answer, args=(heard,), name='signals', daemon=True
  ).start()


def _raise(number: int, frame: types.FrameType | None) -> None:
  del number, frame  # It may be that of an earlier signal.
  if _is_ending and _asked is not None:
    raise Stopped(_asked)


def _answer(heard: int) -> None:
  global _asked
  while True:
    (number,) = os.read(heard, 1)
    if number not in _SIGNALS:
      continue
    with _lock:
      unfinished = _unfinished if _asked is None else None
      _asked = number
    if unfinished is None:
      _end(number)
    terminal.say(
      f'{_new_line()}Stopping after {unfinished}; Ctrl-C again ends at once.'
    )


def _end(number: int) -> None:
  """Ends the process, whatever it is doing."""
  global _is_ending
  text = f'{message()}\n'
  if os.isatty(2):
    text = _SHOW_CURSOR + text  # A progress bar hides it.
  # Not by `sys.stderr`, which another thread may have locked.
  with contextlib.suppress(OSError):
    os.write(2, text.encode(sys.stderr.encoding, errors='replace'))
  os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
  _is_ending = True
  signal.pthread_kill(threading.main_thread().ident or 0, number)
  time.sleep(_SECONDS_TO_TIDY)
  os._exit(Stopped(number).exit_status)


def say_outlook(outlook: str) -> None:
  """Sets what a user is told, from now on, who stops the program."""
  global _outlook
  _outlook = outlook


def outlook() -> str:
  """Returns what a user is told if the program does not come to its end."""
  return _outlook


def message() -> str:
  """Returns what a user is told who has stopped the program."""
  return f'{_new_line()}Stopped. {_outlook}'.rstrip()


def _new_line() -> str:
  """Ends the line in which a terminal shows ^C."""
  return '\n' if os.isatty(2) else ''


@contextlib.contextmanager
def finishing(what: str) -> Iterator[Callable[[], bool]]:
  """Lets what is under way be finished before the program stops.

  Args:
    what: What that is.

  Yields:
    A function that tells whether the program is to stop.

  Raises:
    Stopped: At the end, if it is to stop.
  """
  global _unfinished
  with _lock:
    _unfinished = what
  try:
    yield lambda: _asked is not None
  finally:
    with _lock:
      _unfinished = None
  if _asked is not None:
    raise Stopped(_asked)
