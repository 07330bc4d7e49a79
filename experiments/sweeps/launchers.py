"""Makes the launcher of a grid's workers that the flags of a program name."""

from collections.abc import Callable
import dataclasses
import importlib.util
import os

from absl import flags

from base import errors
from experiments.command_line import launch
from experiments.sweeps import launching
from experiments.sweeps import workers

# The flags belong to the programs, as those of `shared_flags`.
flags.disclaim_key_flags()

_MOST_WORKERS = 1000
# Imported late, as `--help` must not wait for what they import.
_SLURM = 'experiments.sweeps.slurm'
_RAY_WORKERS = 'experiments.sweeps.ray_workers'


@dataclasses.dataclass(frozen=True)
class OnRay:
  """Starts workers on a Ray cluster; see `launching.Launcher`.

  Ray is imported late, as TensorFlow has to be imported before it.

  Attributes:
    address: The address of the cluster, or 'auto' for that of this machine.
  """

  address: str

  @property
  def num_workers(self) -> int:
    """The number of workers that the cluster has room for."""
    counted: int = launch.load(_RAY_WORKERS).num_workers(self.address)
    return counted

  def start(self, work: launching.Work) -> launching.Workers:
    """Connects to the cluster."""
    started: launching.Workers = launch.load(_RAY_WORKERS).start(
      self.address, work
    )
    return started

  def __str__(self) -> str:
    return 'the Ray cluster'


def define_flags() -> Callable[[], launching.Launcher]:
  """Defines the flags that name a launcher; returns what makes it of them."""
  num_workers = flags.DEFINE_integer(
    'workers',
    len(os.sched_getaffinity(0)),
    'The number of processes. Each uses one core and, if there are GPUs, one of'
    ' these in turn.',
    lower_bound=1,
    upper_bound=_MOST_WORKERS,
  )
  slurm_jobs = flags.DEFINE_integer(
    'slurm_jobs',
    None,
    'How many Slurm jobs to submit, which work instead of this machine, each on'
    ' all cores that it is allocated. This program shows what they finish. All'
    ' of them must share the file system of the output folder.',
    lower_bound=1,
  )
  slurm_options = flags.DEFINE_string(
    'slurm',
    None,
    'Options of sbatch for these jobs, with _ for -, as in'
    ' time=60,cpus_per_task=8,gpus_per_node=2,partition=long. The time is in'
    ' minutes, by default 60; a job whose time is over is queued again until'
    ' nothing is left.',
  )
  ray = flags.DEFINE_string(
    'ray',
    None,
    'The address of a Ray cluster, whose machines work instead of this one, a'
    ' process on each of its cores or, if it has any, GPUs; auto for the'
    ' cluster that this machine is in.',
  )
  return lambda: make(
    num_workers.value, slurm_jobs.value, slurm_options.value, ray.value
  )


def make(
  num_workers: int,
  slurm_jobs: int | None,
  slurm_options: str | None,
  ray: str | None,
) -> launching.Launcher:
  """Makes a launcher of the values of flags.

  Raises:
    UserError: If they contradict each other, or the machine lacks what they
      name.
  """
  if slurm_options is not None and slurm_jobs is None:
    raise errors.UserError('--slurm: name the number of jobs by --slurm_jobs.')
  if ray is not None and slurm_jobs is not None:
    raise errors.UserError('--ray and --slurm_jobs: give one of them.')
  if slurm_jobs is not None:
    on_slurm: launching.Launcher = launch.load(_SLURM).jobs(
      slurm_jobs, slurm_options or ''
    )
    return on_slurm
  if ray is not None:
    if importlib.util.find_spec('ray') is None:
      raise errors.UserError(
        '--ray: Ray is not installed. Install it with: pip install ray==2.52.1'
      )
    return OnRay(ray)
  return workers.OnThisMachine(num_workers)
