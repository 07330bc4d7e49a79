"""Tests of tables whose rows are compared, on records of two rows."""

import json

import pytest

from experiments.reproduction import compared
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results
from tests.experiments.reproduction import finished


def _record(seed, test, pooled):
  return {
    'seed': seed,
    'higher_is_better': False,
    'clients': list('abc'),
    'client_groups': ['beer', 'beer', 'tea'],
    'test': test,
    'pooled': pooled,
    'groups': {'beer': pooled + 1, 'tea': pooled + 2},
  }


def _point(name, *records):
  return grid_results.summarize(
    grid_file.Point(name, {}, {}),
    [{**record, 'validation': 1.0} for record in records],
  )


_FIRST = _point(
  'fedadam', _record(1, [5.0, 6.0, 7.0], 10.0), _record(2, [7.0, 8.0, 9.0], 20)
)
_SECOND = _point(
  'group', _record(1, [4.0, 7.0, 1.0], 8.0), _record(2, [6.0, 9.0, None], 18)
)
_ROWS = {'FL': _FIRST, 'GroupFL': _SECOND}
_COLUMNS = ('groups', 'pooled')


def _show(columns, rows, folder):
  table = finished.table(list(rows), columns=columns)
  return compared.show(table, finished.Grid(rows), folder)


def test_a_cell_is_the_mean_over_repeats_of_all_examples_of_a_group(
  tmp_path, capsys
):
  cells = _show(_COLUMNS, _ROWS, tmp_path)
  assert cells == {
    'FL': {'beer': 16.0, 'tea': 17.0, 'all': 15.0},
    'GroupFL': {'beer': 14.0, 'tea': 15.0, 'all': 13.0},
  }
  shown = capsys.readouterr().out
  assert '16.00 ± 5.00' in shown
  assert 'GroupFL against FL' in shown


def test_clients_are_compared_by_their_means_over_repeats():
  comparisons = compared.compare(_ROWS)
  beer = comparisons['GroupFL against FL']['beer']
  assert (beer.better, beer.worse, beer.num_clients) == (1, 1, 2)
  assert beer.difference == pytest.approx(0.0)


def test_a_client_that_diverged_in_a_repeat_is_not_compared():
  comparisons = compared.compare(_ROWS)
  assert 'tea' not in comparisons['GroupFL against FL']
  assert comparisons['GroupFL against FL']['all'].num_clients == 2


def test_comparisons_are_written(tmp_path):
  _show(_COLUMNS, _ROWS, tmp_path)
  written = json.loads((tmp_path / 'comparisons.json').read_text())
  assert list(written) == ['GroupFL against FL']


def _ungrouped(first, second, worst):
  return _point(
    'fedavg',
    {
      'higher_is_better': True,
      'clients': list('abc'),
      'test': first,
      'weighted_mean': 0.5,
      'worst_tenth': worst,
    },
    {
      'higher_is_better': True,
      'clients': list('cab'),
      'test': second,
      'weighted_mean': 0.25,
      'worst_tenth': 0.25,
    },
  )


def test_columns_are_numbers_of_the_records(tmp_path, capsys):
  rows = {'equal': _ungrouped([1, 0, 0], [0, 1, 0], 0.75)}
  cells = _show(('worst_tenth', 'weighted_mean'), rows, tmp_path)
  assert cells == {'equal': {'worst_tenth': 0.5, 'weighted_mean': 0.375}}
  assert '0.5000 ± 0.2500' in capsys.readouterr().out


def test_a_number_that_diverged_is_none(tmp_path):
  rows = {'equal': _ungrouped([1, 0, 0], [0, 1, 0], None)}
  cells = _show(('worst_tenth',), rows, tmp_path)
  assert cells == {'equal': {'worst_tenth': None}}


def test_without_groups_all_clients_are_compared():
  rows = {
    'first': _ungrouped([1, 0, 0], [0, 1, 0], 0.5),
    'second': _ungrouped([1, 1, 0], [0, 1, 1], 0.5),
  }
  ((pair, comparison),) = compared.compare(rows).items()
  assert (pair, list(comparison)) == ('second against first', ['all'])
  # Of 'a' both have all right; of 'b' the second alone; of 'c' nobody.
  found = comparison['all']
  assert (found.num_clients, found.better, found.worse) == (3, 1, 0)
