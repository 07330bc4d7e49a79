"""Workers on the machines of a Ray cluster, which need not share their files.

Ray sends their results back to the program that started them, which holds the
leases and writes the records. If a machine is lost, another one does its job.
"""

import collections
from collections.abc import Iterator
import logging
import os
import signal
import socket
import sys
import time

import ray

from base import errors
from experiments.sweeps import devices
from experiments.sweeps import grid_work
from experiments.sweeps import launching

_WAIT_SECONDS = 0.5
_CONNECT_SECONDS = 5.0
# The machines of the cluster are counted this often.
_SECONDS_PER_COUNT = 5.0
# If so many workers were lost with a job, the job may be the reason.
_MOST_LOST = 3


class _Process:
  """A process of the cluster."""

  def __init__(self, make_runner: launching.MakeRunner):
    devices.assign(0).restrict()
    self._runner = make_runner()

  def is_ready(self) -> bool:
    """Returns once the process can carry out jobs."""
    return True

  def run(self, job: grid_work.Job) -> Iterator[launching.Fields]:
    """Carries out a job, see `launching.run`."""
    return launching.run(self._runner, job, lambda _: None)


class _Worker:
  """A process of the cluster, and the job that it does."""

  def __init__(self, make_runner: launching.MakeRunner, resource: str):
    of_ray = {'CPU': 'num_cpus', 'GPU': 'num_gpus'}[resource]
    self._process = (
      ray.remote(_Process).options(**{of_ray: 1}).remote(make_runner)
    )
    # The answer to a call, or a generator of answers.
    self.answers = self._process.is_ready.remote()
    self.is_ready = False
    self.job: launching.Job = None
    self.program: str | None = None

  def give(self, job: launching.Job) -> None:
    self.job, self.program = job, job.program
    method = self._process.run.options(num_returns='streaming')
    self.answers = method.remote(job)

  def receive(self) -> launching.Event | None:
    """Receives news of the job; None if it had none, but is now ready for one.

    Raises:
      RayError: If the process is lost.
    """
    if self.job is None:
      self.is_ready = ray.get(self.answers)
      self.answers = None
      return None
    event = launching.Event(self.job, **ray.get(next(self.answers)))
    if event.ended:
      self.job = self.answers = None
    return event

  def stop(self) -> None:
    ray.kill(self._process)


class _Processes(launching.WorkerPool):
  """As many processes as the cluster has cores or, if it has any, GPUs."""

  def __init__(self, make_runner: launching.MakeRunner):
    self._make_runner = make_runner
    self._workers: list[_Worker] = []
    self._lost_at_start = 0
    self._lost: collections.Counter[str] = collections.Counter()
    self._next_count = 0.0

  def _count(self) -> None:
    """Starts workers on machines that have joined the cluster."""
    if time.monotonic() < self._next_count:
      return
    self._next_count = time.monotonic() + _SECONDS_PER_COUNT
    resource, room = _room()
    while len(self._workers) < room:
      self._workers.append(_Worker(self._make_runner, resource))

  def idle(self) -> list[_Worker]:
    """Returns the workers that are ready and have no job."""
    self._count()
    return [
      worker
      for worker in self._workers
      if worker.is_ready and worker.job is None
    ]

  def news(self) -> launching.Events:
    """Waits a moment for news, and yields them; None if there are none."""
    asked = [worker for worker in self._workers if worker.answers is not None]
    if not asked:
      time.sleep(_WAIT_SECONDS)
      yield None
      return
    ready, _ = ray.wait(
      [worker.answers for worker in asked], timeout=_WAIT_SECONDS
    )
    if not ready:
      yield None
    for worker in asked:
      if any(worker.answers is answers for answers in ready):
        try:
          yield worker.receive()
        except ray.exceptions.RayError as error:
          yield self._lose(worker, error)

  def _lose(self, worker: _Worker, error: Exception) -> launching.Event | None:
    """Removes a lost worker; returns the news of its job, if it had one."""
    self._workers.remove(worker)
    worker.stop()
    job = worker.job
    if job is None:
      self._lost_at_start += 1
      if self._lost_at_start == _MOST_LOST:
        raise errors.UserError(
          f'--ray: processes do not start on the cluster: {error}'
        )
      return None
    self._lost[job.name] += 1
    if self._lost[job.name] < _MOST_LOST:
      return launching.Event(job, lost=True, ended=True)
    return launching.Event(
      job, error=f'{_MOST_LOST} workers were lost with it: {error}', ended=True
    )

  def close(self) -> None:
    """Stops all of them."""
    for worker in self._workers:
      worker.stop()
    ray.shutdown()


def _connect(address: str) -> None:
  if ray.is_initialized():
    return
  path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
  host, _, port = address.rpartition(':')
  on_sigterm = signal.getsignal(signal.SIGTERM)
  try:
    if port.isdecimal():
      # Ray itself would try for minutes.
      socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    ray.init(
      address=address,
      runtime_env={'env_vars': {'PYTHONPATH': path}},
      log_to_driver=False,
      logging_level=logging.ERROR,
    )
  except (OSError, OverflowError, ValueError) as error:
    raise errors.UserError(
      f'--ray: no cluster answers at {address}. Start one with `ray start`, and'
      ' name the address that it says.'
    ) from error
  finally:
    # Ray's own handler would end the program with another exit status.
    signal.signal(signal.SIGTERM, on_sigterm)


def num_workers(address: str) -> int:
  """Counts the workers that a cluster has room for."""
  _connect(address)
  return _room()[1]


def _room() -> tuple[str, int]:
  """Returns the resource that each worker takes one of, and its amount."""
  there = ray.cluster_resources()
  resource = 'GPU' if there.get('GPU') else 'CPU'
  return resource, int(there.get(resource, 0))


def start(address: str, work: launching.Work) -> launching.Workers:
  """Prepares processes on the machines of a cluster."""
  _connect(address)
  return _Processes(work.make_runner)
