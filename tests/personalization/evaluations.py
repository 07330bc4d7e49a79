"""Evaluations with given metrics, for tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms import candidates
from personalization.judgement import evaluation

METRIC = 'accuracy'


def client_metrics(
  values: Any,
  weights: Sequence[float] | None = None,
  client_ids: Sequence[str] | None = None,
  **others: Any,
) -> evaluation.ClientMetrics:
  """Makes metrics of clients from their values, `[clients, candidates]`.

  Args:
    values: The values of the metric `METRIC`.
    weights: What each client's metric is the mean over; by default 1.
    client_ids: The clients.
    **others: The values of other metrics, of weight 1.

  Returns:
    The metrics.
  """
  by_name = {METRIC: np.array(values, np.float32)} | {
    name: np.array(metric, np.float32) for name, metric in others.items()
  }
  values = by_name[METRIC]
  sums = {
    name: (metric, np.ones_like(metric)) for name, metric in by_name.items()
  }
  if weights is not None:
    weight = np.array(weights, np.float32)[:, np.newaxis] + 0 * values
    weight = np.where(np.isnan(weight), 1, weight).astype(np.float32)
    sums[METRIC] = values * weight, weight
  return evaluation.ClientMetrics(
    tuple(client_ids or (f'client{k}' for k in range(len(values)))), sums
  )


def make(
  validation: Any, test: Any = None, **fields: Any
) -> evaluation.Evaluation:
  """Makes an evaluation.

  Args:
    validation: The metrics to choose by, or their values.
    test: The metrics to report; by default the same.
    **fields: What is not as usual: three candidates named 'none', 'some' and
      'more', as far as there are so many, of which the first is the baseline.

  Returns:
    The evaluation.
  """
  both = [
    metrics
    if isinstance(metrics, evaluation.ClientMetrics)
    else client_metrics(metrics)
    for metrics in (validation, validation if test is None else test)
  ]
  size = both[1].values[METRIC].shape[1]
  usual = dict(
    metric=METRIC,
    higher_is_better=True,
    candidates=tuple(
      candidates.Candidate(text=name) for name in ('none', 'some', 'more')
    )[:size],
    baseline=0,
    validation=both[0],
    test=both[1],
    skipped=(),
    num_personalization=np.ones(len(both[1].client_ids), int),
  )
  return evaluation.Evaluation(**usual | fields)
