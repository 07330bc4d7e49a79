"""Tests of the figures of clients."""

import numpy as np
import pytest

from experiments.reporting.plots import client_plots
from tests.experiments.reporting.plots import drawn


def _points(collection):
  return np.asarray(collection.get_offsets()).tolist()


_METHODS = {'fedavg': np.arange(101.0), 'finetuning': np.arange(50.0, 61.0)}


class TestBoxPlot:
  def test_a_box_for_each_method_the_first_at_the_top(self):
    figure = client_plots.box_plot(_METHODS, 'half_squared_error', False)
    (plot,) = figure.axes
    labels = [label.get_text() for label in plot.get_yticklabels()]
    assert labels == ['FedAvg', 'FedAvg + fine-tuning']
    assert plot.yaxis_inverted()
    assert plot.get_xlabel() == 'half squared error (lower is better)'

  def test_means_are_in_it(self):
    (plot,) = client_plots.box_plot(_METHODS, 'accuracy', True).axes
    diamonds = [
      line.get_xdata().item()
      for line in plot.get_lines()
      if line.get_marker() == 'D'
    ]
    assert diamonds == [50, 55]
    assert 'higher' in plot.get_xlabel()

  def test_clients_that_diverged_are_left_out(self):
    with_them = {'a': [1.0, 2.0, 6.0, np.nan, np.inf]}
    (plot,) = client_plots.box_plot(with_them, 'accuracy', True).axes
    (mean,) = [line for line in plot.get_lines() if line.get_marker() == 'D']
    assert mean.get_xdata() == [3]


class TestRelativeChanges:
  BEFORE = [10.0, 10.0, 20.0, 5.0, 10.0, np.nan]
  AFTER = [9.0, 8.0, 22.0, 5.0, 9.5, 1.0]

  def draw(self, higher_is_better=False):
    return client_plots.relative_changes(
      self.BEFORE, self.AFTER, 'perplexity', higher_is_better, title='a vs b'
    )

  def test_a_client_counts_by_its_change_relative_to_before(self):
    (plot,) = self.draw().axes
    counts = [
      (bar.get_x() + bar.get_width() / 2, bar.get_height())
      for bar in plot.patches
      if bar.get_height()
    ]
    changes = [-0.2, -0.1, -0.05, 0, 0.1]
    np.testing.assert_allclose(
      np.sort([middle for middle, _ in counts]), changes, atol=0.011
    )
    assert [count for _, count in counts] == [1] * 5

  def test_shares_are_of_all_clients_also_those_that_diverged(self):
    # Three of six are better; who had diverged before is not worse.
    assert 'better (67%)' in drawn.texts(self.draw())
    assert 'worse (17%)' in drawn.texts(self.draw())
    assert 'worse (50%)' in drawn.texts(self.draw(higher_is_better=True))

  def test_says_what_is_better(self):
    text = drawn.texts(self.draw())
    assert 'relative change of perplexity (below 0 is better)' in text
    assert 'a vs b' in text


class TestHurtScatter:
  BEFORE = [0.5, 0.5, 0.5, 0.5, 0.5]
  AFTER = [0.4, 0.7, 0.5, 0.8, np.nan]
  EXAMPLES = [1, 2, 3, 4, 5]

  def draw(self, higher_is_better=True):
    return client_plots.hurt_scatter(
      self.BEFORE,
      self.AFTER,
      self.EXAMPLES,
      'accuracy',
      higher_is_better,
      title='finetuning',
    )

  def test_each_client_is_a_point_with_its_change(self):
    points, _ = self.draw().axes
    hurt, same, better = points.collections
    np.testing.assert_allclose(_points(hurt), [[1, -0.1]])
    np.testing.assert_allclose(_points(same), [[3, 0]])
    np.testing.assert_allclose(_points(better), [[2, 0.2], [4, 0.3]])

  def test_where_nothing_changes_zero_is_in_the_middle(self):
    figure = client_plots.hurt_scatter([1, 2], [1, 2], [3, 4], 'loss', False)
    for plot in figure.axes:
      assert plot.get_ylim() == (-1, 1)

  def test_shares_count_who_diverged_as_hurt(self):
    text = drawn.texts(self.draw())
    assert 'hurt (40%)' in text
    assert 'unchanged (20%)' in text
    assert 'better off (40%)' in text

  @pytest.mark.parametrize(
    ('higher_is_better', 'side', 'share'),
    [(True, 'above', '40%'), (False, 'below', '60%')],
  )
  def test_the_direction_decides_who_is_hurt(
    self, higher_is_better, side, share
  ):
    text = drawn.texts(self.draw(higher_is_better))
    assert f'({side} 0 is better)' in text
    assert f'hurt ({share})' in text

  def test_no_bar_is_on_both_sides_of_zero(self):
    _, bars = self.draw().axes
    edges = [patch.get_y() for patch in bars.patches]
    assert min(abs(edge) for edge in edges) < 1e-12

  def test_nobody_changes(self):
    figure = client_plots.hurt_scatter([1, 1], [1, 1], [3, 4], 'loss', False)
    assert 'unchanged (100%)' in drawn.texts(figure)


def test_a_histogram_has_a_bar_for_each_whole_number():
  (plot,) = client_plots.histogram([1, 4, 4, 2], 'steps', title='self_fl').axes
  bars = {
    bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in plot.patches
  }
  assert bars == {1: 1, 2: 1, 4: 2}
  assert plot.get_xlabel() == 'steps'
