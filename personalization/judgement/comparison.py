"""Statistical tests of whether one method is better than another.

The methods are compared on the same clients, pair by pair, because some clients
are easier than others for all methods. Each p-value is for one comparison:
whoever makes many and picks the smallest has to correct for that.

Clients' metrics are often ratios of counts, so that many differences are equal:
3/10 - 2/10 and 8/10 - 7/10. Differences are the same if only rounding can have
parted them, see `summaries.ROUNDING`.
"""

import dataclasses

import numpy as np
import scipy.stats

from personalization.judgement import summaries

# Wilcoxon's p-value is exact for up to this many differences. That takes .2 s
# for as many; the normal approximation of a p of .01 is then off by .3 %.
_MOST_EXACT = 1000


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A comparison of two methods on the same clients.

  Attributes:
    num_clients: The number of clients.
    difference: The mean over the clients of the first method's metric minus the
      second's.
    interval: The confidence interval of that mean; None if it has none.
    better: The number of clients that are better off with the first method.
    worse: The number of clients that are worse off with it.
    p_sign: The p-value of the sign test: the probability that `better` and
      `worse` differ at least as much if both were equally likely.
    p_wilcoxon: The p-value of Wilcoxon's signed-rank test: the same for the
      ranks of the differences, if they were symmetric about zero. None if a
      difference is not finite, as for a model that diverged.
    p_t: The p-value of the paired t-test: the same for the mean of the
      differences, if they were normal about zero. None if a difference is not
      finite, or all are the same, as for a single client.
  """

  num_clients: int
  difference: float
  interval: tuple[float, float] | None
  better: int
  worse: int
  p_sign: float
  p_wilcoxon: float | None
  p_t: float | None


def _ranks(sizes: np.ndarray, rounding: np.ndarray) -> np.ndarray:
  """Ranks numbers from 1 on; those within rounding share their mean rank."""
  order = np.argsort(sizes)
  gaps = np.diff(sizes[order])
  is_new = gaps > np.maximum(rounding[order][1:], rounding[order][:-1])
  ranks = np.empty(len(sizes))
  ranks[order] = scipy.stats.rankdata(np.append(0, np.cumsum(is_new)))
  return ranks


def _share_up_to(limit: int, ranks: np.ndarray) -> float:
  """Returns the probability that a random subset has at most a sum of ranks.

  Each rank, an integer, is in the subset with a probability of a half.
  """
  # The probability of each sum of the ranks so far; larger ones are left out.
  of_sum = np.zeros(limit + 1)
  of_sum[0] = 1
  largest = 0
  for rank in np.sort(ranks):
    without = of_sum[: largest + 1] / 2
    largest = min(largest + rank, limit)
    of_sum[: len(without)] = without
    of_sum[rank : largest + 1] += without[: max(largest + 1 - rank, 0)]
  return float(of_sum.sum())


def _wilcoxon(difference: np.ndarray, rounding: np.ndarray) -> float:
  """Returns the p-value of Wilcoxon's signed-rank test.

  Differences of zero are left out, as Wilcoxon does. For many clients SciPy
  approximates it.

  Args:
    difference: The difference of each client, which is not zero.
    rounding: How much of it can be rounding.
  """
  ranks = _ranks(np.abs(difference), rounding)
  if len(ranks) > _MOST_EXACT:
    signed = np.sign(difference) * ranks
    return float(scipy.stats.wilcoxon(signed, mode='approx').pvalue)
  # Mean ranks are halves.
  doubled = np.rint(2 * ranks).astype(int)
  doubled //= np.gcd.reduce(doubled)
  sums = doubled[difference < 0].sum(), doubled[difference > 0].sum()
  return min(2 * _share_up_to(min(sums), doubled), 1.0)


def compare(
  first: np.ndarray,
  second: np.ndarray,
  higher_is_better: bool,
  metric_range: tuple[float, float] = summaries.UNBOUNDED,
) -> Comparison:
  """Compares two methods on the same clients.

  Args:
    first: Each client's metric with the first method.
    second: The same clients' metric with the second method.
    higher_is_better: The metric's direction.
    metric_range: The lowest and the highest value of the metric.

  Returns:
    The comparison.
  """
  first = np.asarray(first, np.float64)
  second = np.asarray(second, np.float64)
  difference = first - second
  rounding = summaries.ROUNDING * np.maximum(np.abs(first), np.abs(second))
  lowest, highest = metric_range
  span = highest - lowest
  is_worse = summaries.is_worse(first, second, higher_is_better)
  is_better = summaries.is_worse(second, first, higher_is_better)
  # Two models that both diverged count as equal.
  better = int(np.sum(is_better & ~is_worse))
  worse = int(np.sum(is_worse & ~is_better))
  p_wilcoxon: float | None = None
  p_t: float | None = None
  if not better + worse:
    p_sign = p_wilcoxon = p_t = 1.0
  else:
    p_sign = float(scipy.stats.binomtest(better, better + worse).pvalue)
    if np.all(np.isfinite(difference)):
      changed = is_better | is_worse
      p_wilcoxon = _wilcoxon(difference[changed], rounding[changed])
      if np.ptp(difference) > rounding.max():
        p_t = float(scipy.stats.ttest_rel(first, second).pvalue)
  return Comparison(
    num_clients=len(difference),
    difference=float(difference.mean()),
    interval=summaries.interval_of_mean(difference, (-span, span)),
    better=better,
    worse=worse,
    p_sign=p_sign,
    p_wilcoxon=p_wilcoxon,
    p_t=p_t,
  )
