"""Measures of an evaluation beside the metric at the chosen candidates.

They follow Motley, section 4: which clients each candidate would hurt, how it
would do for all clients, and whether clusters are the known groups.
"""

from collections.abc import Sequence

import numpy as np
from sklearn import metrics as sklearn_metrics

from base import aliases
from personalization.judgement import choosing
from personalization.judgement import evaluation
from personalization.judgement import measurements
from personalization.judgement import summaries

# The metric that is the number of a client's cluster, in HypCluster and others.
_CLUSTER = 'cluster'


def are_worse(
  values: np.ndarray, others: np.ndarray, higher_is_better: bool
) -> np.ndarray:
  """Returns 1 for each client that is worse off than with another model.

  It is else 0, and NaN if the other model diverged.

  Args:
    values: The metrics of clients.
    others: The metrics of the same clients with the other model.
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
    metrics: The clients' metrics on one of its sets.

  Returns:
    The result of `are_worse` for each candidate against the baseline,
    `[clients, candidates]`. None if there is no baseline.
  """
  if evaluated.baseline is None:
    return None
  values = metrics.values[evaluated.metric]
  before = values[:, [evaluated.baseline]]
  return are_worse(values, before, evaluated.higher_is_better)


def describe_candidates(
  evaluated: evaluation.Evaluation,
) -> list[dict[str, float]]:
  """Computes how each candidate would do if all clients used it.

  Args:
    evaluated: The evaluation.

  Returns:
    For each candidate: 'test' and, if there are clients to choose by,
    'validation', the means over clients; 'out_of_distribution', the mean over
    test clients on examples of all of them, if that was measured;
    'validation_hurt' and so on, the shares of clients that are worse off than
    with the baseline, if there is one.
  """
  columns = {}
  sets = dict(validation=evaluated.validation, test=evaluated.test)
  if measurements.OOD in evaluated.further:
    sets['out_of_distribution'] = evaluated.further[measurements.OOD]
  for name, metrics in sets.items():
    if not metrics.client_ids:
      continue
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
  # A client whose model diverged is in a cluster, too, but its value is NaN.
  numbers = test.metric(_CLUSTER).value(test.sums[_CLUSTER])
  numbers = choosing.take_chosen(numbers, chosen)
  return np.rint(numbers).astype(int)


def describe_clusters(
  clusters: np.ndarray,
  groups: Sequence[str] | None,
) -> dict[str, aliases.Json]:
  """Counts the clients in each cluster, and compares with known groups.

  Args:
    clusters: The cluster of each client.
    groups: The known group of each client, if there are any.

  Returns:
    'sizes', the number of clients in each cluster. With known groups also
    'groups', the same for each group; 'adjusted_rand_index', the similarity of
    groups and clusters (1 if they are the same, 0 if only by chance); and
    'matched', the share of clients in the cluster of their group, see
    `summaries.match`.
  """

  def count(counted: np.ndarray) -> dict[str, int]:
    return {str(j): int(np.sum(counted == j)) for j in np.unique(clusters)}

  result: dict[str, aliases.Json] = {'sizes': count(clusters)}
  if groups is not None:
    known = np.array(groups)
    result['groups'] = {
      str(group): count(clusters[known == group]) for group in np.unique(known)
    }
    result['adjusted_rand_index'] = float(
      sklearn_metrics.adjusted_rand_score(known, clusters)
    )
    counts = [list(sizes.values()) for sizes in result['groups'].values()]
    _, result['matched'] = summaries.match(np.array(counts))
  return result
