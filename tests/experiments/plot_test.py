"""Tests of the program that draws figures."""

import pathlib

import pytest

from tests.experiments import programs
from tests.experiments import small_runs


@pytest.fixture(name='root', scope='module')
def _root(tmp_path_factory) -> pathlib.Path:
  """A folder with that of a run, 'one'."""
  root = tmp_path_factory.mktemp('plot')
  config = small_runs.config('finetuning_epochs=2', algorithms='finetuning')
  small_runs.run(config, root / 'one')
  return root


def _plot(root, *arguments):
  # As `bazel run` has it, where the user is not where the program is.
  return programs.run('plot', *arguments, BUILD_WORKING_DIRECTORY=str(root))


def test_writes_all_kinds_of_files(root):
  done = _plot(root, 'one')
  assert done.returncode == 0, done.stderr
  names = {path.name for path in (root / 'one' / 'plots').iterdir()}
  for ending in ('png', 'svg', 'pdf'):
    assert f'hurt_finetuning.{ending}' in names
  assert len(names) == 3 * len(done.stdout.splitlines())


def test_a_folder_that_cannot_be_written_to(root):
  (root / 'file').write_text('')
  done = _plot(root, 'one', '--output_dir=file')
  assert done.returncode == 1
  assert done.stderr.startswith('Error: ')
  assert 'Traceback' not in done.stderr


@pytest.mark.parametrize(
  ('arguments', 'answer'),
  [
    (['--help'], 'hurt_METHOD'),
    ([], 'Name the output folder of a run'),
    (['one', '--outputdir=x'], "Unknown command line flag 'outputdir'"),
  ],
)
def test_is_answered_without_importing_anything_heavy(arguments, answer):
  done = programs.run_without_tensorflow('plot', *arguments)
  assert answer in done.stdout + done.stderr
  assert 'Traceback' not in done.stderr
  assert bool(done.returncode) == (arguments != ['--help'])


def test_a_folder_that_is_no_runs(root):
  done = _plot(root, 'nowhere')
  assert 'nowhere is not an output folder of a run' in done.stderr
  assert 'Traceback' not in done.stderr
  assert done.returncode == 1
