"""The one evaluation of all methods: on held-out examples, client by client.

A method offers candidates of each client's personalized model: the epochs of
fine-tuning, the coefficients of an interpolation, … Which one is used is chosen
on validation data; the test data only tell how good that choice was.
"""

import collections
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import numpy as np
import tree

from algorithms import algorithm as algorithm_lib
from personalization import cohorts
from personalization import statistics
from personalization import training
from tasks import client_data
from tasks import errors
from tasks import task as task_lib

# Clients that are evaluated at a time.
_COHORT = 100
# Nothing is learned from these batches, so that they may be large. But already
# 64 sentences are a thousand words, and each takes a number for any next word.
_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Metrics:
  """The metrics of all candidates of each client of a population.

  Attributes:
    client_ids: The clients.
    values: For each metric, `[clients, candidates]`.
    weights: For each metric, `[clients]`, what it is the mean over: examples,
      or words.
  """

  client_ids: tuple[str, ...]
  values: Mapping[str, np.ndarray]
  weights: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A method's metrics on what to choose by and on what to report.

  Attributes:
    candidates: The names of the candidates.
    baseline: Which of them is without personalization; None if none is.
    validation: The metrics to choose by.
    test: The metrics to report.
    skipped: The clients that lack examples to adapt to or be judged by.
  """

  candidates: tuple[str, ...]
  baseline: int | None
  validation: Metrics
  test: Metrics
  skipped: tuple[str, ...]


Populations = Mapping[tuple[str, ...], cohorts.Cohorts]


def evaluation_sets(task: task_lib.Task) -> tuple[str, ...]:
  """The sets that each client of a task is evaluated on at a time.

  Those of cross-silo tasks are both of the same clients, which are personalized
  only once for both.
  """
  return ('validation', 'test') if task.cross_silo else ('evaluation',)


def _populations(
  task: task_lib.Task,
) -> dict[tuple[str, ...], client_data.Population]:
  """What to evaluate: the parts that it gives, and the clients."""
  if not task.cross_silo:
    return {('validation',): task.validation, ('test',): task.test}
  sets = dict(
    personalization=task.test.sets['personalization'],
    validation=task.validation.sets['evaluation'],
    test=task.test.sets['evaluation'],
  )
  return {
    ('validation', 'test'): client_data.Population(task.test.client_ids, sets)
  }


def prepare(task: task_lib.Task, kept: int = 1) -> Populations:
  """The clients to evaluate; several evaluations may share them.

  Args:
    task: The task.
    kept: Of how many cohorts to keep the data for another evaluation.

  Returns:
    The clients, by the parts of the evaluation that they give.

  Raises:
    UserError: If there is nobody to choose by, or to report.
  """
  populations = {
    parts: cohorts.Cohorts(population, task.padded, kept)
    for parts, population in _populations(task).items()
  }
  for parts, clients in populations.items():
    if not len(clients):
      raise errors.UserError(
        f'{task.name} has no clients for {" and ".join(parts)} with examples'
        ' both to adapt to and to be judged by. Change its settings.'
      )
    for name in clients.pad_to:
      clients.pad_to[name] = max(
        others.pad_to[name] for others in populations.values()
      )
  return populations


def _evaluate_population(
  algorithm: algorithm_lib.Algorithm,
  trained: training.Trained,
  clients: cohorts.Cohorts,
  sets: tuple[str, ...],
  batch_size: int,
  cohort_size: int,
  options: training.Options,
  on_cohort: Callable[[int], None],
) -> Any:
  """{set: {metric: <total, weight>}}, each `[clients, candidates]`."""
  parts = []
  for first in range(0, len(clients), cohort_size):
    rows = np.arange(first, min(first + cohort_size, len(clients)))
    # All cohorts have the same size, so that one program serves all of them:
    # the last client stands in for those that are missing in the last cohort.
    padded_rows = np.pad(rows, (0, cohort_size - len(rows)), 'edge')
    data = {name: clients.data(name, padded_rows, _BATCH_SIZE) for name in sets}
    if any(isinstance(own, list) for own in data.values()):
      evaluation = [
        collections.OrderedDict(zip(sets, own)) for own in zip(*data.values())
      ]
    else:
      evaluation = collections.OrderedDict(data)
    result = algorithm.personalize(
      trained.server_state,
      cohorts.clients(
        cohort_size,
        state=training.client_states(
          trained,
          algorithm,
          [clients.client_ids[row] for row in padded_rows],
          options.seed,
          first,
        ),
        personalization=clients.data(
          'personalization',
          padded_rows,
          batch_size,
          shuffle=('shuffle', options.seed, first)
          if algorithm.shuffled_epochs
          else (),
          drop_partial=options.drop_partial_batches
          and algorithm.steps_to_personalize,
          epochs=algorithm.shuffled_epochs or 1,
        ),
        evaluation=evaluation,
        seed=cohorts.seeds(
          client_data.seeded_rng('personalize', options.seed, first),
          cohort_size,
        ),
      ),
    )
    parts.append(
      tree.map_structure(lambda leaf: leaf[: len(rows)], cohorts.stack(result))  # noqa: B023
    )
    on_cohort(len(rows))
  return tree.map_structure(lambda *leaves: np.concatenate(leaves), *parts)


def evaluate(
  algorithm: algorithm_lib.Algorithm,
  trained: training.Trained,
  task: task_lib.Task,
  options: training.Options,
  on_cohort: Callable[[int], None] = lambda _: None,
  populations: Populations | None = None,
) -> Evaluation:
  """Personalizes and evaluates all clients of a task.

  Args:
    algorithm: The method, built for `evaluation_sets(task)`.
    trained: Where its training ended.
    task: The task.
    options: How it was trained.
    on_cohort: Called with the number of clients that were just evaluated.
    populations: What `prepare` gives, if the caller has it already.

  Returns:
    The metrics of all candidates.

  Raises:
    UserError: If there is nobody to choose by, or to report.
  """
  populations = populations or prepare(task)
  # Cohorts of the same size, and no larger than need be for that.
  most = max(map(len, populations.values()))
  cohort_size = -(-most // -(-most // _COHORT))
  metrics, skipped = {}, []
  for parts, clients in populations.items():
    sets = evaluation_sets(task)
    result = _evaluate_population(
      algorithm,
      trained,
      clients,
      sets,
      options.batch_size or task.batch_size,
      cohort_size,
      options,
      on_cohort,
    )
    # There may be nothing to judge a client by in the examples that it has, as
    # sentences in which no word counts.
    judged = np.all(
      [w[:, 0] > 0 for name in sets for _, w in result[name].values()], axis=0
    )
    client_ids = np.array(clients.client_ids)
    skipped += [*clients.skipped, *map(str, client_ids[~judged])]
    for part, name in zip(parts, sets, strict=True):
      totals = {
        metric: (total[judged], weight[judged])
        for metric, (total, weight) in result[name].items()
      }
      metrics[part] = Metrics(
        tuple(map(str, client_ids[judged])),
        {metric: total / weight for metric, (total, weight) in totals.items()},
        {metric: weight[:, 0] for metric, (_, weight) in totals.items()},
      )
  return Evaluation(
    tuple(algorithm.candidates),
    algorithm.baseline,
    metrics['validation'],
    metrics['test'],
    tuple(skipped),
  )


def choose(
  evaluation: Evaluation,
  metric: str,
  higher_is_better: bool,
  each: bool,
  offer_baseline: bool = True,
) -> np.ndarray:
  """Chooses a candidate by validation.

  Args:
    evaluation: The metrics.
    metric: The metric to choose by.
    higher_is_better: The metric's direction.
    each: Whether each client chooses for itself, by its own validation examples
      (in a cross-silo task), or all take the one of the best unweighted mean.
    offer_baseline: Whether the model without personalization, if there are
      others, can be chosen.

  Returns:
    The chosen candidate of each test client; the earlier one on a tie.
  """
  scores = evaluation.validation.values[metric]
  if not higher_is_better:
    scores = -scores
  # What diverged is never chosen.
  scores = np.where(np.isfinite(scores), scores, -np.inf)
  if not offer_baseline and evaluation.baseline is not None:
    others = np.arange(scores.shape[1]) != evaluation.baseline
    if others.any():
      scores = np.where(others, scores, -np.inf)
  num_clients = len(evaluation.test.client_ids)
  if each:
    return np.argmax(scores, axis=1)
  return np.full(num_clients, np.argmax(scores.mean(axis=0)))


def summarize(
  evaluation: Evaluation,
  metric: str,
  higher_is_better: bool,
  chosen: np.ndarray,
) -> statistics.Summary:
  """The statistics of the test clients at their chosen candidates."""
  values_ = evaluation.test.values[metric]
  rows = np.arange(len(values_))
  return statistics.summarize(
    values_[rows, chosen],
    evaluation.test.weights[metric],
    higher_is_better,
    None if evaluation.baseline is None else values_[:, evaluation.baseline],
  )
