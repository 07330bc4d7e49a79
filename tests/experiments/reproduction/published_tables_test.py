"""Tests of the tables that come with the code."""

import numpy as np
import pytest

from base import errors
from experiments.configuration import configs
from experiments.reproduction import fedpc_tables
from experiments.reproduction import published_tables


def _config(grid, point, seed):
  return configs.resolve(grid.request(point, seed))


@pytest.mark.parametrize('name', published_tables.table_names())
def test_every_point_can_be(name):
  table = published_tables.read(name)
  for grid in filter(None, (table.whole, table.best)):
    keys = {_config(grid, point, 1).digest() for point in grid.points}
    assert len(keys) == len(grid.points)
  methods = {cell.method for cell in table.cells.values()}
  derived = {
    f'{method}_{users}'
    for method in fedpc_tables.DERIVED
    for users in (fedpc_tables.KNOWN, fedpc_tables.WITHHELD)
  }
  assert set(table.published) <= {*table.rows, *methods, *derived}
  if table.best:
    assert set(table.rows) == {p.name for p in table.best.points}


@pytest.mark.parametrize('name', published_tables.table_names())
def test_the_best_points_are_points_of_the_grids(name):
  table = published_tables.read(name)
  if table.best is None:
    pytest.skip('The best points are not known.')
  all_keys = {
    _config(table.whole, point, 1).digest() for point in table.whole.points
  }
  for point in table.best.points:
    key = _config(table.best, point, 1).digest()
    assert key in all_keys, point  # Without showing all of them.


def test_all_methods_have_the_same_budget_on_school():
  table = published_tables.read('school_all')
  for method in table.rows:
    points = [p for p in table.whole.points if p.algorithm == method]
    assert len(points) == 25, method
  motley = published_tables.read('motley_school')
  assert table.published == motley.published
  assert table.whole.repeats == motley.whole.repeats


def test_schools_grids_are_motleys():
  grid = published_tables.read('motley_school').whole
  sizes = {}
  for point in grid.points:
    sizes[point.algorithm] = sizes.get(point.algorithm, 0) + 1
  assert sizes == dict(
    local=5,
    fedavg=25,
    finetuning=25 * 10,
    hypcluster=25 * 3 * 2,
    ensemble=25 * 3,
    knn_per=25 * 7,
    ditto=25 * 5 * 7,
    mocha=5 * 7 * 3,
  )
  assert grid.repeats == (100, 1100, 2100, 3100, 4100)


def test_all_rows_have_the_same_budget_on_mnist():
  table = published_tables.read('self_fl_mnist')
  for row in table.rows:
    points = [p for p in table.whole.points if p.name == row]
    assert len(points) == 3, row


@pytest.mark.parametrize('noise', ['none', 'Gaussian'])
def test_fedembeds_table_2_is_the_mean_of_its_table_4(noise):
  shares = {'25 %': 0.25, '15 %': 0.15, '10 %': 0.4, '5 %': 0.2}
  published = published_tables.read('fedembed_mnist').published
  column = f'imbalanced {noise}'
  gaps = [
    row[column] - sum(w * row[f'{column}, {s}'] for s, w in shares.items())
    for row in published.values()
  ]
  assert len(gaps) == 9
  assert np.abs(gaps).mean() < 0.025


def test_nothing_stands_beside_fedembeds_speech():
  assert not published_tables.read('fedembed_speech').published


@pytest.mark.parametrize('row', ['FedAvg', 'Ditto'])
def test_rows_may_be_one_method_at_other_settings(row):
  grid = published_tables.read('self_fl_mnist').whole
  for suffix, weighting in (('e', 'uniform'), ('w', 'size')):
    for point in (p for p in grid.points if p.name == f'{row}-{suffix}'):
      settings = _config(grid, point, 0).method_settings[row.lower()].trainer
      assert settings.client_weighting == weighting


def test_rows_that_are_chosen_are_run_under_all_conditions():
  table = published_tables.read('fedembed_mnist').changed(None, {}, ['Type'])
  run = [row for row in table.rows if table.whole.runs_row(row)]
  assert run == [
    f'Type_{users}_{noise}'
    for noise in ('none', 'Gaussian')
    for users in ('balanced', 'imbalanced')
  ]
  assert table.rows == published_tables.read('fedembed_mnist').rows


def test_an_unknown_row_is_named():
  table = published_tables.read('self_fl_mnist')
  with pytest.raises(
    errors.UserError, match="--row: Unknown row 'Dito'.*Ditto"
  ):
    table.changed(None, {}, ['Dito'])
