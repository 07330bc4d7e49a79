"""Messages, tables and progress in the terminal."""

from collections.abc import Callable, Iterator
import contextlib
import sys
import time
from typing import TextIO

import rich.console
import rich.progress
import rich.table

# Where there is no terminal to draw a bar on, a line is printed this often.
_SECONDS_PER_LINE = 10.0

# Called with the number of steps that are done, and a note on the last of them.
ShowProgress = Callable[..., None]


def say(message: str) -> None:
  """Prints a message for the user, beside what a program is to print."""
  print(message, file=sys.stderr, flush=True)


def print_table(
  table: rich.table.Table, file: TextIO | None = None, width: int = 120
) -> None:
  """Prints a table.

  Args:
    table: The table.
    file: Where to print it; by default stdout.
    width: How wide it may be where there is no terminal.
  """
  file = file or sys.stdout
  rich.console.Console(
    file=file, width=None if file.isatty() else width, highlight=False
  ).print(table)


def duration(seconds: float) -> str:
  """Writes a time as minutes and seconds."""
  minutes, seconds = divmod(round(seconds), 60)
  return f'{minutes} min {seconds:02d} s' if minutes else f'{seconds} s'


class NowAndThen:
  """Tells when it is time for the next line of those printed now and then."""

  def __init__(self) -> None:
    self._last = time.monotonic()

  def is_due(self) -> bool:
    """Whether some seconds have passed since this was last so."""
    now = time.monotonic()
    if now < self._last + _SECONDS_PER_LINE:
      return False
    self._last = now
    return True


@contextlib.contextmanager
def progress(
  what: str, total: int, unit: str, file: TextIO | None = None
) -> Iterator[ShowProgress]:
  """Shows how far something is: a bar in a terminal, else a line now and then.

  Args:
    what: What is being done.
    total: How many steps it takes.
    unit: What the steps are.
    file: Where to show it; by default stderr.

  Yields:
    A function to call after a step, with the number of steps that are done and,
    if there is one, a note on the last of them.
  """
  console = rich.console.Console(file=file or sys.stderr, highlight=False)
  if console.is_terminal:
    columns = (
      rich.progress.TextColumn('{task.description:<24}'),
      rich.progress.BarColumn(),
      rich.progress.MofNCompleteColumn(),
      rich.progress.TextColumn(unit),
      rich.progress.TimeElapsedColumn(),
      rich.progress.TextColumn('{task.fields[note]}'),
    )
    with rich.progress.Progress(*columns, console=console) as bars:
      bar = bars.add_task(what, total=total, note='')
      yield lambda done, note='': bars.update(bar, completed=done, note=note)
    return

  start = time.monotonic()
  next_line = NowAndThen()
  line = ''

  def show(done: int, note: str = '') -> None:
    nonlocal line
    passed = time.monotonic() - start
    parts = (f'{what}: {done} of {total} {unit}', f'{passed:.1f} s', note)
    line = ', '.join(filter(None, parts))
    if next_line.is_due():
      print_line()

  def print_line() -> None:
    nonlocal line
    if line:
      print(line, file=console.file, flush=True)
    line = ''

  yield show
  print_line()  # How it ended.
