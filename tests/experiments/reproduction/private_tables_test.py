"""Tables of methods at several epsilons, counted in two ways."""

import pytest

from experiments.reproduction import crossed_grids
from experiments.reproduction import private_tables
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results

_CONTENTS = {
  'preset': 'school_private',
  'crossed': {
    'epsilon': {'0.5': {'privacy.epsilon': 0.5}, '6': {'privacy.epsilon': 6}},
    'accounting': {
      'published': {'privacy.counted_as_poisson': True},
      'run': {'poisson_batches': True},
    },
  },
  'rows': {
    'local': {'algorithm': 'mr_mtl', 'settings': {'regularization': 0.0}}
  },
  'grid': [
    {'algorithms': ['fedavg'], 'values': {'client_learning_rate': [0.1, 0.2]}},
    {'algorithms': ['local']},
  ],
}
_PUBLISHED = {'fedavg_6_published': {'mean': 0.02}}


@pytest.fixture(name='expanded')
def _expanded():
  contents, cells = crossed_grids.expand(_CONTENTS)
  return grid_file.parse(contents, 'test'), cells


def _result(point, mean, epsilon):
  record = {
    'seed': 0,
    'test': [mean, mean],
    'weighted_mean': mean,
    'epsilon': epsilon,
    'metric': 'squared_error',
    'higher_is_better': False,
  }
  return grid_results.PointResult(point, (record, record), mean)


def test_each_row_is_one_at_each_epsilon_in_each_way(expanded):
  grid, cells = expanded
  assert len(grid.points) == 2 * 2 * (2 + 1)
  assert len(cells) == 2 * 2 * 2
  assert cells['local_0.5_run'] == ('local', ('0.5', 'run'))


def test_rows_have_the_settings_of_their_method_way_and_epsilon(expanded):
  grid, _ = expanded
  (point,) = (p for p in grid.points if p.name == 'local_0.5_run')
  assert point.algorithm == 'mr_mtl'
  assert point.settings == {
    'regularization': 0.0,
    'poisson_batches': True,
    'privacy.epsilon': 0.5,
  }


def test_figures_are_beside_the_published_ones(expanded, tmp_path):
  grid, cells = expanded
  winners = {
    point.name: _result(point, mean, epsilon)
    for point, mean, epsilon in zip(
      grid.points[::2], (0.04, 0.05, 0.03, 0.06), (2, 0.5, 11, 6)
    )
  }
  table = private_tables.show(
    'A table', cells, _PUBLISHED, winners, tmp_path / 'plots'
  )
  cell = table['fedavg']['6']
  assert cell['ours'] == pytest.approx(0.03)
  assert cell['published'] == 0.02
  assert cell['epsilon'] == 11
  assert cell['run']['ours'] == pytest.approx(0.06)
  assert table['fedavg']['0.5']['published'] is None
  assert table['local']['6']['ours'] is None
  for way in ('published', 'run'):
    assert (tmp_path / 'plots' / f'{way}.png').exists()
