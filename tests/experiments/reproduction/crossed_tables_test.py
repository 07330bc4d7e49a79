"""Tables of methods under several conditions."""

import json

import pytest

from experiments.reproduction import crossed_grids
from experiments.reproduction import crossed_tables
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results

_POINT = grid_file.Point('fedavg', {}, {})
_GROUPS = {'skewed': {'few': ['2', '3'], 'nobody': ['4']}}
_CELLS = {
  'fedavg_even': crossed_grids.Cell('fedavg', ('even',)),
  'fedavg_skewed': crossed_grids.Cell('fedavg', ('skewed',)),
  'ditto_even': crossed_grids.Cell('ditto', ('even',)),
}
_PUBLISHED = {'fedavg': {'even': 0.4, 'skewed, few': 0.1}}


def _result(*repeats):
  records = [
    {
      'test': values,
      'client_groups': ['1', '2', '3'],
      'epsilon': 7.0,
      'matched': 0.75,
    }
    for values in repeats
  ]
  return grid_results.PointResult(_POINT, tuple(records), 0.5)


@pytest.fixture(name='table')
def _table(tmp_path):
  winners = {
    'fedavg_even': _result([0.1, 0.2, 0.3], [0.3, 0.4, 0.5]),
    'fedavg_skewed': _result([0.9, 0.2, 0.4]),
  }
  table = crossed_tables.show(
    'A table', _CELLS, _GROUPS, _PUBLISHED, winners, tmp_path
  )
  assert json.loads((tmp_path / 'figures.json').read_text()) == table
  return table


def test_figures_are_means_over_clients_and_repeats(table):
  assert table['fedavg']['even'] == {
    'ours': pytest.approx(0.3),
    'over_repeats': pytest.approx(0.1),
    'published': 0.4,
    'epsilon': 7.0,
    'matched': 0.75,
  }


def test_clients_are_shown_by_their_groups(table):
  assert table['fedavg']['skewed, few']['ours'] == pytest.approx(0.3)
  assert table['fedavg']['skewed, few']['published'] == 0.1


def test_what_is_not_there_is_none(table):
  assert table['ditto']['even'] == {'ours': None, 'published': None}
  assert table['fedavg']['skewed, nobody']['ours'] is None
