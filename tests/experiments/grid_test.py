"""Tests of the program that runs grids."""

import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from experiments.configuration import configs
from tests.experiments import programs
from tests.experiments import small_grids


class TestGridProgram:
  @pytest.fixture(autouse=True)
  def _set_up(self, tmp_path):
    self.folder = tmp_path
    self.output = self.folder / 'out'

  def run_grid(self, path, *arguments):
    return programs.run('grid', path, f'--output_dir={self.output}', *arguments)

  def test_killed_it_goes_on_and_finds_the_best(self):
    # By the loss, as there is an accuracy whatever the numbers are.
    path = small_grids.write(self.folder, 'metric = "loss"' + small_grids.GRID)
    process = subprocess.Popen(
      [
        *(sys.executable, '-m', 'experiments.grid'),
        *(str(path), f'--output_dir={self.output}'),
      ],
      env=programs.environment(),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    runs = self.output / 'runs.jsonl'
    deadline = time.monotonic() + 200
    while not runs.exists() or len(runs.read_text().splitlines()) < 4:
      assert time.monotonic() < deadline
      assert process.poll() is None
      time.sleep(0.05)
    children = pathlib.Path(f'/proc/{process.pid}/task/{process.pid}/children')
    workers = children.read_text().split()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = set(runs.read_text().splitlines()) - {''}
    while any(pathlib.Path(f'/proc/{pid}').exists() for pid in workers):
      assert time.monotonic() < deadline
      time.sleep(0.1)

    completed = self.run_grid(path)
    assert completed.returncode == 0, completed.stderr
    assert f'{len(done)} of 18 runs are in' in completed.stderr
    lines = [line for line in runs.read_text().splitlines() if line]
    assert len(lines) == 18
    assert set(done) <= set(lines)

    results = json.loads((self.output / 'results.json').read_text())
    with (self.output / 'points.csv').open() as file:
      points = list(csv.DictReader(file))
    assert len(points) == 9
    for method, best in results.items():
      rows = [row for row in points if row['algorithm'] == method]
      validation = [float(r['validation']) for r in rows if r['validation']]
      assert best['validation'] == pytest.approx(min(validation), abs=5e-7)
      assert len(best['repeats']) == 2
      config = configs.from_file(self.output / f'{method}.toml')
      rate = config.method_settings[method].to_dict()['client_learning_rate']
      assert rate == best['values']['client_learning_rate']
    assert 'Diverged: fedavg client_learning_rate=1e+38' in completed.stderr
    of_rate = {row['client_learning_rate']: row for row in points}
    assert not of_rate['1e+38']['validation']
    assert 'finetuning' in completed.stdout
    before = runs.read_bytes()
    assert self.run_grid(path).returncode == 0
    assert runs.read_bytes().strip() == before.strip()

  def test_a_dry_run_says_what_there_is_to_do(self):
    completed = self.run_grid(small_grids.write(self.folder), '--dry_run')
    assert completed.returncode == 0, completed.stderr
    assert 'finetuning client_learning_rate=0.1' in completed.stdout
    assert '9 points, 18 runs to do' in completed.stdout
    assert re.search(
      r'They take about .* s with \d processes', completed.stdout
    )

  @pytest.mark.parametrize(
    ('text', 'message'),
    [
      (None, 'cannot be read'),
      ('x = [', 'cannot be read'),
      ('preset = "none"', 'has no'),
      (
        small_grids.GRID.replace('client_learning', 'clint_learning'),
        'Did you mean',
      ),
      (
        small_grids.GRID.replace('[1, 2]', '[1.5]'),
        'a list of different seeds',
      ),
    ],
  )
  def test_bad_input(self, text, message):
    path = self.folder / 'none.toml'
    if text is not None:
      path = small_grids.write(self.folder, text)
    completed = self.run_grid(path)
    assert completed.returncode == 1
    assert message in completed.stderr
    assert 'Traceback' not in completed.stderr

  @pytest.mark.parametrize(
    ('arguments', 'answer', 'status'),
    [
      (('--help',), 'Runs a grid of settings', 0),
      (('--worker=1',), "Unknown command line flag 'worker'", 2),
      ((), 'Name one file', 2),
      (('none.toml',), 'none.toml cannot be read', 1),
    ],
  )
  def test_is_answered_without_importing_tensorflow(
    self, arguments, answer, status
  ):
    done = programs.run_without_tensorflow('grid', *arguments)
    assert answer in done.stdout + done.stderr
    assert 'Traceback' not in done.stderr
    assert done.returncode == status
