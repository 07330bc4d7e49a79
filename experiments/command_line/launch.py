"""Starts and ends every program.

A program's module is light: it defines the flags and reads them. So --help, a
wrong flag and an unknown name are answered at once, without the seconds that
importing TensorFlow Federated takes. The work is done in other modules, which
import whatever they need at their top; `load` imports such a module when it is
needed.
"""

import atexit
from collections.abc import Callable, Sequence
import dataclasses
import errno
import gc
import importlib
import importlib.metadata
import inspect
import logging
import os
import pathlib
import re
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
from experiments.command_line import own_modules
from experiments.command_line import stopping
from experiments.command_line import terminal

_PROJECT = pathlib.Path(__file__).parents[2] / 'pyproject.toml'

# absl's message about a flag that is required.
_MISSING = re.compile(
  r'flag --(\w+)=None: Flag --\1 must have a value other than None'
)
# The exit status of a wrong command.
_WRONG_USAGE = 2
# At most this many characters of an unexpected error's message are shown.
_SHOWN = 200


def start(main: Callable[..., int], usage: str = '') -> None:
  """Starts a program, and ends this process with its exit status.

  The program's module must call `stopping.listen` above its other imports.

  Args:
    main: Does the work, see `attempt`. It takes the arguments that are not
      flags.
    usage: What to say if there are more or fewer arguments than `main` takes.
  """
  terminal.prepare()

  def call(argv: list[str]) -> None:
    arguments = argv[1:]
    try:
      inspect.signature(main).bind(*arguments)
    except TypeError:
      wrong = usage or f'The argument {arguments[0]!r} is not a flag.'
      end(_say_misuse(wrong))
    end(attempt(lambda: main(*arguments)))

  app.run(call, flags_parser=_read_flags)


def end(status: int) -> NoReturn:
  """Ends this process.

  Python would clean up TensorFlow first. That takes seconds, and may print
  tracebacks, as modules that TFF's context still needs may already be gone.
  """
  atexit._run_exitfuncs()
  terminal.flush()
  os._exit(status)


def _read_flags(argv: Sequence[str]) -> list[str]:
  """Reads the flags; ends the program at --help, --version and wrong flags."""
  flags.DEFINE_alias('h', 'help')
  flags.DEFINE_flag(_VersionFlag())
  flags.DEFINE_list(
    own_modules.FLAG,
    [],
    'Modules of methods and tasks that may be imported if a preset or the'
    ' folder of a run names them. They do whatever their author likes.',
  )
  try:
    rest = flags.FLAGS(argv)
    own_modules.trust(flags.FLAGS[own_modules.FLAG].value)
    _refuse_empty()
    return rest
  except flags.Error as error:
    sys.exit(_say_misuse(str(error)))
  except stopping.Stopped:
    raise
  except SystemExit:
    sys.exit(0)  # It was --help, which absl treats as a failure.


def _refuse_empty() -> None:
  """Raises an error for a flag without its text, as in --output_dir=$UNSET."""
  for name in flags.FLAGS:
    if flags.FLAGS[name].present and flags.FLAGS[name].value == '':
      raise flags.IllegalFlagValueError(
        f'--{name} is empty. Give it a value, or leave it out'
      )


def _say_misuse(error: str) -> int:
  text = _MISSING.sub(r'--\1 is missing', error)
  text += '' if text.endswith(('.', '?')) else '.'
  terminal.say(f'Error: {text} See --help.')
  return _WRONG_USAGE


class _VersionFlag(flags.BooleanFlag):
  """A flag that shows the versions and ends the program."""

  def __init__(self) -> None:
    super().__init__('version', False, 'show the versions')

  def parse(self, argument: object) -> None:
    if self._parse(argument):
      project = tomllib.loads(_PROJECT.read_text(encoding='utf-8'))['project']
      print(project['name'], project['version'])
      for name in ('tensorflow-federated', 'tensorflow'):
        print(name, importlib.metadata.version(name))
      sys.exit(0)


def prepare_tensorflow() -> None:
  """Keeps TensorFlow's messages off the terminal, before it is imported."""
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  # Otherwise the first process on a GPU would take all of its memory.
  os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
  absl_logging.set_verbosity(absl_logging.ERROR)
  logging.getLogger('tensorflow').setLevel(logging.ERROR)
  warnings.filterwarnings('ignore', category=DeprecationWarning)
  warnings.filterwarnings('ignore', message='pkg_resources is deprecated')


def load(module: str) -> types.ModuleType:
  """Imports a module, and keeps TensorFlow's messages off the terminal."""
  prepare_tensorflow()
  # To look for garbage meanwhile, of which there is none, takes a second.
  gc.disable()
  try:
    return importlib.import_module(module)
  finally:
    gc.enable()


@dataclasses.dataclass(frozen=True)
class LateCall:
  """A call of a function whose module is imported only at the call.

  It can be sent to another process, which thus imports nothing before the call.

  Attributes:
    module: The name of the module.
    function: The name of the function.
    arguments: Its arguments.
  """

  module: str
  function: str
  arguments: tuple[object, ...] = ()

  def __call__(self, *more: object) -> Any:
    return getattr(load(self.module), self.function)(*self.arguments, *more)


def attempt(action: Callable[[], int]) -> int:
  """Does the work of a program, and shows its errors as messages.

  Args:
    action: Does the work, and returns the exit status. It may replace the
      advice to a user whose program does not finish, `stopping.say_outlook`.

  Returns:
    The exit status. Every error is shown as a message only; the traceback of an
    unexpected one is written to a file.
  """
  stopping.say_outlook('The same command starts from the beginning.')
  try:
    status = action()
    sys.stdout.flush()
    return status
  except app.UsageError as error:
    return _say_misuse(str(error))
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
    reason = _lacking(error) or _blame_author(error) or _keep_traceback(error)
    terminal.flush()
    terminal.say(f'Error: {reason} {stopping.outlook()}')
    return 1


def _blame_author(error: Exception) -> str | None:
  """Explains an error of a module of the user; None for other errors."""
  described = own_modules.describe(error)
  return described and f'A module of your own failed.\n{described}\n'


def _keep_traceback(error: Exception) -> str:
  """Writes the traceback of an unexpected error; returns a message about it."""
  try:
    with tempfile.NamedTemporaryFile(
      'w', prefix='traceback-', suffix='.txt', delete=False
    ) as file:
      traceback.print_exception(error, file=file)
  except OSError:
    raise error from None  # Showing the traceback is better than losing it.
  what = ' '.join(str(error).split())[:_SHOWN]
  return (
    f'This is a bug in the program, {type(error).__name__}: {what}. Please'
    f' report it with the traceback in {file.name}.'
  )


def _lacking(error: Exception) -> str | None:
  """Explains an error if a resource is missing; otherwise returns None."""
  number = error.errno if isinstance(error, OSError) else None
  if isinstance(error, OSError) and number in errors.NO_ROOM:
    # It is stdout, as errors of other files name them, see `errors.writing`.
    return f'stdout cannot be written: {error.strerror}. Make room on the disk.'
  if (
    isinstance(error, MemoryError)
    or number == errno.ENOMEM
    # TensorFlow's error, by its name, as TensorFlow may not be imported.
    or type(error).__name__ == 'ResourceExhaustedError'
    or 'RESOURCE_EXHAUSTED' in str(error)
  ):
    return (
      'There is not enough memory. Set a smaller batch_size or'
      ' clients_per_round, or end other programs.'
    )
  if type(error).__name__ == 'WorkerError':  # Of the remote runtime.
    return f'{error} Start a worker again, or name others as remote_workers.'
  return None
