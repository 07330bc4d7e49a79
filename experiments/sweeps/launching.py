"""Gives jobs to workers, on this machine or on others."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
import dataclasses
import pathlib
import traceback
from typing import Any, Protocol

from experiments.command_line import launch


@dataclasses.dataclass(frozen=True)
class Event:
  """News of a job from its process.

  Attributes:
    job: The job.
    item: A part of the job that was done, if one was.
    result: The result of that part.
    error: What went wrong with the rest of the job, if something did.
    lost: Whether its worker was lost, so that another one has to do the rest.
    progress: How far the job is.
    ended: Whether the process has ended its work on the job.
  """

  job: Any
  item: Any = None
  result: Any = None
  error: str | None = None
  lost: bool = False
  progress: int | None = None
  ended: bool = False


Events = Generator[Event | None, None, None]


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of a grid, as a launcher gives it to workers.

  Attributes:
    make_runner: Makes what carries out jobs: `run(job, on_progress)`, a
      generator of (item, result). It imports nothing before it is called.
    everything: Works on the grid as a program of its own, in so many processes
      of its machine as it is called with, and returns the exit status.
    log: A file for what workers print, to whose name they add their own.
  """

  make_runner: launch.LateCall
  everything: launch.LateCall
  log: pathlib.Path


class Queue(Protocol):
  """Where the jobs come from."""

  @property
  def is_over(self) -> bool:
    """Whether there will be no more jobs."""

  def take(self, last_program: Any) -> Any:
    """Gives a job to a worker; None if there is none now.

    Args:
      last_program: The `program` of the worker's last job, if it had one.
    """


class Worker(Protocol):
  """Carries out a job at a time.

  Attributes:
    program: The `program` of its last job, if it had one.
  """

  program: Any

  def give(self, job: Any) -> None:
    """Gives it a job."""


class Workers(Protocol):
  """Workers of one kind."""

  def idle(self) -> Iterable[Worker]:
    """Returns those that have no job."""

  def news(self) -> Iterator[Event | None]:
    """Waits a moment for news, and yields them; None if there are none."""

  def stop(self) -> None:
    """Stops all of them."""


class Launcher(Protocol):
  """Starts workers."""

  @property
  def num_workers(self) -> int:
    """The approximate number of workers."""

  def carry_out(self, queue: Queue, work: Work) -> Events:
    """Carries out jobs.

    Args:
      queue: Where the jobs come from.
      work: What the workers need to know.

    Yields:
      What happens, and now and then None if nothing does. It is to be closed.
    """

  def __str__(self) -> str:
    """Tells what the workers are, for the user."""


def carry_out(queue: Queue, workers: Workers) -> Events:
  """Carries out jobs; see `Launcher`.

  A worker whose job has ended is given another one when that event was dealt
  with.
  """
  under_way = 0
  try:
    while True:
      for worker in workers.idle():
        job = queue.take(worker.program)
        if job is None:
          break
        worker.give(job)
        under_way += 1
      if not under_way and queue.is_over:
        return
      for event in workers.news():
        under_way -= event is not None and event.ended
        yield event
  finally:
    workers.stop()


def run(
  runner: Any, job: Any, on_progress: Callable[[int], None]
) -> Iterator[Mapping[str, Any]]:
  """Carries out a job by what `Work.make_runner` has made.

  Yields:
    The fields of its events.
  """
  error = None
  try:
    for item, result in runner.run(job, on_progress):
      yield dict(item=item, result=result)
  except Exception:  # Whatever it is, it is this job's.
    error = traceback.format_exc()
  yield dict(error=error, ended=True)
