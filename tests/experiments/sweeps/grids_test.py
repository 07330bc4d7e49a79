"""Tests of what becomes of the results of others."""

import pytest

from base import errors
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results
from experiments.sweeps import grids
from tests.experiments import small_grids


@pytest.fixture(name='grid')
def _grid(tmp_path):
  return grid_file.read(small_grids.write(tmp_path))


def _open(grid, folder):
  return grids.open_grid(grid, folder, None, 1)


def _write_runs(folder, *keys):
  folder.mkdir()
  lines = [grid_results.to_line({'key': key}) for key in keys]
  (folder / 'runs.jsonl').write_text(''.join(lines))


def test_the_folder_of_a_run_is_refused_and_left_as_it_is(grid, tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir()
  (folder / 'config.toml').write_text('')
  with pytest.raises(errors.UserError, match='has config.toml but no runs'):
    with _open(grid, folder):
      pass
  assert [path.name for path in folder.iterdir()] == ['config.toml']


def test_the_results_of_another_grid_are_refused(grid, tmp_path):
  folder = tmp_path / 'other'
  _write_runs(folder, 'one', 'two')
  before = (folder / 'runs.jsonl').read_text()
  with pytest.raises(errors.UserError, match='another grid: 2 runs'):
    with _open(grid, folder):
      pass
  assert (folder / 'runs.jsonl').read_text() == before


def test_a_grid_goes_on_that_had_fewer_points_or_more(grid, tmp_path):
  with _open(grid, tmp_path / 'empty') as opened:
    key = opened.jobs()[0].runs[0].key
  folder = tmp_path / 'begun'
  _write_runs(folder, key, 'of a point that was left out')
  with _open(grid, folder) as opened:
    runs = [run.key for job in opened.jobs() for run in job.runs]
  assert runs and key not in runs
