"""Tests of the charts of a report."""

import dataclasses
import math

import pytest
import vl_convert

from experiments.reporting.pages import charts
from experiments.reporting.pages import client_charts
from experiments.reporting.pages import grid_charts
from experiments.reporting.pages import learning_charts
from experiments.reporting.pages import sources
from tests.experiments import made_up_folders

_CANDIDATES = {
  f'{epochs} epochs': {
    'value': epochs,
    'unit': 'epochs',
    'label': '',
    'validation': 0.5,
    'test': 0.4,
  }
  for epochs in (1, 3)
}


def _points():
  return [
    made_up_folders.point(
      rate * momentum * size,
      **{'task.alpha': rate},
      momentum=momentum,
      size=size,
    )
    for rate in (0.1, 1.0, math.nan)
    for momentum in (0.5, 0.9)
    for size in (1, 2)
  ]


def _drawn_points():
  return [
    made_up_folders.point(
      0.01 * i,
      rate=0.001 * 1.4**i,
      momentum=0.05 * (7 * i % 20),
      size=(10, 20)[i % 2],
    )
    for i in range(20)
  ]


def _every_chart():
  finetuning = made_up_folders.series(
    candidates=_CANDIDATES,
    groups={'north': {'pooled': 0.5}},
    clusters={'sizes': {'0': 2, '1': 1}},
    communication={'total_parameters': 1e6},
  )
  series = [
    finetuning,
    dataclasses.replace(finetuning, name='ditto', method='ditto'),
  ]
  trainings = [
    ('fedavg', 'fedavg', seed, {'round': [1.0, 2.0], 'loss': [2.0, seed]})
    for seed in (0.5, 1.0)
  ]
  grid = sources.Grid(made_up_folders.pathlib.Path('grid'), _points(), [])
  one = sources.Grid(
    grid.path, [made_up_folders.point(r, rate=r) for r in (1, 2)], []
  )
  drawn = sources.Grid(grid.path, _drawn_points(), [])
  return [
    client_charts.of_clients(series),
    client_charts.of_shares(series),
    client_charts.of_gains(series),
    learning_charts.of_rounds(trainings),
    learning_charts.of_validation(trainings),
    learning_charts.of_candidates(series),
    client_charts.of_groups(series),
    client_charts.of_clusters(series),
    learning_charts.of_communication(series),
    *grid_charts.of_grid(grid),
    *grid_charts.of_grid(one),
    *grid_charts.of_grid(drawn),
  ]


def test_vega_lite_draws_every_chart():
  every = _every_chart()
  assert len(every) == 9 + 4 + 1 + 4
  for chart in every:
    svg = vl_convert.vegalite_to_svg(chart.to_spec() | {'width': 300})
    # Marks, beside the axes.
    assert 'aria-roledescription' in svg, chart.name


@pytest.mark.parametrize(
  ('higher_is_better', 'results'),
  [
    (True, ['better', 'worse', 'the same']),
    (False, ['worse', 'better', 'the same']),
  ],
)
def test_who_is_better_follows_from_the_direction(higher_is_better, results):
  series = made_up_folders.series(higher_is_better=higher_is_better)
  chart = client_charts.of_gains([series])
  assert [row['result'] for row in chart.data] == results


def test_a_method_that_is_far_worse_does_not_spoil_the_gains_of_others():
  finetuning = made_up_folders.series()
  worse = made_up_folders.series('ditto', values=(1e6, 2.0, 3.0))
  chart = client_charts.of_gains([finetuning, worse])
  diagonal, marks = chart.spec['layer']
  assert diagonal['transform'] == marks['transform']
  ends = {row['method']: row['after'] for row in diagonal['data']['values']}
  assert ends == {'finetuning': 0.9, 'ditto': 1e6}
  assert 'domain' not in marks['encoding']['x']['scale']


def test_there_are_no_gains_where_nothing_was_personalized():
  series = made_up_folders.series(values=(0.5, 0.6), before=(0.5, 0.6))
  assert client_charts.of_gains([series]) is None


def test_clients_whose_model_diverged_are_not_drawn():
  series = made_up_folders.series(values=(0.5, math.nan), before=(0.5, 0.5))
  assert len(client_charts.of_clients([series]).data) == 1


def test_shares_end_at_all_clients():
  chart = client_charts.of_shares([made_up_folders.series()])
  assert [row['share'] for row in chart.data] == [
    pytest.approx(share, rel=1e-5) for share in (1 / 3, 2 / 3, 1)
  ]


def test_long_curves_are_thinned_and_keep_their_end():
  rounds = [float(i) for i in range(1, 10_001)]
  chart = learning_charts.of_rounds(
    [('fedavg', 'fedavg', 0, {'round': rounds, 'loss': rounds})]
  )
  assert 200 < len(chart.data) <= 302
  assert chart.data[-1]['round'] == 10_000


def test_a_heat_map_has_the_best_of_what_else_differs():
  grid = sources.Grid(made_up_folders.pathlib.Path('grid'), _points(), [])
  chart = grid_charts.of_grid(grid)[0]
  cells = {
    (row['task.alpha'], row['momentum']): row['validation']
    for row in chart.data
  }
  assert cells['1', '0.9'] == 1.8
  assert cells['nan', '0.9'] is None


def test_settings_that_were_drawn_have_axes_of_numbers():
  drawn = sources.Grid(
    made_up_folders.pathlib.Path('grid'), _drawn_points(), []
  )
  encoding = grid_charts.of_grid(drawn)[0].spec['encoding']
  assert encoding['x']['field'] == 'rate'
  assert encoding['x']['scale'] == {'type': 'log'}
  assert encoding['y']['scale'] == {'zero': False}
  (row, *_) = grid_charts.of_grid(drawn)[0].data
  assert row['rate'] == 0.001


def test_configurations_of_a_method_differ_in_color():
  names = [f'FedAvg (x={k})' for k in range(11)]
  found = charts.looks_of_names(names, ['fedavg'] * 11)
  assert len({look.color for look in found.values()}) == 11
  assert {look.line for look in found.values()} == {'-'}
