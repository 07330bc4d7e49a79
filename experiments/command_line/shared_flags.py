"""The flags that several programs have.

Each function defines a flag of the module that calls it. In a process that
imports several programs, as in tests, the first definition serves all.
"""

import os
from typing import Any

from absl import flags

from experiments.configuration import user_settings
from tasks import registry as task_registry

# The flags are the calling modules', so that their --help shows them.
flags.disclaim_key_flags()


def _flag(define: Any, name: str, *arguments: Any, **limits: Any) -> flags.Flag:
  if name in flags.FLAGS:
    flags.declare_key_flag(name)
  else:
    define(name, *arguments, **limits)
  return flags.FLAGS[name]


def task() -> flags.Flag:
  """Defines --task."""
  return _flag(
    flags.DEFINE_string,
    'task',
    None,
    f'The task: {", ".join(task_registry.task_names())}.',
  )


def preset() -> flags.Flag:
  """Defines --preset."""
  return _flag(
    flags.DEFINE_string,
    'preset',
    None,
    'A TOML file of settings, or the name of one that comes with the code:'
    f' {", ".join(user_settings.preset_names())}.',
  )


def assignments() -> flags.Flag:
  """Defines --set."""
  return _flag(
    flags.DEFINE_multi_string,
    'set',
    [],
    'A setting, as in batch_size=10, client_learning_rate=0.1 (of every method'
    ' that has it), finetuning.client_learning_rate=0.1 (of one) or'
    ' task.alpha=0.5. It can be given more than once.',
  )


def data_dir() -> flags.Flag:
  """Defines --data_dir."""
  return _flag(
    flags.DEFINE_string,
    'data_dir',
    os.environ.get('PFL_DATA_DIR'),
    'The folder of the data sets, by default $PFL_DATA_DIR. What is not there'
    ' is downloaded.',
  )


def output_dir(default: str) -> flags.Flag:
  """Defines --output_dir; `default` says which folder is the default."""
  return _flag(
    flags.DEFINE_string,
    'output_dir',
    None,
    f'The folder to write to; by default {default}.',
  )


def workers() -> flags.Flag:
  """Defines --workers."""
  return _flag(
    flags.DEFINE_integer,
    'workers',
    len(os.sched_getaffinity(0)),
    'How many processes to run, each on a core of its own.',
    lower_bound=1,
  )


def dry_run() -> flags.Flag:
  """Defines --dry_run."""
  return _flag(
    flags.DEFINE_bool,
    'dry_run',
    False,
    'Lists the points, times one of each kind, and estimates how long all of'
    ' them take.',
  )
