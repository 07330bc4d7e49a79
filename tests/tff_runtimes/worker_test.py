"""Tests of the program that starts a worker."""

import pathlib
import re
import signal
import socket

import pytest

from tests import processes
from tests.tff_runtimes import worker_programs
from tff_runtimes import worker


@pytest.fixture(name='program', scope='module')
def _program():
  with worker_programs.started() as program:
    yield program


def test_it_listens_on_loopback_alone(program):
  assert program.address.startswith('127.0.0.1:')
  port = int(program.address.rpartition(':')[2])
  listening = {
    line.split()[1]
    for table in ('tcp', 'tcp6')
    for line in pathlib.Path(f'/proc/net/{table}').read_text().splitlines()
    if f':{port:04X} ' in line and ' 0A ' in line
  }
  assert listening == {f'0100007F:{port:04X}'}


def test_the_port_of_the_worker_itself_is_hidden(program):
  ours, workers = (
    pathlib.Path(f'/proc/{pid}/ns/net').readlink()
    for pid in ('self', program.worker.pid)
  )
  if ours == workers:
    pytest.skip('This system allows no networks of their own.')
  (port,) = re.findall(r'--port=(\d+)', ' '.join(program.worker.cmdline()))
  with pytest.raises(ConnectionRefusedError):
    socket.create_connection(('127.0.0.1', int(port)))


@pytest.mark.parametrize('number', [signal.SIGHUP, signal.SIGKILL])
def test_the_worker_ends_with_the_program(number):
  with worker_programs.started() as program:
    worker = program.worker
    program.process.send_signal(number)
    assert processes.is_gone(worker)


def test_the_program_ends_with_the_worker():
  with worker_programs.started() as program:
    program.worker.kill()
    assert program.process.wait(10) == 1
    assert 'was killed by SIGKILL' in program.log.read_text()


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--port=70000'], '--port must be from 0 to 65535'),
    (['--host=256.0.0.1'], 'Cannot listen on --host=256.0.0.1'),
    (['--tls_key=a'], 'TLS takes both'),
    (['--client_ca=a'], 'TLS takes both'),
    (['--tls_key=a', '--tls_certificate=b'], 'cannot be read: .*No such file'),
  ],
)
def test_what_cannot_be_is_one_clear_error(capsys, flags, message):
  assert worker.main(flags) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert re.search(message, line)


def test_where_nothing_can_be_hidden_a_user_has_to_say_so(monkeypatch, capsys):
  def refuse():
    raise PermissionError(1, 'Operation not permitted')

  monkeypatch.setattr(worker, '_leave_network', refuse)
  assert worker.main(['--port=0']) == worker.EXPOSED
  assert '--allow_exposed' in capsys.readouterr().err
