"""Errors of files that cannot be read, in any format."""

from collections.abc import Iterator
import contextlib
import pathlib

from base import errors
from base import inputs


def describe(error: Exception) -> str:
  """Returns the message of an error, with its class where that is needed."""
  message = getattr(error, 'message', None) or str(error)
  if isinstance(error, (OSError, ValueError)) and message:
    return message
  return f'{type(error).__name__}: {message}'.removesuffix(': ')


@contextlib.contextmanager
def reading(file: pathlib.Path | str, what: str, advice: str) -> Iterator[None]:
  """Converts any error that is raised while a file is read to a `UserError`.

  A path that names a pipe or a device is such an error, too.

  Readers raise dozens of kinds of errors for damaged files, and so does code
  that reads the contents of a file with another structure.

  Args:
    file: The file, and maybe the place in it.
    what: The kind of file that is expected.
    advice: How the user can repair it.
  """
  try:
    if isinstance(file, pathlib.Path):
      inputs.check(file)
    yield
  except errors.UserError:
    raise
  except Exception as error:
    raise errors.UserError(
      f'{file} cannot be read as {what} ({describe(error)}). {advice}'
    ) from error
