"""Leases, by which programs that use the same folder divide their work.

A lease is a file NAME.N that only one program can make. A program touches its
leases while it works. A lease that was not touched for a while has expired, as
its program's machine may be gone: another program takes it over by making
NAME.N+1. All times are those of the file system, so that the clocks of machines
need not agree. If a program ends on the same machine, its leases expire at
once.

A program that was suspended may go on with work that another one has taken
over, so work that is done twice must do no harm. Giving a lease back deletes
its file.
"""

from collections.abc import Iterator
import contextlib
import errno
import os
import pathlib
import tempfile
import threading
import time

from base import errors
from base import inputs

# A lease that was not touched for so long has expired.
_EXPIRY_SECONDS = 60.0
# The number of times that a lease is touched before it would expire.
_TOUCHES = 6
# Who waits for a lease looks again after this time.
_SECONDS_TO_WAIT = 0.1
# More than a lease says of its holder.
_MOST_BYTES = 1000


def _start_time(process: str) -> str | None:
  """Returns when a process of this machine started; None if it has ended."""
  if not process.isdecimal():
    return None
  try:
    text = pathlib.Path(f'/proc/{process}/stat').read_text(encoding='utf-8')
  except OSError:
    return None
  state, *fields = text.rpartition(')')[2].split()
  return None if state in 'XZ' else fields[18]


def _machine() -> str:
  """Returns a text that differs for all machines and containers."""
  boot = pathlib.Path('/proc/sys/kernel/random/boot_id')
  namespace = os.readlink('/proc/self/ns/pid')
  return f'{boot.read_text(encoding="utf-8").strip()} {namespace}'


class Leases:
  """The leases in a folder, some of which this program holds."""

  def __init__(
    self, folder: pathlib.Path, expiry_seconds: float = _EXPIRY_SECONDS
  ):
    """Begins to hold leases.

    Args:
      folder: The folder of the leases, which exists.
      expiry_seconds: After how long a lease that is not touched expires.
    """
    self._folder = folder
    self._expiry_seconds = expiry_seconds
    self._machine = _machine()
    process = str(os.getpid())
    self._holder = f'{self._machine}\n{process}\n{_start_time(process)}'
    self._held: dict[str, int] = {}
    self._is_over = threading.Event()
    threading.Thread(target=self._touch, name='leases', daemon=True).start()

  def close(self) -> None:
    """Gives all leases back."""
    self._is_over.set()
    for name in list(self._held):
      self.give_back(name)

  def _touch(self) -> None:
    while not self._is_over.wait(self._expiry_seconds / _TOUCHES):
      for lease in list(self._held.items()):
        # It may have been given back, or the file system may not answer now.
        with contextlib.suppress(OSError):
          os.utime(self._path(*lease))

  def _path(self, name: str, number: int) -> pathlib.Path:
    return self._folder / f'{name}.{number}'

  def _last_numbers(self) -> dict[str, int]:
    """Returns the largest number of each lease, by its name."""
    last: dict[str, int] = {}
    for name, number in self._list():
      last[name] = max(number, last.get(name, 0))
    return last

  def _list(self) -> Iterator[tuple[str, int]]:
    """Yields the names and the numbers of all leases."""
    for file in os.listdir(self._folder):
      name, _, number = file.rpartition('.')
      if name and number.isdecimal():
        yield name, int(number)

  def _now(self) -> float:
    """Returns the time of the file system."""
    with errors.writing(self._folder):
      with tempfile.TemporaryFile(dir=self._folder) as file:
        return os.fstat(file.fileno()).st_mtime

  def _has_expired(self, path: pathlib.Path, now: float) -> bool:
    try:
      # To open it has a network's file system ask its server.
      with inputs.open_bytes(path) as file:
        text = file.read(_MOST_BYTES).decode(errors='replace')
        touched = os.fstat(file.fileno()).st_mtime
    except OSError as error:
      if error.errno in (errno.ENOENT, errno.ESTALE):
        return True  # It was given back just now.
      raise errors.UserError(
        f'{path} is not a lease: {error.strerror}. Remove it.'
      ) from error
    holder = text.split('\n')
    if holder[0] == self._machine and len(holder) == 3:
      return _start_time(holder[1]) != holder[2]
    # A time to come is that of a clock that was wrong: whoever holds the lease
    # has touched it since.
    return abs(now - touched) > self._expiry_seconds

  def list_others(self) -> set[str]:
    """Returns the names of the leases that other programs hold."""
    now = self._now()
    return {
      name
      for name, number in self._last_numbers().items()
      if self._held.get(name) != number
      and not self._has_expired(self._path(name, number), now)
    }

  def claim(self, name: str) -> bool:
    """Takes a lease, unless another program holds it.

    Args:
      name: The name of the lease, which must be valid for a file. This program
        must not hold it.

    Returns:
      Whether this program now holds the lease.
    """
    number = self._last_numbers().get(name, 0)
    if number and not self._has_expired(self._path(name, number), self._now()):
      return False
    path = self._path(name, number + 1)
    with errors.writing(path):
      try:
        with path.open('x', encoding='utf-8') as file:
          file.write(self._holder)
      except FileExistsError:
        return False
    self._held[name] = number + 1
    return True

  @contextlib.contextmanager
  def holding(self, name: str) -> Iterator[None]:
    """Holds a lease, for which it waits as long as another program holds it."""
    while not self.claim(name):
      time.sleep(_SECONDS_TO_WAIT)
    try:
      yield
    finally:
      self.give_back(name)

  def give_back(self, name: str) -> None:
    """Gives a lease back, and deletes expired ones that it replaced."""
    last = self._held.pop(name)
    for other, number in self._list():
      if other == name and number <= last:
        self._path(name, number).unlink(missing_ok=True)
