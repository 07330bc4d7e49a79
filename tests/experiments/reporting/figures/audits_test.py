"""Tests of the figures of an audit."""

import pytest

from experiments.reporting.figures import audits

_CANARIES = {
  'fedavg': {
    'canaries': 6,
    'delta': 1e-5,
    'claimed': 2.0,
    'bound': 0.5,
    'guesses': 4,
    'right': 3,
    'normal_bound': 1.0,
    'scores': [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
    'is_in': [False, True, False, True, False, True],
  }
}
_MEMBERS = {
  name: {
    'of': 'clients',
    'area': 0.625,
    'interval': [0.5, 0.75],
    'false': [0.0, 0.5, 1.0],
    'true': [0.0, 0.75, 1.0],
  }
  for name in ('fedavg', 'ditto')
}


def test_all_canaries_are_in_the_histogram():
  histogram, _ = audits.draw(_CANARIES, _MEMBERS)
  for kind in ('in the training', 'left out'):
    shares = [row['share'] for row in histogram.data if row['canaries'] == kind]
    assert sum(shares) == pytest.approx(1, rel=1e-4)
  # Scores are in deviations (2) of those left out, from their mean (2).
  steps = {row['score'] for row in histogram.data}
  assert (min(steps), max(steps)) == (-1, 1.5)
  assert '3 of 4 guesses are right' in histogram.captions[0]


def test_each_training_has_a_curve_with_its_area():
  *_, curves = audits.draw({}, _MEMBERS)
  assert {row['training'] for row in curves.data} == {
    'fedavg: 0.625 (0.500 to 0.750)',
    'ditto: 0.625 (0.500 to 0.750)',
  }
  points = [(row['others'], row['members']) for row in curves.data]
  assert points[:3] == [(0, 0), (0.5, 0.75), (1, 1)]


def test_the_figures_can_be_drawn():
  for drawn in audits.draw(_CANARIES, _MEMBERS):
    assert drawn.files()['png'].startswith(b'\x89PNG')
