"""Messages, tables and progress in the terminal."""

import codecs
from collections.abc import Callable, Iterable, Iterator
import contextlib
import io
import os
import sys
import time
from typing import TextIO

import rich.box
import rich.console
import rich.progress
import rich.table

from base import names
from base import words
from experiments.command_line import fitting

# Replacements for characters that an encoding such as ASCII does not have.
_PLAIN = {
  '±': '+-',
  '–': '-',
  '…': '...',
  '²': '^2',
  'δ': 'delta',
  'ε': 'epsilon',
}
# Without a terminal to draw a progress bar, a line is printed this often.
_SECONDS_PER_LINE = 10.0
# The time that is left is not estimated before this many seconds have passed.
_SECONDS_TO_TELL = 3.0

# Called with the number of steps that are done, and a note on the last of them.
ShowProgress = Callable[..., None]


def prepare() -> None:
  """Prepares stdout and stderr, so that any text can be written to them.

  Each line is written at once, so that it is not lost if the program is killed.
  """
  if sys.stderr is None:
    sys.stderr = open(os.devnull, 'w', encoding='utf-8')
  if sys.stdout is None:
    say('Error: stdout is closed. Send it to a file, or to /dev/null.')
    sys.exit(1)
  codecs.register_error('plain', _plainly)
  for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(errors='plain', line_buffering=True)


def _plainly(error: UnicodeError) -> tuple[str, int]:
  """Replaces characters that an encoding does not have; see `codecs`."""
  if not isinstance(error, UnicodeEncodeError):
    raise error
  characters = error.object[error.start : error.end]
  plain = ''.join(_PLAIN.get(character, '?') for character in characters)
  return plain, error.end


def flush() -> None:
  """Flushes stdout and stderr; discards output that cannot be written."""
  for stream in (sys.stdout, sys.stderr):
    try:
      stream.flush()
    except OSError:
      os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(message: str) -> None:
  """Prints a message for the user to stderr, apart from a program's output."""
  print(names.visible(message), file=sys.stderr, flush=True)


class _Console(rich.console.Console):
  """A console whose reader may close the pipe."""

  def on_broken_pipe(self) -> None:
    """Discards the output, as the program may still have files to write."""
    flush()


def console(file: TextIO, width: int | None = None) -> rich.console.Console:
  """Makes a console that shows text without markup or highlighting.

  Args:
    file: The stream to write to.
    width: The width; by default that of the terminal.
  """
  return _Console(
    file=file,
    width=width,
    highlight=False,
    markup=False,
    # Else a notebook gets it instead of the stream, and any stream gets colors.
    force_jupyter=False,
    force_terminal=file.isatty(),
  )


def make_table(
  title: str, *names: str, numbers: Iterable[str] = ()
) -> rich.table.Table:
  """Makes a table without rows.

  Args:
    title: Its title.
    *names: The columns of names.
    numbers: The columns of numbers, which follow.
  """
  table = rich.table.Table(
    *names, title=title, title_justify='left', box=rich.box.SIMPLE
  )
  for number in numbers:
    table.add_column(number, justify='right')
  return table


def print_table(
  table: rich.table.Table,
  file: TextIO | None = None,
  width: int = 120,
  num_keys: int = 1,
) -> None:
  """Prints a table.

  Args:
    table: The table.
    file: The stream to print to; by default stdout.
    width: The largest width if there is no terminal.
    num_keys: The number of columns, the first ones, that identify a row.
  """
  file = file or sys.stdout
  shown_by = console(file, None if file.isatty() else width)
  for part in fitting.fit(table, shown_by.width, num_keys):
    shown_by.print(part)


def duration(seconds: float) -> str:
  """Writes a time as minutes and seconds."""
  minutes, seconds = divmod(round(seconds), 60)
  return f'{minutes} min {seconds:02d} s' if minutes else f'{seconds} s'


class Pace:
  """Estimates the time that is left.

  The first step does not count, as it includes compilation. Nor do steps that
  were done by an earlier program, which was stopped.
  """

  def __init__(self, total: float):
    self._total = total
    self._first: tuple[float, float] | None = None

  def seconds_left(self, done: float) -> float | None:
    """Estimates the seconds that are left; None if it is too early to tell."""
    now = time.monotonic()
    if self._first is None:
      self._first = done, now
    steps, passed = done - self._first[0], now - self._first[1]
    if steps <= 0 or passed < _SECONDS_TO_TELL or done >= self._total:
      return None
    return passed * (self._total - done) / steps


class NowAndThen:
  """Tells when it is time to print the next line about progress."""

  def __init__(self) -> None:
    self._last = time.monotonic()

  def is_due(self) -> bool:
    """Tells whether some seconds have passed since it last returned True."""
    now = time.monotonic()
    if now < self._last + _SECONDS_PER_LINE:
      return False
    self._last = now
    return True


@contextlib.contextmanager
def progress(
  what: str, total: int, unit: str, file: TextIO | None = None
) -> Iterator[ShowProgress]:
  """Shows progress by a bar in a terminal, or else by a line now and then.

  Args:
    what: The name of the work.
    total: The number of steps.
    unit: The name of the steps, in the plural.
    file: The stream to print to; by default stderr.

  Yields:
    A function to call after a step, with the number of steps that are done and,
    if there is one, a note on the last of them.
  """
  file = file or sys.stderr
  shown_by = console(file)
  pace = Pace(total)
  unit = words.noun(total, unit)
  if shown_by.is_terminal:
    columns = (
      # A long name is broken into lines, so that numbers stay whole.
      rich.progress.TextColumn(
        '{task.description}', table_column=rich.table.Column(overflow='fold')
      ),
      rich.progress.BarColumn(bar_width=None),
      rich.progress.TextColumn('{task.fields[text]}'),
    )
    with rich.progress.Progress(
      *columns, console=shown_by, expand=True
    ) as bars:
      bar = bars.add_task(what, total=total, text='')

      def draw(done: int, note: str = '') -> None:
        parts = f'{done}/{total} {unit}', _left(pace, done), note
        text = ', '.join(filter(None, parts))
        bars.update(bar, completed=done, text=text)

      yield draw
    return

  start = time.monotonic()
  next_line = NowAndThen()
  line = ''

  def show(done: int, note: str = '') -> None:
    nonlocal line
    passed = time.monotonic() - start
    parts = (
      f'{what}: {done} of {total} {unit}',
      f'{passed:.1f} s',
      _left(pace, done),
      note,
    )
    line = ', '.join(filter(None, parts))
    if next_line.is_due():
      print_line()

  def print_line() -> None:
    nonlocal line
    if line:
      print(line, file=file, flush=True)
    line = ''

  yield show
  print_line()  # The final state.


def _left(pace: Pace, done: int) -> str:
  seconds = pace.seconds_left(done)
  return '' if seconds is None else f'{duration(seconds)} left'
