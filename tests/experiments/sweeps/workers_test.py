"""Tests of the processes that carry out jobs."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import time

import pytest

from experiments.sweeps import launching
from experiments.sweeps import workers


@dataclasses.dataclass(frozen=True)
class _Job:
  name: str
  program: str = 'a'
  items: tuple[int, ...] = (1, 2)


class _Runner:
  """Squares; at -1 it fails, at -9 its process is killed."""

  def run(self, job, on_progress):
    for item in job.items:
      print('working on', item, flush=True)
      if item == -1:
        raise ValueError(f'no {item}')
      if item == -9:
        os.kill(os.getpid(), signal.SIGKILL)
      on_progress(item)
      gpu = os.environ.get('CUDA_VISIBLE_DEVICES')
      yield item, (item**2, os.getpid(), len(os.sched_getaffinity(0)), gpu)


class _Queue:
  """Gives out jobs of the worker's last program first."""

  def __init__(self, jobs):
    self._jobs = list(jobs)

  @property
  def is_over(self):
    return not self._jobs

  def take(self, last_program):
    self._jobs.sort(key=lambda job: job.program != last_program)
    return self._jobs.pop(0) if self._jobs else None


def _events(started, jobs):
  events = started.run(_Queue(jobs))
  return [event for event in events if event is not None]


def _processes(events):
  return {event.result[1] for event in events if event.result}


def _sleep(seconds):
  time.sleep(seconds)
  return _Runner()


class TestWorkers:
  @pytest.fixture(autouse=True)
  def _set_up(self, tmp_path):
    self.log = tmp_path / 'worker'

  def start(self, make_runner=_Runner, num_workers=2):
    work = launching.Work(make_runner, None, self.log)
    started = workers.OnThisMachine(num_workers).start(work)
    return contextlib.closing(started)

  def run(self, jobs, num_workers=2):
    with self.start(num_workers=num_workers) as started:
      return _events(started, jobs)

  def test_every_job_is_done_once(self):
    jobs = [_Job(f'{n}', program=f'{n % 3}', items=(n, n)) for n in range(9)]
    events = self.run(jobs)
    done = [(e.job.name, e.item, e.result[0]) for e in events if e.item != None]  # noqa: E711
    assert sorted(done) == sorted(
      [(f'{n}', n, n * n) for n in range(9) for _ in range(2)]
    )
    assert len([e for e in events if e.ended]) == 9
    assert {e.result[2] for e in events if e.result} == {1}

  def test_each_process_has_a_gpu_of_its_own(self, monkeypatch):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3,5')
    events = self.run([_Job('one', 'p'), _Job('two', 'q')])
    assert {event.result[3] for event in events if event.result} == {'3', '5'}

  def test_a_job_that_fails_stops_no_other(self):
    events = self.run([_Job('bad', items=(3, -1, 4)), _Job('good')])
    assert [e.item for e in events if e.job.name == 'bad' and e.result] == [3]
    (error,) = (e.error for e in events if e.error)
    assert 'ValueError: no -1' in error
    assert len([e for e in events if e.job.name == 'good' and e.result]) == 2

  def test_a_process_that_is_killed_is_replaced(self):
    jobs = [_Job('bad', items=(3, -9)), _Job('good'), _Job('better')]
    events = self.run(jobs, num_workers=1)
    (error,) = (e.error for e in events if e.error)
    assert 'was killed, as when there is not enough memory' in error
    log = self.log.with_name('worker-0.log')
    assert str(log) in error
    assert 'working on -9' in log.read_text()
    done = [e.job.name for e in events if e.result]
    assert done == ['bad', 'good', 'good', 'better', 'better']

  def test_a_process_keeps_to_its_program(self):
    jobs = [_Job(f'{n}', program='ab'[n % 2], items=(1,)) for n in range(8)]
    of_process = {}
    for event in self.run(jobs):
      if event.result:
        programs = of_process.setdefault(event.result[1], [])
        programs.append(event.job.program)
    # Whoever is done first may help the other one, but does not come back.
    for programs in of_process.values():
      assert programs == sorted(programs, key=programs.index)

  def test_processes_go_on_with_the_next_jobs(self):
    with self.start(num_workers=1) as started:
      first = _events(started, [_Job('first')])
      second = _events(started, [_Job('second')])
    assert _processes(first) == _processes(second)
    assert [event.job.name for event in second] == ['second'] * 3

  def test_a_process_that_was_killed_without_a_job_is_replaced(self):
    with self.start(num_workers=1) as started:
      (process,) = _processes(_events(started, [_Job('first')]))
      os.kill(process, signal.SIGKILL)
      os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
      second = _events(started, [_Job('second')])
    assert [event.error for event in second] == [None] * 3
    assert _processes(second) != {process}

  def test_no_process_is_left_after_closing(self):
    children = pathlib.Path(f'/proc/self/task/{os.getpid()}/children')
    with self.start(functools.partial(_sleep, 600), 1) as started:
      assert next(started.run(_Queue([_Job('slow')]))) is None
      before = set(children.read_text().split())
    after = set(children.read_text().split())
    assert after < before
