"""Tests of how a program is stopped."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

# No step of Python comes to its end while the program is busy.
_START = """
from experiments.command_line import stopping
stopping.listen()
import ctypes, signal, sys, time
from experiments.command_line import launch

def busy(seconds):
  # A signal ends a sleep of C.
  while seconds := ctypes.CDLL(None).sleep(seconds):
    pass

def work():
  stopping.say_outlook('It goes on.')
"""


@contextlib.contextmanager
def _program(work, before=''):
  """A program that does some work; it says so when it is ready."""
  lines = ''.join(f'  {line}\n' for line in work.splitlines())
  process = subprocess.Popen(
    [
      sys.executable,
      '-c',
      f'{before}{_START}{lines}\nlaunch.start(work)',
    ],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  with process:
    try:
      assert process.stdout.readline() == 'ready\n'
      yield process
    finally:
      process.kill()


@pytest.mark.parametrize(
  ('number', 'status'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_program_ends_at_once_whatever_it_does(number, status):
  with _program('print("ready"); busy(60)') as process:
    start = time.monotonic()
    process.send_signal(number)
    assert process.wait(10) == status
    assert time.monotonic() - start < 1
    assert process.stderr.read() == 'Stopped. It goes on.\n'


_FINISHING = """
with stopping.finishing('this round') as should_stop:
  should_stop()
  print('ready')
  while not should_stop():
    busy(1)
  print('finished')
print('never')
"""


def test_it_is_said_at_once_that_something_is_finished_before():
  with _program(_FINISHING) as process:
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline() == (
      'Stopping after this round; Ctrl-C again ends at once.\n'
    )
    assert process.wait(10) == 143
    assert process.stdout.read() == 'finished\n'
    assert process.stderr.read() == 'Stopped. It goes on.\n'


def test_before_anything_could_be_lost_nothing_is_finished():
  compiling = 'with stopping.finishing("this round"): print("ready"); busy(60)'
  with _program(compiling) as process:
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143
    assert not process.stdout.read()
    assert process.stderr.read() == 'Stopped. It goes on.\n'


def test_the_second_signal_ends_that_as_well():
  with _program(_FINISHING.replace('not should_stop()', 'True')) as process:
    process.send_signal(signal.SIGTERM)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert not process.stdout.read()


def test_what_is_in_the_background_gets_no_ctrl_c():
  ignore = 'import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)'
  work = 'print("ready"); time.sleep(0.3); print("done"); sys.exit(5)'
  with _program(work, before=ignore) as process:
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 5
