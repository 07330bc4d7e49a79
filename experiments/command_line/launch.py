"""How every program starts, and how it ends.

A program's module is light: it has the flags, and reads what the user asked
for. So --help, a wrong flag and an unknown name are answered at once, without
the seconds that importing TensorFlow Federated takes. What does the work is in
modules that import whatever they need at their top; `load` imports such a
module when it is needed.
"""

import atexit
from collections.abc import Callable, Sequence
import dataclasses
import errno
import importlib
import importlib.metadata
import logging
import os
import pathlib
import sys
import tempfile
import tomllib
import traceback
import types
from typing import Any, NoReturn
import warnings

from absl import app
from absl import flags
from absl import logging as absl_logging

from base import errors
from experiments.command_line import stopping
from experiments.command_line import terminal

_PROJECT = pathlib.Path(__file__).parents[2] / 'pyproject.toml'

# The exit status of a wrong command.
_WRONG_USAGE = 2
# The most characters that are shown of what a bug says.
_SHOWN = 200


def start(main: Callable[[list[str]], int]) -> None:
  """Starts a program, and ends this process with its exit status.

  Args:
    main: Gets the arguments that are no flags, after the program's name, and
      returns the exit status.
  """
  terminal.prepare()
  stopping.listen()

  def call(argv: list[str]) -> None:
    try:
      status = main(argv)
    except app.UsageError as error:
      status = _say_misuse(error)
    end(status)

  app.run(call, flags_parser=_read_flags)


def end(status: int) -> NoReturn:
  """Ends this process.

  Python would take TensorFlow apart first. That takes seconds, and may print
  tracebacks, as what TFF's context ends with may be gone before it.
  """
  atexit._run_exitfuncs()
  terminal.flush()
  os._exit(status)


def _read_flags(argv: Sequence[str]) -> list[str]:
  """Reads the flags; answers those that ask something, and wrong ones."""
  flags.DEFINE_alias('h', 'help')
  flags.DEFINE_flag(_VersionFlag())
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    sys.exit(_say_misuse(error))
  except SystemExit:
    sys.exit(0)  # It was --help, of which absl thinks as a failure.


def _say_misuse(error: Exception) -> int:
  text = str(error)
  text += '' if text.endswith(('.', '?')) else '.'
  terminal.say(f'Error: {text} See --help.')
  return _WRONG_USAGE


class _VersionFlag(flags.BooleanFlag):
  """A flag that shows the version, as --help shows the flags."""

  def __init__(self) -> None:
    super().__init__('version', False, 'show the versions')

  def parse(self, argument: Any) -> None:
    if self._parse(argument):
      project = tomllib.loads(_PROJECT.read_text(encoding='utf-8'))['project']
      print(project['name'], project['version'])
      for name in ('tensorflow-federated', 'tensorflow'):
        print(name, importlib.metadata.version(name))
      sys.exit(0)


def refuse_arguments(argv: Sequence[str]) -> None:
  """Raises a `UsageError` if there are arguments that are no flags."""
  if len(argv) > 1:
    raise app.UsageError(f'There is no argument {argv[1]!r}, only flags.')


def load(module: str) -> types.ModuleType:
  """Imports a module, and keeps what TensorFlow has to say off the terminal."""
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  absl_logging.set_verbosity(absl_logging.ERROR)
  logging.getLogger('tensorflow').setLevel(logging.ERROR)
  warnings.filterwarnings('ignore', category=DeprecationWarning)
  warnings.filterwarnings('ignore', message='pkg_resources is deprecated')
  return importlib.import_module(module)


@dataclasses.dataclass(frozen=True)
class LateCall:
  """A call of a function in a module that is imported only then.

  It can be sent to another process, which so imports nothing before it says so.

  Attributes:
    module: The name of the module.
    function: The name of the function.
    arguments: Its arguments.
  """

  module: str
  function: str
  arguments: tuple[Any, ...] = ()

  def __call__(self, *more: Any) -> Any:
    return getattr(load(self.module), self.function)(*self.arguments, *more)


def carry_out(
  action: Callable[[], int],
  outlook: str = 'The same command begins where this one did.',
) -> int:
  """Carries out what a program is for.

  Args:
    action: Does it, and returns the exit status.
    outlook: What a user is told, if the program does not come to its end. The
      action may know more, see `stopping.say_outlook`.

  Returns:
    The exit status. Whatever the reason for an end, there is only a message;
    the traceback of a bug is in a file.
  """
  stopping.say_outlook(outlook)
  try:
    status = action()
    sys.stdout.flush()
    return status
  except errors.ResourceError as error:
    terminal.say(f'Error: {error} {stopping.outlook()}')
    return 1
  except errors.UserError as error:
    terminal.say(f'Error: {error}')
    return 1
  except stopping.Stopped as stopped:
    terminal.say(stopping.message())
    return stopped.exit_status
  except BrokenPipeError:
    terminal.flush()
    return 1
  except Exception as error:
    reason = _lacking(error) or _keep_traceback(error)
    terminal.flush()
    terminal.say(f'Error: {reason} {stopping.outlook()}')
    return 1


def _keep_traceback(error: Exception) -> str:
  """Writes the traceback of what nobody foresaw; says where, and what it is."""
  try:
    with tempfile.NamedTemporaryFile(
      'w', prefix='traceback-', suffix='.txt', delete=False
    ) as file:
      traceback.print_exception(error, file=file)
  except OSError:
    raise error from None  # It is better shown than lost.
  what = ' '.join(str(error).split())[:_SHOWN]
  return (
    f'This is a bug of the program, {type(error).__name__}: {what}. Please'
    f' report it with the traceback that is in {file.name}.'
  )


def _lacking(error: Exception) -> str | None:
  """Says what the machine lacks, if that is what an error is about."""
  number = error.errno if isinstance(error, OSError) else None
  if isinstance(error, OSError) and number in errors.NO_ROOM:
    # Whoever writes a file names it, see `errors.writing`.
    return f'stdout cannot be written: {error.strerror}. Make room on the disk.'
  if (
    isinstance(error, MemoryError)
    or number == errno.ENOMEM
    # Of TensorFlow, which need not be imported.
    or type(error).__name__ == 'ResourceExhaustedError'
    or 'RESOURCE_EXHAUSTED' in str(error)
  ):
    return (
      'There is not enough memory. Set a smaller batch_size or'
      ' clients_per_round, or end other programs.'
    )
  return None
