"""Tests of which values axes show."""

import numpy as np
import pytest

from experiments.reporting.figures import scales


def test_beside_many_zeros_the_others_are_not_far_out():
  assert max(scales.near([0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 1e9])) == 0.2


def test_what_is_far_out_does_not_decide():
  values = [1.0, 1.1, 1.2, 1.3, np.nan, 1e9]
  assert scales.near(values).tolist() == [1.0, 1.1, 1.2, 1.3]
  assert scales.near(values, 1e12).tolist() == [1.0, 1.1, 1.2, 1.3, 1e9]
  assert not len(scales.near([np.nan]))


def test_what_is_far_out_is_told_but_not_shown():
  options, omitted = scales.show_near([1.0, 1.1, 1.2, 1.3, -1e6, 50.0])
  low, high = options['scale']['domain']
  assert 0.9 < low < 1 < 1.3 < high < 1.4
  assert omitted == 'not shown: down to -1e+06, up to 50'


@pytest.mark.parametrize('values', [[], [np.nan, np.inf]])
def test_without_values_an_axis_ends_anywhere(values):
  options, omitted = scales.show_near(values)
  assert 'domain' not in options['scale']
  assert not omitted


def test_a_log_axis_holds_what_is_not_far_out():
  options, _ = scales.show_near([9, 8, 3, 2, 1, 1e30], log_if_wide=True)
  low, high = options['scale']['domain']
  assert options['scale']['type'] == 'log'
  assert 0.5 < low < 1
  assert 9 < high < 20
  ticks = options['axis']['values']
  assert ticks == pytest.approx([1, 2, 5, 10])


def test_a_narrow_axis_is_not_logarithmic():
  options, _ = scales.show_near([2, 3, 4], log_if_wide=True)
  assert 'type' not in options['scale']


def test_a_name_in_an_expression_ends_nothing():
  name = '"\'</script>\u2028'
  assert scales.look_up('x', 'y', {name: 1})['calculate'] == (
    '{"\\"\'</script>\\\\u2028": 1}[datum.x]'
  )
