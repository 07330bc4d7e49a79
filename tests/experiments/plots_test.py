"""Tests of the figures: of the numbers in them, and of what they say."""

import matplotlib
import numpy as np
import pytest

from experiments import plots


def _texts(figure):
  """All that a figure says, on one line."""
  figure.draw_without_rendering()
  texts = figure.findobj(matplotlib.text.Text)
  return ' '.join(' '.join(t.get_text() for t in texts).split())


def _points(collection):
  return np.asarray(collection.get_offsets()).tolist()


_METHODS = {'fedavg': np.arange(101.0), 'finetuning': np.arange(50.0, 61.0)}


class TestBoxPlot:
  def test_a_box_for_each_method_the_first_at_the_top(self):
    figure = plots.box_plot(_METHODS, 'half_squared_error', False)
    (plot,) = figure.axes
    labels = [label.get_text() for label in plot.get_yticklabels()]
    assert labels == ['fedavg', 'finetuning']
    assert plot.yaxis_inverted()
    assert plot.get_xlabel() == 'half squared error (lower is better)'

  def test_means_are_in_it(self):
    (plot,) = plots.box_plot(_METHODS, 'accuracy', True).axes
    diamonds = [
      line.get_xdata().item()
      for line in plot.get_lines()
      if line.get_marker() == 'D'
    ]
    assert diamonds == [50, 55]
    assert 'higher' in plot.get_xlabel()

  def test_clients_that_diverged_are_left_out(self):
    with_them = {'a': [1.0, 2.0, 6.0, np.nan, np.inf]}
    (plot,) = plots.box_plot(with_them, 'accuracy', True).axes
    (mean,) = [line for line in plot.get_lines() if line.get_marker() == 'D']
    assert mean.get_xdata() == [3]


class TestHurtScatter:
  BEFORE = [0.5, 0.5, 0.5, 0.5, 0.5]
  AFTER = [0.4, 0.7, 0.5, 0.8, np.nan]
  EXAMPLES = [1, 2, 3, 4, 5]

  def draw(self, higher_is_better=True):
    return plots.hurt_scatter(
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

  def test_shares_count_who_diverged_as_hurt(self):
    text = _texts(self.draw())
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
    text = _texts(self.draw(higher_is_better))
    assert f'({side} 0 is better)' in text
    assert f'hurt ({share})' in text

  def test_no_bar_is_on_both_sides_of_zero(self):
    _, bars = self.draw().axes
    edges = [patch.get_y() for patch in bars.patches]
    assert min(abs(edge) for edge in edges) < 1e-12

  def test_nobody_changes(self):
    figure = plots.hurt_scatter([1, 1], [1, 1], [3, 4], 'loss', False)
    assert 'unchanged (100%)' in _texts(figure)


def test_a_method_has_the_same_color_whatever_it_is_compared_with():
  def color(method, others=()):
    methods = [*others, method]
    (plot,) = plots.box_plot(
      {name: [0.0, 1.0] for name in methods}, 'accuracy', True
    ).axes
    return plot.patches[-1].get_facecolor()

  assert color('ditto') == color('ditto', ['mine', 'fedavg'])
  assert color('ditto') != color('fedavg')


def test_the_callers_style_is_left_alone():
  before = dict(matplotlib.rcParams)
  plots.box_plot(_METHODS, 'accuracy', True)
  assert dict(matplotlib.rcParams) == before


def test_a_figure_is_written_twice_the_same(tmp_path):
  for name in ('a', 'b'):
    plots.save(plots.box_plot(_METHODS, 'accuracy', True), tmp_path / name)
  files = sorted(path.name for path in tmp_path.iterdir())
  assert files == ['a.png', 'a.svg', 'b.png', 'b.svg']
  for ending in ('png', 'svg'):
    assert (tmp_path / f'a.{ending}').read_bytes() == (
      tmp_path / f'b.{ending}'
    ).read_bytes()
