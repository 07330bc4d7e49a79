"""The choice among a method's candidates, by validation only."""

import dataclasses

import numpy as np

from personalization import evaluation


@dataclasses.dataclass(frozen=True)
class Choice:
  """The way in which candidates are chosen.

  Attributes:
    each: Whether each client chooses for itself, by its own validation examples
      (in a cross-silo task), or all take the one of the best unweighted mean.
    offer_baseline: Whether the model without personalization, if there are
      others, can be chosen.
    metric: The metric to choose by; None for the task's.
  """

  each: bool = False
  offer_baseline: bool = True
  metric: str | None = None


def direction(evaluated: evaluation.Evaluation, choice: Choice) -> int:
  """Returns 1 if the metric to choose by is better the higher, else -1."""
  own = choice.metric in (None, evaluated.metric)
  return 1 if own and evaluated.higher_is_better else -1


def choose(
  evaluated: evaluation.Evaluation, choice: Choice = Choice()
) -> np.ndarray:
  """Chooses a candidate by validation.

  Args:
    evaluated: The metrics.
    choice: How to choose.

  Returns:
    The index of each test client's candidate, `[clients]`; the earlier one on a
    tie.
  """
  by = choice.metric or evaluated.metric
  scores = evaluated.validation.values[by]
  if direction(evaluated, choice) < 0:
    scores = -scores
  # What diverged is never chosen.
  scores = np.where(np.isfinite(scores), scores, -np.inf)
  if not choice.offer_baseline and evaluated.baseline is not None:
    others = np.arange(scores.shape[1]) != evaluated.baseline
    if others.any():
      scores = np.where(others, scores, -np.inf)
  num_clients = len(evaluated.test.client_ids)
  if choice.each:
    return np.argmax(scores, axis=1)
  # A client may have no examples in a part of its validation set.
  there = evaluated.validation.weights[by] > 0
  return np.full(num_clients, np.argmax(scores[there].mean(axis=0)))


def at(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
  """Takes each client's row of `[clients, candidates, …]` at its candidate."""
  return values[np.arange(len(values)), chosen]
