"""Folders that programs write their results to."""

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib

from base import errors


def write(path: pathlib.Path, text: str) -> None:
  """Writes a file that is there whole or not at all."""
  temporary = path.with_name(f'.{path.name}.tmp')
  with errors.writing(path):
    try:
      with temporary.open('w', encoding='utf-8', newline='') as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
      temporary.replace(path)
    finally:
      temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
  """Makes a folder, and keeps other processes out of it.

  Args:
    path: The folder.

  Yields:
    Nothing.

  Raises:
    UserError: If another process has it, or it cannot be written to.
  """
  with contextlib.ExitStack() as stack:
    try:
      path.mkdir(parents=True, exist_ok=True)
      descriptor = os.open(path, os.O_RDONLY)
      stack.callback(os.close, descriptor)
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise errors.UserError(
        f'Another run is writing to {path}. Wait for it, or name another'
        ' output_dir.'
      ) from error
    except OSError as error:
      raise unusable(path, error) from error
    yield


def unusable(path: pathlib.Path, error: OSError) -> errors.UserError:
  """The error of a folder that cannot be written to."""
  return errors.UserError(f'{path} cannot be the output_dir: {error}.')
