"""Tests of the statistics of a metric over clients."""

import math

import numpy as np
import pytest
import scipy.stats

from personalization.judgement import summaries


def _random_clients(seed, size):
  rng = np.random.default_rng(seed)
  return rng.normal(size=size), rng.integers(1, 100, size), rng


@pytest.mark.parametrize('size', [1, 2, 9, 10, 19, 20, 137])
@pytest.mark.parametrize('higher_is_better', [True, False])
def test_a_summary_of_random_clients(size, higher_is_better):
  metric, weights, rng = _random_clients(size, size)
  baseline = metric + rng.choice([-1, 0, 1], size)
  hurt = summaries.is_worse(metric, baseline, higher_is_better)
  result = summaries.summarize(metric, weights, higher_is_better, hurt)

  assert result.num_clients == size
  assert result.mean == pytest.approx(np.mean(metric))
  assert result.deviation == pytest.approx(scipy.stats.tstd(metric, ddof=0))
  each_example = np.repeat(metric, weights)
  assert result.weighted_mean == pytest.approx(np.mean(each_example))
  for quantile, value in result.quantiles.items():
    expected = scipy.stats.mstats.mquantiles(metric, float(quantile), 1, 1)
    assert value == pytest.approx(expected[0])

  best_first = sorted(metric, reverse=higher_is_better)
  tenth = max(1, size // 10)
  assert result.best_tenth == pytest.approx(np.mean(best_first[:tenth]))
  assert result.worst_tenth == pytest.approx(np.mean(best_first[-tenth:]))
  by_size = sorted(zip(weights, metric), key=lambda pair: -pair[0])[:tenth]
  assert result.largest_tenth == pytest.approx(np.mean([m for _, m in by_size]))

  difference = metric - baseline
  worse = difference < 0 if higher_is_better else difference > 0
  assert result.hurt == pytest.approx(np.mean(worse))


def test_the_quantiles_are_named():
  metric, weights, _ = _random_clients(0, 11)
  result = summaries.summarize(metric, weights, True)
  assert ' '.join(result.quantiles) == '0 0.1 0.25 0.5 0.75 0.9 1'
  assert result.quantiles['0'] == metric.min()
  assert result.quantiles['0.5'] == np.median(metric)
  assert result.quantiles['1'] == metric.max()


def test_all_that_it_holds_are_pythons_own_numbers():
  metric, weights, _ = _random_clients(0, 11)
  result = summaries.summarize(
    metric.astype(np.float32), weights.astype(np.float32), True, metric > 0
  )
  numbers = list(vars(result).values())
  numbers.remove(result.quantiles)
  numbers.remove(result.interval)
  numbers += [*result.quantiles.values(), *result.interval]
  assert {type(number) for number in numbers} == {int, float}


def test_without_a_baseline_it_is_not_said_who_is_hurt():
  assert summaries.summarize(np.ones(3), np.ones(3), True).hurt is None


@pytest.mark.parametrize('higher_is_better', [True, False])
def test_a_tie_does_not_hurt(higher_is_better):
  metric, weights, _ = _random_clients(0, 20)
  hurt = summaries.is_worse(metric, metric, higher_is_better)
  result = summaries.summarize(metric, weights, higher_is_better, hurt)
  assert result.hurt == 0


@pytest.mark.parametrize('higher_is_better', [True, False])
def test_who_is_worse(higher_is_better):
  nan = np.nan
  metric = np.array([1, 2, 3, nan, nan, 2])
  baseline = np.array([2, 2, 2, 2, nan, nan])
  expected = [higher_is_better, False, not higher_is_better, True, False, False]
  worse = summaries.is_worse(metric, baseline, higher_is_better)
  np.testing.assert_array_equal(worse, expected)
  # Of one client as of many.
  assert [
    bool(summaries.is_worse(m, b, higher_is_better))
    for m, b in zip(metric, baseline)
  ] == expected


def test_rounding_makes_nobody_worse():
  # Of scores of .1, .2 and .3, added up in another order.
  metric, than = np.array([(0.1 + 0.2) + 0.3]), np.array([0.1 + (0.2 + 0.3)])
  assert metric != than
  for higher_is_better in (True, False):
    assert not summaries.is_worse(metric, than, higher_is_better)


@pytest.mark.parametrize('higher_is_better', [True, False])
def test_a_client_that_diverged_is_hurt_and_among_the_worst(higher_is_better):
  metric = np.array([0.1, np.nan, 0.3, 0.2] * 5)
  baseline = np.nan_to_num(metric)
  hurt = summaries.is_worse(metric, baseline, higher_is_better)
  result = summaries.summarize(metric, np.ones(20), higher_is_better, hurt)
  assert result.hurt == 5 / 20
  assert result.best_tenth == pytest.approx(0.3 if higher_is_better else 0.1)
  assert np.isnan(result.worst_tenth)


def test_of_equally_large_clients_the_first_are_the_largest():
  metric = np.arange(30.0)
  weights = np.array([5] * 15 + [9, 9] + [5] * 13)
  result = summaries.summarize(metric, weights, True)
  assert result.largest_tenth == pytest.approx((15 + 16 + 0) / 3)


class TestIntervalOfTheMean:
  def test_it_is_that_of_the_normal_distribution_for_many_clients(self):
    metric, _, _ = _random_clients(0, 5000)
    low, high = summaries.interval_of_mean(metric)
    error = 1.96 * metric.std() / np.sqrt(len(metric))
    assert low == pytest.approx(metric.mean() - error, abs=0.1 * error)
    assert high == pytest.approx(metric.mean() + error, abs=0.1 * error)

  def test_it_holds_the_true_mean_as_often_as_it_says(self):
    rng = np.random.default_rng(0)
    intervals = [
      summaries.interval_of_mean(rng.exponential(size=60)) for _ in range(300)
    ]
    held = np.mean([low < 1 < high for low, high in intervals])
    assert 0.9 < held < 0.98

  def test_it_holds_the_true_mean_of_few_clients(self):
    rng = np.random.default_rng(0)
    intervals = [
      summaries.interval_of_mean(rng.normal(size=8)) for _ in range(1000)
    ]
    held = np.mean([low < 0 < high for low, high in intervals])
    assert 0.93 < held < 0.97

  def test_it_is_within_the_range_of_the_metric(self):
    metric = np.array([1, 1, 1, 1, 1, 1, 0.75, 1])
    low, high = summaries.interval_of_mean(metric)
    assert high > 1
    within = summaries.interval_of_mean(metric, (0, 1))
    assert within == (low, 1)
    assert summaries.interval_of_mean(1 - metric, (0, math.inf))[0] == 0

  def test_it_is_the_same_at_every_call(self):
    metric, _, _ = _random_clients(0, 50)
    first = summaries.interval_of_mean(metric)
    assert first == summaries.interval_of_mean(metric)

  def test_of_clients_that_are_all_the_same(self):
    assert summaries.interval_of_mean(np.full(5, 0.25)) == (0.25, 0.25)

  @pytest.mark.parametrize('metric', [[1.0], [1.0, np.nan], [1.0, np.inf]])
  def test_where_there_is_none(self, metric):
    assert summaries.interval_of_mean(np.array(metric)) is None


def test_groups_and_clusters_are_matched_one_to_one():
  # Both groups are mostly in cluster 1, which only one of them can have.
  order, share = summaries.match(np.array([[1, 5, 0], [3, 4, 0]]))
  assert order.tolist() == [1, 0, 2]
  assert share == 8 / 13
