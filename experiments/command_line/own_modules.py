"""The modules of the user, whose errors are for their author to mend."""

import importlib.util
import traceback

# The files of the modules that the user named.
_files: set[str] = set()


def note(name: str) -> None:
  """Notes the file of a module that the user named, if there is one."""
  try:
    found = importlib.util.find_spec(name)
  except (ImportError, ValueError):
    return
  if found is not None and found.origin is not None:
    _files.add(found.origin)


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
