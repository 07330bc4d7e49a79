"""The remaining jobs of a grid, which programs share by leases."""

from collections.abc import Collection, Iterable, Sequence
import time

from experiments.reporting import grid_records
from experiments.sweeps import grid_work
from experiments.sweeps import leases as grid_leases

# A program that finds no job to claim looks again after this time.
_SECONDS_PER_LOOK = 1.0


class JobQueue:
  """Gives out jobs that no other program works on.

  Attributes:
    runs_done: The number of runs that were finished, by whatever program.
    progress: The number of rounds done of each job under way here, by name.
    failed: The runs that failed here, and that no other program finished.
  """

  def __init__(
    self,
    jobs: Sequence[grid_work.Job],
    records: grid_records.GridRecords,
    leases: grid_leases.Leases,
  ):
    self._records = records
    self._leases = leases
    self._waiting = {job.name: job for job in jobs}
    self._given: dict[str, grid_work.Job] = {}
    self._job_of = {run.key: job for job in jobs for run in job.runs}
    self._missing = {job.name: len(job.runs) for job in jobs}
    self._counted: set[str] = set()
    self._others: set[str] = set()
    self._next_look = 0.0
    self._ended_rounds = 0
    self.runs_done = 0
    self.progress: dict[str, int] = {}
    self.failed: set[str] = set()

  @property
  def is_over(self) -> bool:
    """Whether every job is finished, or failed here."""
    return not self._waiting and not self._given

  @property
  def only_others_work(self) -> bool:
    """Whether all that is left is what other programs work on."""
    return bool(self._waiting) and not self._given

  @property
  def rounds_done(self) -> int:
    """The number of rounds of the jobs that ended, and of those under way."""
    return self._ended_rounds + sum(self.progress.values())

  def take(self, last_program: str | None) -> grid_work.Job | None:
    """Claims a job for a worker.

    Jobs with the computations of the worker's last job come first, as these are
    compiled already; then jobs with computations that nobody works on; and then
    the others, in their order.

    Args:
      last_program: The `program` of the worker's last job.

    Returns:
      The job, without finished runs; None if there is no job to claim now.
    """
    if time.monotonic() < self._next_look:
      return None
    self.look()
    while free := [
      job for job in self._waiting.values() if job.name not in self._others
    ]:
      job = _choose(free, last_program, self._programs_under_way())
      if not self._leases.claim(job.name):
        self._others.add(job.name)
        continue
      # Another program may have finished it before it was claimed.
      self._note(self._records.read_others())
      left = job.drop(self._records.by_key)
      if left.runs:
        self._given[job.name] = self._waiting.pop(job.name)
        return left
      self._leases.give_back(job.name)
    self._next_look = time.monotonic() + _SECONDS_PER_LOOK
    return None

  def _programs_under_way(self) -> set[str]:
    of_others = [self._waiting.get(name) for name in self._others]
    jobs = [*self._given.values(), *of_others]
    return {job.program for job in jobs if job is not None}

  def look(self) -> None:
    """Finds out what other programs have finished, and what they work on."""
    self._note(self._records.read_others())
    self._others = self._leases.list_others()

  def _note(self, keys: Iterable[str]) -> None:
    """Notes that runs are finished."""
    for key in keys:
      job = self._job_of.get(key)
      if job is None:
        continue  # It is a run of a larger grid.
      self.runs_done += 1
      self.failed.discard(key)
      self._missing[job.name] -= 1
      if not self._missing[job.name]:
        self._waiting.pop(job.name, None)
        self._count(job)

  def _count(self, job: grid_work.Job) -> None:
    if job.name not in self._counted:
      self._counted.add(job.name)
      self._ended_rounds += max(job.rounds, 1)

  def add(self, record: grid_records.Record) -> None:
    """Adds the record of a run, unless another program has just done so."""
    if record['key'] not in self._records.by_key:
      self._records.add(record)
      self._note([record['key']])

  def put_back(self, job: grid_work.Job) -> None:
    """Returns a job, so that another worker does what is left of it."""
    self._waiting = {job.name: self._given.pop(job.name), **self._waiting}
    self.progress.pop(job.name, None)
    self._leases.give_back(job.name)
    self._next_look = 0.0

  def end(self, job: grid_work.Job) -> Sequence[grid_work.GridRun]:
    """Gives a job back; returns those of its runs that failed."""
    del self._given[job.name]
    self.progress.pop(job.name, None)
    self._leases.give_back(job.name)
    failed = [run for run in job.runs if run.key not in self._records.by_key]
    self.failed.update(run.key for run in failed)
    self._count(job)
    return failed


def _choose(
  jobs: Sequence[grid_work.Job],
  last_program: str | None,
  programs: Collection[str],
) -> grid_work.Job:
  for job in jobs:
    if job.program == last_program:
      return job
  for job in jobs:
    if job.program not in programs:
      return job
  return jobs[0]
