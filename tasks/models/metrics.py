"""Metrics as functions of statistics that are summed over examples.

A model gives the statistics of each example. Their sums over a client's
examples make the client's metric, the sums over all clients the pooled one,
and those over a group of clients the group's.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np

# Beside the statistics of the metrics: how many examples have a loss that is
# not finite. A client that has one is judged by no metric, as the largest of
# several NaN is the first, so that a model that diverged would seem to know
# class 0.
DIVERGED = 'diverged'


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric as a function of summed statistics.

  Axes in front, as of clients or candidates, stay.

  Attributes:
    value: The metric; NaN where nothing was judged.
    weight: The number of entries, examples or words, that were judged.
  """

  value: Callable[[Any], np.ndarray]
  weight: Callable[[Any], np.ndarray]


def _divide(total: np.ndarray, by: np.ndarray, otherwise: float) -> np.ndarray:
  """Divides; gives `otherwise` where there is nothing to divide by."""
  dtype = np.result_type(total, by, np.float32)
  result = np.full(np.shape(total), otherwise, dtype)
  return np.divide(total, by, out=result, where=np.greater(by, 0))


def _macro_f1(confusion: np.ndarray) -> np.ndarray:
  """Averages the F1 of all classes; that of a class that never occurs is 0."""
  correct = np.diagonal(confusion, axis1=-2, axis2=-1)
  seen_or_predicted = confusion.sum(axis=-1) + confusion.sum(axis=-2)
  f1 = _divide(2 * correct, seen_or_predicted, 0.0)
  empty = seen_or_predicted.sum(axis=-1) == 0
  return np.where(empty, np.nan, f1.mean(axis=-1))


# The mean, of <total, number>: an accuracy, a mean error.
MEAN = Metric(
  value=lambda sums: _divide(sums[0], sums[1], np.nan),
  weight=lambda sums: sums[1],
)
# Of <negative log-likelihood of words, number of words>.
PERPLEXITY = Metric(
  value=lambda sums: np.exp(_divide(sums[0], sums[1], np.nan)),
  weight=lambda sums: sums[1],
)
# Of the counts of each true class (rows) and predicted class (columns), `[…,
# classes, classes]`. Equals scikit-learn's with zero_division=0 if its `labels`
# are all classes.
MACRO_F1 = Metric(
  value=_macro_f1,
  weight=lambda confusion: confusion.sum(axis=(-2, -1)),
)


def false_accepts(false_rejects: float) -> Metric:
  """Makes the share of negatives that a detector accepts at its threshold.

  It is of the counts of each label, 0 and 1, by the detector's score, from the
  lowest on: `[…, 2, scores]`. The threshold is the highest that rejects no more
  than a share of the positives. Without positives or without negatives there is
  nothing to judge.

  Args:
    false_rejects: That share.

  Returns:
    The metric.
  """

  def value(counts: np.ndarray) -> np.ndarray:
    negatives, positives = counts[..., 0, :], counts[..., 1, :]
    rejected = np.cumsum(positives, axis=-1)
    allowed = false_rejects * rejected[..., -1:]
    # What is above the threshold: where a score more would reject too many.
    accepted = rejected > allowed * (1 + 1e-6)
    return _divide(
      np.where(accepted, negatives, 0).sum(axis=-1),
      negatives.sum(axis=-1) * (rejected[..., -1] > 0),
      np.nan,
    )

  def weight(counts: np.ndarray) -> np.ndarray:
    of_label = counts.sum(axis=-1)
    return of_label.sum(axis=-1) * np.all(of_label > 0, axis=-1)

  return Metric(value, weight)
