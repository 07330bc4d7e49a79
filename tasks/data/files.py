"""Errors of files that cannot be read, whatever their format is."""

from collections.abc import Iterator
import contextlib
import pathlib

from base import errors


def describe(error: Exception) -> str:
  """Says what an error is about; its kind as well where that says more."""
  message = getattr(error, 'message', None) or str(error)
  if isinstance(error, (OSError, ValueError)) and message:
    return message
  return f'{type(error).__name__}: {message}'.removesuffix(': ')


@contextlib.contextmanager
def reading(file: pathlib.Path | str, what: str, advice: str) -> Iterator[None]:
  """Makes a `UserError` of whatever is raised while a file is read.

  Readers of formats raise dozens of kinds of errors for what is damaged, and so
  does what takes a file of another form apart.

  Args:
    file: The file, and maybe the place in it.
    what: What it is read as.
    advice: How the user can mend it.
  """
  try:
    yield
  except errors.UserError:
    raise
  except Exception as error:
    raise errors.UserError(
      f'{file} cannot be read as {what} ({describe(error)}). {advice}'
    ) from error
