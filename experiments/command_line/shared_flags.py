"""The flags that several programs have.

Each function defines a flag of the module that calls it, and returns what holds
its value: a `FlagHolder`, or for a file or a folder a function that returns its
path, see `paths`.
"""

from collections.abc import Callable
import pathlib

from absl import app
from absl import flags

from experiments.command_line import paths
from experiments.configuration import user_settings
from tasks import registry as task_registry

# The flags belong to the calling modules, so that their --help shows them.
flags.disclaim_key_flags()

PathFlag = Callable[[], pathlib.Path | None]


def task() -> flags.FlagHolder[str | None]:
  """Defines --task."""
  return flags.DEFINE_string(
    'task', None, f'The task: {", ".join(task_registry.task_names())}.'
  )


def preset() -> flags.FlagHolder[str | None]:
  """Defines --preset."""
  return flags.DEFINE_string(
    'preset',
    None,
    'A TOML file of settings, or the name of one that comes with the code:'
    f' {", ".join(user_settings.preset_names())}.',
  )


def assignments() -> flags.FlagHolder[list[str]]:
  """Defines --set."""
  return flags.DEFINE_multi_string(
    'set',
    [],
    'A setting, as in batch_size=10, client_learning_rate=0.1 (of every method'
    ' that has it), finetuning.client_learning_rate=0.1 (of one) or'
    ' task.alpha=0.5. It can be given more than once.',
  )


def data_dir() -> Callable[[], str | None]:
  """Defines --data_dir."""
  flag = flags.DEFINE_string(
    'data_dir',
    None,
    'The folder of the data sets, by default $PFL_DATA_DIR. Missing data sets'
    ' are downloaded.',
  )
  return lambda: paths.data_folder(flag.value)


def output_dir(default: str) -> PathFlag:
  """Defines --output_dir; `default` says which folder is the default."""
  return path('output_dir', f'The folder to write to; by default {default}.')


def new_output_dir() -> Callable[[], pathlib.Path]:
  """Defines an --output_dir that must be given, as it has no default."""
  flag = output_dir('none, so that one must be named')

  def read() -> pathlib.Path:
    folder = flag()
    if folder is None:
      raise app.UsageError('Name a new folder with --output_dir.')
    return folder

  return read


def path(name: str, text: str, default: str | None = None) -> PathFlag:
  """Defines the flag of a path, with a text for --help."""
  flag = flags.DEFINE_string(name, default, text)
  return lambda: None if flag.value is None else paths.user_path(flag.value)


def new_file(name: str, text: str) -> PathFlag:
  """Defines the flag of a file for results, with a text for --help."""
  flag = flags.DEFINE_string(name, None, text)
  return lambda: paths.new_file(name, flag.value)


def dry_run() -> flags.FlagHolder[bool]:
  """Defines --dry_run."""
  return flags.DEFINE_bool(
    'dry_run',
    False,
    'Lists the points, times one of each kind, and estimates how long all of'
    ' them take.',
  )
