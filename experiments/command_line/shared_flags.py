"""The flags that several programs have.

Each function defines a flag of the module that calls it. In a process that
imports several programs, such as a test, all use the first definition.
"""

import os
from typing import Any

from absl import flags

from experiments.command_line import paths
from experiments.configuration import user_settings
from tasks import registry as task_registry

_MOST_WORKERS = 1000
# The flags belong to the calling modules, so that their --help shows them.
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
    paths.default_data_folder(),
    'The folder of the data sets, by default $PFL_DATA_DIR. Missing data sets'
    ' are downloaded.',
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
    'The number of processes. Each uses one core and, if there are GPUs, one of'
    ' these in turn.',
    lower_bound=1,
    upper_bound=_MOST_WORKERS,
  )


def slurm_jobs() -> flags.Flag:
  """Defines --slurm_jobs."""
  return _flag(
    flags.DEFINE_integer,
    'slurm_jobs',
    None,
    'How many Slurm jobs to submit, which work instead of this machine, each on'
    ' all cores that it is allocated. This program shows what they finish. All'
    ' of them must share the file system of the output folder.',
    lower_bound=1,
  )


def slurm() -> flags.Flag:
  """Defines --slurm."""
  return _flag(
    flags.DEFINE_string,
    'slurm',
    None,
    'Options of sbatch for these jobs, with _ for -, as in'
    ' time=60,cpus_per_task=8,gpus_per_node=2,partition=long. The time is in'
    ' minutes, by default 60; a job whose time is over is queued again until'
    ' nothing is left.',
  )


def ray() -> flags.Flag:
  """Defines --ray."""
  return _flag(
    flags.DEFINE_string,
    'ray',
    None,
    'The address of a Ray cluster, whose machines work instead of this one, a'
    ' process on each of its cores or, if it has any, GPUs; auto for the'
    ' cluster that this machine is in.',
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
