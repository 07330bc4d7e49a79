"""Slurm jobs that work on a grid, each on the cores that it is allocated.

Each is a program of its own, which works until nothing is left. When its time
is over, or Slurm needs its place for another job, it stops and is queued again.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import logging
import multiprocessing.connection
import multiprocessing.process
import os
import shlex
import shutil
import signal
import sys
import time

import submitit
from submitit.core import utils

from base import errors
from base import words
from experiments.command_line import children
from experiments.command_line import launch
from experiments.command_line import stopping
from experiments.command_line import terminal
from experiments.sweeps import launching

# Only to bound what never ends: trainings that are longer than a job's time.
_MOST_TIMEOUTS = 1000
# A job stops half a minute before its hour is over, if the user does not say
# otherwise.
_DEFAULTS = {'job_name': 'grid', 'time': 60, 'signal_delay_s': 30}
# What was stopped waits so long for Slurm to queue it again, or to end it.
_SECONDS_TO_END = 60
_SECONDS_PER_LOOK = 1.0


def _work(
  connection: multiprocessing.connection.Connection, everything: launch.LateCall
) -> None:
  """Works on the grid in a process, which a SIGTERM stops."""
  del connection
  terminal.prepare()
  stopping.listen()
  # Not every Slurm keeps a job to its cores.
  cores = len(os.sched_getaffinity(0))
  cores = min(cores, int(os.environ.get('SLURM_CPUS_ON_NODE', cores)))
  launch.end(launch.attempt(lambda: int(everything(cores))))


class _SlurmJob:
  """Works on the grid in a Slurm job; a `submitit.helpers.Checkpointable`."""

  def __init__(self, everything: launch.LateCall):
    self._everything = everything
    self._process: multiprocessing.process.BaseProcess | None = None

  def __call__(self) -> int | None:
    self._process, _ = children.start(
      _work, self._everything, may_start_others=True
    )
    self._process.join()
    if self._process.exitcode == stopping.Stopped(signal.SIGTERM).exit_status:
      time.sleep(_SECONDS_TO_END)
    return self._process.exitcode

  def checkpoint(self) -> utils.DelayedSubmission:
    """Stops; returns what is done when Slurm starts the job again."""
    if self._process is not None:
      self._process.terminate()
      self._process.join()
    return utils.DelayedSubmission(_SlurmJob(self._everything))


class _SubmittedJobs(launching.Workers):
  """Submits Slurm jobs once there is work, and waits for them.

  The jobs take their work from the folder of the grid, so that nothing is given
  to them.
  """

  def __init__(
    self, num_jobs: int, options: Mapping[str, str | int], work: launching.Work
  ):
    self._num_jobs = num_jobs
    self._options = options
    self._work = work
    self._jobs: Sequence[submitit.Job[int | None]] = ()

  def run(self, queue: launching.Queue) -> launching.Events:
    """Waits until the queue is over, or all jobs have ended."""
    # The jobs submitted for a grid's first rung go on with its other rungs.
    if not self._jobs and not queue.is_over:
      self._submit()
    while not queue.is_over and not all(job.done() for job in self._jobs):
      time.sleep(_SECONDS_PER_LOOK)
      yield None

  def close(self) -> None:
    """Does nothing, as the jobs end by themselves."""

  def _submit(self) -> None:
    logging.getLogger('submitit').setLevel(logging.ERROR)
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    try:
      executor = submitit.SlurmExecutor(
        folder=self._work.log.parent / 'slurm',
        max_num_timeout=_MOST_TIMEOUTS,
        python=shlex.join(['env', f'PYTHONPATH={path}', sys.executable]),
      )
      executor.update_parameters(**{**_DEFAULTS, **self._options})
      self._jobs = [
        executor.submit(_SlurmJob(self._work.everything))
        for _ in range(self._num_jobs)
      ]
    except (
      ValueError,
      utils.FailedJobError,
      utils.FailedSubmissionError,
    ) as error:
      raise errors.UserError(f'--slurm: {error}') from error
    numbers = ' '.join(job.job_id for job in self._jobs)
    terminal.say(
      f'Slurm jobs {numbers} were submitted. They go on if this program is'
      f' stopped; to end them: scancel {numbers}'
    )


@dataclasses.dataclass(frozen=True)
class SlurmJobs:
  """Submits Slurm jobs, and waits for them; see `launching.Launcher`.

  Attributes:
    num_jobs: The number of jobs.
    options: The options of `sbatch`, as submitit names them.
  """

  num_jobs: int
  options: Mapping[str, str | int]

  @property
  def num_workers(self) -> int:
    """The number of cores that are asked for."""
    return self.num_jobs * int(self.options.get('cpus_per_task', 1))

  def start(self, work: launching.Work) -> _SubmittedJobs:
    """Prepares the jobs."""
    return _SubmittedJobs(self.num_jobs, self.options, work)

  def __str__(self) -> str:
    return words.count(self.num_jobs, 'Slurm jobs')


def jobs(num_jobs: int, options: str) -> SlurmJobs:
  """Makes a launcher of the values of flags.

  Args:
    num_jobs: The number of jobs.
    options: The options of `sbatch`, as in 'time=60,partition=long'.

  Raises:
    UserError: If there are no such options, or no Slurm.
  """
  known = submitit.SlurmExecutor._valid_parameters()
  named: dict[str, str | int] = {}
  for option in filter(None, options.split(',')):
    name, _, value = option.partition('=')
    if name not in known:
      raise errors.UserError(
        f'--slurm: {errors.unknown("option", name, known)}'
      )
    if not value or (name == 'time' and not value.isdecimal()):
      raise errors.UserError(
        f'--slurm: {errors.quote(option)} has no value, or not one in minutes.'
        ' Write time=60.'
      )
    if name == 'cpus_per_task' and not value.isdecimal():
      raise errors.UserError(
        f'--slurm: {errors.quote(option)} is not a whole number of cores.'
      )
    named[name] = int(value) if value.isdecimal() else value
  if shutil.which('srun') is None:
    raise errors.UserError(
      '--slurm_jobs: there is no Slurm here, as there is no srun. Give the'
      ' command on a machine where jobs can be submitted.'
    )
  return SlurmJobs(num_jobs, named)
