"""Tests of the figures of runs, and of the program that draws them."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest

from experiments import run
from experiments.configuration import config as config_lib
from experiments.reporting import figures
from experiments.reporting import report
from tests.experiments.reporting import drawn as drawn_lib

_SETTINGS = (
  'task.num_train_clients=6',
  'task.num_validation_clients=3',
  'task.num_test_clients=4',
  'task.max_examples=40',
  'total_rounds=3',
  'clients_per_round=4',
  'finetuning_epochs=3',
  'coefficients=0,0.5',
)
_MEASURED = (
  'ood_examples=20',
  'evaluation_fractions=0.5',
  'personalization_fractions=0.5',
  'acceptance_margin=0',
)
_USUAL = {
  'clients',
  'candidates_finetuning',
  'hurt_finetuning',
  'hurt_knn_per',
  'communication',
}


def _run(folder, *assignments):
  config = config_lib.resolve(
    config_lib.read(
      None,
      [*_SETTINGS, *assignments],
      {'algorithms': 'fedavg,finetuning,knn_per,hypcluster'},
    )
  )
  with mock.patch.object(sys, 'stderr'):
    run.run(config, folder)


def _draw(*folders):
  return dict(figures.draw(report.read_repeats(folders)))


class FiguresTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.root)
    cls.one = cls.root / 'one'
    _run(cls.one)

  def another(self, name, methods=None, **configuration):
    """A run with the same results, but for what is given."""
    folder = self.root / name
    shutil.copytree(self.one, folder)
    contents = json.loads((folder / 'results.json').read_text())
    contents['configuration'].update(configuration)
    for method, results in (methods or {}).items():
      contents['methods'][method].update(results)
    (folder / 'results.json').write_text(json.dumps(contents))
    return folder

  def test_of_a_run(self):
    self.assertEqual(set(_draw(self.one)), _USUAL | {'clusters_hypcluster'})

  def test_of_what_else_is_measured_though_a_method_diverged(self):
    folder = self.root / 'more'
    _run(folder, *_MEASURED, 'finetuning.finetuning_learning_rates=1e30')
    drawn = _draw(folder)
    self.assertEqual(
      set(drawn) - set(_draw(self.one)),
      {
        'ood',
        'acceptance',
        'personalization_fractions',
        'evaluation_fractions',
        'hurt_finetuning_part_0.5',
        'hurt_knn_per_part_0.5',
      },
    )
    for figure in drawn.values():
      figure.draw_without_rendering()

  def test_of_repeats(self):
    communication = {
      'communication': {'total_parameters': 7.0},
      'test': {'mean': 0.5},
    }
    drawn = _draw(
      self.one,
      self.another('repeat', seed=1),
      self.another('short', {'fedavg': communication}, total_rounds=1),
    )
    clusters = {f'clusters_hypcluster_{k}' for k in (1, 2)}
    self.assertEqual(set(drawn), _USUAL | clusters)
    # A point for each number of rounds: 3 rounds of 4 clients, both ways.
    (plot,) = drawn['communication'].axes
    first, last = drawn_lib.lines(plot)['fedavg']
    self.assertEqual(first, [7, 0.5])
    self.assertEqual(last[0], 3 * 4 * 2 * (60 * 10 + 10))
    # Four clients of each repeat.
    points, _ = drawn['hurt_finetuning'].axes
    self.assertEqual(sum(len(c.get_offsets()) for c in points.collections), 8)

  def test_of_groups_and_tuning(self):
    test = {'mean': 0.5}
    folder = self.another(
      'silos',
      {
        'hypcluster': {'clusters': {'groups': {'en': {'0': 3, '1': 1}}}},
        'finetuning': {'tuning': {'all': test, 'each': test}},
      },
    )
    drawn = set(_draw(folder)) - set(_draw(self.one))
    self.assertEqual(drawn, {'groups_hypcluster', 'tuning'})

  def call(self, *arguments):
    return subprocess.run(
      [sys.executable, '-m', 'experiments.plot', *arguments],
      # As `bazel run` has it, where the user is not where the program is.
      env=dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(sys.path),
        BUILD_WORKING_DIRECTORY=str(self.root),
      ),
      capture_output=True,
      text=True,
    )

  def test_the_program_writes_both_kinds_of_files(self):
    done = self.call(self.another('drawn').name)
    self.assertEqual(done.returncode, 0, done.stderr)
    names = {path.name for path in (self.root / 'drawn' / 'plots').iterdir()}
    for ending in ('png', 'svg'):
      self.assertIn(f'hurt_finetuning.{ending}', names)
    self.assertLen(names, 2 * len(done.stdout.splitlines()))

  def test_a_folder_that_cannot_be_written_to(self):
    (self.root / 'file').write_text('')
    done = self.call('one', '--output_dir=file')
    self.assertEqual(done.returncode, 1)
    self.assertStartsWith(done.stderr, 'Error: ')

  def test_what_the_program_says(self):
    for arguments, answer in (
      (['--help'], 'hurt_METHOD'),
      (['nowhere'], 'nowhere is no output folder of a run'),
      ([], 'Name the output folder of a run'),
    ):
      done = self.call(*arguments)
      self.assertIn(answer, done.stdout + done.stderr)
      self.assertNotIn('Traceback', done.stderr)
      self.assertEqual(done.returncode, 1)

  def test_the_program_imports_nothing_heavy_at_first(self):
    code = (
      'import sys; from experiments import plot;'
      " assert not {'tensorflow', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, '-c', code], check=True)


if __name__ == '__main__':
  absltest.main()
