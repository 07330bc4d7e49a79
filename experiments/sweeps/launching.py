"""Gives jobs to workers, on this machine or on others."""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import pathlib
import traceback
from typing import Any, Protocol, TypeAlias

from experiments.command_line import launch

# A part of the work, see `grid_work.Job`, and a part of that with its result:
# classes that cannot be imported before the flags are read.
Job: TypeAlias = Any
Item: TypeAlias = Any
Result: TypeAlias = Any


class Runner(Protocol):
  """Carries out jobs in a process."""

  def run(
    self, job: Job, on_progress: Callable[[int], None]
  ) -> Iterator[tuple[Item, Result]]:
    """Carries out a job, and yields the results of its parts."""


MakeRunner = Callable[[], Runner]


@dataclasses.dataclass(frozen=True)
class Event:
  """News of a job from its process.

  Attributes:
    job: The job.
    item: A part of the job that was done, if one was.
    result: The result of that part.
    error: What went wrong with the rest of the job, if something did.
    lost: Whether its worker was lost, so that another one must do the rest.
    progress: How far the job is.
    ended: Whether the process has ended its work on the job.
  """

  job: Job
  item: Item = None
  result: Result = None
  error: str | None = None
  lost: bool = False
  progress: int | None = None
  ended: bool = False


Events = Iterator[Event | None]
# The fields of an event, but for its job.
Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of a grid, as a launcher gives it to workers.

  Attributes:
    make_runner: Makes a `Runner`.
    everything: Works on the grid as a separate program. It takes the number of
      processes to start on its machine, and returns the exit status.
    log: The path of the files for what workers print. They append their names
      to it.
  """

  make_runner: launch.LateCall
  everything: launch.LateCall
  log: pathlib.Path


class Queue(Protocol):
  """Gives out jobs."""

  @property
  def is_over(self) -> bool:
    """Whether there will be no more jobs."""

  def take(self, last_program: str | None) -> Job | None:
    """Gives a job to a worker; None if there is none now.

    Args:
      last_program: The `program` of the worker's last job, if it had one.
    """


class Worker(Protocol):
  """Carries out one job at a time.

  Attributes:
    program: The `program` of its last job, if it had one.
  """

  program: str | None

  def give(self, job: Job) -> None:
    """Gives it a job."""


class Workers(abc.ABC):
  """Workers, which carry out the jobs of one queue after another."""

  @abc.abstractmethod
  def run(self, queue: Queue) -> Events:
    """Carries out the jobs of a queue, until it is over.

    Yields:
      What happens, and now and then None if nothing does.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Stops all of them."""


class WorkerPool(Workers):
  """Workers that this program gives jobs to."""

  @abc.abstractmethod
  def idle(self) -> Iterable[Worker]:
    """Returns the workers that have no job."""

  @abc.abstractmethod
  def news(self) -> Events:
    """Waits a moment for news, and yields them; None if there are none."""

  def run(self, queue: Queue) -> Events:
    """Carries out jobs; see `Workers`.

    A worker whose job has ended gets its next job only after the caller has
    handled that event.
    """
    under_way = 0
    while True:
      for worker in self.idle():
        job = queue.take(worker.program)
        if job is None:
          break
        worker.give(job)
        under_way += 1
      if not under_way and queue.is_over:
        return
      for event in self.news():
        under_way -= event is not None and event.ended
        yield event


class Launcher(Protocol):
  """Starts workers."""

  @property
  def num_workers(self) -> int:
    """The approximate number of workers."""

  def start(self, work: Work) -> Workers:
    """Starts workers, or prepares to start them once there are jobs.

    Args:
      work: What the workers need to know.
    """

  def __str__(self) -> str:
    """Describes the workers, for the user."""


def run(
  runner: Runner, job: Job, on_progress: Callable[[int], None]
) -> Iterator[Fields]:
  """Carries out a job with a runner, see `Work.make_runner`.

  Yields:
    The fields of its events.
  """
  error = None
  try:
    for item, result in runner.run(job, on_progress):
      yield dict(item=item, result=result)
  except Exception:  # Any error of a job must leave the others alone.
    error = traceback.format_exc()
  yield dict(error=error, ended=True)
