"""Measures of an evaluation beside the metric at the chosen candidates.

After Motley, section 4: whom each candidate would hurt, how it would do for
all, and whether clusters are the groups that are known.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import optimize
from sklearn import metrics as sklearn_metrics

from personalization import choosing
from personalization import evaluation
from personalization import measurements
from personalization import summaries

# The metric of HypCluster and its like that is the number of the cluster.
_CLUSTER = 'cluster'


def are_worse(
  values: np.ndarray, others: np.ndarray, higher_is_better: bool
) -> np.ndarray:
  """Returns 1 for who is worse off than others, else 0; NaN if they diverged.

  Args:
    values: The metrics.
    others: Those of the same clients with another model.
    higher_is_better: The direction of the metric.
  """
  worse = summaries.is_worse(values, others, higher_is_better)
  return np.where(np.isnan(others), np.nan, worse)


def are_hurt(
  evaluated: evaluation.Evaluation, metrics: evaluation.ClientMetrics
) -> np.ndarray | None:
  """Tells which clients would be worse off with which candidate.

  Args:
    evaluated: The evaluation.
    metrics: One of its metrics of clients.

  Returns:
    What `are_worse` tells of each candidate, against the model without
    personalization, `[clients, candidates]`. None if there is no baseline.
  """
  if evaluated.baseline is None:
    return None
  values = metrics.values[evaluated.metric]
  before = values[:, [evaluated.baseline]]
  return are_worse(values, before, evaluated.higher_is_better)


def by_candidate(evaluated: evaluation.Evaluation) -> list[dict[str, float]]:
  """Tells how each candidate would do if all clients used it.

  Args:
    evaluated: The evaluation.

  Returns:
    For each candidate: 'validation' and 'test', the means over clients, and
    'out_of_distribution', the mean over test clients on examples of all of
    them, if that was measured; 'validation_hurt' and so on, the shares of
    clients that are worse off than with the baseline, if there is one.
  """
  columns = {}
  sets = dict(validation=evaluated.validation, test=evaluated.test)
  if measurements.OOD in evaluated.further:
    sets['out_of_distribution'] = evaluated.further[measurements.OOD]
  for name, metrics in sets.items():
    values = metrics.values[evaluated.metric]
    columns[name] = values.mean(axis=0, dtype=np.float64)
    hurt = are_hurt(evaluated, metrics)
    if hurt is not None:
      columns[f'{name}_hurt'] = hurt.mean(axis=0)
  return [
    {name: float(column[i]) for name, column in columns.items()}
    for i in range(len(evaluated.candidates))
  ]


def clusters(
  evaluated: evaluation.Evaluation, chosen: np.ndarray
) -> np.ndarray | None:
  """Returns each test client's cluster; None if the method has no clusters."""
  test = evaluated.test
  if _CLUSTER not in test.names:
    return None
  # A client whose model diverged is in a cluster as well.
  numbers = test.metric(_CLUSTER).value(test.sums[_CLUSTER])
  numbers = choosing.at(numbers, chosen)
  return np.rint(numbers).astype(int)


def match(counts: np.ndarray) -> tuple[np.ndarray, float]:
  """Matches groups and clusters one to one, so that most clients are in theirs.

  Args:
    counts: The number of clients of each group in each cluster, `[groups,
      clusters]`.

  Returns:
    All clusters, first that of each group in turn, then those of none; and the
    share of the clients that are in the cluster of their group.
  """
  groups, clusters = optimize.linear_sum_assignment(counts, maximize=True)
  others = np.setdiff1d(np.arange(counts.shape[1]), clusters)
  share = counts[groups, clusters].sum() / counts.sum()
  return np.concatenate([clusters, others]), float(share)


def describe_clusters(
  clusters: np.ndarray,
  groups: Sequence[str] | None,
) -> dict[str, Any]:
  """Counts the clients in each cluster, and compares with known groups.

  Args:
    clusters: The cluster of each client.
    groups: The known group of each client, if there are any.

  Returns:
    'sizes', the number of clients in each cluster; and, of known groups, the
    same for each of them as 'groups', as 'adjusted_rand_index' how alike the
    two are (1 if they are the same, 0 if they are as by chance), and as
    'matched' the share of clients in the cluster of their group, see `match`.
  """

  def count(own: np.ndarray) -> dict[str, int]:
    return {str(j): int(np.sum(own == j)) for j in np.unique(clusters)}

  result: dict[str, Any] = {'sizes': count(clusters)}
  if groups is not None:
    known = np.array(groups)
    result['groups'] = {
      str(group): count(clusters[known == group]) for group in np.unique(known)
    }
    result['adjusted_rand_index'] = float(
      sklearn_metrics.adjusted_rand_score(known, clusters)
    )
    counts = [list(own.values()) for own in result['groups'].values()]
    _, result['matched'] = match(np.array(counts))
  return result
