"""Tests of tables of known groups, on records of two rows."""

import json

import pytest

from experiments.sweeps import grid_file
from experiments.sweeps import grid_results
from experiments.sweeps import group_tables


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
  return grid_results.of_point(
    grid_file.Point(name, {}, {}),
    [{**own, 'validation': 1.0} for own in records],
  )


_FIRST = _point(
  'fedadam', _record(1, [5.0, 6.0, 7.0], 10.0), _record(2, [7.0, 8.0, 9.0], 20)
)
_SECOND = _point(
  'group', _record(1, [4.0, 7.0, 1.0], 8.0), _record(2, [6.0, 9.0, None], 18)
)
_WINNERS = {'fedadam': _FIRST, 'group': _SECOND}
_ROWS = {'FL': 'fedadam', 'GroupFL': 'group', 'GroupPerFL': 'not finished'}


def test_a_cell_is_the_mean_over_repeats_of_all_examples_of_a_group(
  tmp_path, capsys
):
  cells = group_tables.show('A table', _ROWS, _WINNERS, tmp_path)
  assert cells == {
    'FL': {'beer': 16.0, 'tea': 17.0, 'all': 15.0},
    'GroupFL': {'beer': 14.0, 'tea': 15.0, 'all': 13.0},
  }
  shown = capsys.readouterr().out
  assert '16.00 ± 5.00' in shown
  assert 'GroupFL against FL' in shown


def test_clients_are_compared_by_their_means_over_repeats():
  own = group_tables.compare({'FL': _FIRST, 'GroupFL': _SECOND})
  beer = own['GroupFL against FL']['beer']
  assert (beer['better'], beer['worse'], beer['num_clients']) == (1, 1, 2)
  assert beer['difference'] == pytest.approx(0.0)


def test_a_client_that_diverged_in_a_repeat_is_not_compared():
  own = group_tables.compare({'FL': _FIRST, 'GroupFL': _SECOND})
  assert 'tea' not in own['GroupFL against FL']
  assert own['GroupFL against FL']['all']['num_clients'] == 2


def test_comparisons_are_written(tmp_path):
  group_tables.show('A table', _ROWS, _WINNERS, tmp_path)
  written = json.loads((tmp_path / 'comparisons.json').read_text())
  assert list(written) == ['GroupFL against FL']
