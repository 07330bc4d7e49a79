"""Tests of the figures: of the numbers in them, and of what they say."""

import matplotlib
import numpy as np
import pytest

from algorithms import candidates
from experiments.reporting import plots
from tests.experiments.reporting import drawn


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


class TestRelativeChanges:
  BEFORE = [10.0, 10.0, 20.0, 5.0, 10.0, np.nan]
  AFTER = [9.0, 8.0, 22.0, 5.0, 9.5, 1.0]

  def draw(self, higher_is_better=False):
    return plots.relative_changes(
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
    assert 'better (67%)' in _texts(self.draw())
    assert 'worse (17%)' in _texts(self.draw())
    assert 'worse (50%)' in _texts(self.draw(higher_is_better=True))

  def test_says_what_is_better(self):
    text = _texts(self.draw())
    assert 'relative change of perplexity (below 0 is better)' in text
    assert 'a vs b' in text


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


def _epochs(*values, label=''):
  return tuple(candidates.Candidate(k, 'epochs', label) for k in values)


_GLOBAL = candidates.Candidate(text='global')


def _candidates(names, **measures):
  return {
    name: {measure: [values[i]] for measure, values in measures.items()}
    for i, name in enumerate(names)
  }


class TestCandidateCurves:
  NAMES = _epochs(0, 1, 2)
  MEASURES = dict(
    test=[3, 2, 4], validation=[2.5, 1.5, 3], test_hurt=[0, 0.25, 0.5]
  )

  def draw(self, names=NAMES, **arguments):
    return plots.candidate_curves(
      _candidates(names, **self.MEASURES), 'loss', False, **arguments
    )

  def test_means_and_shares_hurt_by_the_number_of_a_candidate(self):
    means, hurt = self.draw().axes
    assert drawn.lines(means) == {
      'test': [[0, 3], [1, 2], [2, 4]],
      'validation': [[0, 2.5], [1, 1.5], [2, 3]],
    }
    assert list(drawn.lines(hurt).values()) == [[[0, 0], [1, 0.25], [2, 0.5]]]
    assert hurt.get_xlabel() == 'epochs'
    assert means.get_ylabel() == 'loss\n(lower is better)'

  def test_the_chosen_one_is_marked(self):
    figure = self.draw(chosen='1 epochs', title='finetuning')
    circles = [
      line.get_xydata().tolist()
      for plot in figure.axes
      for line in plot.get_lines()
      if line.get_label() == 'chosen'
    ]
    assert circles == [[[1, 2]], [[1, 0.25]]]
    assert 'finetuning' in _texts(figure)

  def test_candidates_that_differ_in_more_are_several_curves(self):
    names = (
      *_epochs(0),
      *_epochs(1, label='rate 0.1'),
      *_epochs(1, label='rate 1e-05'),
    )
    means, _ = self.draw(names).axes
    assert drawn.lines(means) == {
      'rate 0.1': [[0, 3], [1, 2]],
      'rate 1e-05': [[0, 3], [1, 4]],
    }

  def test_candidates_without_a_number_are_left_out(self):
    means, _ = self.draw((_GLOBAL, *_epochs(0, 1, label='mine'))).axes
    assert drawn.lines(means)['test'] == [[0, 2], [1, 4]]

  def test_coefficients(self):
    means, hurt = self.draw(
      [candidates.Candidate(c, 'coefficient') for c in (0, 0.5, 1)]
    ).axes
    assert drawn.lines(means)['test'] == [[0, 3], [0.5, 2], [1, 4]]
    assert hurt.get_xlabel() == 'coefficient'

  def test_without_a_baseline_nobody_is_hurt(self):
    figure = plots.candidate_curves(
      _candidates(self.NAMES, test=[3, 2, 4]), 'loss', False
    )
    assert len(figure.axes) == 1

  def test_repeats_are_their_mean_and_deviation(self):
    repeated = {name: {'test': [1.0, 3.0]} for name in self.NAMES}
    (plot,) = plots.candidate_curves(repeated, 'loss', False).axes
    assert drawn.lines(plot) == {'test': [[0, 2], [1, 2], [2, 2]]}
    (bars,) = plot.containers[0].lines[2]
    low, high = bars.get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((2 - 2**0.5, 2 + 2**0.5))


class TestOodCurves:
  def draw(self, methods, higher_is_better=True):
    (plot,) = plots.ood_curves(methods, 'accuracy', higher_is_better).axes
    return drawn.lines(plot)

  def test_own_examples_against_those_of_all(self):
    points = dict(zip(_epochs(0, 1), [([0.4], [0.5]), ([0.6], [0.3])]))
    assert self.draw(
      {'finetuning': points, 'fedavg': {_GLOBAL: ([0.4], [0.5])}}
    ) == {
      'finetuning': [[0.4, 0.5], [0.6, 0.3]],
      'fedavg': [[0.4, 0.5]],
    }

  def test_of_many_epochs_the_first_and_some_later_ones(self):
    points = {_epochs(k)[0]: ([k], [-k]) for k in range(1, 101)}
    x = [own for own, _ in self.draw({'local': points})['local']]
    assert (x[:3], x[-1], len(x)) == ([1, 2, 4], 100, 11)

  def test_what_is_far_worse_than_any_method_is_left_out(self):
    """By more than half of what is between the methods' bests."""
    points = {_epochs(k)[0]: ([k], [-k]) for k in range(11)}
    methods = {'local': points, 'fedavg': {_GLOBAL: ([8], [8])}}
    assert self.draw(methods)['local'][0] == [7, -7]
    methods = {'local': points, 'fedavg': {_GLOBAL: ([4], [8])}}
    assert self.draw(methods, False)['local'][-1] == [6, -6]

  def test_of_several_curves_that_of_the_best(self):
    points = {
      _epochs(0)[0]: ([0.4], [0]),
      _epochs(1, label='rate 1')[0]: ([0.5], [1]),
      _epochs(1, label='rate 2')[0]: ([0.7], [2]),
    }
    assert self.draw({'finetuning': points, 'x': {_GLOBAL: ([0.4], [0])}})[
      'finetuning'
    ] == [[0.4, 0], [0.7, 2]]

  def test_what_diverged_is_left_out(self):
    nothing = {_GLOBAL: ([np.nan], [np.nan])}
    points = {_GLOBAL: ([0.4], [0.5])}
    assert list(self.draw({'a': nothing, 'b': points})) == ['b']
    assert not self.draw({'a': nothing})


class TestClusterFigures:
  def test_the_share_of_each_by_round(self):
    (plot,) = plots.cluster_shares({'one': [0.25, 1], 'two': [0.75, 0]}).axes
    assert [line.get_xydata().tolist() for line in plot.get_lines()] == [
      [[1, 0.25], [2, 1]],
      [[1, 0.75], [2, 0]],
    ]

  def test_known_groups_in_clusters(self):
    figure = plots.cluster_groups(
      {'en': {'0': 3, '1': 40}, 'es': {'0': 20, '1': 0}}, title='hypcluster'
    )
    (plot,) = figure.axes
    bars = [(bar.get_x(), bar.get_width()) for bar in plot.patches]
    assert bars == [(0, 3), (0, 40), (3, 20), (40, 0)]
    for text in ('en', 'es', '40', 'hypcluster', 'cluster'):
      assert text in _texts(figure)


def test_confusion_has_a_number_for_each_group_and_cluster():
  figure = plots.confusion(
    np.array([[3, 0], [1, 40]]), ['en', 'es'], 'head', 43 / 44, title='type'
  )
  (plot,) = figure.axes
  assert [text.get_text() for text in plot.texts] == ['3', '1', '40']
  for text in ('en', 'es', 'head', 'type, 98% in the cluster of their group'):
    assert text in _texts(figure)


class TestClientsByClass:
  def test_clients_are_by_their_most_common_class_and_size(self):
    counts = [[1, 4], [3, 0], [2, 20], [30, 7]]
    bars, plot, _ = plots.clients_by_class(np.array(counts)).axes
    drawn = plot.get_images()[0].get_array()
    assert drawn.filled(0).T.tolist() == [[30, 7], [3, 0], [2, 20], [1, 4]]
    assert bars.patches[0].get_data().values.tolist() == [37, 3, 22, 5]

  def test_a_thousand_clients_have_a_pixel_each(self, tmp_path):
    figure = plots.clients_by_class(np.eye(10, dtype=int)[np.arange(1000) % 10])
    plots.save(figure, tmp_path / 'figure')
    _, plot, _ = figure.axes
    assert plot.get_window_extent().width * 300 / figure.dpi > 1000
    assert '1,000 clients' in _texts(figure)


class TestOfMethods:
  def test_communication(self):
    (plot,) = plots.communication(
      {'fedavg': [([1e6], [0.4]), ([2e6], [0.5])]}, 'accuracy', True
    ).axes
    assert drawn.lines(plot) == {'fedavg': [[1e6, 0.4], [2e6, 0.5]]}

  def test_fractions(self):
    figure = plots.fractions(
      {'finetuning': {1.0: [0.1], 0.25: [0.4]}},
      'part of the evaluation set',
      'clients hurt',
      False,
    )
    (plot,) = figure.axes
    assert drawn.lines(plot) == {'finetuning': [[0.25, 0.4], [1, 0.1]]}
    for text in ('25%', '40%', 'part of the evaluation set', 'lower is better'):
      assert text in _texts(figure)

  def test_numbers_have_the_texts_of_their_ticks(self):
    figure = plots.against(
      {'fedavg': {0.5: [0.4, 0.6], 6: [0.1, 0.1]}},
      'ε',
      {0.5: 'half', 6: 'six'},
      'squared error',
      False,
    )
    (plot,) = figure.axes
    assert drawn.lines(plot) == {'fedavg': [[0.5, 0.5], [6, 0.1]]}
    assert plot.get_xscale() == 'log'
    for text in ('half', 'six', 'ε', 'lower is better'):
      assert text in _texts(figure)

  def test_embeddings_of_a_group_are_near_each_other(self):
    rng = np.random.default_rng(0)
    centers = {'9': 0.0, '10': 20.0}
    groups = [name for name in centers for _ in range(12)]
    points = [rng.normal(centers[name], 0.1, size=5) for name in groups]
    (plot,) = plots.embeddings(points, groups, title='fedembed_type').axes
    places = {own.get_label(): own.get_offsets() for own in plot.collections}
    assert list(places) == ['9', '10']
    for own, others in (places.values(), reversed(places.values())):
      middle = own.mean(axis=0)
      radius = np.linalg.norm(own - middle, axis=1).max()
      assert np.linalg.norm(others - middle, axis=1).min() > radius

  def test_tuning(self):
    (plot,) = plots.tuning(
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

  def test_acceptance(self):
    figure = plots.acceptance(
      {'finetuning': {'everybody': ([0.4], [2]), 'some': ([0.2], [3])}},
      'loss',
      False,
    )
    points = [
      p.lines[0].get_xydata().tolist() for p in figure.axes[0].containers
    ]
    assert points == [[[0.4, 2]], [[0.2, 3]]]
    for text in ('finetuning', 'everybody', 'some', 'clients hurt'):
      assert text in _texts(figure)


def test_a_histogram_has_a_bar_for_each_whole_number():
  (plot,) = plots.histogram([1, 4, 4, 2], 'steps', title='self_fl').axes
  bars = {
    bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in plot.patches
  }
  assert bars == {1: 1, 2: 1, 4: 2}
  assert plot.get_xlabel() == 'steps'


def test_trajectories_are_one_above_the_other():
  measured = {'steps': [20.0, 5.0, 1.0], 'variance': [0.0, 0.5, 1.5]}
  axes = plots.trajectories(measured).axes
  assert [plot.get_ylabel() for plot in axes] == ['steps', 'variance']
  for plot, own in zip(axes, measured.values()):
    (line,) = plot.get_lines()
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == own
