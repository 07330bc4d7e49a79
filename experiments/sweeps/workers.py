"""Processes that carry out jobs, each with a core, and a GPU if there are any.

A job that fails, or takes its process with it, stops none of the others.
"""

import contextlib
import dataclasses
import multiprocessing.connection
import multiprocessing.process
import os
import pathlib
import signal
import time
from typing import Any

from base import words
from experiments.command_line import children
from experiments.sweeps import devices
from experiments.sweeps import launching

_SECONDS_PER_MESSAGE = 0.5
_WAIT_SECONDS = 0.5


def _work(
  connection: multiprocessing.connection.Connection,
  make_runner: launching.MakeRunner,
  log: pathlib.Path,
  own_devices: devices.Devices,
) -> None:
  """Carries out jobs in a process, until its connection is closed."""
  with log.open('ab') as file:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
  own_devices.restrict()
  try:
    runner = make_runner()
    while True:
      _run_job(connection, runner, connection.recv())
  except (EOFError, BrokenPipeError, ConnectionResetError):
    pass  # The parent has ended, or has closed the connection.


def _run_job(
  connection: multiprocessing.connection.Connection,
  runner: launching.Runner,
  job: launching.Job,
) -> None:
  last = time.monotonic()

  def on_progress(progress: int) -> None:
    nonlocal last
    now = time.monotonic()
    if now > last + _SECONDS_PER_MESSAGE:
      connection.send(dict(progress=progress))
      last = now

  for fields in launching.run(runner, job, on_progress):
    connection.send(fields)


class _Worker:
  """A process, once there is a job for it, and the job that it does."""

  def __init__(
    self,
    number: int,
    make_runner: launching.MakeRunner,
    log: pathlib.Path,
  ):
    self._arguments = make_runner, log, devices.assign(number)
    self._process: multiprocessing.process.BaseProcess | None = None
    self._log = log
    self.connection: Any = None
    self.job: launching.Job = None
    self.program: str | None = None

  def give(self, job: launching.Job) -> None:
    # A process may have been killed while it had no job.
    if self._process is not None and not self._process.is_alive():
      self.stop()
    if self._process is None:
      self._process, self.connection = children.start(_work, *self._arguments)
    self.job, self.program = job, job.program
    # If the process has ended since, `receive` finds that out.
    with contextlib.suppress(BrokenPipeError):
      self.connection.send(job)

  def receive(self) -> launching.Event:
    """Receives news of the job; a process that is gone is news as well."""
    job = self.job
    try:
      event = launching.Event(job, **self.connection.recv())
    except (EOFError, ConnectionResetError):
      event = launching.Event(job, error=self._how_it_ended(), ended=True)
      self.stop()
    if event.ended:
      self.job = None
    return event

  def _how_it_ended(self) -> str:
    """Explains how the process ended unexpectedly."""
    assert self._process is not None
    self._process.join()
    status = self._process.exitcode
    end = f'ended by itself, with exit status {status}'
    if status == -signal.SIGKILL:
      end = (
        'was killed, as when there is not enough memory; fewer --workers need'
        ' less'
      )
    return f'The process {end}. What it printed is in {self._log}.'

  def stop(self) -> None:
    if self._process is not None:
      self.connection.close()
      self._process.terminate()
      self._process.join()
      self._process = self.program = None
      if self._log.exists() and not self._log.stat().st_size:
        self._log.unlink()


class Processes(launching.WorkerPool):
  """Processes of this machine."""

  def __init__(
    self,
    num_workers: int,
    make_runner: launching.MakeRunner,
    log: pathlib.Path,
  ):
    """Prepares processes; each starts when there is a job for it.

    Args:
      num_workers: The number of processes.
      make_runner: See `launching.Work`.
      log: The file for what they print, to whose name their numbers are added.
    """
    self._workers = [
      _Worker(number, make_runner, log.with_name(f'{log.name}-{number}.log'))
      for number in range(num_workers)
    ]

  def idle(self) -> list[_Worker]:
    """Returns the processes that have no job."""
    return [worker for worker in self._workers if worker.job is None]

  def news(self) -> launching.Events:
    """Waits a moment for news, and yields them; None if there are none."""
    busy = {w.connection: w for w in self._workers if w.job is not None}
    ready = multiprocessing.connection.wait(list(busy), _WAIT_SECONDS)
    if not ready:
      yield None
    for connection in ready:
      yield busy[connection].receive()

  def close(self) -> None:
    """Stops all of them."""
    for worker in self._workers:
      worker.stop()


@dataclasses.dataclass(frozen=True)
class OnThisMachine:
  """Starts processes of this machine; see `launching.Launcher`."""

  num_workers: int

  def start(self, work: launching.Work) -> Processes:
    """Prepares the processes."""
    return Processes(self.num_workers, work.make_runner, work.log)

  def __str__(self) -> str:
    return words.count(self.num_workers, 'processes')
