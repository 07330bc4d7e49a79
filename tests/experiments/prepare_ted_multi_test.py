import os
import re
import subprocess
import sys

import pytest

from tasks import registry
from tests.tasks import ted_source


class TestPrepareTedMulti:
  @pytest.fixture(autouse=True)
  def _set_up(self, tmp_path):
    self.folder = tmp_path
    ted_source.write(self.folder / 'source')

  def prepare(self, *flags):
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
      cwd=self.folder,
      env={**os.environ, 'BUILD_WORKING_DIRECTORY': str(self.folder)},
    )

  def test_the_task_reads_what_it_made(self):
    done = self.prepare('--source=source', '--data_dir=.')
    assert done.returncode == 0, done.stderr
    assert '44 train, 4 validation, 6 test clients, 3 words' in done.stdout
    for line in done.stderr.splitlines():
      assert re.search('^(reading|writing): ', line)
    task = registry.load('ted_multi', data_dir=str(self.folder))
    assert len(task.train.client_ids) == 44

  def test_a_mistake_is_told_without_a_traceback(self):
    for flags, message in (
      (
        ['--source=nowhere', '--data_dir=.'],
        'There is no .*/nowhere/all_talks',
      ),
      (['--source=source', '--data_dir=none'], 'The data folder .*/none does'),
    ):
      done = self.prepare(*flags)
      assert done.returncode == 1
      assert re.search(f'^Error: {message}', done.stderr)
      assert len(done.stderr.splitlines()) == 1
