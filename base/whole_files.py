"""Writes files that are either complete or absent."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import secrets

from base import errors


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Replaces a file only when the new one is complete.

  If the program stops before, the old file stays.

  Args:
    path: The file.

  Yields:
    A temporary path, in the same folder, to write to.

  Raises:
    ResourceError: If it cannot be written.
  """
  # A unique name, as several programs may write the same file.
  temporary = path.with_name(f'.{path.name}.{secrets.token_hex(4)}.tmp')
  with errors.writing(path):
    try:
      yield temporary
      with temporary.open('rb') as file:
        os.fsync(file.fileno())
      temporary.replace(path)
    finally:
      temporary.unlink(missing_ok=True)
