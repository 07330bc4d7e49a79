"""Tests of the figures of clusters and groups."""

from matplotlib import colors
import numpy as np

from experiments.reporting import looks
from experiments.reporting.plots import cluster_plots
from experiments.reporting.plots import shading
from tests.experiments.reporting.plots import drawn


def test_known_groups_in_clusters():
  figure = cluster_plots.cluster_groups(
    {'en': {'0': 3, '1': 40}, 'es': {'0': 20, '1': 0}}, title='hypcluster'
  )
  (plot,) = figure.axes
  bars = [(bar.get_x(), bar.get_width()) for bar in plot.patches]
  assert bars == [(0, 3), (0, 40), (3, 20), (40, 0)]
  for text in ('en', 'es', '40', 'hypcluster', 'cluster'):
    assert text in drawn.texts(figure)


def test_confusion_has_a_number_for_each_group_and_cluster():
  figure = cluster_plots.confusion(
    np.array([[3, 0], [1, 40]]),
    ['en', 'es'],
    ['7', '2'],
    'head',
    43 / 44,
    title='type',
  )
  (plot,) = figure.axes
  assert [text.get_text() for text in plot.texts] == ['3', '1', '40']
  assert [text.get_text() for text in plot.get_xticklabels()] == ['7', '2']
  for text in ('en', 'es', 'head', 'type, 98% in the cluster of their group'):
    assert text in drawn.texts(figure)


def test_embeddings_of_a_group_are_near_each_other():
  rng = np.random.default_rng(0)
  centers = {'9': 0.0, '10': 20.0}
  groups = [name for name in centers for _ in range(12)]
  points = [rng.normal(centers[name], 0.1, size=5) for name in groups]
  (plot,) = cluster_plots.embeddings(points, groups, title='fedembed_type').axes
  places = {dots.get_label(): dots.get_offsets() for dots in plot.collections}
  assert list(places) == ['9', '10']
  for group, others in (places.values(), reversed(places.values())):
    middle = group.mean(axis=0)
    radius = np.linalg.norm(group - middle, axis=1).max()
    assert np.linalg.norm(others - middle, axis=1).min() > radius


def test_numbers_in_bars_can_be_read():
  for color in looks.CATEGORIES:
    darker, lighter = sorted(
      0.2126 * red + 0.7152 * green + 0.0722 * blue
      for red, green, blue in (
        np.power(colors.to_rgb(name), 2.2)
        for name in (color, shading.text_on(color))
      )
    )
    # The contrast of WCAG 2, which asks for 4.5 or, of large text, 3.
    assert (lighter + 0.05) / (darker + 0.05) > 4.5
