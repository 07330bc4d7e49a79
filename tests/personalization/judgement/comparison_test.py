"""Tests of the comparison of two methods."""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
import scipy.stats

from personalization.judgement import comparison
from personalization.judgement import summaries


def _random_pairs(size, shift=0.0):
  rng = np.random.default_rng([1, size])
  first = rng.normal(size=size)
  return first, first + 0.1 * rng.normal(size=size) - shift


def test_who_is_better_off():
  result = comparison.compare([3, 2, 2, 5], [1, 3, 2, 4], True)
  assert (result.num_clients, result.better, result.worse) == (4, 2, 1)
  assert result.difference == 0.5
  result = comparison.compare([3, 2, 2, 5], [1, 3, 2, 4], False)
  assert (result.better, result.worse) == (1, 2)


def test_of_ten_clients_that_are_all_better_off():
  """Known values: 2 / 2^10 for the signs as for the ranks."""
  first = np.arange(1, 11) / 7
  result = comparison.compare(first, np.zeros(10), True)
  assert result.p_sign == pytest.approx(2 / 2**10)
  assert result.p_wilcoxon == pytest.approx(2 / 2**10)
  # t = mean / (deviation / sqrt(10)) = 5.745 on 9 degrees of freedom.
  assert result.p_t == pytest.approx(2.78e-4, rel=0.01)


@pytest.mark.parametrize(
  'difference, expected',
  [
    ([0, 0, 0, 1, 2, 3, 4, 5], 2 / 2**5),
    ([1, 1, 1, 1, 1], 2 / 2**5),
    # Ranks 2, 2, 2, 4.5, 4.5: a sum of negative ones up to 2 in 4 of 32 cases.
    ([1, 1, -1, 2, 2], 2 * 4 / 2**5),
    ([0, 1, -1], 1),
  ],
)
def test_ranks_with_zeros_and_ties_are_exact(difference, expected):
  result = comparison.compare(difference, np.zeros(len(difference)), True)
  assert result.p_wilcoxon == pytest.approx(expected)


@pytest.mark.parametrize('size', [3, 40, 1000])
def test_ranks_without_ties_are_as_in_scipy(size):
  first, second = _random_pairs(size, shift=0.01)
  expected = scipy.stats.wilcoxon(first, second, mode='exact').pvalue
  result = comparison.compare(first, second, True)
  assert result.p_wilcoxon == pytest.approx(expected)


def test_ranks_with_ties_are_those_of_all_signs():
  rng = np.random.default_rng(0)
  difference = rng.choice([-3, -1, 1, 1, 2, 3], 12)
  ranks = scipy.stats.rankdata(np.abs(difference))
  signs = np.array(list(itertools.product((-1, 1), repeat=12)))
  observed = abs(np.sign(difference) @ ranks)
  result = comparison.compare(difference, np.zeros(12), True)
  assert result.p_wilcoxon == np.mean(np.abs(signs @ ranks) >= observed)


def test_ranks_of_many_clients_with_ties_are_those_of_random_signs():
  rng = np.random.default_rng(1)
  difference = rng.choice([-2, -1, 1, 2, 3], 90)
  ranks = scipy.stats.rankdata(np.abs(difference))
  sums = rng.choice([-1, 1], (20_000, 90)) @ ranks
  share = np.mean(np.abs(sums) >= abs(np.sign(difference) @ ranks))
  result = comparison.compare(difference, np.zeros(90), True)
  assert result.p_wilcoxon == pytest.approx(share, abs=0.01)


def test_ranks_of_even_more_clients_are_nearly_exact(monkeypatch):
  rng = np.random.default_rng(2)
  difference = rng.choice([-4, -2, -1, 1, 2, 3], 600)
  exact = comparison.compare(difference, np.zeros(600), True).p_wilcoxon
  monkeypatch.setattr(comparison, '_MOST_EXACT', 599)
  found = comparison.compare(difference, np.zeros(600), True).p_wilcoxon
  assert found != exact
  assert found == pytest.approx(exact, rel=0.02)


def test_differences_of_ratios_tie_though_they_are_rounded():
  of_ten, of_thirty = np.array([3, 8, 1, 6]), np.array([5, 14, 17])
  first = np.concatenate([of_ten / 10, of_thirty / 30, [0.9]])
  second = np.concatenate([(of_ten - 1) / 10, (of_thirty - 3) / 30, [1.0]])
  assert len(set(np.abs(first - second))) > 1
  result = comparison.compare(first, second, True)
  # All ranks are the same, so that only the signs count.
  assert result.p_wilcoxon == pytest.approx(result.p_sign)
  assert result.p_wilcoxon == pytest.approx(2 * (1 + 8) / 2**8)


def test_ratios_of_many_examples_do_not_tie():
  first = np.array([1 / 29_999, 1 / 30_000, -1 / 30_001])
  result = comparison.compare(1 - first, np.ones(3), True)
  # The rank of the odd one is 1: sums up to it in 2 of 8 cases.
  assert result.p_wilcoxon == pytest.approx(2 * 2 / 8)


def test_what_differs_by_rounding_is_neither_better_nor_worse():
  first = np.array([0.1 + 0.2, 0.5])
  result = comparison.compare(first, np.array([0.3, 0.4]), True)
  assert (result.better, result.worse) == (1, 0)


def test_a_small_shift_shows_though_clients_differ_much():
  result = comparison.compare(*_random_pairs(200, shift=0.05), True)
  assert max(result.p_sign, result.p_wilcoxon, result.p_t) < 0.01
  low, high = result.interval
  assert 0 < low < result.difference < high


def test_without_a_difference_chance_explains_it():
  p_values = [
    comparison.compare(*_random_pairs(size), True) for size in range(50, 150)
  ]
  for name in ('p_sign', 'p_wilcoxon', 'p_t'):
    significant = np.mean([getattr(p, name) < 0.05 for p in p_values])
    assert significant < 0.12


def test_the_other_way_round():
  first, second = _random_pairs(30, shift=0.02)
  result = comparison.compare(first, second, True)
  other = comparison.compare(second, first, True)
  assert other.difference == -result.difference
  assert (other.better, other.worse) == (result.worse, result.better)
  for name in ('p_sign', 'p_wilcoxon', 'p_t'):
    assert getattr(other, name) == pytest.approx(getattr(result, name))


def test_the_interval_is_of_the_differences():
  first, second = _random_pairs(30)
  result = comparison.compare(first, second, True)
  assert result.interval == summaries.interval_of_mean(first - second)


def test_the_interval_is_within_the_largest_differences():
  first = np.array([1, 1, 1, 0.5])
  result = comparison.compare(first, np.zeros(4), True, (0, 1))
  assert result.interval == (pytest.approx(0.477, abs=1e-3), 1)
  assert comparison.compare(np.zeros(4), first, True, (0, 1)).interval[0] == -1


def test_a_method_with_itself():
  result = comparison.compare(np.ones(5), np.ones(5), True)
  assert (result.better, result.worse) == (0, 0)
  assert (result.p_sign, result.p_wilcoxon, result.p_t) == (1, 1, 1)


def test_a_client_whose_model_diverged_counts_as_worse():
  result = comparison.compare([1, np.nan, np.nan], [0, 1, np.nan], True)
  assert (result.better, result.worse) == (1, 1)
  assert result.p_sign == 1
  assert result.interval is result.p_wilcoxon is result.p_t is None


def test_a_single_client():
  result = comparison.compare([1], [0], True)
  assert (result.p_sign, result.p_t, result.interval) == (1, None, None)


@pytest.mark.parametrize('size', [1, 2, 5, 9, 20, 100])
def test_nothing_is_said_of_few_clients_or_ties(size):
  first = np.arange(size) % 3
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    comparison.compare(first, np.ones(size), True)


def test_all_that_it_holds_are_pythons_own_numbers():
  result = comparison.compare(*_random_pairs(20), True)
  numbers = list(dataclasses.asdict(result).values())
  numbers.remove(result.interval)
  assert {type(n) for n in (*numbers, *result.interval)} == {int, float}
