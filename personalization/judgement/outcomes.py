"""Outcomes of methods: the test clients at their chosen candidates.

All results of a method are derived from its evaluation here. results.json,
per_client.csv, tables, the records of grids and figures only write them down.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import functools

import numpy as np

from personalization.judgement import choosing
from personalization.judgement import evaluation
from personalization.judgement import measurements
from personalization.judgement import measures
from personalization.judgement import summaries
from tasks import task


@dataclasses.dataclass(frozen=True)
class SetOutcome:
  """The test clients at given candidates, on one evaluation set.

  Attributes:
    evaluated: The evaluation.
    metrics: The metrics of the test clients on the set.
    candidates: The index of each client's candidate.
    others: Each client's metric with another method, the baseline of a method
      without one; None if there is none.
  """

  evaluated: evaluation.Evaluation
  metrics: evaluation.ClientMetrics
  candidates: np.ndarray
  others: np.ndarray | None = None

  @functools.cached_property
  def values(self) -> np.ndarray:
    """Each client's metric."""
    return choosing.take_chosen(
      self.metrics.values[self.evaluated.metric], self.candidates
    )

  @property
  def weights(self) -> np.ndarray:
    """The number of examples or words that each client's metric is over."""
    return self.metrics.weights[self.evaluated.metric]

  @functools.cached_property
  def before(self) -> 'SetOutcome | None':
    """The same without personalization; None if the method has no baseline."""
    if self.evaluated.baseline is None:
      return None
    baseline = np.full_like(self.candidates, self.evaluated.baseline)
    return dataclasses.replace(self, candidates=baseline)

  @functools.cached_property
  def hurt(self) -> np.ndarray | None:
    """Whether each client is worse off, see `measures.are_worse`.

    It is None if there is no baseline to compare with.
    """
    hurt = measures.are_hurt(self.evaluated, self.metrics)
    if hurt is not None:
      return choosing.take_chosen(hurt, self.candidates)
    if self.others is None:
      return None
    return measures.are_worse(
      self.values, self.others, self.evaluated.higher_is_better
    )

  @functools.cached_property
  def summary(self) -> summaries.Summary:
    """The statistics over the clients that have examples in the set."""
    there = self.weights > 0
    return summaries.summarize(
      self.values[there],
      self.weights[there],
      self.evaluated.higher_is_better,
      None if self.hurt is None else self.hurt[there],
      self.evaluated.metric_range,
    )

  def mean(self, clients: np.ndarray) -> float:
    """Returns the mean over the clients in a mask."""
    return float(self.values[clients].mean(dtype=np.float64))

  def pooled(self, clients: np.ndarray | None = None) -> float:
    """Computes the metric over all examples of several clients together.

    Args:
      clients: A mask of the clients; None for all.

    Returns:
      The metric of the sums over the clients.
    """
    if clients is None:
      clients = np.ones(len(self.candidates), bool)
    pooled = self.metrics.pooled(
      self.evaluated.metric, clients, self.candidates[clients]
    )
    return float(pooled)


@dataclasses.dataclass(frozen=True)
class Acceptance:
  """The test clients, if they use their model only if it meets a criterion.

  Attributes:
    accepted: Which clients use it; the others use the baseline.
    test: The outcome of this.
  """

  accepted: np.ndarray
  test: SetOutcome


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of a method.

  Attributes:
    evaluated: The metrics of all clients and candidates.
    task: The task.
    measurement: The further measurements.
    choice: How candidates are chosen.
    others: The metric of each client with another method, by evaluation set and
      client ('' for the clients' own examples), see `SetOutcome`.
  """

  evaluated: evaluation.Evaluation
  task: task.Task
  measurement: measurements.MeasurementSettings = (
    measurements.MeasurementSettings()
  )
  choice: choosing.Choice = choosing.Choice()
  others: Mapping[str, Mapping[str, float]] | None = None

  def _set_outcome(
    self,
    chosen: np.ndarray,
    evaluated: evaluation.Evaluation | None = None,
    further: str = '',
  ) -> SetOutcome:
    evaluated = evaluated or self.evaluated
    metrics = evaluated.further[further] if further else evaluated.test
    others = None
    if self.others is not None:
      of_set = self.others[further]
      others = np.array([of_set.get(c, np.nan) for c in metrics.client_ids])
    return SetOutcome(evaluated, metrics, chosen, others)

  @functools.cached_property
  def chosen(self) -> np.ndarray:
    """The index of each test client's candidate, even if none is chosen."""
    return choosing.choose(self.evaluated, self.choice)

  @functools.cached_property
  def num_chosen(self) -> Mapping[str, int]:
    """The number of test clients for which each candidate is chosen, by name.

    It is empty if candidates do not compete.
    """
    if not self.evaluated.candidates_compete:
      return {}
    counts = collections.Counter(self.chosen.tolist())
    return {
      str(self.evaluated.candidates[candidate]): count
      for candidate, count in sorted(counts.items())
    }

  @functools.cached_property
  def validation(self) -> float:
    """The mean over clients of the metric to choose by, at their candidates."""
    by = self.choice.metric or self.evaluated.metric
    values = self.evaluated.validation.values[by]
    if self.choice.each:
      return values[np.arange(len(values)), self.chosen].mean()
    return values[:, self.chosen[0]].mean()

  @functools.cached_property
  def test(self) -> SetOutcome:
    """The test clients at the chosen candidates, on their own examples."""
    return self._set_outcome(self.chosen)

  @functools.cached_property
  def further(self) -> Mapping[str, SetOutcome]:
    """The same on further evaluation sets, without those of acceptance."""
    return {
      name: self._set_outcome(self.chosen, further=name)
      for name in self.evaluated.further
      if name not in (measurements.HELD_OUT, measurements.NOT_HELD_OUT)
    }

  @functools.cached_property
  def partly_personalized(self) -> Mapping[float, SetOutcome]:
    """The test clients personalized on parts of their sets, by the part."""
    outcomes = {}
    for fraction in self.measurement.personalization_fractions:
      less = self.evaluated.partly_personalized.get(fraction, self.evaluated)
      outcomes[fraction] = self._set_outcome(
        choosing.choose(less, self.choice), less
      )
    return outcomes

  @functools.cached_property
  def tuning(self) -> Mapping[str, SetOutcome]:
    """The test clients by either way to choose, 'all' and 'each'.

    It is empty if there is nothing to choose, or clients cannot choose.
    """
    if not self.task.cross_silo or self.choice.given is not None:
      return {}
    if not self.evaluated.candidates_compete:
      return {}
    if len(self.evaluated.candidates) == 1:
      return {}
    ways = {'all': False, 'each': True}
    return {
      name: self._set_outcome(
        choosing.choose(
          self.evaluated, dataclasses.replace(self.choice, each=each)
        )
      )
      for name, each in ways.items()
    }

  @functools.cached_property
  def candidate_measures(self) -> list[dict[str, float]]:
    """The measures of each candidate, if all clients used it."""
    return measures.describe_candidates(self.evaluated)

  @functools.cached_property
  def all_reported(self) -> Mapping[str, SetOutcome]:
    """The test clients at each candidate, by its name, if none is chosen."""
    if self.evaluated.candidates_compete:
      return {}
    return {
      str(candidate): self._set_outcome(np.full_like(self.chosen, i))
      for i, candidate in enumerate(self.evaluated.candidates)
    }

  @functools.cached_property
  def clusters(self) -> np.ndarray | None:
    """Each test client's cluster; None if the method has none."""
    return measures.clusters(self.evaluated, self.chosen)

  @functools.cached_property
  def groups(self) -> Sequence[str] | None:
    """Each test client's known group; None if the task has none."""
    if task.GROUP not in self.task.attributes:
      return None
    known = self.task.attributes[task.GROUP]
    return [known.name(client) for client in self.evaluated.test.client_ids]

  @functools.cached_property
  def acceptance(self) -> Mapping[str, Acceptance]:
    """The test clients after each acceptance criterion that is set.

    With 'min_examples', clients use their personalized models if they have
    enough examples to adapt to. With 'margin', a client compares two models on
    examples that neither has seen. In a cross-device task these are a part of
    its personalization set, and it adapts only to the other part. In a
    cross-silo task they are a part of its validation examples, and the
    candidate is chosen only by the other part.

    It is empty if the method has no baseline, or no other candidate.
    """
    evaluated, criteria = self.evaluated, self.measurement
    baseline = evaluated.baseline
    if baseline is None or len(evaluated.candidates) == 1:
      return {}

    def accept(
      evaluated: evaluation.Evaluation, accepted: np.ndarray
    ) -> Acceptance:
      chosen = choosing.choose(evaluated, self.choice)
      kept = np.where(accepted, chosen, baseline)
      return Acceptance(accepted, self._set_outcome(kept, evaluated))

    results = {}
    if criteria.acceptance_min_examples:
      enough = evaluated.num_personalization >= criteria.acceptance_min_examples
      results['min_examples'] = accept(evaluated, enough)
    if criteria.acceptance_margin is not None:
      further = evaluated.further
      if self.task.cross_silo:
        evaluated = dataclasses.replace(
          evaluated, validation=further[measurements.NOT_HELD_OUT]
        )
      else:
        evaluated = evaluated.partly_personalized[criteria.not_held_out]
        further = evaluated.further
      values = further[measurements.HELD_OUT].values[evaluated.metric]
      chosen = choosing.choose(evaluated, self.choice)
      gain = choosing.take_chosen(values, chosen) - values[:, baseline]
      if not evaluated.higher_is_better:
        gain = -gain
      # Without held-out examples a gain is NaN, and the model is not used.
      results['margin'] = accept(evaluated, gain > criteria.acceptance_margin)
    return results
