"""Errors that a user can correct."""

from collections.abc import Iterable, Iterator
import contextlib
import difflib
import errno
import os

# The numbers of `OSError`s for a full disk, a used up quota, and a file that
# may not be larger.
NO_ROOM = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
# The largest number of characters of a value in a message.
_SHOWN = 100
# The largest number of known names in a message.
_LISTED = 60


class UserError(Exception):
  """A user's mistake; the message says what is wrong and what to do about it.

  The programs print the message without a traceback.
  """


class ResourceError(UserError):
  """The error for a resource, such as disk space, that a machine runs out of.

  The programs say where they will continue once there is enough.
  """


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
  """Converts errors that prevent writing a file to a `ResourceError`."""
  try:
    yield
  except OSError as error:
    advice = ' Make room on the disk.' if error.errno in NO_ROOM else ''
    raise ResourceError(
      f'{os.fspath(path)} cannot be written: {error.strerror or error}.{advice}'
    ) from error


def quote(value: object) -> str:
  """Writes a value for a message, shortened if it is long."""
  try:
    text = repr(value)
  except ValueError:  # Python refuses to write numbers with so many digits.
    return 'a number of thousands of digits'
  return text if len(text) <= _SHOWN else f'{text[:_SHOWN]} …'


def unknown(
  what: str, name: str, known: Iterable[str], listed_by: str = ''
) -> UserError:
  """Makes the error for a name that is not among the known ones.

  Args:
    what: The kind of thing that is named, such as 'task'.
    name: The name.
    known: All known names.
    listed_by: The program that lists them, if they are too many for a message.

  Returns:
    The error, which suggests the most similar name.
  """
  known = sorted(known)
  nearest = difflib.get_close_matches(name, known, n=1)
  hint = f' Did you mean {nearest[0]!r}?' if nearest else ''
  more = f' and {len(known) - _LISTED:,} more' if len(known) > _LISTED else ''
  rest = f'Known: {", ".join(known[:_LISTED]) or "none"}{more}.'
  if listed_by:
    rest = f'All are listed by {listed_by}.'
  return UserError(f'Unknown {what} {quote(name)}.{hint} {rest}')
