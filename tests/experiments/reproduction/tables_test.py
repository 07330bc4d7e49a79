"""Tests of the tables that come with the code."""

import numpy as np
import pytest

from base import errors
from experiments.configuration import configs
from experiments.reproduction import fedpc
from experiments.reproduction import tables

_CONTENTS = {
  'title': 'A table',
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
    {'algorithms': ['local'], 'values': {'client_learning_rate': [0.1, 0.2]}},
    {'algorithms': ['ditto'], 'only': {'accounting': ['run']}},
  ],
}


def _config(grid, point, seed):
  return configs.resolve(grid.request(point, seed))


@pytest.mark.parametrize('name', tables.names())
def test_every_point_can_be(name):
  table = tables.read(name)
  for grid in filter(None, (table.whole, table.best)):
    keys = {_config(grid, point, 1).digest() for point in grid.points}
    assert len(keys) == len(grid.points)
  methods = {cell.method for cell in table.cells.values()}
  assert set(table.published) <= methods | set(fedpc.FEDPC.derived)
  if table.best:
    assert set(table.cells) == {p.name for p in table.best.points}


@pytest.mark.parametrize('name', ['motley_school', 'school_all'])
def test_the_best_points_are_points_of_the_grids(name):
  table = tables.read(name)
  all_keys = {
    _config(table.whole, point, 1).digest() for point in table.whole.points
  }
  for point in table.best.points:
    key = _config(table.best, point, 1).digest()
    assert key in all_keys, point  # Without showing all of them.


def test_all_methods_have_the_same_budget_on_school():
  table = tables.read('school_all')
  for method in table.cells:
    points = [p for p in table.whole.points if p.algorithm == method]
    assert len(points) == 25, method
  motley = tables.read('motley_school')
  assert table.published == motley.published
  assert table.whole.repeats == motley.whole.repeats


def test_schools_grids_are_motleys():
  grid = tables.read('motley_school').whole
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
  table = tables.read('self_fl_mnist')
  for row in table.cells:
    points = [p for p in table.whole.points if p.name == row]
    assert len(points) == 3, row


@pytest.mark.parametrize('noise', ['none', 'Gaussian'])
def test_fedembeds_table_2_is_the_mean_of_its_table_4(noise):
  shares = {'25 %': 0.25, '15 %': 0.15, '10 %': 0.4, '5 %': 0.2}
  published = tables.read('fedembed_mnist').published
  column = f'imbalanced {noise}'
  gaps = [
    row[column] - sum(w * row[f'{column}, {s}'] for s, w in shares.items())
    for row in published.values()
  ]
  assert len(gaps) == 9
  assert np.abs(gaps).mean() < 0.025


def test_nothing_stands_beside_fedembeds_speech():
  assert not tables.read('fedembed_speech').published


@pytest.mark.parametrize('row', ['FedAvg', 'Ditto'])
def test_rows_may_be_one_method_at_other_settings(row):
  grid = tables.read('self_fl_mnist').whole
  for suffix, weighting in (('e', 'uniform'), ('w', 'size')):
    for point in (p for p in grid.points if p.name == f'{row}-{suffix}'):
      settings = _config(grid, point, 0).method_settings[row.lower()].trainer
      assert settings.client_weighting == weighting


def test_rows_that_are_chosen_are_run_under_all_conditions():
  table = tables.read('fedembed_mnist').changed(None, {}, ['Type'])
  run = [row for row in table.cells if table.whole.runs_row(row)]
  assert run == [
    f'Type_{users}_{noise}'
    for noise in ('none', 'Gaussian')
    for users in ('balanced', 'imbalanced')
  ]
  assert table.cells == tables.read('fedembed_mnist').cells


def test_an_unknown_row_is_named():
  table = tables.read('self_fl_mnist')
  with pytest.raises(
    errors.UserError, match="--row: Unknown row 'Dito'.*Ditto"
  ):
    table.changed(None, {}, ['Dito'])


def test_a_row_stands_for_one_under_each_combination():
  table = tables.make(_CONTENTS, 'test')
  assert table.cells['local_0.5_run'] == ('local', ('0.5', 'run'))
  points = table.whole.points[::2]
  assert [(point.name, point.algorithm) for point in points] == [
    ('local_0.5_published', 'mr_mtl'),
    ('local_0.5_run', 'mr_mtl'),
    ('local_6_published', 'mr_mtl'),
    ('local_6_run', 'mr_mtl'),
    ('ditto_0.5_run', 'ditto'),
  ]
  assert table.whole.points[2].settings == {
    'regularization': 0.0,
    'privacy.epsilon': 0.5,
    'poisson_batches': True,
  }


def test_a_grid_can_be_for_some_conditions_alone():
  cells = tables.make(_CONTENTS, 'test').cells.values()
  columns = [cell.column for cell in cells if cell.method == 'ditto']
  assert columns == ['0.5 run', '6 run']
