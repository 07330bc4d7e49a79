"""Tests of leases."""

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from base import errors
from experiments.sweeps import leases
from tests import attacks


@pytest.fixture(name='start')
def _start(tmp_path):
  """Starts what holds leases, in a folder that all of them have in common."""
  started = []

  def start(expiry_seconds=60.0):
    started.append(leases.Leases(tmp_path, expiry_seconds))
    return started[-1]

  yield start
  for holder in started:
    holder.close()


def _expire(path):
  """Has a lease be one of another machine, which is gone."""
  path.write_text('of another machine')
  os.utime(path, (time.time() - 61,) * 2)


def test_a_lease_has_one_holder(start, tmp_path):
  one, two = start(), start()
  assert one.claim('a')
  assert not two.claim('a')
  assert two.claim('b')
  assert one.list_others() == {'b'}
  one.give_back('a')
  assert two.claim('a')
  two.close()
  assert one.list_others() == set()
  assert not list(tmp_path.iterdir())


def test_one_of_many_takes_over_a_lease_that_expired(start, tmp_path):
  everybody = [start() for _ in range(4)]
  names = [f'lease {i}' for i in range(30)]
  for name in names:
    assert everybody[0].claim(name)
    _expire(tmp_path / f'{name}.1')
  barrier = threading.Barrier(3)
  taken = []

  def take_over(holder):
    for name in names:
      barrier.wait()
      if holder.claim(name):
        taken.append(name)

  threads = [
    threading.Thread(target=take_over, args=(holder,))
    for holder in everybody[1:]
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert sorted(taken) == sorted(names)
  # Who wakes up and gives back what it held takes nothing from the others.
  everybody[0].close()
  assert start().list_others() == set(names)


def test_a_lease_whose_holder_lives_does_not_expire(start, tmp_path):
  assert start(expiry_seconds=0.6).claim('a')
  (tmp_path / 'a.1').write_text('of another machine')
  other = start(expiry_seconds=0.6)
  for _ in range(3):
    time.sleep(0.4)
    assert not other.claim('a')


def test_a_full_disk_is_told_with_the_folder(start, tmp_path, monkeypatch):
  holder = start()

  def fail(**how):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(tempfile, 'TemporaryFile', fail)
  with pytest.raises(errors.ResourceError, match=f'{tmp_path} cannot be writt'):
    holder.list_others()


def test_a_holder_that_was_killed_here_is_known_to_be_gone(start, tmp_path):
  code = (
    'import os, pathlib, sys\nfrom experiments.sweeps import leases\n'
    'leases.Leases(pathlib.Path(sys.argv[1])).claim("a");'
    'os.kill(os.getpid(), 9)'
  )
  subprocess.run(
    [sys.executable, '-c', code, tmp_path],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  assert (tmp_path / 'a.1').exists()
  holder = start()
  assert holder.list_others() == set()
  assert holder.claim('a')
  holder.give_back('a')
  assert not list(tmp_path.iterdir())


def test_a_lease_of_a_time_to_come_has_expired(start, tmp_path):
  (tmp_path / 'a.1').write_text('of another machine')
  os.utime(tmp_path / 'a.1', (time.time() + 10**6,) * 2)
  holder = start()
  assert holder.list_others() == set()
  assert holder.claim('a')


def test_a_lease_may_have_any_bytes_and_any_number(start, tmp_path):
  (tmp_path / 'a.1').write_bytes(b'\xff\x00' * 5000)
  assert not start().claim('a')
  name = f'b.{10**15}'
  (tmp_path / name).write_text('../../../tmp\n')
  _expire(tmp_path / name)
  holder = start()
  with attacks.soon():
    assert holder.claim('b')
    holder.give_back('b')
  assert [path.name for path in tmp_path.iterdir()] == ['a.1']


@pytest.mark.parametrize('make', [os.mkdir, *attacks.ENDLESS.values()])
def test_what_is_no_lease_is_named(start, tmp_path, make):
  make(tmp_path / 'a.1')
  with attacks.soon():
    for ask in (start().list_others, lambda: start().claim('a')):
      with pytest.raises(errors.UserError, match=r'a\.1 is not a lease'):
        ask()
