"""Tests of a round whose workers are cut off, killed, and come later."""

from collections.abc import Callable, Iterator
import concurrent.futures
import contextlib
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes import helpers
from tests.tff_runtimes import worker_programs
from tff_runtimes import crews
from tff_runtimes import remote

_VECTOR = tff.TensorType(np.float32, [3])
_PORT = 10000


class _Rounds:
  """Rounds whose clients wait at a gate, a file."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._gate = folder / 'gate'
    self._data = [
      np.random.default_rng(k).normal(size=3).astype(np.float32)
      for k in range(20)
    ]
    gate, name = str(self._gate), f'{folder}/client-'

    @tff.tensorflow.computation(_VECTOR, _VECTOR)
    def work(center, data):
      bits = tf.strings.as_string(tf.bitcast(data[0], tf.int32))
      with tf.control_dependencies([tf.io.write_file(name + bits, '')]):
        is_open = tf.while_loop(
          tf.logical_not,
          lambda _: [tf.size(tf.io.matching_files(gate)) > 0],
          [tf.constant(False)],
        )
      with tf.control_dependencies(is_open):
        return 0.7 * center + tf.sin(center + data)

    @tff.federated_computation(
      tff.FederatedType(_VECTOR, tff.SERVER),
      tff.FederatedType(_VECTOR, tff.CLIENTS),
    )
    def run(center, data):
      center = tff.federated_broadcast(center)
      return tff.federated_mean(tff.federated_map(work, (center, data)))

    self._computation = run

  def run(
    self,
    context: tff.framework.SyncContext,
    center: np.ndarray,
    meanwhile: Callable[[], None] = lambda: None,
  ) -> np.ndarray:
    """Runs a round, and calls a function while its clients wait."""
    for path in self._folder.iterdir():
      path.unlink()
    with concurrent.futures.ThreadPoolExecutor() as pool:
      call = pool.submit(
        helpers.run, context, self._computation, center, self._data
      )
      # A worker begins as many at once as it has cores.
      while not list(self._folder.iterdir()):
        assert not call.done(), call.result()
        time.sleep(0.05)
      meanwhile()
      self._gate.touch()
      return call.result(timeout=60)


def _ip(*arguments: str) -> None:
  subprocess.run(['ip', *arguments], check=True, capture_output=True)


class _Host:
  """A host of its own, in a network namespace.

  Attributes:
    address: The address of its worker.
  """

  def __init__(self, number: int):
    self._name = f'pfl-{os.getpid()}-{number}'
    self._link = f'p{os.getpid()}-{number}'
    # Addresses for tests of networks.
    network = f'198.18.{os.getpid() % 256}'
    ours, self._ip = (f'{network}.{4 * number + k}' for k in (1, 2))
    self.address = f'{self._ip}:{_PORT}'
    _ip('netns', 'add', self._name)
    _ip(*f'link add {self._link} type veth peer eth0'.split(), *self._netns())
    _ip('addr', 'add', f'{ours}/30', 'dev', self._link)
    _ip('link', 'set', self._link, 'up')
    _ip('-n', self._name, 'addr', 'add', f'{self._ip}/30', 'dev', 'eth0')
    _ip('-n', self._name, 'link', 'set', 'eth0', 'up')

  def _netns(self) -> list[str]:
    return ['netns', self._name]

  def start(self) -> contextlib.AbstractContextManager:
    """Starts its worker."""
    return worker_programs.started(
      f'--host={self._ip}',
      f'--port={_PORT}',
      within=['ip', 'netns', 'exec', self._name],
    )

  def cut(self, program: worker_programs.WorkerProgram) -> None:
    """Takes it off the network."""
    del program
    _ip('-n', self._name, 'link', 'set', 'eth0', 'down')

  def remove(self) -> None:
    """Removes it."""
    _ip('netns', 'delete', self._name)


class _Port:
  """A port of this machine in place of a host."""

  def __init__(self, number: int):
    port = 20000 + os.getpid() % 10000 + 10000 * number
    self.address = f'127.0.0.1:{port}'

  def start(self) -> contextlib.AbstractContextManager:
    """Starts its worker."""
    return worker_programs.started(f'--port={self.address.split(":")[1]}')

  def cut(self, program: worker_programs.WorkerProgram) -> None:
    """Has it neither answer nor close its connections."""
    program.process.send_signal(signal.SIGSTOP)

  def remove(self) -> None:
    """Does nothing."""


def _hosts_in_namespaces(stack: contextlib.ExitStack) -> list[_Host]:
  if shutil.which('ip') is None:
    pytest.skip('There is no program ip here, to make hosts with.')
  hosts = []
  for number in range(3):
    try:
      hosts.append(_Host(number))
    except subprocess.CalledProcessError as error:
      reason = error.stderr.decode().strip()
      pytest.skip(f'This system allows no network namespaces: {reason}')
    stack.callback(hosts[-1].remove)
  return hosts


@pytest.fixture(name='hosts', params=['namespaces', 'ports'])
def _hosts(request) -> Iterator[list[_Host] | list[_Port]]:
  with contextlib.ExitStack() as stack:
    if request.param == 'namespaces':
      yield _hosts_in_namespaces(stack)
    else:
      yield [_Port(number) for number in range(3)]


def test_one_cut_one_killed_one_joining_give_the_bits_of_one(
  hosts, tmp_path, monkeypatch
):
  monkeypatch.setattr(crews, '_SECONDS_BETWEEN_CALLS', 0.2)
  monkeypatch.setattr(crews, '_SECONDS_TO_ANSWER', 1.0)
  monkeypatch.setattr(crews, '_SECONDS_TO_CONNECT', 1.0)
  rounds, told = _Rounds(tmp_path), queue.Queue()
  with contextlib.ExitStack() as stack:
    cut_off, killed = (stack.enter_context(host.start()) for host in hosts[:2])
    joining = hosts[2]
    context = remote.create_remote_context(
      [host.address for host in hosts], tell=told.put
    )

    def hear(host, what):
      sentence = told.get(timeout=30)
      assert host.address in sentence
      assert what in sentence

    hear(joining, 'cannot be used')

    def cut():
      hosts[0].cut(cut_off)
      hear(hosts[0], 'cannot be used')

    def join():
      stack.enter_context(joining.start())
      hear(joining, 'is used again')

    def kill():
      killed.worker.kill()
      hear(hosts[1], 'cannot be used')

    center = np.zeros(3, np.float32)
    of_crew = []
    for meanwhile in (cut, join, kill, lambda: None):
      center = rounds.run(context, center, meanwhile)
      of_crew.append(center)

    alone = remote.create_remote_context([joining.address])
    center = np.zeros(3, np.float32)
    for expected in of_crew:
      center = rounds.run(alone, center)
      np.testing.assert_array_equal(center, expected)
