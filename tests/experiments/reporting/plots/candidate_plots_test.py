"""Tests of the figures of candidates."""

import numpy as np
import pytest

from algorithms import candidates
from experiments.reporting import looks
from experiments.reporting.plots import candidate_plots
from tests.experiments.reporting.plots import drawn


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
    return candidate_plots.candidate_curves(
      _candidates(names, **self.MEASURES),
      'loss',
      False,
      'finetuning',
      **arguments,
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
    figure = self.draw(chosen='1 epoch')
    circles = [
      line.get_xydata().tolist()
      for plot in figure.axes
      for line in plot.get_lines()
      if line.get_label() == 'chosen'
    ]
    assert circles == [[[1, 2]], [[1, 0.25]]]
    assert 'FedAvg + fine-tuning' in drawn.texts(figure)

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
    figure = candidate_plots.candidate_curves(
      _candidates(self.NAMES, test=[3, 2, 4]), 'loss', False, 'local'
    )
    assert len(figure.axes) == 1

  def test_repeats_are_their_mean_and_deviation(self):
    repeated = {name: {'test': [1.0, 3.0]} for name in self.NAMES}
    (plot,) = candidate_plots.candidate_curves(
      repeated, 'loss', False, 'local'
    ).axes
    assert drawn.lines(plot) == {'test': [[0, 2], [1, 2], [2, 2]]}
    (bars,) = plot.containers[0].lines[2]
    low, high = bars.get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((2 - 2**0.5, 2 + 2**0.5))

  def test_the_first_epochs_do_not_spoil_the_axis(self):
    means = [50.0] + [1 + 0.01 * k for k in range(9)]
    figure = candidate_plots.candidate_curves(
      _candidates(_epochs(*range(10)), test=means), 'loss', False, 'local'
    )
    (plot,) = figure.axes
    assert plot.get_ylim()[1] < 1.2
    assert 'not shown: up to 50' in drawn.texts(figure)

  def test_rates_have_no_color_of_a_method(self):
    names = [*_epochs(0)] + [
      name for k in range(5) for name in _epochs(1, 2, label=f'rate {k}')
    ]
    figure = candidate_plots.candidate_curves(
      _candidates(names, test=range(11)), 'loss', False, 'finetuning'
    )
    (plot,) = figure.axes
    colors = {curve.lines[0].get_color() for curve in plot.containers}
    assert len(colors) == 5
    assert colors.isdisjoint(looks.COLORS)


class TestOodCurves:
  def draw(self, methods, higher_is_better=True):
    (plot,) = candidate_plots.ood_curves(
      methods, 'accuracy', higher_is_better
    ).axes
    return drawn.lines(plot)

  def test_own_examples_against_those_of_all(self):
    points = dict(zip(_epochs(0, 1), [([0.4], [0.5]), ([0.6], [0.3])]))
    assert self.draw(
      {'finetuning': points, 'fedavg': {_GLOBAL: ([0.4], [0.5])}}
    ) == {
      'FedAvg + fine-tuning': [[0.4, 0.5], [0.6, 0.3]],
      'FedAvg': [[0.4, 0.5]],
    }

  def test_of_many_epochs_the_first_and_some_later_ones(self):
    points = {_epochs(k)[0]: ([k], [-k]) for k in range(1, 101)}
    places = [x for x, _ in self.draw({'local': points})['Local']]
    assert (places[:3], places[-1], len(places)) == ([1, 2, 4], 100, 11)

  def test_what_is_far_worse_than_any_method_is_left_out(self):
    """By more than half of what is between the methods' bests."""
    points = {_epochs(k)[0]: ([k], [-k]) for k in range(11)}
    methods = {'local': points, 'fedavg': {_GLOBAL: ([8], [8])}}
    assert self.draw(methods)['Local'][0] == [7, -7]
    methods = {'local': points, 'fedavg': {_GLOBAL: ([4], [8])}}
    assert self.draw(methods, False)['Local'][-1] == [6, -6]

  def test_of_several_curves_that_of_the_best(self):
    points = {
      _epochs(0)[0]: ([0.4], [0]),
      _epochs(1, label='rate 1')[0]: ([0.5], [1]),
      _epochs(1, label='rate 2')[0]: ([0.7], [2]),
    }
    assert self.draw({'finetuning': points, 'x': {_GLOBAL: ([0.4], [0])}})[
      'FedAvg + fine-tuning'
    ] == [[0.4, 0], [0.7, 2]]

  def test_of_what_diverged_there_is_the_name(self):
    nothing = {_GLOBAL: ([np.nan], [np.nan])}
    points = {_GLOBAL: ([0.4], [0.5])}
    found = self.draw({'a': nothing, 'b': points})
    assert list(found) == ['a (diverged)', 'b']
    assert found['b'] == [[0.4, 0.5]]
    assert list(self.draw({'a': nothing})) == ['a (diverged)']
