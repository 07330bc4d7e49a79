"""The choice among a method's candidates, by validation only."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from personalization.judgement import evaluation


@dataclasses.dataclass(frozen=True)
class Choice:
  """The way in which candidates are chosen.

  Attributes:
    each: Whether each client chooses for itself, by its own validation examples
      (in a cross-silo task), or all use the candidate with the best unweighted
      mean.
    offer_baseline: Whether the baseline can be chosen, if there are other
      candidates.
    metric: The metric to choose by; None for the task's.
    given: The name of each client's candidate, if they were chosen before.
  """

  each: bool = False
  offer_baseline: bool = True
  metric: str | None = None
  given: Mapping[str, str] | None = None


def direction(evaluated: evaluation.Evaluation, choice: Choice) -> int:
  """Returns 1 if the metric to choose by is better the higher, else -1."""
  by_metric = choice.metric in (None, evaluated.metric)
  return 1 if by_metric and evaluated.higher_is_better else -1


def choose(
  evaluated: evaluation.Evaluation, choice: Choice = Choice()
) -> np.ndarray:
  """Chooses a candidate by validation.

  Args:
    evaluated: The metrics.
    choice: How to choose.

  Returns:
    The index of each test client's candidate, `[clients]`; the first candidate
    wins a tie. It is the last one if candidates do not compete.
  """
  num_clients = len(evaluated.test.client_ids)
  if not evaluated.candidates_compete:
    return np.full(num_clients, len(evaluated.candidates) - 1)
  if choice.given is not None:
    names = [str(candidate) for candidate in evaluated.candidates]
    chosen = [choice.given[client] for client in evaluated.test.client_ids]
    return np.array([names.index(name) for name in chosen], int)
  by = choice.metric or evaluated.metric
  scores = evaluated.validation.values[by]
  if direction(evaluated, choice) < 0:
    scores = -scores
  # A model that diverged is never chosen.
  scores = np.where(np.isfinite(scores), scores, -np.inf)
  if not choice.offer_baseline and evaluated.baseline is not None:
    others = np.arange(scores.shape[1]) != evaluated.baseline
    if others.any():
      scores = np.where(others, scores, -np.inf)
  if choice.each:
    return np.argmax(scores, axis=1)
  # A client may have no examples in a part of its validation set.
  there = evaluated.validation.weights[by] > 0
  return np.full(num_clients, np.argmax(scores[there].mean(axis=0)))


def take_chosen(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
  """Takes each client's row of `[clients, candidates, …]` at its candidate."""
  return values[np.arange(len(values)), chosen]
