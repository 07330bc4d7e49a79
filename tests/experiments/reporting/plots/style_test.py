"""Tests of what all figures have in common."""

import itertools

import matplotlib
import numpy as np
import pytest

from base import errors
from experiments.reporting.plots import client_plots
from experiments.reporting.plots import method_plots
from experiments.reporting.plots import style
from tests.experiments.reporting.plots import drawn

_METHODS = {'fedavg': np.arange(101.0), 'finetuning': np.arange(50.0, 61.0)}


def test_a_method_has_the_same_color_whatever_it_is_compared_with():
  def color(method, others=()):
    methods = [*others, method]
    (plot,) = client_plots.box_plot(
      {name: [0.0, 1.0] for name in methods}, 'accuracy', True
    ).axes
    return plot.patches[-1].get_facecolor()

  assert color('ditto') == color('ditto', ['mine', 'fedavg'])
  assert color('ditto') != color('fedavg')


def test_the_callers_style_is_left_alone():
  before = dict(matplotlib.rcParams)
  client_plots.box_plot(_METHODS, 'accuracy', True)
  assert dict(matplotlib.rcParams) == before


def test_a_figure_is_written_twice_the_same(tmp_path):
  for name in ('a', 'b'):
    figure = client_plots.box_plot(_METHODS, 'accuracy', True)
    style.save(figure, tmp_path, name)
  files = sorted(path.name for path in tmp_path.iterdir())
  assert files == [
    f'{name}.{e}' for name in 'ab' for e in ('pdf', 'png', 'svg')
  ]
  for ending in style.ENDINGS:
    assert (tmp_path / f'a.{ending}').read_bytes() == (
      tmp_path / f'b.{ending}'
    ).read_bytes()


@pytest.mark.parametrize('ending', style.ENDINGS)
def test_a_figure_replaces_itself_but_no_file_of_others(tmp_path, ending):
  figure = client_plots.box_plot(_METHODS, 'accuracy', True)
  style.save(figure, tmp_path, 'clients')
  style.save(figure, tmp_path, 'clients')
  other = tmp_path / f'clients.{ending}'
  other.write_text('drawn by hand')
  with pytest.raises(errors.UserError, match=f'clients.{ending} is there'):
    style.save(figure, tmp_path, 'clients')
  assert other.read_text() == 'drawn by hand'


def _labels(axis):
  return [
    label
    for label in axis.get_majorticklabels()
    if label.get_visible() and label.get_text()
  ]


def test_labels_do_not_overlap_nor_leave_the_figure(tmp_path):
  numbers = (0.001, 0.002, 0.01, 0.011, 1)
  values = {x: [0.0117001 + 1e-6 * x] for x in numbers}
  ticks = {x: f'{x:g} of all of them' for x in numbers}
  figure = method_plots.against(
    {'ditto': values}, 'a long label ' * 4, ticks, 'loss', False
  )
  before = [plot.get_xlim() for plot in figure.axes]
  style.save(figure, tmp_path, 'figure')
  assert [plot.get_xlim() for plot in figure.axes] == before
  (plot,) = figure.axes
  label = plot.xaxis.label.get_window_extent()
  assert 0 < label.x0 < label.x1 < figure.bbox.width
  for axis in (plot.xaxis, plot.yaxis):
    boxes = [label.get_window_extent() for label in _labels(axis)]
    assert len(boxes) > 1
    assert not any(
      box.overlaps(other) for box, other in itertools.combinations(boxes, 2)
    )


def test_every_method_has_its_name_beside_its_box(tmp_path):
  names = ['fedavg', 'hypcluster+finetuning', 'fedadam+embedding_finetuning']
  methods = {name: [1.0, 2.0] for name in names}
  figure = client_plots.box_plot(methods, 'accuracy', True)
  style.add_caption(figure, 'school, 139 test clients')
  style.save(figure, tmp_path, 'figure')
  (plot,) = figure.axes
  assert len(_labels(plot.yaxis)) == len(names)


def test_nothing_is_outside_of_a_figure(tmp_path):
  methods = {'a long name of a method, ' * 3: [1.0, 2.0], 'ditto': [2.0, 3.0]}
  figure = client_plots.box_plot(methods, 'accuracy', True)
  style.add_caption(figure, 'school, 139 test clients', 'word ' * 60)
  style.save(figure, tmp_path, 'figure')
  box = figure.get_tightbbox()
  width, height = figure.get_size_inches()
  assert min(box.x0, box.y0) >= 0
  assert (box.x1, box.y1) <= (width, height)


def test_any_name_can_be_drawn_and_be_a_files(tmp_path):
  name = '../a/b $\\frac{$ 50%\n$x$'
  figure = client_plots.box_plot({name: [0.0, 1.0]}, 'accuracy', True)
  assert ' '.join(name.split()) in drawn.texts(figure)
  style.save(figure, tmp_path, f'hurt_{name}')
  assert len(list(tmp_path.glob('hurt_*'))) == len(style.ENDINGS)


@pytest.mark.parametrize(
  'values', [[], [np.nan, np.inf], [1.0, np.nan, 1e300], [1e300, -1e300, 2.0]]
)
def test_what_diverged_can_be_drawn(values):
  figure = client_plots.box_plot(
    {'fedavg': [1.0, 2.0, 3.0], 'ditto': values}, 'loss', False
  )
  figure.draw_without_rendering()
  (plot,) = figure.axes
  low, high = plot.get_xlim()
  assert low > -10
  assert high < 10


def test_beside_many_zeros_the_others_are_not_far_out():
  assert max(style.near([0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 1e9])) == 0.2


def test_what_is_far_out_does_not_decide():
  values = [1.0, 1.1, 1.2, 1.3, np.nan, 1e9]
  assert style.near(values).tolist() == [1.0, 1.1, 1.2, 1.3]
  assert style.near(values, 1e12).tolist() == [1.0, 1.1, 1.2, 1.3, 1e9]
  assert not len(style.near([np.nan]))
