"""Tests of the figures of rounds."""

import math

import numpy as np

from experiments.reporting import looks
from experiments.reporting.plots import round_plots
from tests.experiments.reporting.plots import drawn


def _series(*values):
  return {k: [value] for k, value in enumerate(values, 1)}


class TestLearningCurves:
  def draw(self, **panels):
    return round_plots.learning_curves(panels, ['dropped'])

  def test_a_panel_for_each_measure_and_a_curve_for_each_method(self):
    figure = self.draw(
      loss={'ditto': _series(2, 1), 'fedavg': {2: [3.0], 4: [2.0, 4.0]}},
      dropped={'fedavg': _series(0.25)},
    )
    loss, dropped = figure.axes
    assert drawn.lines(loss) == {
      'Ditto': [[1, 2], [2, 1]],
      'FedAvg': [[2, 3], [4, 3]],
    }
    assert drawn.lines(dropped) == {'FedAvg': [[1, 0.25]]}
    assert loss.containers[0].lines[0].get_color() == looks.look('ditto').color
    assert dropped.get_xlabel() == 'round'
    for text in ('loss', 'dropped', '25%'):
      assert text in drawn.texts(figure)

  def test_an_axis_of_shares_begins_at_zero_and_ends_at_one(self):
    (plot,) = self.draw(dropped={'fedavg': _series(0, 0.25, 1)}).axes
    assert plot.get_ylim() == (0, 1)

  def test_a_curve_that_another_hides_is_wider(self):
    rounds = {name: _series(3, 2, 1) for name in ('ditto', 'fedavg')}
    (plot,) = self.draw(loss=rounds | {'local': _series(9, 9, 9)}).axes
    first, second, third = (container.lines[0] for container in plot.containers)
    assert first.get_linewidth() > second.get_linewidth()
    assert second.get_linewidth() == third.get_linewidth()

  def test_what_diverged_does_not_spoil_the_axis(self):
    figure = self.draw(
      loss={
        'fedavg': _series(*np.linspace(2, 1, 30)),
        'ditto': _series(2, 1e12, 1e30, math.inf, math.nan),
        'local': _series(math.nan, math.nan),
      }
    )
    (plot,) = figure.axes
    assert plot.get_ylim()[1] < 10
    assert 'not shown: up to 1e+30' in drawn.texts(figure)
    assert 'Local (diverged)' in drawn.texts(figure)

  def test_a_log_axis_holds_what_did_not_diverge(self):
    curves = {'fedavg': _series(9, 3, 1), 'ditto': _series(8, 2, 1e30)}
    (plot,) = self.draw(loss=curves).axes
    low, high = plot.get_ylim()
    assert plot.get_yscale() == 'log'
    assert 0.5 < low < 1
    assert 9 < high < 20

  def test_rounds_are_whole_numbers(self):
    figure = self.draw(loss={'fedavg': _series(1, 2, 3)})
    figure.draw_without_rendering()
    (plot,) = figure.axes
    assert all(float(tick).is_integer() for tick in plot.get_xticks())


def test_cluster_shares_by_round():
  (plot,) = round_plots.cluster_shares(
    {'one': [0.25, 1], 'two': [0.75, 0]}
  ).axes
  assert [line.get_xydata().tolist() for line in plot.get_lines()] == [
    [[1, 0.25], [2, 1]],
    [[1, 0.75], [2, 0]],
  ]
  assert plot.get_ylim() == (0, 1)


def test_trajectories_are_one_above_the_other():
  measured = {'steps': [20.0, 5.0, 1.0], 'variance': [0.0, 0.5, 1.5]}
  axes = round_plots.trajectories(measured, 'self_fl').axes
  assert [plot.get_ylabel() for plot in axes] == ['steps', 'variance']
  for plot, values in zip(axes, measured.values()):
    (line,) = plot.get_lines()
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == values
