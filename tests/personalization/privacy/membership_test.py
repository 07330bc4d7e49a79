"""Membership by loss: against definitions, and by simulation."""

import numpy as np
import pytest

from personalization.privacy import membership


def test_the_area_is_the_share_of_pairs_in_the_right_order():
  found = membership.measure(np.array([1.0, 2, 3]), np.array([2.0, 4]))
  # Of six pairs four are in order, one is a tie, and one is not.
  assert found.area == pytest.approx(4.5 / 6)


def test_the_area_is_that_under_the_curve():
  rng = np.random.default_rng(0)
  found = membership.measure(rng.normal(size=80), rng.normal(size=60) + 0.7)
  assert np.trapz(found.true, found.false) == pytest.approx(found.area)
  assert (found.false[0], found.true[0]) == (0, 0)
  assert (found.false[-1], found.true[-1]) == (1, 1)


def test_the_interval_has_the_true_area_as_often_as_it_says():
  rng = np.random.default_rng(0)
  inside = 0
  for _ in range(300):
    low, high = membership.measure(
      rng.normal(size=60), rng.normal(size=50) + 1
    ).interval
    inside += low < 0.7602 < high
  assert 0.91 < inside / 300 < 0.98


def test_a_loss_that_is_not_finite_is_the_largest():
  found = membership.measure(np.array([1.0, np.nan]), np.array([2.0, 3.0]))
  assert found.area == 0.5
