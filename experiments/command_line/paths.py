"""Paths as a user gives them."""

import os
import pathlib

from base import errors
from tasks.data import downloads


def user_path(path: str) -> pathlib.Path:
  """Returns a path relative to the folder in which the user is.

  `bazel run` starts programs in a different folder.

  Raises:
    UserError: If no file can have this path.
  """
  base = os.environ.get('BUILD_WORKING_DIRECTORY', '')
  if not path:
    raise errors.UserError("Invalid path '': it is empty.")
  try:
    full = pathlib.Path(base, pathlib.Path(path).expanduser())
    # What is written of a path is UTF-8, whatever the locale is.
    str(full.absolute()).encode()
    full.stat()
  except FileNotFoundError:
    pass
  except UnicodeEncodeError as error:
    raise errors.UserError(
      f'Invalid path {errors.quote(path)}: it, or the folder that it is in, is'
      ' not UTF-8, or the locale is not. Set PYTHONUTF8=1, or name another.'
    ) from error
  except (OSError, RuntimeError, ValueError) as error:
    # Too long, with a zero byte, inside a file, of an unknown user, …
    reason = getattr(error, 'strerror', None) or error
    raise errors.UserError(
      f'Invalid path {errors.quote(path)}: {str(reason).rstrip(".")}.'
    ) from error
  return full


def new_file(flag: str, path: str | None) -> pathlib.Path | None:
  """Returns the file that a flag names for results; None if it names none.

  So nothing is computed for a file that cannot be written, and no existing file
  is replaced.

  Args:
    flag: The name of the flag.
    path: The path that the user gave.

  Raises:
    UserError: If it exists already or cannot be created.
  """
  if path is None:
    return None
  file = user_path(path)
  reason = ''
  if os.path.lexists(file):
    reason = f'{file} exists already'
  elif not file.parent.is_dir():
    reason = f'there is no folder {file.parent}'
  elif not os.access(file.parent, os.W_OK):
    reason = f'the folder {file.parent} is not writable'
  if reason:
    raise errors.UserError(f'--{flag}: {reason}. Name another file.')
  return file


def data_folder(path: str | None) -> str | None:
  """Returns the folder of data that a flag names, or else $PFL_DATA_DIR.

  Returns:
    The folder; None if neither names one. That of $PFL_DATA_DIR need not exist:
    tasks without data do without it, and the others say so.

  Raises:
    UserError: If there is no such folder as the flag names. Otherwise a program
      would only notice when it loads its task.
  """
  if path is None:
    path = os.environ.get('PFL_DATA_DIR')
    return str(user_path(path)) if path else None
  return str(downloads.existing_folder(str(user_path(path))))
