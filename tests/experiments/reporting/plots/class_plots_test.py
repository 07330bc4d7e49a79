"""Tests of the figures of the classes of clients."""

import numpy as np

from experiments.reporting.plots import class_plots
from experiments.reporting.plots import style
from tests.experiments.reporting.plots import drawn


class TestClientsByClass:
  def test_clients_are_by_their_most_common_class_and_size(self):
    counts = [[1, 4], [3, 0], [2, 20], [30, 7]]
    bars, plot, _ = class_plots.clients_by_class(np.array(counts)).axes
    shown = plot.get_images()[0].get_array()
    assert shown.filled(0).T.tolist() == [[30, 7], [3, 0], [2, 20], [1, 4]]
    assert bars.patches[0].get_data().values.tolist() == [37, 3, 22, 5]

  def test_classes_have_their_names(self):
    _, plot, _ = class_plots.clients_by_class(
      np.array([[1, 4], [3, 0]]), ['beer', 'tea']
    ).axes
    assert [text.get_text() for text in plot.get_yticklabels()] == [
      'beer',
      'tea',
    ]

  def test_a_thousand_clients_have_a_pixel_each(self, tmp_path):
    figure = class_plots.clients_by_class(
      np.eye(10, dtype=int)[np.arange(1000) % 10]
    )
    style.save(figure, tmp_path, 'figure')
    _, plot, _ = figure.axes
    assert plot.get_window_extent().width * 300 / figure.dpi > 1000
    assert '1,000 clients' in drawn.texts(figure)
