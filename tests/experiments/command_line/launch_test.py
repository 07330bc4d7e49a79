"""Tests of how programs start and end."""

import errno
import os
import pickle
import signal
import subprocess
import sys
import tempfile

from absl import app
import pytest

from base import errors
from experiments.command_line import launch
from experiments.command_line import stopping


def _raise(error):
  raise error


def _raise_later(error):
  stopping.say_outlook('It goes on.')
  raise error


def test_the_exit_status_is_that_of_the_action():
  assert launch.attempt(lambda: 3) == 3


def test_of_a_users_mistake_only_the_message_is_shown(capsys):
  assert launch.attempt(lambda: _raise(errors.UserError('Wrong.'))) == 1
  assert capsys.readouterr().err == 'Error: Wrong.\n'


def test_who_stops_a_program_is_told_what_it_goes_on_with(capsys):
  status = launch.attempt(
    lambda: _raise_later(stopping.Stopped(signal.SIGTERM))
  )
  assert status == 143
  assert capsys.readouterr().err == 'Stopped. It goes on.\n'


class ResourceExhaustedError(Exception):
  """As TensorFlow's, by its name."""


class WorkerError(Exception):
  """As the remote runtime's, by its name."""


@pytest.mark.parametrize(
  ('error', 'message'),
  [
    (MemoryError(), 'not enough memory'),
    (WorkerError('a:1 is gone.'), 'a:1 is gone. Start a worker again, or'),
    (OSError(errno.ENOMEM, 'Cannot allocate memory'), 'not enough memory'),
    (ResourceExhaustedError('OOM'), 'not enough memory'),
    (RuntimeError('RESOURCE_EXHAUSTED: Out of memory'), 'not enough memory'),
    (OSError(errno.ENOSPC, 'No space left on device'), 'No space left'),
    (errors.ResourceError('x cannot be written.'), 'x cannot be written'),
  ],
)
def test_of_what_the_machine_lacks_there_is_one_line(capsys, error, message):
  assert launch.attempt(lambda: _raise_later(error)) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('Error: ')
  assert message in line
  assert line.endswith('. It goes on.')


def test_where_nobody_reads_the_output_nothing_is_said(capsys):
  assert launch.attempt(lambda: _raise(BrokenPipeError())) == 1
  assert not capsys.readouterr().err


def test_of_a_bug_the_traceback_is_in_a_file(capsys, monkeypatch, tmp_path):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  assert launch.attempt(lambda: _raise(ValueError('so\nit is'))) == 1
  said = capsys.readouterr().err
  assert 'This is a bug in the program, ValueError: so it is.' in said
  (kept,) = tmp_path.iterdir()
  assert str(kept) in said
  assert 'Traceback' in kept.read_text()


def test_a_traceback_that_cannot_be_kept_is_shown(monkeypatch, tmp_path):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'none'))
  with pytest.raises(ValueError, match='bug'):
    launch.attempt(lambda: _raise(ValueError('bug')))


def test_a_wrong_use_is_no_bug(capsys):
  assert launch.attempt(lambda: _raise(app.UsageError('Name a run.'))) == 2
  assert capsys.readouterr().err == 'Error: Name a run. See --help.\n'


def test_a_late_call_imports_its_module_only_when_it_is_called():
  sys.modules.pop('colorsys', None)
  call = pickle.loads(
    pickle.dumps(launch.LateCall('colorsys', 'rgb_to_hsv', (1.0, 0.0)))
  )
  assert 'colorsys' not in sys.modules
  assert call(0.0) == (0.0, 1.0, 1.0)


_PROGRAM = """
import sys
from absl import flags
from experiments.command_line import launch
flags.DEFINE_integer('number', 0, 'A number.')
flags.DEFINE_string('text', None, 'A text.')

def main():
  return print('± ε ─') or 3

launch.start(main)
"""


def _call(*arguments, **environment):
  return subprocess.run(
    [sys.executable, '-c', _PROGRAM, *arguments],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path), **environment},
    capture_output=True,
    text=True,
    timeout=60,
  )


@pytest.mark.parametrize('flag', ['--help', '-h', '--version'])
def test_what_a_flag_asks_for_is_no_failure(flag):
  done = _call(flag)
  assert done.returncode == 0
  assert not done.stderr
  assert ('tensorflow 2' if flag == '--version' else '--number') in done.stdout


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('--nmber=3', "Unknown command line flag 'nmber'"),
    ('--number=x', '--number=x'),
    ('--text=', '--text is empty.'),
    ('x', "The argument 'x' is not a flag."),
  ],
)
def test_of_a_wrong_command_there_is_one_line(argument, message):
  done = _call(argument)
  assert done.returncode == 2
  assert not done.stdout
  (line,) = done.stderr.splitlines()
  assert line.startswith('Error: ')
  assert message in line
  assert line.endswith(' See --help.')


def test_what_ascii_does_not_have_is_written_otherwise():
  done = _call(PYTHONIOENCODING='ascii')
  assert (done.returncode, done.stdout) == (3, '+- epsilon ?\n')


@pytest.mark.parametrize(
  ('shell', 'status', 'said'),
  [
    ('"$@" > /dev/full', 1, 'Error: stdout cannot be written: No space left'),
    ('"$@" >&-', 1, 'Error: stdout is closed.'),
    ('"$@" 2>&-', 3, ''),
  ],
)
def test_a_stdout_that_cannot_be_written_to(shell, status, said):
  done = subprocess.run(
    ['sh', '-c', shell, 'sh', sys.executable, '-c', _PROGRAM],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == status
  assert len(done.stderr.splitlines()) == bool(said)
  assert done.stderr.startswith(said)
