"""Tests of values that are drawn at random."""

import numpy as np
import pytest
from scipy import stats

from experiments.sweeps import sampling

_BOUNDS = {
  'uniform': {'u': [-1, 3]},
  'log_uniform': {'l': [0.001, 10]},
  'whole': {'w': [2, 5]},
}


def _column(name, size=2000):
  return np.array(
    [sampling.draw(i, {'c': [7, 8]}, _BOUNDS)[name] for i in range(size)]
  )


@pytest.mark.parametrize(
  ('name', 'share'),
  [('u', lambda v: (v + 1) / 4), ('l', lambda v: (np.log10(v) + 3) / 4)],
)
def test_numbers_are_spread_evenly(name, share):
  assert stats.kstest(share(_column(name)), 'uniform').pvalue > 0.01


@pytest.mark.parametrize(
  ('name', 'values'), [('w', range(2, 6)), ('c', (7, 8))]
)
def test_each_whole_number_and_each_listed_value_comes_as_often(name, values):
  found, counts = np.unique(_column(name), return_counts=True)
  assert found.tolist() == list(values)
  assert stats.chisquare(counts).pvalue > 0.01


def test_one_more_setting_changes_no_other():
  more = sampling.draw(3, {'c': [7, 8]}, _BOUNDS)
  assert sampling.draw(3, {}, {'uniform': {'u': [-1, 3]}}) == {'u': more['u']}


def test_numbers_have_four_digits():
  assert all(value == float(f'{value:.4g}') for value in _column('l', 20))
