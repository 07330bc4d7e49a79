"""Makes the launcher of a grid's workers that the flags of a program name."""

from collections.abc import Callable
import dataclasses
import importlib.util

from absl import flags

from base import errors
from experiments.command_line import launch
from experiments.command_line import shared_flags
from experiments.sweeps import launching
from experiments.sweeps import workers

# The flags belong to the programs, as those of `shared_flags`.
flags.disclaim_key_flags()

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
  holders = (
    shared_flags.workers(),
    shared_flags.slurm_jobs(),
    shared_flags.slurm(),
    shared_flags.ray(),
  )
  return lambda: make(*(holder.value for holder in holders))


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
