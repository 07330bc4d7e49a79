"""Tests of tables that are run again."""

import json

import pytest

from base import errors
from experiments.configuration import user_settings
from experiments.reproduction import reruns
from experiments.reproduction import tables
from experiments.sweeps import workers
from tests.experiments import small_grids

_GRID = """
preset = "{preset}"
repeats = [1, 2]
[[grid]]
algorithms = ["fedprox", "fedavg"]
[grid.values]
client_learning_rate = [0.01, 0.1]
"""


def _make(folder, text, **changes):
  grid = user_settings.read_toml(small_grids.write(folder, text))
  return tables.make({'title': 'A table', **grid, **changes}, 'test')


@pytest.fixture(name='table')
def _table(tmp_path):
  """A table of two methods, one of which has a published figure."""
  return _make(tmp_path, _GRID, published={'fedavg': {'mean': 0.5}})


_ROWS = """
preset = "{preset}"
repeats = [1, 2]
[rows]
equal = {{algorithm = "fedavg", settings = {{client_weighting = "uniform"}}}}
size = {{algorithm = "fedavg", settings = {{client_weighting = "size"}}}}
[[grid]]
algorithms = ["equal", "size"]
[grid.values]
client_learning_rate = [0.01, 0.1]
"""


def test_columns_of_rows_that_are_one_method(tmp_path, capsys):
  columns = ('weighted_mean', 'largest_tenth', 'worst_tenth')
  table = _make(tmp_path, _ROWS, kind='compared', columns=columns)
  assert _main(table, tmp_path) == 0
  rows = json.loads((tmp_path / 'out.json').read_text())
  assert list(rows) == ['equal', 'size']
  for row in rows.values():
    assert tuple(row) == columns
    # The worst tenth is one of four.
    assert 0 <= row['worst_tenth'] <= row['weighted_mean'] <= 1
  assert 'worst tenth' in capsys.readouterr().out
  compared = json.loads((tmp_path / 'out/comparisons.json').read_text())
  assert compared['size against equal']['all']['num_clients'] == 4
  assert 'client_weighting = "size"' in (tmp_path / 'out/size.toml').read_text()


def _main(table, folder, only_best=False):
  return reruns.main(
    table,
    only_best,
    folder / 'out',
    folder / 'out.json',
    None,
    workers.OnThisMachine(1),
    is_dry_run=False,
  )


def test_writes_our_figures_also_where_none_are_published(
  table, tmp_path, capsys
):
  assert _main(table, tmp_path) == 0
  rows = json.loads((tmp_path / 'out.json').read_text())
  assert list(rows) == ['fedprox', 'fedavg']
  assert set(rows['fedprox']) == {'ours', 'over_repeats', 'hurt'}
  assert set(rows['fedavg']) == {*rows['fedprox'], 'published'}
  assert rows['fedavg']['published'] == 0.5
  winners = json.loads((tmp_path / 'out/results.json').read_text())
  for method, row in rows.items():
    mean = winners[method]['test']['mean']
    assert row['ours'] == mean['mean']
    assert row['over_repeats'] == mean['deviation_over_repeats']
  printed = ''.join(capsys.readouterr())
  assert f'{rows["fedavg"]["ours"] - 0.5:+.5f}' in printed


def test_a_row_that_diverged_is_called_so(tmp_path, capsys):
  text = _GRID.replace('[0.01, 0.1]', '[1e38]').replace('"fedprox", ', '')
  _main(_make(tmp_path, text), tmp_path)
  printed = capsys.readouterr().out
  assert 'diverged' in printed
  assert 'not finished' not in printed


def test_the_best_points_must_be_known(table, tmp_path):
  with pytest.raises(errors.UserError, match='--best'):
    _main(table, tmp_path, only_best=True)
