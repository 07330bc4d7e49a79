"""Processes that carry out jobs, a core each.

A job that fails, or takes its process with it, stops none of the others.
"""

import collections
from collections.abc import Callable, Generator, Sequence
import contextlib
import dataclasses
import multiprocessing.connection
import os
import pathlib
import signal
import time
import traceback
from typing import Any

from experiments.command_line import children

_SECONDS_PER_MESSAGE = 0.5
_WAIT_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Event:
  """News of a job from its process.

  Attributes:
    job: The job.
    item: A part of the job that was done, if one was.
    result: The result of that part.
    error: What went wrong with the rest of the job, if something did.
    progress: How far the job is.
    ended: Whether the process has ended its work on the job.
  """

  job: Any
  item: Any = None
  result: Any = None
  error: str | None = None
  progress: int | None = None
  ended: bool = False


def _work(
  connection: multiprocessing.connection.Connection,
  make_runner: Callable[[], Any],
  log: pathlib.Path,
  core: int,
) -> None:
  """Carries out jobs in a process, until its connection is closed."""
  with log.open('ab') as file:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
  os.sched_setaffinity(0, {core})
  try:
    runner = make_runner()
    while True:
      _carry_out(connection, runner, connection.recv())
  except (EOFError, BrokenPipeError, ConnectionResetError):
    pass  # The parent is gone, or wants no more.


def _carry_out(
  connection: multiprocessing.connection.Connection, runner: Any, job: Any
) -> None:
  last = time.monotonic()

  def on_progress(progress: int) -> None:
    nonlocal last
    now = time.monotonic()
    if now > last + _SECONDS_PER_MESSAGE:
      connection.send(dict(progress=progress))
      last = now

  error = None
  try:
    for item, result in runner.run(job, on_progress):
      connection.send(dict(item=item, result=result))
  except (EOFError, BrokenPipeError, ConnectionResetError):
    raise
  except Exception:  # Whatever it is, it is this job's.
    error = traceback.format_exc()
  connection.send(dict(error=error, ended=True))


class _WorkerProcess:
  """A process and the job that it does."""

  def __init__(self, number: int, make_runner: Any, log: pathlib.Path):
    cores = sorted(os.sched_getaffinity(0))
    self.process, self.connection = children.start(
      _work, make_runner, log, cores[number % len(cores)]
    )
    self.number = number
    self.log = log
    self.job: Any = None
    self.program: Any = None

  def give(self, job: Any) -> None:
    self.job, self.program = job, job.program
    # If the process is gone, that shows when it is waited for.
    with contextlib.suppress(BrokenPipeError):
      self.connection.send(job)

  def how_it_ended(self) -> str:
    """Says how the process ended that should not have."""
    self.process.join()
    status = self.process.exitcode
    how = f'ended by itself, with exit status {status}'
    if status == -signal.SIGKILL:
      how = (
        'was killed, as when there is not enough memory; fewer --workers need'
        ' less'
      )
    return f'The process {how}. What it printed is in {self.log}.'

  def stop(self) -> None:
    self.connection.close()
    self.process.terminate()
    self.process.join()


def _next_job(
  waiting: dict[Any, collections.deque[Any]], last: Any, taken: Sequence[Any]
) -> Any:
  """Takes a job of the worker's last program, or of one that nobody has."""
  program = last
  if program not in waiting:
    program = max(
      waiting, key=lambda name: (name not in taken, len(waiting[name]))
    )
  job = waiting[program].popleft()
  if not waiting[program]:
    del waiting[program]
  return job


def carry_out(
  jobs: Sequence[Any],
  make_runner: Callable[[], Any],
  num_workers: int,
  log_dir: pathlib.Path,
) -> Generator[Event | None, None, None]:
  """Carries out jobs in several processes.

  Args:
    jobs: The jobs; each has a `program`, and those of one program are kept
      together where that can be.
    make_runner: Makes, in each process, what carries them out: `run(job,
      on_progress)`, a generator of (item, result). A `launch.LateCall` imports
      nothing before it is called.
    num_workers: The number of processes.
    log_dir: The folder for what they print.

  Yields:
    What happens, and now and then None if nothing does.
  """
  waiting: dict[Any, collections.deque[Any]] = {}
  for job in jobs:
    waiting.setdefault(job.program, collections.deque()).append(job)
  log_dir.mkdir(parents=True, exist_ok=True)
  workers: list[_WorkerProcess] = []

  def start(number: int) -> _WorkerProcess:
    return _WorkerProcess(number, make_runner, log_dir / f'worker-{number}.log')

  def give(worker: _WorkerProcess) -> None:
    worker.job = None
    if waiting:
      taken = [other.program for other in workers if other is not worker]
      worker.give(_next_job(waiting, worker.program, taken))

  try:
    for number in range(min(num_workers, len(jobs))):
      workers.append(start(number))
      give(workers[-1])
    while busy := [worker for worker in workers if worker.job is not None]:
      ready = multiprocessing.connection.wait(
        [worker.connection for worker in busy], _WAIT_SECONDS
      )
      if not ready:
        yield None
      for worker in busy:
        if worker.connection not in ready:
          continue
        job = worker.job
        try:
          event = Event(job, **worker.connection.recv())
        except (EOFError, ConnectionResetError):
          event = Event(job, error=worker.how_it_ended(), ended=True)
          worker.stop()
          workers[worker.number] = worker = start(worker.number)
        if event.ended:
          give(worker)
        yield event
  finally:
    for worker in workers:
      worker.stop()
