"""Registrations of methods and tasks, which their modules make.

Importing such a module takes the seconds of TensorFlow Federated. So the
registrations of the modules that come with the code are read from their
sources: names can be listed, and wrong ones refused, before that.
"""

import ast
from collections.abc import Iterator
import pathlib
import re
from typing import Any, NamedTuple, TypeVar

_T = TypeVar('_T')
_NAME = re.compile(r'[a-z][a-z0-9_]*')
# A call at the top of a module, on one line or up to a line that closes it.
_CALL = r'^registry\.({function}\((?:.*\)|\n(?:.*\n)*?\)))$'


class Registration(NamedTuple):
  """A class that a module registers by a name.

  Attributes:
    name: The name.
    path: The module, and the class in it.
    about: The other arguments.
  """

  name: str
  path: str
  about: dict[str, Any]


def read(
  folder: pathlib.Path, package: str, function: str
) -> Iterator[Registration]:
  """Reads which calls of `registry.FUNCTION` the modules of a folder make.

  Args:
    folder: The folder.
    package: The name of its package.
    function: The function, which is given a name, a class of the same module,
      and literals by keyword.

  Yields:
    The registrations, module by module.
  """
  call = re.compile(_CALL.format(function=function), re.MULTILINE)
  for path in sorted(folder.glob('*.py')):
    for found in call.finditer(path.read_text('utf-8')):
      parsed = ast.parse(found[1], str(path), 'eval').body
      assert isinstance(parsed, ast.Call)
      name, class_name = parsed.args
      yield Registration(
        ast.literal_eval(name),
        f'{package}.{path.stem}:{ast.unparse(class_name)}',
        {k.arg: ast.literal_eval(k.value) for k in parsed.keywords if k.arg},
      )


def path_of(registered: type, base: type) -> str:
  """Returns the module and the name of a class.

  Raises:
    TypeError: If it is not derived from `base`.
  """
  if not (isinstance(registered, type) and issubclass(registered, base)):
    raise TypeError(
      f'{registered!r} is not a class that is derived from {base.__name__}.'
    )
  return f'{registered.__module__}:{registered.__qualname__}'


def add(entries: dict[str, _T], name: str, entry: _T) -> None:
  """Adds an entry, which may be there already if it is equal.

  Raises:
    ValueError: If the name is no name, or another entry has it.
  """
  if not _NAME.fullmatch(name):
    raise ValueError(
      f'{name!r} is no name: use lower-case letters, digits and _, and begin'
      ' with a letter.'
    )
  # A module that comes with the code was read before it is imported.
  if entries.setdefault(name, entry) != entry:
    raise ValueError(
      f'{name} is registered already, by {entries[name]}. Choose another name.'
    )
