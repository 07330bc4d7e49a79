"""The folders to which programs write their results."""

from collections.abc import Iterable, Iterator
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib

from base import errors
from base import inputs
from base import whole_files
from base.aliases import Json


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of folder that programs write.

  Attributes:
    title: What is in it.
    marks: Any of these, which may be patterns, tells that it is one.
  """

  title: str
  marks: tuple[str, ...]

  def find(self, folder: pathlib.Path) -> str | None:
    """Returns the mark that a folder of this kind has; None if it has none."""
    for mark in self.marks:
      for found in sorted(folder.glob(mark)):
        return found.relative_to(folder).as_posix()
    return None


RUN = Kind('a run', ('config.toml',))
# See `experiments.runs.repeated_runs`.
REPEATS = Kind('repeats of a run', ('repeats.json', 'seed_*/config.toml'))
# A table that is run again is one, too.
GRID = Kind('a grid', ('runs', 'runs.jsonl'))
PRETRAINING = Kind('a pretraining', ('pretraining.json',))
RELEASE = Kind('a release', ('release.json',))
KINDS = RUN, REPEATS, GRID, PRETRAINING, RELEASE
# What a folder has beside one of these marks. Without them, nobody knows what
# the results are of.
_RESULTS = (
  'results.json',
  'per_client.csv',
  'checkpoints',
  'metrics',
  'points.csv',
  'privacy.json',
  'config.json',
  'merges.txt',
  'model.safetensors',
  'vocab.json',
)
# Folders in folders of results.
_FOLDERS = (
  'checkpoints',
  'groups',
  'leases',
  'logs',
  'metrics',
  'plots',
  'runs',
  'tensorboard',
  'validation',
)
# Is in every figure and page, so that a program recognizes those it wrote.
MARK = 'Personalized federated learning on TFF'
# The errors that Python may raise for a damaged file, which are converted to
# a `UserError`.
DAMAGE = (
  OSError,
  ValueError,
  KeyError,
  TypeError,
  AttributeError,
  IndexError,
  RecursionError,
)
# The largest number of characters of the description of an error.
_LONGEST_FAULT = 200


def fault(error: Exception) -> str:
  """Describes one of these errors for the user, in a few words."""
  if isinstance(error, UnicodeError):
    return 'it is not UTF-8'
  if isinstance(error, KeyError):
    return f'it has no {error.args[0]}'
  if isinstance(error, OSError):
    return error.strerror or str(error)
  if isinstance(error, (ValueError, RecursionError)):
    return str(error)[:_LONGEST_FAULT]
  return 'it has another form'


def checksum(value: Json) -> str:
  """Computes a checksum of a JSON value, independent of its formatting."""
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def write(path: pathlib.Path, text: str) -> None:
  """Writes a file, which is either complete or absent."""
  with whole_files.writing(path) as temporary:
    temporary.write_text(text, encoding='utf-8', newline='')


def write_json(path: pathlib.Path, value: Json, **options: Json) -> None:
  """Writes a file of JSON, with options of `json.dumps`."""
  write(path, to_json(value, **options))


def to_json(value: Json, **options: Json) -> str:
  """Writes what a file of JSON contains, with options of `json.dumps`."""
  return f'{json.dumps(value, indent=2, **options)}\n'


def check_own(path: pathlib.Path, mark: str = MARK) -> None:
  """Raises a `UserError` if a file exists that the programs did not write.

  So they replace only files that they wrote, such as an older figure of a run.

  Args:
    path: The file.
    mark: A text in all of the programs' files of this kind.
  """
  try:
    is_own = mark.encode() in inputs.read_bytes(path)
  except FileNotFoundError:
    return
  except NotADirectoryError as error:
    raise errors.UserError(
      f'{path.parent} is no folder. Name another place to write to.'
    ) from error
  except OSError:  # It is a folder, for one.
    is_own = False
  if not is_own:
    raise errors.UserError(
      f'{path} is there already, and was not written by this program. Name'
      ' another place to write to, or move it away.'
    )


def check_empty(flag: str, path: pathlib.Path) -> None:
  """Raises a `UserError` if a flag names a folder that is not empty."""
  if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
    raise errors.UserError(
      f'--{flag}: {path} is there already, and what is in it might be lost.'
      ' Name a new folder.'
    )


def describe(path: pathlib.Path) -> str:
  """Says of what kind a folder is, as a sentence; '' if it is of no kind."""
  titles = [kind.title for kind in KINDS if kind.find(path)]
  return f' It is the folder of {" and ".join(titles)}.' if titles else ''


def check_free(path: pathlib.Path, kind: Kind) -> None:
  """Checks that a folder has no results of another kind.

  Args:
    path: The folder.
    kind: The kind of what will be written to it.

  Raises:
    UserError: If it has results of another kind only; or if it has a file in
      the place of a folder.
  """
  if kind.find(path) is None:
    for other in KINDS:
      if found := other.find(path):
        raise errors.UserError(
          f'{path} has {found}, so that it is the folder of {other.title}, not'
          f' of {kind.title}. Name another output_dir.'
        )
    for name in _RESULTS:
      if (path / name).exists():
        raise errors.UserError(
          f'{path} has {name} but no {kind.marks[0]} to tell of what. Name'
          ' another output_dir.'
        )
  for name in _FOLDERS:
    if os.path.lexists(path / name) and not (path / name).is_dir():
      raise errors.UserError(
        f'{path / name} is in the place of a folder. Name another output_dir,'
        ' or move it away.'
      )


def _find_missing(*paths: pathlib.Path) -> list[pathlib.Path]:
  """Finds which of these folders, and of their parents, do not exist."""
  missing = {
    one for path in paths for one in (path, *path.parents) if not one.exists()
  }
  return sorted(missing, key=lambda one: -len(one.parts))


def _remove_empty(innermost_first: Iterable[pathlib.Path]) -> None:
  for folder in innermost_first:
    with contextlib.suppress(OSError):  # Something is in it.
      folder.rmdir()


@contextlib.contextmanager
def _made(path: pathlib.Path) -> Iterator[None]:
  """Makes a folder, and removes what it has made if it stays empty."""
  new = _find_missing(path)
  path.mkdir(parents=True, exist_ok=True)
  try:
    yield
  finally:
    _remove_empty(new)


@contextlib.contextmanager
def removed_if_refused(*paths: pathlib.Path) -> Iterator[None]:
  """Removes folders that were made, and are empty, if a `UserError` is raised.

  Args:
    *paths: The folders that may be made. Those that they are in may be, too.

  Yields:
    Nothing.
  """
  new = _find_missing(*paths)
  try:
    yield
  except errors.UserError:
    _remove_empty(new)
    raise


@contextlib.contextmanager
def locked(path: pathlib.Path, kind: Kind) -> Iterator[None]:
  """Makes a folder for results, and keeps other processes out of it.

  Args:
    path: The folder.
    kind: The kind of what will be written to it.

  Yields:
    Nothing. If the folder is still empty in the end, it is removed.

  Raises:
    UserError: If another process uses it, it has results of another kind, or it
      cannot be written to.
  """
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(_made(path))
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
    check_free(path, kind)
    yield


def unusable(path: pathlib.Path, error: OSError) -> errors.UserError:
  """Makes the error for a folder that cannot be written to."""
  return errors.UserError(f'{path} cannot be the output_dir: {error}.')
