"""Tests of the jobs that several programs share."""

import types

import pytest

from experiments.reporting import grid_records
from experiments.sweeps import grid_work
from experiments.sweeps import job_queue
from experiments.sweeps import leases


def _job(name, program, *keys):
  runs = tuple(types.SimpleNamespace(key=key) for key in keys or [name])
  return grid_work.Job(name, runs, 10, program, None)


_JOBS = [
  _job('1', 'p', '1', '1+'),
  _job('2', 'p'),
  _job('3', 'q'),
  _job('4', 'p'),
  _job('5', 'q'),
]


@pytest.fixture(name='start')
def _start(tmp_path):
  """Starts programs that share jobs."""
  for name in ('runs', 'leases'):
    (tmp_path / name).mkdir()
  started = []

  def start():
    records = grid_records.GridRecords(tmp_path, str(len(started)))
    own_leases = leases.Leases(tmp_path / 'leases')
    started.append(own_leases)
    queue = job_queue.JobQueue(_JOBS, records, own_leases)
    queue.leases = own_leases
    return queue

  yield start
  for own_leases in started:
    own_leases.close()


def _take(queue, last_program=None):
  queue._next_look = 0.0
  job = queue.take(last_program)
  return job and job.name


def _finish(queue, name):
  (job,) = (job for job in _JOBS if job.name == name)
  for run in job.runs:
    queue.add({'key': run.key})
  return queue.end(job)


def test_a_worker_keeps_to_its_program_and_a_new_one_begins_another(start):
  queue = start()
  assert _take(queue) == '1'
  assert _take(queue) == '3'
  assert _take(queue) == '2'
  assert _take(queue, 'q') == '5'
  other = start()
  assert _take(other, 'q') == '4'
  assert _take(other) is None
  assert not other.is_over


def test_what_others_finish_is_counted_and_not_done_again(start):
  one, two = start(), start()
  assert [_take(one), _take(two)] == ['1', '3']
  assert not _finish(one, '1')
  assert not _finish(two, '3')
  two.look()
  assert (two.runs_done, two.rounds_done) == (3, 20)
  assert [_take(two, 'p'), _take(two), _take(two), _take(two)] == [
    *('2', '5', '4'),
    None,
  ]
  assert _take(one) is None
  assert one.only_others_work
  for name in '245':
    _finish(two, name)
  assert two.is_over
  assert _take(one) is None
  assert one.is_over
  assert one.runs_done == two.runs_done == 6


def test_who_takes_over_does_what_is_missing(start):
  one, two = start(), start()
  assert _take(one) == '1'
  one.add({'key': '1'})
  one.leases.give_back('1')  # As if its program had ended.
  job = two.take('p')
  assert [run.key for run in job.runs] == ['1+']
  two.add({'key': '1+'})
  assert not two.end(job)
  # The other one was only asleep, and does it too.
  one.leases._held['1'] = 1
  assert not _finish(one, '1')
  assert one.runs_done == two.runs_done == 2


def test_what_failed_is_left_to_others(start):
  one, two = start(), start()
  assert _take(one) == '1'
  one.add({'key': '1'})
  assert [run.key for run in one.end(_JOBS[0])] == ['1+']
  assert _take(one, 'p') == '2'
  assert _take(two, 'p') == '1'
  assert one.failed == {'1+'}
  _finish(two, '1')
  one.look()
  assert not one.failed


def test_a_job_whose_worker_was_lost_comes_first(start):
  queue = start()
  job = queue.take(None)
  queue.add({'key': '1'})
  queue.put_back(job)
  again = queue.take(None)
  assert (again.name, [run.key for run in again.runs]) == ('1', ['1+'])
  assert not queue.failed
