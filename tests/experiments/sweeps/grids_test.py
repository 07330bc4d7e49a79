"""Tests of a grid and the results in its folder."""

import concurrent.futures
import itertools
import json
import pathlib

import pytest

from base import errors
from experiments.reporting import grid_records
from experiments.reporting import manifests
from experiments.reporting import sources
from experiments.sweeps import grid_file
from experiments.sweeps import grids
from experiments.sweeps import launching
from experiments.sweeps import workers
from tests.experiments import small_grids
from tests.experiments import user_modules


@pytest.fixture(name='grid')
def _grid(tmp_path):
  return grid_file.read(small_grids.write(tmp_path))


def _open(grid, folder):
  return grids.open_grid(grid, folder, None, workers.OnThisMachine(1))


def _write_runs(folder, *keys):
  folder.mkdir()
  lines = [grid_records.to_line({'key': key}) for key in keys]
  (folder / 'runs.jsonl').write_text(''.join(lines))


def test_the_folder_of_a_run_is_refused_and_left_as_it_is(grid, tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir()
  (folder / 'config.toml').write_text('')
  with pytest.raises(errors.UserError, match='has config.toml, so that it is'):
    _open(grid, folder)
  assert [path.name for path in folder.iterdir()] == ['config.toml']


def test_the_results_of_another_grid_are_refused(grid, tmp_path):
  folder = tmp_path / 'other'
  _write_runs(folder, 'one', 'two')
  before = (folder / 'runs.jsonl').read_text()
  with pytest.raises(errors.UserError, match='another grid: 2 runs'):
    _open(grid, folder)
  assert (folder / 'runs.jsonl').read_text() == before


def test_a_grid_goes_on_that_had_fewer_points_or_more(grid, tmp_path):
  key = _open(grid, tmp_path / 'empty').jobs()[0].runs[0].key
  folder = tmp_path / 'begun'
  _write_runs(folder, key, 'of a point that was left out')
  runs = [run.key for job in _open(grid, folder).jobs() for run in job.runs]
  assert runs and key not in runs


def test_a_file_in_place_of_a_folder_is_found_at_once(grid, tmp_path):
  (tmp_path / 'logs').write_text('mine')
  with pytest.raises(
    errors.UserError, match='logs is in the place of a folder'
  ):
    _open(grid, tmp_path)


def test_a_file_of_others_is_not_replaced_by_a_preset(grid, tmp_path):
  path = tmp_path / f'{grid.points[0].name}.toml'
  path.write_text('mine')
  with pytest.raises(errors.UserError, match=f'{path} is there already'):
    _open(grid, tmp_path)
  assert path.read_text() == 'mine'


def _make_folder(folder):
  for name in ('runs', 'leases'):
    (folder / name).mkdir(parents=True)


@pytest.mark.parametrize('name', ['privacy.json', 'results.json', 'a.toml'])
def test_what_was_made_of_the_records_is_read_as_it_was_written(tmp_path, name):
  _make_folder(tmp_path)
  files = {'privacy.json': '{}', 'a.toml': '', 'results.json': '{}'}
  grids._write(tmp_path, files)
  sources.read([tmp_path])
  (tmp_path / name).write_text('{ }')
  with pytest.raises(errors.UserError, match=f'{name} is not as it was'):
    sources.read([tmp_path])
  grids._write(tmp_path, files)  # As the same command does.
  sources.read([tmp_path])


def test_a_grid_that_is_killed_at_any_write_is_read(tmp_path, monkeypatch):
  _make_folder(tmp_path)
  replace, kills = pathlib.Path.replace, 0
  for version, last in enumerate([1, 2, 2, 3, 100]):
    writes = itertools.count(1)

    def replace_or_die(self, target, *, writes=writes, last=last):
      if next(writes) == last:
        raise KeyboardInterrupt
      return replace(self, target)

    with monkeypatch.context() as patch:
      patch.setattr(pathlib.Path, 'replace', replace_or_die)
      try:
        text = json.dumps({'version': version})
        grids._write(tmp_path, {'privacy.json': text, 'points.csv': text})
      except KeyboardInterrupt:
        kills += 1
    sources.read([tmp_path])
  assert kills == 4
  assert 'version' in (tmp_path / 'points.csv').read_text()


def test_programs_that_write_at_the_same_time_list_what_they_write(tmp_path):
  _make_folder(tmp_path)

  def write(program):
    for version in range(5):
      name = f'{program}.toml'
      grids._write(tmp_path, {name: f'{version}', 'points.csv': name})

  with concurrent.futures.ThreadPoolExecutor() as pool:
    list(pool.map(write, 'ab'))
  manifests.check(tmp_path)
  assert (tmp_path / 'manifest.json').read_text().count('.toml') == 2
  (tmp_path / 'a.toml').write_text('0')
  with pytest.raises(errors.UserError, match='a.toml is not as it was'):
    manifests.check(tmp_path)


_HALVING = """
preset = "{preset}"
halving = {{first_rounds = 4, factor = 2}}
[[grid]]
algorithms = ["fedavg"]
[grid.values]
client_learning_rate = [0.01, 0.1, 1]
"""


def _make_record(run):
  """Makes a record by which a higher rate is better."""
  return {
    'key': run.key,
    'metric': 'accuracy',
    'chosen_by': 'accuracy',
    'higher_is_better': True,
    'validation': run.point.values['client_learning_rate'],
    'test': [0.5],
    'dropped_updates': 0,
  }


class _Launcher:
  """Does all jobs itself, and keeps for which points they were given."""

  def __init__(self):
    self.given = []
    self.num_starts = 0
    self.num_closes = 0

  def start(self, work):
    del work
    self.num_starts += 1
    return self

  def close(self):
    self.num_closes += 1

  def run(self, queue):
    while job := queue.take(None):
      for run in job.runs:
        self.given.append(tuple(run.point.values.values()))
        yield launching.Event(job, item=run, result=_make_record(run))
      yield launching.Event(job, ended=True)


def test_halving_runs_the_best_points_with_more_rounds(tmp_path):
  launcher = _Launcher()
  given = launcher.given
  contents = grid_file.read(small_grids.write(tmp_path, _HALVING))
  arguments = contents, tmp_path / 'out', None, launcher
  assert grids.open_grid(*arguments).run() == 0
  expected = [(0.01, 6), (0.1, 6), (1, 6), (0.1, 12), (1, 12)]
  assert sorted(given) == sorted(expected)
  # What is finished is not run again, and the points are the same.
  grid = grids.open_grid(*arguments)
  assert grid.run() == 0
  assert sorted(given) == sorted(expected)
  points = [tuple(result.point.values.values()) for result in grid.results()]
  assert points == expected


_ALIKE = """
preset = "{preset}"
[rows]
one = {{algorithm = "fedavg"}}
again = {{algorithm = "fedavg"}}
[[grid]]
algorithms = ["one", "again"]
[grid.values]
client_learning_rate = [0.1, 1]
[[grid]]
algorithms = ["again"]
[grid.values]
client_learning_rate = [1]
"""


def test_rows_that_are_configured_alike_share_their_runs(tmp_path):
  launcher = _Launcher()
  contents = grid_file.read(small_grids.write(tmp_path, _ALIKE))
  grid = grids.open_grid(contents, tmp_path / 'out', None, launcher)
  assert grid.run() == 0
  assert sorted(launcher.given) == [(0.1,), (1,)]
  results = [
    (result.point.name, result.validation) for result in grid.results()
  ]
  assert results == [('one', 0.1), ('one', 1), ('again', 0.1), ('again', 1)]


def test_halving_keeps_points_that_differ_only_in_their_last_rounds(tmp_path):
  text = f'{_HALVING}total_rounds = [6, 12]\n'
  launcher = _Launcher()
  contents = grid_file.read(small_grids.write(tmp_path, text))
  grid = grids.open_grid(contents, tmp_path / 'out', None, launcher)
  assert grid.run() == 0
  # With 6 rounds, all of them are done for two points each.
  expected = [(0.01, 6), (0.1, 6), (1, 6), (1, 12)]
  assert sorted(launcher.given) == expected


_OWN_METHOD = """
preset = "{preset}"
[[grid]]
algorithms = ["own"]
settings = {{modules = ["own_methods"]}}
"""


def test_workers_know_the_methods_of_the_users_modules(tmp_path):
  text = user_modules.REGISTERS_OWN
  with user_modules.written(tmp_path, 'own_methods', text):
    contents = grid_file.read(small_grids.write(tmp_path, _OWN_METHOD))
    grid = _open(contents, tmp_path / 'out')
    assert grid.run() == 0, [
      log.read_text() for log in tmp_path.glob('out/logs/*.log')
    ]


def test_the_same_workers_carry_out_all_rungs(tmp_path):
  launcher = _Launcher()
  contents = grid_file.read(small_grids.write(tmp_path, _HALVING))
  grids.open_grid(contents, tmp_path / 'out', None, launcher).run()
  assert len(launcher.given) == 5
  assert (launcher.num_starts, launcher.num_closes) == (1, 1)


def test_workers_are_stopped_when_a_grid_breaks_off(tmp_path):
  class Broken(_Launcher):
    def run(self, queue):
      raise errors.ResourceError('The disk is full.')

  launcher = Broken()
  contents = grid_file.read(small_grids.write(tmp_path, _HALVING))
  grid = grids.open_grid(contents, tmp_path / 'out', None, launcher)
  with pytest.raises(errors.ResourceError):
    grid.run()
  assert launcher.num_closes == 1


def test_a_grid_that_is_refused_leaves_nothing(tmp_path):
  file = tmp_path / 'grid.toml'
  file.write_text(
    'preset = "synthetic"\nrepeats = [1]\n[[grid]]\nalgorithms = ["fedavg"]\n'
    'settings = {choose = "each"}\n'
  )
  contents = grid_file.read(file)
  launcher = workers.OnThisMachine(1)
  folder = tmp_path / 'results' / 'grid'
  with pytest.raises(errors.UserError, match='choose is'):
    grids.main(contents, folder, None, launcher, False)
  assert [*tmp_path.iterdir()] == [file]
