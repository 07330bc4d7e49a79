"""Tests of the program that makes the database of TedMulti."""

import os
import re
import subprocess
import sys

import pytest

from tasks import registry
from tests.tasks.data import ted_source


@pytest.fixture(name='prepare')
def _prepare(tmp_path):
  """Runs the program in a folder that has the files."""
  ted_source.write(tmp_path / 'source')

  def prepare(*flags):
    # The parent's path, wherever the test is run from.
    code = f"""if True:
      import runpy, sys
      sys.path[:] = {sys.path!r}
      sys.argv[1:] = {list(flags)!r}
      runpy.run_module('experiments.prepare_ted_multi', run_name='__main__')
    """
    return subprocess.run(
      [sys.executable, '-c', code],
      capture_output=True,
      text=True,
      cwd=tmp_path,
      env={**os.environ, 'BUILD_WORKING_DIRECTORY': str(tmp_path)},
    )

  return prepare


def test_the_task_reads_what_it_made(prepare, tmp_path):
  done = prepare('--source=source', '--data_dir=.')
  assert done.returncode == 0, done.stderr
  assert '44 train, 4 validation, 6 test clients, 3 words' in done.stdout
  for line in done.stderr.splitlines():
    assert re.search('^(reading|writing): ', line)
  task = registry.load('ted_multi', data_dir=str(tmp_path))
  assert len(task.train.client_ids) == 44


@pytest.mark.parametrize(
  'flags, message',
  [
    (
      ['--source=nowhere', '--data_dir=.'],
      'There is no .*/nowhere/all_talks',
    ),
    (['--source=source', '--data_dir=none'], 'The data folder .*/none does'),
  ],
)
def test_a_mistake_is_told_without_a_traceback(prepare, flags, message):
  done = prepare(*flags)
  assert done.returncode == 1
  assert re.search(f'^Error: {message}', done.stderr)
  assert len(done.stderr.splitlines()) == 1
