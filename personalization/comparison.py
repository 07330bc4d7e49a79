"""Statistical tests of whether one method is better than another.

The methods are compared on the same clients, pair by pair, because some clients
are easier than others for all methods. The tests are SciPy's. Each p-value is
for one comparison: whoever makes many and picks the smallest has to correct for
that.
"""

import dataclasses
import itertools

import numpy as np
import scipy.stats

from personalization import summaries

# For up to this many differences, all combinations of signs are tried.
_MOST_ENUMERATED = 15


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


def _wilcoxon(difference: np.ndarray) -> float:
  """Returns the p-value of Wilcoxon's signed-rank test.

  Differences of zero are left out, as Wilcoxon does. For few clients the
  p-value is exact, even if some differences are equal, where SciPy
  approximates it.
  """
  changed = difference[difference != 0]
  sizes = np.abs(changed)
  if len(np.unique(sizes)) == len(sizes):
    return float(scipy.stats.wilcoxon(changed).pvalue)
  if len(changed) > _MOST_ENUMERATED:
    return float(scipy.stats.wilcoxon(changed, mode='approx').pvalue)
  ranks = scipy.stats.rankdata(sizes)
  signs = np.array(list(itertools.product((-1, 1), repeat=len(ranks))))
  sums = np.abs(signs @ ranks)
  observed = abs(np.sign(changed) @ ranks)
  return float(np.mean(sums >= observed))


def compare(
  first: np.ndarray, second: np.ndarray, higher_is_better: bool
) -> Comparison:
  """Compares two methods on the same clients.

  Args:
    first: Each client's metric with the first method.
    second: The same clients' metric with the second method.
    higher_is_better: The metric's direction.

  Returns:
    The comparison.
  """
  first = np.asarray(first, np.float64)
  second = np.asarray(second, np.float64)
  difference = first - second
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
      p_wilcoxon = _wilcoxon(difference)
      if np.ptp(difference) > 0:
        p_t = float(scipy.stats.ttest_rel(first, second).pvalue)
  return Comparison(
    num_clients=len(difference),
    difference=float(difference.mean()),
    interval=summaries.interval_of_mean(difference),
    better=better,
    worse=worse,
    p_sign=p_sign,
    p_wilcoxon=p_wilcoxon,
    p_t=p_t,
  )
