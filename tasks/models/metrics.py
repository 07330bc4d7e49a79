"""Metrics as functions of statistics that are summed over examples.

A model gives the statistics of each example. Their sums over a client's
examples make the client's metric, the sums over all clients the pooled one,
and those over a group of clients the group's.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric of sums, whose first axes are whatever there are several of.

  Attributes:
    value: The metric; NaN where there was nothing to judge by.
    weight: How many entries, examples or words, it was judged by.
  """

  value: Callable[[Any], np.ndarray]
  weight: Callable[[Any], np.ndarray]


def _divide(total: np.ndarray, by: np.ndarray) -> np.ndarray:
  """Divides, with NaN where there is nothing to divide by."""
  return np.divide(total, by, out=np.full_like(total, np.nan), where=by > 0)


def _macro_f1(confusion: np.ndarray) -> np.ndarray:
  """Averages the F1 of each class; that of a class never seen is 0."""
  correct = np.diagonal(confusion, axis1=-2, axis2=-1)
  seen_or_predicted = confusion.sum(axis=-1) + confusion.sum(axis=-2)
  f1 = np.divide(
    2 * correct,
    seen_or_predicted,
    out=np.zeros_like(correct),
    where=seen_or_predicted > 0,
  )
  empty = seen_or_predicted.sum(axis=-1) == 0
  return np.where(empty, np.nan, f1.mean(axis=-1))


# Of a total and what to divide it by: an accuracy, a mean error.
MEAN = Metric(
  value=lambda sums: _divide(*sums),
  weight=lambda sums: sums[1],
)
# Of the negative log-likelihood of words and their number.
PERPLEXITY = Metric(
  value=lambda sums: np.exp(_divide(*sums)),
  weight=lambda sums: sums[1],
)
# Of counts of each true class (rows) and predicted class (columns), `[…,
# classes, classes]`; equal to scikit-learn's with zero_division=0 where
# `labels` are all classes.
MACRO_F1 = Metric(
  value=_macro_f1,
  weight=lambda confusion: confusion.sum(axis=(-2, -1)),
)
