"""The flags that several programs have.

Each function defines a flag of the module that calls it. In a process that
imports several programs, as in tests, the first definition serves all.
"""

import os
from typing import Any

from absl import flags

# The flags are the calling modules', so that their --help shows them.
flags.disclaim_key_flags()


def _flag(define: Any, name: str, *arguments: Any, **limits: Any) -> flags.Flag:
  if name in flags.FLAGS:
    flags.declare_key_flag(name)
  else:
    define(name, *arguments, **limits)
  return flags.FLAGS[name]


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
