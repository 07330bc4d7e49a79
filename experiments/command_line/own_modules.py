"""The modules of the user: which are trusted, and what their errors say.

A module does whatever its author likes, with the user's rights. So those that
a preset or the folder of a run names, which may come from anywhere, are
imported only if the user names them, too. Their errors are for their author to
mend.
"""

from collections.abc import Iterable
import hashlib
import importlib.machinery
import pathlib
import sys
import traceback

from base import errors

# The flag that names the modules of files.
FLAG = 'trust_modules'

# The files of the modules that the user named.
_files: set[str] = set()
# The modules that the user trusts; None if all are trusted.
_trusted: set[str] | None = set()


def trust(names: Iterable[str]) -> None:
  """Trusts modules that files may name."""
  if _trusted is not None:
    _trusted.update(names)


def trust_all() -> None:
  """Trusts all modules, as another program has asked the user about them."""
  global _trusted
  _trusted = None


def check(names: Iterable[str], source: str) -> None:
  """Checks that the user trusts modules, or has imported them.

  Args:
    names: The names of the modules.
    source: The file that names them.

  Raises:
    UserError: If the user does not.
  """
  if _trusted is None:
    return
  unknown = [name for name in names if name not in {*_trusted, *sys.modules}]
  if unknown:
    listed = ''.join(f'\n  {describe_file(name)}' for name in unknown)
    raise errors.UserError(
      f'{source} names modules, which would do here whatever their author'
      f' likes:{listed}\nIf you trust them, add --{FLAG}={",".join(unknown)};'
      ' in Python, import them first.'
    )


def describe_file(name: str) -> str:
  """Describes a module by its file and the beginning of its SHA-256."""
  file = find_file(name)
  if file is None:
    return f'{name}, which is not found'
  return f'{name}: {file}, SHA-256 {digest(file)[:16]}…'


def digest(file: str) -> str:
  """Computes the SHA-256 of a module's file; '' if it cannot be read."""
  try:
    return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
  except OSError:
    return ''


def find_file(name: str) -> str | None:
  """Finds the file of a module; None if there is none.

  Python's own function would import the packages that the module is in.
  """
  places: list[str] | None = None
  found = None
  for k in range(1, name.count('.') + 2):
    part = '.'.join(name.split('.')[:k])
    try:
      found = importlib.machinery.PathFinder.find_spec(part, places)
      places = list((found and found.submodule_search_locations) or ())
    except (ImportError, KeyError):  # Of packages without a file.
      return None
  return found.origin if found is not None else None


def note(name: str) -> None:
  """Notes the file of a module that the user named, if there is one."""
  file = find_file(name)
  if file is not None:
    _files.add(file)


def describe(error: BaseException) -> str | None:
  """Returns the traceback of an error, from the user's module on.

  It returns None if the error has not passed through a module of the user.
  """
  described = traceback.TracebackException.from_exception(error)
  own = [
    place
    for place, frame in enumerate(described.stack)
    if frame.filename in _files
  ]
  if not own and getattr(error, 'filename', None) not in _files:
    return None
  described.stack = traceback.StackSummary.from_list(
    described.stack[own[0] :] if own else []
  )
  return ''.join(described.format(chain=False)).rstrip()
