import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest

from tasks import registry
from tests.tasks.data import ted_source


class PrepareTedMultiTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
      self.enter_context(tempfile.TemporaryDirectory())
    )
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
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn(
      '44 train, 4 validation, 6 test clients, 3 words', done.stdout
    )
    for line in done.stderr.splitlines():
      self.assertRegex(line, '^(reading|writing): ')
    task = registry.load('ted_multi', data_dir=str(self.folder))
    self.assertLen(task.train.client_ids, 44)

  def test_a_mistake_is_told_without_a_traceback(self):
    for flags, message in (
      (
        ['--source=nowhere', '--data_dir=.'],
        'There is no .*/nowhere/all_talks',
      ),
      (['--source=source', '--data_dir=none'], 'The data folder .*/none does'),
    ):
      done = self.prepare(*flags)
      self.assertEqual(done.returncode, 1)
      self.assertRegex(done.stderr, f'^Error: {message}')
      self.assertLen(done.stderr.splitlines(), 1)


if __name__ == '__main__':
  absltest.main()
