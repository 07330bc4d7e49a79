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
import importlib
import logging
import os
import signal
import sys
import types
from typing import Any
import warnings

from absl import app
from absl import logging as absl_logging

from base import errors
from experiments.command_line import terminal

# The exit statuses of a process that was stopped by these signals.
_INTERRUPTED, _TERMINATED = 130, 143

_interrupted = False


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
  atexit.unregister(_release_context)  # Once is enough.
  atexit.register(_release_context)
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


def carry_out(action: Callable[[], int], when_stopped: str = '') -> int:
  """Carries out what a program is for.

  Args:
    action: Does it, and returns the exit status.
    when_stopped: What to tell a user who stops it.

  Returns:
    The exit status. Of a user's mistake and of Ctrl-C only a message is shown.
  """
  try:
    return action()
  except errors.UserError as error:
    terminal.say(f'Error: {error}')
    return 1
  except KeyboardInterrupt:
    terminal.say(f'\nStopped. {when_stopped}'.rstrip())
    return _INTERRUPTED


def _release_context() -> None:
  """Has TFF's default context end, if TFF was imported.

  Later, Python may have cleared the modules that the context ends with, so that
  a traceback would be printed.
  """
  if 'tensorflow_federated' in sys.modules:
    tff = sys.modules['tensorflow_federated']

    class Nowhere(tff.framework.SyncContext):  # type: ignore[name-defined]
      """A context in which nothing can be computed."""

      def invoke(self, comp: Any, arg: Any) -> Any:
        raise RuntimeError('The program has ended.')

    tff.framework.set_default_context(Nowhere())


def exit_when_terminated() -> None:
  """Has SIGTERM end this process cleanly, and so those that it started."""
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))


def interrupt_between_rounds() -> None:
  """Has Ctrl-C take effect where `stop_if_interrupted` is called.

  The second time it takes effect at once. That may be in the middle of what
  cannot be stopped cleanly, where Python prints a traceback and goes on.

  As this handler is not Python's own, asyncio does not replace it by one that
  lets the rounds go on to the next checkpoint.
  """
  global _interrupted
  _interrupted = False
  signal.signal(signal.SIGINT, _interrupt)


def _interrupt(signum: int, frame: types.FrameType | None) -> None:
  global _interrupted
  del signum, frame
  if _interrupted:
    raise KeyboardInterrupt
  _interrupted = True


def stop_if_interrupted() -> None:
  """Raises a `KeyboardInterrupt` if the user has pressed Ctrl-C."""
  if _interrupted:
    raise KeyboardInterrupt
