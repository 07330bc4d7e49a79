"""Folders that programs write their results to."""

from collections.abc import Iterator
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
from typing import Any

from base import errors

# By these a folder is known to have results.
_RESULTS = (
  'config.toml',
  'results.json',
  'per_client.csv',
  'checkpoints',
  'metrics',
  'runs.jsonl',
  'points.csv',
  'pretraining.json',
  'model.safetensors',
)
# What Python raises for a file that is damaged, whatever is in it; it has to be
# made a `UserError`.
DAMAGE = (
  OSError,
  ValueError,
  KeyError,
  TypeError,
  AttributeError,
  IndexError,
  RecursionError,
)


def checksum(value: Any) -> str:
  """Makes a checksum of what is in JSON, however it is written."""
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


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


def _check_free(path: pathlib.Path, own: str) -> None:
  """Raises a `UserError` if a folder has results, but not the file `own`."""
  if (path / own).exists():
    return
  for name in _RESULTS:
    if (path / name).exists():
      raise errors.UserError(
        f'{path} has {name} but no {own} to tell of what. Name another'
        ' output_dir.'
      )


@contextlib.contextmanager
def locked(path: pathlib.Path, own: str) -> Iterator[None]:
  """Makes a folder for results, and keeps other processes out of it.

  Args:
    path: The folder.
    own: The file by which a folder with results of the same kind is known.

  Yields:
    Nothing.

  Raises:
    UserError: If another process has it, it has results of something else, or
      it cannot be written to.
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
    _check_free(path, own)
    yield


def unusable(path: pathlib.Path, error: OSError) -> errors.UserError:
  """The error of a folder that cannot be written to."""
  return errors.UserError(f'{path} cannot be the output_dir: {error}.')
