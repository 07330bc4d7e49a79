"""Tests of the program that runs grids."""

import contextlib
import csv
import json
import re
import signal
import subprocess
import sys
import time

import pytest

from experiments.configuration import configs
from experiments.reporting import grid_records
from experiments.sweeps import grid_file
from experiments.sweeps import grid_work
from experiments.sweeps import grids
from experiments.sweeps import workers
from tests.experiments import programs
from tests.experiments import small_grids


class TestGridProgram:
  @pytest.fixture(autouse=True)
  def _set_up(self, tmp_path):
    self.folder = tmp_path
    self.output = self.folder / 'out'

  def run_grid(self, path, *arguments):
    return programs.run('grid', path, f'--output_dir={self.output}', *arguments)

  def start(self, path):
    return subprocess.Popen(
      [
        *(sys.executable, '-m', 'experiments.grid', str(path)),
        *('--workers=1', f'--output_dir={self.output}'),
      ],
      env=programs.environment(),
      stdout=subprocess.DEVNULL,
      stderr=(self.folder / 'said').open('a'),
    )

  def holders(self):
    """Reads which processes hold leases."""
    pids = []
    for lease in self.output.glob('leases/*'):
      # It may be given back by now.
      with contextlib.suppress(FileNotFoundError, IndexError):
        pids.append(int(lease.read_text().splitlines()[1]))
    return pids

  def test_several_share_a_grid_of_which_one_is_killed(self, capsys):
    # By the loss, as there is an accuracy whatever the numbers are.
    path = small_grids.write(self.folder, 'metric = "loss"' + small_grids.GRID)
    started = {
      process.pid: process for process in [self.start(path) for _ in range(3)]
    }
    deadline = time.monotonic() + 200
    holders = []
    while not (holders and grid_records.GridRecords(self.output).by_key):
      assert time.monotonic() < deadline
      time.sleep(0.02)
      holders = self.holders()
    killed = started.pop(holders[0])
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    done = grid_records.GridRecords(self.output).by_key
    assert len(done) < 18
    for process in started.values():
      assert process.wait(200) == 0, (self.folder / 'said').read_text()
    files = {
      file.name: file.read_text().splitlines()
      for file in self.output.glob('runs/*.jsonl')
    }
    assert sum(map(len, files.values())) == 18
    assert not list(self.output.glob('leases/*'))

    # They are those of one process by itself, to the bit.
    grid = grid_file.read(path)
    runs = grid_work.make_runs(grid)
    runner = grid_work.Runner(None)
    alone = {
      run.key: record
      for job in grid_work.make_jobs(runs, grid.metric, None)[0]
      for run, record in runner.run(job, lambda _: None)
    }
    assert grid_records.GridRecords(self.output).by_key == alone

    results = json.loads((self.output / 'results.json').read_text())
    with (self.output / 'points.csv').open() as file:
      points = list(csv.DictReader(file))
    assert len(points) == 9
    for method, best in results.items():
      rows = [row for row in points if row['algorithm'] == method]
      validation = [float(r['validation']) for r in rows if r['validation']]
      assert best['validation'] == pytest.approx(min(validation), abs=5e-7)
      assert len(best['repeats']) == 2
      config = configs.read(self.output / f'{method}.toml')
      rate = config.method_settings[method].to_dict()['client_learning_rate']
      assert rate == best['values']['client_learning_rate']
    of_rate = {row['client_learning_rate']: row for row in points}
    assert not of_rate['1e+38']['validation']

    assert (
      grids.main(grid, self.output, None, workers.OnThisMachine(1), False) == 0
    )
    shown, said = capsys.readouterr()
    assert 'has 18 of 18 runs already' in said
    assert 'Diverged: fedavg client_learning_rate=1e+38' in said
    assert 'finetuning' in shown
    assert {
      file.name: file.read_text().splitlines()
      for file in self.output.glob('runs/*.jsonl')
    } == files

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
