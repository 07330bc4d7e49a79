"""Tests of grids: their jobs, what comes out, and the program."""

import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from base import errors
from experiments import run
from experiments.configuration import config as config_lib
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results
from experiments.sweeps import grid_work

_SETTINGS = """
total_rounds = 12
clients_per_round = 3
rounds_per_checkpoint = 4
finetuning_epochs = 3
[task]
name = "synthetic"
num_train_clients = 6
num_validation_clients = 3
num_test_clients = 4
max_examples = 40
"""
_GRID = """
preset = "{preset}"
repeats = [1, 2]
[[grid]]
algorithms = ["finetuning"]
[grid.values]
client_learning_rate = [0.01, 0.1, 1e38]
total_rounds = [8, 12]
[[grid]]
algorithms = ["fedavg"]
[grid.values]
client_learning_rate = [0.01, 0.1, 1e38]
"""
_ROOT = pathlib.Path(__file__).absolute().parents[2]


def _write_grid(folder, text=_GRID):
  preset = folder / 'preset.toml'
  preset.write_text(_SETTINGS)
  path = folder / 'small.toml'
  path.write_text(text.format(preset=preset))
  return path


def _call(*arguments):
  environment = {**os.environ, 'PYTHONPATH': str(_ROOT)}
  return [sys.executable, '-m', 'experiments.grid', *map(str, arguments)], dict(
    env=environment, cwd=_ROOT
  )


def _record(point, seed, validation, **fields):
  return dict(
    algorithm=point.algorithm,
    seed=seed,
    validation=validation,
    metric='accuracy',
    chosen_by='accuracy',
    higher_is_better=True,
    test=[0.5, 0.7],
    **fields,
  )


class JobsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.grid = grid_file.read(_write_grid(self.folder))
    self.runs = grid_work.make_runs(self.grid)

  def test_what_trains_alike_is_trained_once(self):
    self.assertLen(self.runs, 2 * (6 + 3))
    jobs = grid_work.make_jobs(self.runs, None, None)
    # A training for each rate and seed, for both methods and numbers of rounds.
    self.assertLen(jobs, 2 * 3)
    for job in jobs:
      self.assertEqual(
        [run.config.options.total_rounds for run in job.runs], [8, 12, 12]
      )
      self.assertLen({run.config.options.seed for run in job.runs}, 1)
    self.assertLen({job.program for job in jobs}, 1)

  def test_the_numbers_are_those_of_a_run_by_itself(self):
    jobs = grid_work.make_jobs(self.runs[:9], None, None)
    (job,) = (
      job
      for job in jobs
      if job.runs[0].point.values['client_learning_rate'] == 0.1
    )
    runner = grid_work.Runner(None)
    progress = []
    for member, record in runner.run(job, progress.append):
      with mock.patch.object(sys, 'stderr'):
        folder = self.folder / member.key
        result = run.run(member.config, folder)[record['algorithm']]
      np.testing.assert_allclose(
        np.mean(record['test']), result['test']['mean'], rtol=1e-5
      )
      self.assertEqual(record['hurt'], result['test']['hurt'])
      self.assertEqual(record['chosen'], result['chosen'])
      with (folder / 'per_client.csv').open() as file:
        rows = list(csv.DictReader(file))
      np.testing.assert_allclose(
        record['test'], [float(row['metric']) for row in rows], rtol=1e-5
      )
    self.assertContainsSubset(range(1, 13), progress)

  def test_another_metric_than_there_is(self):
    with self.assertRaisesRegex(errors.UserError, "or loss, not 'mse'"):
      grid_work.make_jobs(self.runs, 'mse', None)


class ResultsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    values = [{'rate': rate} for rate in (1, 2, 3)]
    self.points = [grid_file.Point('fedavg', own, {}) for own in values]

  def best(self, *validation, **fields):
    outcomes = [
      grid_results.outcome(
        point, [_record(point, s, v, **fields) for s, v in enumerate(own)]
      )
      for point, own in zip(self.points, validation)
    ]
    return grid_results.best(outcomes)

  @parameterized.parameters(
    ([(0.2, 0.3), (0.1, 0.5), (0.2, 0.3)], 2),  # By the mean of both.
    ([(0.2, 0.3), (0.2, 0.3), (0.3, 0.2)], 1),  # The first on a tie.
    ([(0.2, 0.3), (0.9, None), (0.1, 0.3)], 1),  # What diverged never wins.
  )
  def test_the_best_is_chosen_by_validation(self, validation, rate):
    self.assertEqual(
      self.best(*validation)['fedavg'].point.values['rate'], rate
    )

  def test_a_missing_repeat_is_no_winner(self):
    own = _record(self.points[0], 0, 0.9)
    outcome = grid_results.outcome(self.points[0], [own, None])
    self.assertEmpty(grid_results.best([outcome]))

  def test_over_repeats(self):
    records = [
      _record(self.points[0], 0, 0.9, hurt=0.1) | dict(test=[0.1, 0.3]),
      _record(self.points[0], 1, 0.9, hurt=0.3) | dict(test=[0.4, 0.8]),
    ]
    outcome = grid_results.outcome(self.points[0], records)
    np.testing.assert_allclose(outcome.over_repeats('mean'), (0.4, 0.2))
    np.testing.assert_allclose(outcome.over_repeats('deviation'), (0.15, 0.05))
    np.testing.assert_allclose(outcome.over_repeats('hurt'), (0.2, 0.1))
    self.assertIsNone(outcome.over_repeats('largest_cluster'))

  def test_a_line_that_was_cut_off_is_lost_alone(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    for key in ('one', 'two', 'three'):
      with grid_results.open_store(folder) as store:
        store.add({'key': key})
        if key == 'two':
          store._file.write('{"key": "cut o')
    with grid_results.open_store(folder) as store:
      self.assertEqual(list(store.records), ['one', 'two', 'three'])
      with self.assertRaisesRegex(errors.UserError, 'Another run is writing'):
        with grid_results.open_store(folder):
          pass


class CommandTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.output = self.folder / 'out'

  def run_grid(self, path, *arguments):
    command, how = _call(path, f'--output_dir={self.output}', *arguments)
    return subprocess.run(command, capture_output=True, text=True, **how)

  def test_killed_it_goes_on_and_finds_the_best(self):
    # By the loss, as there is an accuracy whatever the numbers are.
    path = _write_grid(self.folder, 'metric = "loss"' + _GRID)
    command, how = _call(path, f'--output_dir={self.output}')
    process = subprocess.Popen(
      command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how
    )
    runs = self.output / 'runs.jsonl'
    deadline = time.monotonic() + 200
    while not runs.exists() or len(runs.read_text().splitlines()) < 4:
      self.assertLess(time.monotonic(), deadline)
      self.assertIsNone(process.poll())
      time.sleep(0.05)
    children = pathlib.Path(f'/proc/{process.pid}/task/{process.pid}/children')
    workers = children.read_text().split()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = set(runs.read_text().splitlines()) - {''}
    while any(pathlib.Path(f'/proc/{pid}').exists() for pid in workers):
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.1)

    completed = self.run_grid(path)
    self.assertEqual(completed.returncode, 0, completed.stderr)
    self.assertIn(f'{len(done)} of 18 runs are in', completed.stderr)
    lines = [line for line in runs.read_text().splitlines() if line]
    self.assertLen(lines, 18)
    self.assertContainsSubset(done, lines)

    results = json.loads((self.output / 'results.json').read_text())
    with (self.output / 'points.csv').open() as file:
      points = list(csv.DictReader(file))
    self.assertLen(points, 9)
    for method, best in results.items():
      rows = [row for row in points if row['algorithm'] == method]
      validation = [float(r['validation']) for r in rows if r['validation']]
      self.assertAlmostEqual(best['validation'], min(validation), places=6)
      self.assertLen(best['repeats'], 2)
      config = config_lib.from_file(self.output / f'{method}.toml')
      rate = config.hyperparameters[method].client_learning_rate
      self.assertEqual(rate, best['values']['client_learning_rate'])
    # In each of both repeats, of 3 clients in 12 rounds.
    self.assertIn(
      'Diverged in part: fedavg client_learning_rate=1e+38: dropped 72 updates',
      completed.stderr,
    )
    self.assertIn('finetuning', completed.stdout)
    before = runs.read_bytes()
    self.assertEqual(self.run_grid(path).returncode, 0)
    self.assertEqual(runs.read_bytes().strip(), before.strip())

  def test_a_dry_run_says_what_there_is_to_do(self):
    completed = self.run_grid(_write_grid(self.folder), '--dry_run')
    self.assertEqual(completed.returncode, 0, completed.stderr)
    self.assertIn('finetuning client_learning_rate=0.1', completed.stdout)
    self.assertIn('9 points, 18 runs to do', completed.stdout)
    self.assertRegex(
      completed.stdout, r'They take about .* s with \d processes'
    )

  @parameterized.parameters(
    (None, 'cannot be read'),
    ('x = [', 'cannot be read'),
    ('preset = "none"', 'has no'),
    (_GRID.replace('client_learning', 'clint_learning'), 'Did you mean'),
    (_GRID.replace('[1, 2]', '[1.5]'), 'a list of different seeds'),
  )
  def test_bad_input(self, text, message):
    path = self.folder / 'none.toml'
    if text is not None:
      path = _write_grid(self.folder, text)
    completed = self.run_grid(path)
    self.assertEqual(completed.returncode, 1)
    self.assertIn(message, completed.stderr)
    self.assertNotIn('Traceback', completed.stderr)


if __name__ == '__main__':
  absltest.main()
