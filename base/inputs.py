"""Opens files that a user or somebody else has written.

What a path names may be a pipe or a device: to read it may take for ever, or
fill the memory. Such are refused, and whole files have a bound.
"""

import errno
import io
import os
import stat

# The largest file that is read as a whole, if the caller has no other bound.
MOST_BYTES = 2**28


def open_bytes(path: str | os.PathLike[str]) -> io.BufferedReader:
  """Opens a regular file, which never waits.

  Args:
    path: The file.

  Returns:
    The open file.

  Raises:
    OSError: If it cannot be opened, or is not a regular file.
  """
  descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  try:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
      raise IsADirectoryError(errno.EISDIR, 'It is a folder', os.fspath(path))
    if not stat.S_ISREG(mode):
      raise OSError(errno.EINVAL, 'It is not a regular file', os.fspath(path))
    return os.fdopen(descriptor, 'rb')
  except BaseException:
    os.close(descriptor)
    raise


def read_bytes(
  path: str | os.PathLike[str], most_bytes: int = MOST_BYTES
) -> bytes:
  """Reads a whole file.

  Args:
    path: The file.
    most_bytes: The size of the largest file that can be meant.

  Returns:
    Its contents.

  Raises:
    OSError: If it cannot be read, is not a regular file, or is larger.
  """
  with open_bytes(path) as file:
    contents = file.read(most_bytes + 1)
  if len(contents) > most_bytes:
    raise OSError(
      errno.EFBIG, f'It is larger than {most_bytes:,} bytes', os.fspath(path)
    )
  return contents


def read_text(
  path: str | os.PathLike[str], most_bytes: int = MOST_BYTES
) -> str:
  """Reads a whole file of UTF-8 with its own line ends, see `read_bytes`."""
  return read_bytes(path, most_bytes).decode('utf-8')


def check(path: str | os.PathLike[str]) -> None:
  """Checks that a path may be given to a library that opens it.

  Args:
    path: The path of a file or a folder, or of nothing.

  Raises:
    OSError: If it is a pipe, a device or a socket.
  """
  try:
    mode = os.stat(path).st_mode
  except OSError:
    return  # The library says what is wrong.
  if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
    raise OSError(errno.EINVAL, 'It is not a regular file', os.fspath(path))
