"""Tests of the curves that come with the code, and of their reproduction."""

import math

import dp_accounting
import pytest

from experiments.configuration import configs
from experiments.reproduction import curves
from experiments.reproduction import tables
from experiments.sweeps import grid_results

_CURVES = [table for table in map(tables.read, tables.names()) if table.axes]


@pytest.mark.parametrize('table', _CURVES, ids=lambda table: table.title)
def test_every_point_has_a_place_of_its_own(table):
  points = table.whole.points
  places = {(point.name, *table.axes.place(point)) for point in points}
  assert len(places) == len(points)


def test_self_fl_is_compared_in_both_cases_at_all_rates():
  table = tables.read('self_fl_gaussian')
  methods = {'fedavg', 'ditto', 'pfedme', 'perfedavg', 'self_fl'}
  methods.add('Self-FL, hierarchical')
  assert {(p.name, *table.axes.place(p)) for p in table.whole.points} == {
    (method, figure, rate)
    for method in methods
    for figure in ('figure_4', 'figure_5')
    for rate in (0.1, 0.2, 0.5, 0.8, 1)
  }
  for point in table.whole.points:
    config = configs.resolve(table.whole.request(point, 0))
    assert config.training.total_rounds == 200
    # 200 repeats: so many entries of so many seeds.
    assert config.task_settings.dimension * len(table.whole.repeats) == 200
    if point.algorithm == 'self_fl':
      # It knows the variance, and is smoothed by the part that is active.
      settings = config.method_settings['self_fl'].trainer
      assert settings.inter_variance == config.task_settings.inter_variance
      assert settings.smoothed


def test_rows_are_means_over_the_repeats_that_are_finished():
  table = tables.read('self_fl_gaussian')
  point = next(
    p
    for p in table.whole.points
    if p.algorithm == 'ditto' and table.axes.place(p) == ('figure_5', 0.2)
  )
  records = [
    {
      'means': {
        'l1_error': {'personal': error, 'global': 9.0},
        'parent_l1_error': {'personal': 9.0, 'global': 2 * error},
      }
    }
    for error in (0.25, 0.75)
  ]
  results = [
    grid_results.PointResult(point, tuple(records), None),
    grid_results.PointResult(table.whole.points[0], (), None),
  ]
  drawn = curves.collect(table.axes, results)
  assert drawn['figure_5', 'local'] == {'ditto': {0.2: [0.25, 0.75]}}
  assert curves.make_rows(drawn, {}) == {
    'figure_5 global 0.2': {'ditto': 1.0},
    'figure_5 local 0.2': {'ditto': 0.5},
  }


def test_noise_is_extrapolated_to_a_larger_population():
  table = tables.read('digits_private')
  config = configs.resolve(table.whole.request(table.whole.points[0], 0))
  few, many = config.training.clients_per_round, table.axes.population
  # The noise on the mean of a round is the same in both.
  assert few / many.clients_per_round == table.axes.most
  epsilons = curves.extrapolate(table, table.axes)
  assert epsilons.keys() == {0, 0.1, 0.2, 0.5, 1}
  assert epsilons[0] == math.inf
  event = dp_accounting.PoissonSampledDpEvent(
    1e-3, dp_accounting.GaussianDpEvent(1.0)
  )
  accountant = dp_accounting.pld.PLDAccountant().compose(event, 100)
  assert epsilons[1] == pytest.approx(accountant.get_epsilon(1e6**-1.1))


def test_a_number_that_is_no_share_is_drawn_as_it_is():
  table = tables.read('fedembed_rounds')
  drawn = curves.draw(
    'name', table.axes, {'Type': {5: [0.4], 10: [0.5]}}, {}, 'F1', True
  )
  x = drawn.spec['encoding']['x']
  assert x['title'] == ['rounds']
  assert x['axis']['values'] == [5, 10]
  assert '[["5"], ["10"]]' in x['axis']['labelExpr']
