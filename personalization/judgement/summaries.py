"""Statistics over clients: of a metric, who is worse off, and who is where."""

import dataclasses
import math

import numpy as np
from scipy import optimize
import scipy.stats

# How much of a metric can be rounding. The metrics of a client with a million
# examples differ by at least a millionth if they are ratios of counts, and two
# such differences by the square of this.
ROUNDING = 1e-12
# The range of what has no limits.
UNBOUNDED = (-math.inf, math.inf)
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclasses.dataclass(frozen=True)
class Summary:
  """Statistics of one metric over clients, each of which counts the same.

  Attributes:
    num_clients: The number of clients.
    mean: The mean.
    deviation: The standard deviation.
    interval: The 95% confidence interval of the mean; None if it has none.
    weighted_mean: The mean in which a client counts by its evaluation examples.
    quantiles: The metric at several quantiles.
    worst_tenth: The mean over the worst tenth of the clients, at least one.
    best_tenth: The mean over the best tenth.
    largest_tenth: The mean over the tenth with the most examples.
    hurt: The share of clients that are strictly worse off than with the
      baseline; None if there is no baseline, NaN if it diverged.
  """

  num_clients: int
  mean: float
  deviation: float
  interval: tuple[float, float] | None
  weighted_mean: float
  quantiles: dict[str, float]
  worst_tenth: float
  best_tenth: float
  largest_tenth: float
  hurt: float | None


def summarize(
  metric: np.ndarray,
  weights: np.ndarray,
  higher_is_better: bool,
  hurt: np.ndarray | None = None,
  metric_range: tuple[float, float] = UNBOUNDED,
) -> Summary:
  """Summarizes a metric over clients.

  Args:
    metric: Each client's metric.
    weights: The number of examples or words that each client's metric is over.
    higher_is_better: The metric's direction.
    hurt: Which clients are worse off than with the baseline, if there is one.
    metric_range: The lowest and the highest value of the metric.

  Returns:
    The summary.
  """
  metric = np.asarray(metric, np.float64)
  ordered = _best_first(metric, higher_is_better)
  return Summary(
    num_clients=len(metric),
    mean=float(metric.mean()),
    deviation=float(metric.std()),
    interval=interval_of_mean(metric, metric_range),
    weighted_mean=weighted_mean(metric, weights),
    quantiles={
      f'{q:g}': float(v)
      for q, v in zip(_QUANTILES, np.quantile(metric, _QUANTILES))
    },
    worst_tenth=worst_tenth(metric, higher_is_better),
    best_tenth=float(ordered[: _tenth(metric)].mean()),
    largest_tenth=largest_tenth(metric, weights),
    hurt=None if hurt is None else float(hurt.mean()),
  )


def _tenth(metric: np.ndarray) -> int:
  return max(len(metric) // 10, 1)


def _best_first(metric: np.ndarray, higher_is_better: bool) -> np.ndarray:
  """Sorts; NaN, the metric of a model that diverged, comes last."""
  return metric[np.argsort(-metric if higher_is_better else metric)]


def weighted_mean(metric: np.ndarray, weights: np.ndarray) -> float:
  """Returns the mean in which a client counts by its weight."""
  return float(np.average(metric.astype(np.float64), weights=weights))


def worst_tenth(metric: np.ndarray, higher_is_better: bool) -> float:
  """Returns the mean over the worst tenth of the clients, at least one."""
  ordered = _best_first(metric.astype(np.float64), higher_is_better)
  return float(ordered[-_tenth(metric) :].mean())


def largest_tenth(metric: np.ndarray, weights: np.ndarray) -> float:
  """Returns the mean over the tenth of the clients with the largest weights."""
  largest = np.argsort(-np.asarray(weights), kind='stable')[: _tenth(metric)]
  return float(metric.astype(np.float64)[largest].mean())


def interval_of_mean(
  metric: np.ndarray, metric_range: tuple[float, float] = UNBOUNDED
) -> tuple[float, float] | None:
  """Returns Student's 95% confidence interval of the mean, within a range.

  What is outside the range is cut off. This loses no coverage, as the true mean
  is within the range.

  With eight clients it contains the true mean in 94 % of cases if their metric
  is normal, in 91 % if it is as skewed as an accuracy near 1, and in 86 % if it
  is lognormal; the bootstrap's interval does in 88, 86 and 80 % (BCa: 88, 87
  and 82 %). With 50 clients they hardly differ.

  Args:
    metric: Each client's metric.
    metric_range: The lowest and the highest value of the metric.

  Returns:
    The interval. None if there is only one client, or a metric is not finite.
  """
  if len(metric) < 2 or not np.all(np.isfinite(metric)):
    return None
  error = scipy.stats.sem(metric)
  reach = float(scipy.stats.t.ppf(0.975, len(metric) - 1) * error)
  mean = float(np.mean(metric))
  lowest, highest = metric_range
  return max(mean - reach, lowest), min(mean + reach, highest)


def is_worse(
  metric: np.ndarray, than: np.ndarray, higher_is_better: bool
) -> np.ndarray:
  """Tells which clients are worse by more than rounding.

  A NaN is worse than a number.
  """
  is_less = metric < than if higher_is_better else metric > than
  is_same = np.isclose(metric, than, rtol=ROUNDING, atol=0)
  return (np.isnan(metric) & ~np.isnan(than)) | (is_less & ~is_same)


def match(counts: np.ndarray) -> tuple[np.ndarray, float]:
  """Matches groups and clusters one to one, for the most clients in a match.

  Args:
    counts: The number of clients of each group in each cluster, `[groups,
      clusters]`.

  Returns:
    All clusters: the cluster of each group in turn, then those without a group;
    and the share of the clients that are in the cluster of their group.
  """
  groups, clusters = optimize.linear_sum_assignment(counts, maximize=True)
  others = np.setdiff1d(np.arange(counts.shape[1]), clusters)
  share = counts[groups, clusters].sum() / counts.sum()
  return np.concatenate([clusters, others]), float(share)
