"""Tests of the curves that come with the code, and of their reproduction."""

import math

import dp_accounting
import pytest

from experiments.configuration import configs
from experiments.reproduction import curve_reproduction
from experiments.reproduction import curves
from experiments.sweeps import grid_results


@pytest.fixture(name='table', params=curves.table_names())
def _table(request):
  return curves.read(request.param)


def test_every_point_can_be_and_has_a_place_of_its_own(table):
  places = set()
  for point in table.grid.points:
    configs.resolve(table.grid.request(point, 1))
    places.add((point.name, *table.place(point)))
  assert len(places) == len(table.grid.points)


def test_self_fl_is_compared_in_both_cases_at_all_rates():
  table = curves.read('self_fl_gaussian')
  methods = {'fedavg', 'ditto', 'pfedme', 'perfedavg', 'self_fl'}
  methods.add('Self-FL, hierarchical')
  assert {(p.name, *table.place(p)) for p in table.grid.points} == {
    (method, figure, rate)
    for method in methods
    for figure in ('figure_4', 'figure_5')
    for rate in (0.1, 0.2, 0.5, 0.8, 1)
  }
  for point in table.grid.points:
    config = configs.resolve(table.grid.request(point, 0))
    assert config.training.total_rounds == 200
    # 200 repeats: so many entries of so many seeds.
    assert config.task_settings.dimension * len(table.grid.repeats) == 200
    if point.algorithm == 'self_fl':
      # It knows the variance, and is smoothed by the part that is active.
      settings = config.method_settings['self_fl'].trainer
      assert settings.inter_variance == config.task_settings.inter_variance
      assert settings.smoothed


def test_rows_are_means_over_the_repeats_that_are_finished():
  table = curves.read('self_fl_gaussian')
  point = next(
    p
    for p in table.grid.points
    if p.algorithm == 'ditto' and table.place(p) == ('figure_5', 0.2)
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
    grid_results.PointResult(table.grid.points[0], (), None),
  ]
  drawn = curve_reproduction.collect(table, results)
  assert drawn['figure_5', 'local'] == {'ditto': {0.2: [0.25, 0.75]}}
  assert curve_reproduction.make_rows(drawn, {}) == {
    'figure_5 global 0.2': {'ditto': 1.0},
    'figure_5 local 0.2': {'ditto': 0.5},
  }


def test_noise_is_extrapolated_to_a_larger_population():
  table = curves.read('digits_private')
  config = configs.resolve(table.grid.request(table.grid.points[0], 0))
  few, many = config.training.clients_per_round, table.population
  # The noise on the mean of a round is the same in both.
  assert few / many.clients_per_round == table.most
  epsilons = curve_reproduction.extrapolated(table)
  assert epsilons.keys() == {0, 0.1, 0.2, 0.5, 1}
  assert epsilons[0] == math.inf
  event = dp_accounting.PoissonSampledDpEvent(
    1e-3, dp_accounting.GaussianDpEvent(1.0)
  )
  accountant = dp_accounting.pld.PLDAccountant().compose(event, 100)
  assert epsilons[1] == pytest.approx(accountant.get_epsilon(1e6**-1.1))


def test_a_number_that_is_no_share_is_drawn_as_it_is():
  table = curves.read('fedembed_rounds')
  drawing = curve_reproduction.draw(
    table, {'Type': {5: [0.4], 10: [0.5]}}, {}, 'F1', higher_is_better=True
  )
  (plot,) = drawing.axes
  assert [text.get_text() for text in plot.get_xticklabels()] == ['5', '10']
  assert plot.get_xlabel() == 'rounds'
