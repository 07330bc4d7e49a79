"""What an evaluation tells beside the metric at the chosen candidates.

After Motley, section 4: how each candidate would do for all, what happens if
clients refuse a personalized model that does not convince them, and whether
clusters are the groups that are known.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
from sklearn import metrics as sklearn_metrics

from personalization import evaluation as evaluation_lib
from personalization import summaries

# The metric of HypCluster and its like that is the number of the cluster.
_CLUSTER = 'cluster'


def by_candidate(
  evaluation: evaluation_lib.Evaluation,
) -> dict[str, dict[str, float]]:
  """Each candidate, if all clients used it: the means and the shares hurt.

  Args:
    evaluation: The metrics.

  Returns:
    For each candidate: 'validation' and 'test', the means over clients, and
    'out_of_distribution', the mean over test clients on examples of all of
    them, if that was measured; 'validation_hurt' and so on, the shares of
    clients that are worse off than with the baseline, if there is one.
  """
  columns = {}
  sets = dict(validation=evaluation.validation, test=evaluation.test)
  if evaluation_lib.OOD in evaluation.further:
    sets['out_of_distribution'] = evaluation.further[evaluation_lib.OOD]
  for name, metrics in sets.items():
    values = metrics.values[evaluation.metric]
    columns[name] = values.mean(axis=0, dtype=np.float64)
    if evaluation.baseline is not None:
      columns[f'{name}_hurt'] = summaries.is_worse(
        values, values[:, [evaluation.baseline]], evaluation.higher_is_better
      ).mean(axis=0)
  return {
    candidate: {name: float(column[i]) for name, column in columns.items()}
    for i, candidate in enumerate(evaluation.candidates)
  }


@dataclasses.dataclass(frozen=True)
class Acceptance:
  """Clients that take a personalized model only if a criterion is met.

  Attributes:
    accepted: Which test clients take it.
    summary: The statistics of the test clients, of which those that do not take
      it are left with the baseline.
  """

  accepted: np.ndarray
  summary: summaries.Summary


def acceptance(
  evaluation: evaluation_lib.Evaluation,
  measured: evaluation_lib.Measured,
  choice: evaluation_lib.Choice,
) -> dict[str, Acceptance]:
  """What becomes of the test clients by each criterion that is set.

  With 'min_examples', clients are personalized on all that they have, if that
  is enough. With 'margin', a client compares two models on examples that
  neither has seen. In a cross-device task these are a part of its
  personalization set, and the model that it takes comes from the other part
  alone. In a cross-silo task they are its validation examples.

  Args:
    evaluation: The metrics.
    measured: The criteria.
    choice: How candidates are chosen.

  Returns:
    What is set; nothing if the method has no model to be left with, or no
    other.
  """
  if evaluation.baseline is None or len(evaluation.candidates) == 1:
    return {}

  def accept(
    evaluation: evaluation_lib.Evaluation, accepted: np.ndarray
  ) -> Acceptance:
    chosen = evaluation_lib.choose(evaluation, choice)
    kept = np.where(accepted, chosen, evaluation.baseline)
    return Acceptance(accepted, evaluation_lib.summarize(evaluation, kept))

  criteria = {}
  if measured.acceptance_min_examples:
    enough = evaluation.num_personalization >= measured.acceptance_min_examples
    criteria['min_examples'] = accept(evaluation, enough)
  if measured.acceptance_margin is not None:
    judge = evaluation.validation
    less = evaluation.after_less.get(measured.not_held_out, evaluation)
    if evaluation_lib.HELD_OUT in less.further:  # Not in a cross-silo task.
      evaluation, judge = less, less.further[evaluation_lib.HELD_OUT]
    values = judge.values[evaluation.metric]
    chosen = evaluation_lib.choose(evaluation, choice)
    gain = evaluation_lib.at(values, chosen) - values[:, evaluation.baseline]
    if not evaluation.higher_is_better:
      gain = -gain
    # Who has nothing held out has no number there, and does not take it.
    criteria['margin'] = accept(evaluation, gain > measured.acceptance_margin)
  return criteria


def clusters(
  evaluation: evaluation_lib.Evaluation, chosen: np.ndarray
) -> np.ndarray | None:
  """The cluster of each test client; None if the method has no clusters."""
  if _CLUSTER not in evaluation.test.values:
    return None
  numbers = evaluation_lib.at(evaluation.test.values[_CLUSTER], chosen)
  return np.rint(numbers).astype(int)


def describe_clusters(
  clusters: np.ndarray,
  groups: Sequence[str] | None,
) -> dict[str, Any]:
  """How many clients are in which cluster, and how that fits known groups.

  Args:
    clusters: The cluster of each client.
    groups: The known group of each client, if there are any.

  Returns:
    'sizes', the number of clients in each cluster; and, of known groups, for
    each of them the same as 'groups', and as 'adjusted_rand_index' how alike
    the two are: 1 if they are the same, 0 if they are as by chance.
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
  return result
