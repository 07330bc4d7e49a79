"""Tests of processes that a program starts."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from experiments.command_line import children
from tests import processes


def _echo(connection, text):
  connection.send((text, signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def test_a_process_gets_no_ctrl_c():
  process, connection = children.start(_echo, 'x')
  assert connection.recv() == ('x', {signal.SIGINT, signal.SIGUSR2})
  with pytest.raises(EOFError):
    connection.recv()
  process.join()
  assert process.exitcode == 0
  assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


_PARENT = """
from experiments.command_line import children
from tests.experiments.command_line import children_test
process, connection = children.start(children_test.busy)
print(connection.recv(), flush=True)
connection.recv()
"""


def busy(connection):
  connection.send(os.getpid())
  time.sleep(60)


def test_a_process_does_not_outlive_the_program():
  parent = subprocess.Popen(
    [sys.executable, '-c', _PARENT],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    stdout=subprocess.PIPE,
    text=True,
  )
  with parent:
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
  assert processes.is_gone(child)
