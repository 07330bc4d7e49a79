"""Tests of TFF's C++ runtime in a worker process that ends with its program."""

import collections
from collections.abc import Iterator, Sequence, Set
import gc
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

import grpc
import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import processes
from tff_runtimes import native
from tff_runtimes import private_api

# Prints when its worker is there, and again before it does `{then}`.
_CONTEXT_PROGRAM = """
import sys
import tensorflow as tf
import tensorflow_federated as tff
from tff_runtimes import native

tff.framework.set_default_context(native.create_native_context(allow_exposed=True))

@tff.tensorflow.computation
def run_for_ever():
  return tf.while_loop(lambda i: i >= 0, lambda i: [i * 1], [1])[0]

assert tff.tensorflow.computation(lambda: 1)() == 1
print('ready', flush=True)
sys.stdin.readline()
print('going on', flush=True)
{then}
"""
# The same without a context, as importing TFF takes seconds: how its worker
# ends does not depend on what it does.
_PROGRAM = """
import sys
import tempfile
from tff_runtimes import processes

with processes.reserved_port() as port:
  processes.start(
    ['{binary}', f'--port={{port}}'], tempfile.TemporaryFile()
  )
print('ready', flush=True)
sys.stdin.readline()
print('going on', flush=True)
{then}
"""
_PROGRAMS = {
  'ends': _CONTEXT_PROGRAM.format(then='pass'),
  'is interrupted': _CONTEXT_PROGRAM.format(then='run_for_ever()'),
  **{
    name: _PROGRAM.format(binary=private_api.worker_binary(), then=then)
    for name, then in (
      ('raises', 'raise ValueError("an error")'),
      ('is terminated', 'sys.stdin.readline()'),
      ('is killed', 'sys.stdin.readline()'),
    )
  },
}


def _wait_until_at_work(worker: psutil.Process) -> None:
  """Waits until the worker has worked for 0.2 s more."""
  enough = sum(worker.cpu_times()[:2]) + 0.2
  deadline = time.monotonic() + 20
  while sum(worker.cpu_times()[:2]) < enough:
    assert time.monotonic() < deadline
    time.sleep(0.01)


def _children(pid: int | None = None) -> set[psutil.Process]:
  return set(psutil.Process(pid).children())


def _worker_of(
  pid: int | None = None, others: Set[psutil.Process] = frozenset()
) -> psutil.Process:
  (child,) = _children(pid) - others
  if 'worker_binary' in child.cmdline()[0]:
    return child
  # The program that hides it.
  (worker,) = child.children()
  assert 'worker_binary' in worker.cmdline()[0]
  return worker


class ContextProgram(NamedTuple):
  """A Python program that has a native context, in a session of its own."""

  process: subprocess.Popen[str]

  def worker(self) -> psutil.Process:
    """Waits until the program has a worker, and returns it."""
    assert self.process.stdout.readline() == 'ready\n'
    return _worker_of(self.process.pid)

  def go_on(self) -> None:
    self.process.stdin.write('\n')
    self.process.stdin.flush()
    assert self.process.stdout.readline() == 'going on\n'

  def errors(self) -> str:
    """Waits until no one has its output open, and returns its errors."""
    return self.process.communicate(timeout=20)[1]


@pytest.fixture(name='programs', scope='module')
def _programs() -> Iterator[dict[str, ContextProgram]]:
  """Starts all programs at once, as importing TFF takes seconds."""
  programs = {
    name: ContextProgram(
      subprocess.Popen(
        [sys.executable, '-Wignore', '-c', program],
        env={
          **os.environ,
          'PYTHONPATH': os.pathsep.join(sys.path),
          'TF_CPP_MIN_LOG_LEVEL': '3',
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
      )
    )
    for name, program in _PROGRAMS.items()
  }
  yield programs
  for program in programs.values():
    program.process.kill()
    program.process.communicate()


@pytest.mark.parametrize(('name', 'status'), [('ends', 0), ('raises', 1)])
def test_the_worker_ends_with_its_program(programs, name, status):
  program = programs[name]
  worker = program.worker()
  program.go_on()
  program.errors()
  assert program.process.returncode == status
  assert processes.is_gone(worker)


def test_the_worker_ends_in_the_middle_of_its_work(programs):
  program = programs['is interrupted']
  worker = program.worker()
  program.go_on()
  _wait_until_at_work(worker)
  os.killpg(program.process.pid, signal.SIGINT)  # As Ctrl-C does it.
  assert program.errors().rstrip().endswith('KeyboardInterrupt')
  assert program.process.returncode == -signal.SIGINT
  assert processes.is_gone(worker)


@pytest.mark.parametrize(
  ('name', 'number'),
  [('is terminated', signal.SIGTERM), ('is killed', signal.SIGKILL)],
)
def test_the_worker_ends_if_its_program_has_no_time_to(programs, name, number):
  program = programs[name]
  worker = program.worker()
  program.go_on()
  program.process.send_signal(number)
  assert not program.errors()
  assert program.process.returncode == -number
  assert processes.is_gone(worker)


class LazyClients(Sequence):
  """A sequence of clients that is no list."""

  def __init__(self, *clients: object):
    self._clients = clients

  def __len__(self) -> int:
    return len(self._clients)

  def __getitem__(self, index: int) -> object:
    return self._clients[index]


@pytest.fixture(name='context', scope='module')
def _context() -> Iterator[tff.framework.SyncContext]:
  context = native.create_native_context(allow_exposed=True)
  with tff.framework.get_context_stack().install(context):
    yield context


@pytest.fixture(name='new_context')
def _new_context() -> Iterator[
  tuple[tff.framework.SyncContext, psutil.Process]
]:
  """Makes a context that no other test uses, and gives its worker too."""
  others = _children()
  context = native.create_native_context(allow_exposed=True)
  yield context, _worker_of(others=others)


@tff.tensorflow.computation(np.int32)
def _add_one(x):
  return x + 1


_INTS = tff.FederatedType(np.int32, tff.CLIENTS)


@tff.federated_computation(tff.FederatedType(np.int32, tff.SERVER), _INTS)
def _sum(server, clients):
  return server, tff.federated_sum(clients)


def test_a_computation_runs(context):
  del context
  assert _add_one(1) == 2


@pytest.mark.parametrize(
  'clients', [[1, 2], (1, 2), LazyClients(1, 2), range(1, 3)], ids=repr
)
def test_clients_can_be_any_sequence(context, clients):
  del context
  assert _sum(5, clients) == (5, 3)


def test_there_can_be_no_clients(context):
  del context
  assert _sum(5, []) == (5, 0)


def test_the_results_of_no_clients_are_empty_lists(context):
  del context

  @tff.federated_computation(_INTS)
  def same_and_sum(clients):
    inner = collections.OrderedDict(same=clients)
    return collections.OrderedDict(a=inner, b=tff.federated_sum(clients))

  assert same_and_sum([]) == {'a': {'same': []}, 'b': 0}


def test_each_client_keeps_its_structure(context):
  del context
  client_type = collections.OrderedDict(
    b=(np.int32, tff.TensorType(np.float32, [None])), a=np.str_
  )

  @tff.federated_computation(tff.FederatedType(client_type, tff.CLIENTS))
  def same(clients):
    return clients

  clients = [
    collections.OrderedDict(b=(n, np.ones(n, np.float32)), a=b'abc')
    for n in (1, 2)
  ]
  np.testing.assert_equal(same(LazyClients(*clients)), clients)


def test_clients_are_found_inside_a_structure(context):
  del context

  @tff.federated_computation(
    collections.OrderedDict(b=(_INTS, np.int32), a=_INTS)
  )
  def sums(argument):
    return (
      tff.federated_sum(argument['b'][0]),
      tff.federated_sum(argument['a']),
    )

  argument = collections.OrderedDict(b=(LazyClients(1, 2), 7), a=(3, 4))
  assert sums(argument) == (3, 7)


def test_what_is_the_same_at_all_clients_is_not_a_sequence_of_clients(context):
  del context

  @tff.federated_computation(
    tff.FederatedType((np.int32, np.int32), tff.CLIENTS, all_equal=True),
    _INTS,
  )
  def pair(all_equal, clients):
    return all_equal, tff.federated_sum(clients)

  assert pair((1, 2), LazyClients(3)) == ((1, 2), 3)


def test_a_wrong_argument_is_for_tff_to_refuse(context):
  del context
  with pytest.raises(TypeError, match='list'):
    _sum(5, 'ab')


def test_a_secure_sum_is_a_sum(context):
  del context

  @tff.federated_computation(_INTS)
  def sums(clients):
    return (
      tff.federated_secure_sum(clients, 10),
      tff.federated_secure_sum_bitwidth(clients, 8),
      tff.backends.mapreduce.federated_secure_modular_sum(clients, 4),
    )

  assert sums(LazyClients(1, 2, 3)) == (6, 6, 2)


def test_the_secure_aggregator_of_tff_aggregates(context):
  del context
  process = tff.learning.secure_aggregator(
    zeroing=False, clipping=False
  ).create(tff.TensorType(np.float32, [2]), tff.TensorType(np.float32))
  clients = [np.array([1.0, 2.0], np.float32), np.array([3.0, 6.0], np.float32)]
  result = process.next(process.initialize(), clients, [1.0, 3.0]).result
  np.testing.assert_allclose(result, [2.5, 5.0], atol=1e-3)


def test_an_error_of_a_computation_is_raised_and_not_tried_again(context):
  del context

  @tff.tensorflow.computation(np.int32)
  def fail(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x)]):
      return tf.identity(x)

  with pytest.raises(grpc.RpcError, match='assertion failed'):
    fail(-1)
  assert fail(1) == 1


def test_the_worker_has_no_stream_of_its_program(new_context):
  _, worker = new_context

  def streams(pid):
    return {os.readlink(f'/proc/{pid}/fd/{number}') for number in range(3)}

  assert streams(worker.pid) & streams('self') <= {'/dev/null'}


def test_the_worker_keeps_no_pipe_open():
  reading, writing = os.pipe()
  os.set_blocking(reading, False)
  os.set_inheritable(writing, True)
  context = native.create_native_context(allow_exposed=True)
  os.close(writing)
  assert os.read(reading, 1) == b''  # The end. It would block otherwise.
  os.close(reading)
  del context


def test_the_worker_does_not_get_the_signals_of_the_terminal(new_context):
  _, worker = new_context
  assert os.getsid(worker.pid) == worker.pid


def test_the_worker_ends_with_its_context():
  others = _children()
  context = native.create_native_context(allow_exposed=True)
  worker = _worker_of(others=others)
  del context
  gc.collect()
  assert processes.is_gone(worker)


def test_the_worker_outlives_the_thread_that_asked_for_it():
  contexts = []
  thread = threading.Thread(
    target=lambda: contexts.append(
      native.create_native_context(allow_exposed=True)
    )
  )
  thread.start()
  thread.join()
  time.sleep(0.2)  # For the kernel to kill it, if it would.
  with tff.framework.get_context_stack().install(contexts[0]):
    assert _add_one(1) == 2


def test_nobody_else_can_reach_the_worker(new_context):
  _, worker = new_context
  ours, workers = (
    pathlib.Path(f'/proc/{pid}/ns/net').readlink()
    for pid in ('self', worker.pid)
  )
  if ours == workers:
    pytest.skip('This system allows no networks of their own.')
  (port,) = re.findall(r'--port=(\d+)', ' '.join(worker.cmdline()))
  with pytest.raises(ConnectionRefusedError):
    socket.create_connection(('127.0.0.1', int(port)))
  # Neither by the socket, whose name is gone.
  (path,) = re.findall(
    "--unix_socket=([^']*)", ' '.join(worker.parent().cmdline())
  )
  assert not pathlib.Path(path).parent.exists()


def test_who_exposes_the_worker_has_to_say_so(monkeypatch):
  cannot = "worker._leave_network = lambda: open('/nowhere')\n"
  program = native._PROGRAM.replace('sys.exit', f'{cannot}sys.exit')
  monkeypatch.setattr(native, '_PROGRAM', program)
  with pytest.raises(native.ExposedWorkerError, match='could read and write'):
    native.create_native_context()
  context = native.create_native_context(allow_exposed=True)
  with tff.framework.get_context_stack().install(context):
    assert _add_one(1) == 2


def test_a_long_name_of_the_temporary_folder_does_no_harm(
  monkeypatch, tmp_path
):
  folder = tmp_path / ('x' * 100)
  folder.mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(folder))
  context = native.create_native_context(allow_exposed=True)
  with tff.framework.get_context_stack().install(context):
    assert _add_one(1) == 2


def test_a_worker_that_died_is_an_error(new_context):
  context, worker = new_context
  with tff.framework.get_context_stack().install(context):
    assert _add_one(1) == 2
    worker.kill()
    for _ in range(2):
      with pytest.raises(RuntimeError, match='killed by SIGKILL'):
        _add_one(1)


def test_a_worker_that_dies_at_work_is_an_error(new_context):
  context, worker = new_context

  @tff.tensorflow.computation
  def run_for_ever():
    return tf.while_loop(lambda i: i >= 0, lambda i: [i * 1], [1])[0]

  killer = threading.Timer(0.5, worker.kill)
  killer.start()
  with tff.framework.get_context_stack().install(context):
    with pytest.raises(RuntimeError, match='killed by SIGKILL'):
      run_for_ever()


def test_a_worker_that_does_not_start_is_an_error_with_its_last_words(
  monkeypatch, tmp_path
):
  binary = tmp_path / 'worker_binary'
  binary.write_text('#!/bin/sh\necho No such library >&2\nexit 7\n')
  binary.chmod(0o755)
  monkeypatch.setattr(native, '_BINARY', str(binary))
  message = '(?s)No such library.*ended with exit status 7'
  with pytest.raises(RuntimeError, match=message):
    native.create_native_context(allow_exposed=True)


def test_a_worker_that_does_not_answer_is_an_error(monkeypatch, tmp_path):
  others = _children()
  binary = tmp_path / 'worker_binary'
  binary.write_text('#!/bin/sh\nexec sleep 100\n')
  binary.chmod(0o755)
  monkeypatch.setattr(native, '_BINARY', str(binary))
  monkeypatch.setattr(native, '_START_TIMEOUT_SECONDS', 0.3)
  with pytest.raises(RuntimeError, match='did not answer within 0.3 s'):
    native.create_native_context(allow_exposed=True)
  gc.collect()
  assert _children() <= others


def test_a_missing_worker_is_an_error_that_names_it(monkeypatch):
  monkeypatch.setattr(native, '_BINARY', '/not/there')
  with pytest.raises(RuntimeError, match='/not/there'):
    native.create_native_context(allow_exposed=True)
