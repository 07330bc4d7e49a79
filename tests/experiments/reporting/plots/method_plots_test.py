"""Tests of the figures that compare methods."""

from experiments.reporting.plots import method_plots
from tests.experiments.reporting.plots import drawn


def test_communication():
  (plot,) = method_plots.communication(
    {'fedavg': [([1e6], [0.4]), ([2e6], [0.5])]}, 'accuracy', True
  ).axes
  assert drawn.lines(plot) == {'FedAvg': [[1e6, 0.4], [2e6, 0.5]]}


def test_fractions():
  figure = method_plots.fractions(
    {'finetuning': {1.0: [0.1], 0.25: [0.4]}},
    'part of the evaluation set',
    'clients hurt',
    False,
  )
  (plot,) = figure.axes
  assert drawn.lines(plot) == {'FedAvg + fine-tuning': [[0.25, 0.4], [1, 0.1]]}
  for text in ('25%', '40%', 'part of the evaluation set', 'lower is better'):
    assert text in drawn.texts(figure)


def test_a_method_that_has_nothing_less_is_a_level_and_no_curve():
  (plot,) = method_plots.fractions(
    {'local': {0.5: [3], 1.0: [2]}, 'ditto': {0.5: [1], 1.0: [1]}},
    'part of the personalization set',
    'loss',
    False,
    ['ditto'],
  ).axes
  assert list(drawn.lines(plot)) == ['Local']
  levels = {
    line.get_label(): list(line.get_ydata())
    for line in plot.get_lines()
    if not line.get_label().startswith('_')
  }
  assert levels == {'Ditto (trained on all)': [1, 1]}


def test_numbers_have_the_texts_of_their_ticks():
  figure = method_plots.against(
    {'fedavg': {0.5: [0.4, 0.6], 6: [0.1, 0.1]}},
    'ε',
    {0.5: 'half', 6: 'six'},
    'squared error',
    False,
  )
  (plot,) = figure.axes
  assert drawn.lines(plot) == {'FedAvg': [[0.5, 0.5], [6, 0.1]]}
  assert plot.get_xscale() == 'log'
  for text in ('half', 'six', 'ε', 'lower is better'):
    assert text in drawn.texts(figure)


def test_tuning():
  (plot,) = method_plots.tuning(
    {'a': {'all': [1], 'each': [2]}, 'b': {'all': [3], 'each': [4]}},
    'loss',
    False,
  ).axes
  labels = [label.get_text() for label in plot.get_xticklabels()]
  assert labels == ['all', 'each']
  y = {
    name: [y for _, y in points] for name, points in drawn.lines(plot).items()
  }
  assert y == {'a': [1, 2], 'b': [3, 4]}


def test_acceptance():
  means = {'nobody': [3], 'everybody': [2]}
  hurt = {'nobody': [0], 'everybody': [0.4]}
  figure = method_plots.acceptance(
    {'finetuning': means, 'ditto': means},
    {'finetuning': hurt, 'ditto': hurt},
    'loss',
    False,
  )
  above, below = map(drawn.lines, figure.axes)
  assert [y for _, y in above['Ditto']] == [3, 2]
  assert [y for _, y in below['Ditto']] == [0, 0.4]
  for text in ('nobody', 'everybody', 'clients hurt'):
    assert text in drawn.texts(figure)


def test_points_of_acceptance_that_are_equal_are_beside_each_other():
  same = {'nobody': [3], 'everybody': [2]}
  figure = method_plots.acceptance(
    {'finetuning': same, 'ditto': same},
    {'finetuning': same, 'ditto': same},
    'loss',
    False,
  )
  first, second = drawn.lines(figure.axes[0]).values()
  assert all(left[0] < right[0] for left, right in zip(first, second))


def test_a_point_that_another_hides_is_a_ring_about_it():
  point = ([1e6], [0.4])
  (plot,) = method_plots.communication(
    {'fedavg': [point], 'finetuning': [point], 'ditto': [([2e6], [0.5])]},
    'accuracy',
    True,
  ).axes
  sizes = {line.get_markersize() for line in plot.get_lines()}
  assert len(sizes) == 2


def test_a_method_that_diverged_does_not_spoil_the_axis():
  figure = method_plots.communication(
    {
      'fedavg': [([1e6], [0.4])],
      'ditto': [([2e6], [0.5])],
      'local': [([0], [1e30])],
    },
    'loss',
    False,
  )
  (plot,) = figure.axes
  assert plot.get_ylim()[1] < 1
  assert 'not shown: up to 1e+30' in drawn.texts(figure)
