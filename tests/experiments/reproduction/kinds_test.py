"""Tests of the kinds of tables, on made-up points."""

import json

import pytest

from experiments.reproduction import kinds
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results
from tests.experiments.reproduction import finished

_POINT = grid_file.Point('fedavg', {}, {})
_CROSSED = finished.table(
  ['fedavg', 'ditto'],
  crossed={'clients': {'even': {}, 'skewed': {}}},
  groups={'skewed': {'few': ['2', '3'], 'nobody': ['4']}},
  published={'fedavg': {'even': 0.4, 'skewed, few': 0.1}},
)
_PRIVATE = finished.table(
  ['fedavg', 'local'],
  crossed={
    'epsilon': {'0.5': {}, '6': {}},
    'accounting': {'published': {}, 'run': {}},
  },
  published={'fedavg': {'6 published': 0.02}},
)


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


@pytest.fixture(name='crossed')
def _crossed(tmp_path):
  winners = {
    'fedavg_even': _result([0.1, 0.2, 0.3], [0.3, 0.4, 0.5]),
    'fedavg_skewed': _result([0.9, 0.2, 0.4]),
  }
  shown = kinds.show_crossed(_CROSSED, finished.Grid(winners), tmp_path)
  assert json.loads((tmp_path / 'figures.json').read_text()) == shown
  return shown


def test_figures_are_means_over_clients_and_repeats(crossed):
  assert crossed['fedavg']['even'] == {
    'ours': pytest.approx(0.3),
    'over_repeats': pytest.approx(0.1),
    'published': 0.4,
    'epsilon': 7.0,
    'matched': 0.75,
  }


def test_clients_are_shown_by_their_groups(crossed):
  assert crossed['fedavg']['skewed, few']['ours'] == pytest.approx(0.3)
  assert crossed['fedavg']['skewed, few']['published'] == 0.1


def test_what_is_not_there_is_none(crossed):
  assert crossed['ditto']['even'] == {'ours': None, 'published': None}
  assert crossed['fedavg']['skewed, nobody']['ours'] is None


def _private_result(mean, epsilon):
  record = {
    'seed': 0,
    'test': [mean, mean],
    'weighted_mean': mean,
    'epsilon': epsilon,
    'metric': 'squared_error',
    'higher_is_better': False,
  }
  return grid_results.PointResult(_POINT, (record, record), mean)


def test_private_figures_are_beside_the_published_ones(tmp_path):
  winners = {
    'fedavg_0.5_published': _private_result(0.04, 2),
    'fedavg_0.5_run': _private_result(0.05, 0.5),
    'fedavg_6_published': _private_result(0.03, 11),
    'fedavg_6_run': _private_result(0.06, 6),
  }
  shown = kinds.show_private(_PRIVATE, finished.Grid(winners), tmp_path)
  cell = shown['fedavg']['6']
  assert cell['ours'] == pytest.approx(0.03)
  assert cell['published'] == 0.02
  assert cell['epsilon'] == 11
  assert cell['run']['ours'] == pytest.approx(0.06)
  assert shown['fedavg']['0.5']['published'] is None
  assert shown['local']['6']['ours'] is None
  for way in ('published', 'run'):
    assert (tmp_path / f'plots/{way}.png').exists()


def test_a_row_that_did_not_finish_has_no_figure_of_ours(tmp_path, capsys):
  published = {'fedavg': {'mean': 0.5}}
  table = finished.table(['fedavg', 'ditto'], published=published)
  shown = kinds.show_means(table, finished.Grid({}), tmp_path)
  assert shown == {'fedavg': {'published': 0.5}, 'ditto': {}}
  assert 'not finished' in capsys.readouterr().out
