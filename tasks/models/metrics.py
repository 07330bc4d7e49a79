"""Metrics as functions of statistics that are summed over examples.

A model computes the statistics of each example. Their sums over a client's
examples give the client's metric, the sums over all clients the pooled metric,
and the sums over a group of clients the group's metric.
"""

from collections.abc import Callable
import dataclasses
import math

import numpy as np

from base import aliases

# A further statistic: the number of examples whose loss is not finite. A client
# with such an example has no metrics, because argmax returns 0 for NaN, so that
# a model that diverged would seem to know class 0.
DIVERGED = 'diverged'


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric as a function of summed statistics.

  Leading axes, such as clients or candidates, stay.

  Attributes:
    value: Computes the metric in float64; NaN if it is over no entries.
    weight: Computes the number of entries, examples or words, it is over.
    range: The lowest and the highest value that the metric can have.
  """

  value: Callable[[aliases.Structure], np.ndarray]
  weight: Callable[[aliases.Structure], np.ndarray]
  range: tuple[float, float] = (-math.inf, math.inf)


def _divide(total: np.ndarray, by: np.ndarray, otherwise: float) -> np.ndarray:
  """Divides; the result is `otherwise` where the divisor is 0."""
  result = np.full(np.shape(total), otherwise, np.float64)
  # In float32, 3/10 - 2/10 and 8/10 - 7/10 would not be the same.
  return np.divide(
    total, by, out=result, where=np.greater(by, 0), dtype=np.float64
  )


def _macro_f1(confusion: np.ndarray) -> np.ndarray:
  """Averages the F1 of all classes; a class that never occurs has 0."""
  correct = np.diagonal(confusion, axis1=-2, axis2=-1)
  seen_or_predicted = confusion.sum(axis=-1) + confusion.sum(axis=-2)
  f1 = _divide(2 * correct, seen_or_predicted, 0.0)
  empty = seen_or_predicted.sum(axis=-1) == 0
  return np.where(empty, np.nan, f1.mean(axis=-1))


# A mean, from <sum, number>.
MEAN = Metric(
  value=lambda sums: _divide(sums[0], sums[1], np.nan),
  weight=lambda sums: sums[1],
)
# The mean of numbers from 0 to 1, such as an accuracy.
SHARE = dataclasses.replace(MEAN, range=(0.0, 1.0))
# The mean of errors, none of which is negative.
ERROR = dataclasses.replace(MEAN, range=(0.0, math.inf))


def _perplexity(sums: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
  """Computes the perplexity, which may be infinite."""
  with np.errstate(over='ignore'):
    return np.exp(_divide(*sums, np.nan))


# From <negative log-likelihood of words, number of words>.
PERPLEXITY = Metric(
  value=_perplexity,
  weight=lambda sums: sums[1],
  range=(1.0, math.inf),
)
# From <negative log-likelihood of words, number of bytes of these words>.
BITS_PER_BYTE = Metric(
  value=lambda sums: _divide(sums[0], sums[1], np.nan) / math.log(2),
  weight=lambda sums: sums[1],
  range=(0.0, math.inf),
)
# From the counts of each true class (rows) and predicted class (columns), `[…,
# classes, classes]`. Equals scikit-learn's with zero_division=0 if its `labels`
# are all classes.
MACRO_F1 = Metric(
  value=_macro_f1,
  weight=lambda confusion: confusion.sum(axis=(-2, -1)),
  range=(0.0, 1.0),
)


def false_accepts(false_rejects: float) -> Metric:
  """Makes the metric of the share of negatives that a detector accepts.

  It is computed from the counts of each label, 0 and 1, by the detector's
  score, from the lowest on: `[…, 2, scores]`. The threshold is the highest one
  that rejects at most a share of the positives. Without positives or without
  negatives the metric is NaN.

  Args:
    false_rejects: The share of the positives that may be rejected.

  Returns:
    The metric.
  """

  def value(counts: np.ndarray) -> np.ndarray:
    negatives, positives = counts[..., 0, :], counts[..., 1, :]
    rejected = np.cumsum(positives, axis=-1)
    allowed = false_rejects * rejected[..., -1:]
    # Scores above the threshold: rejecting them as well would be too much.
    accepted = rejected > allowed * (1 + 1e-6)
    return _divide(
      np.where(accepted, negatives, 0).sum(axis=-1),
      negatives.sum(axis=-1) * (rejected[..., -1] > 0),
      np.nan,
    )

  def weight(counts: np.ndarray) -> np.ndarray:
    of_label = counts.sum(axis=-1)
    return of_label.sum(axis=-1) * np.all(of_label > 0, axis=-1)

  return Metric(value, weight, range=(0.0, 1.0))
