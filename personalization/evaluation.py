"""The one evaluation of all methods: on held-out examples, client by client.

A method offers candidates of each client's personalized model: the epochs of
fine-tuning, the coefficients of an interpolation, … Which one is used is chosen
on validation data; the test data only tell how good that choice was.

What else is measured (`Measured`) is the metric of the same personalized models
on further evaluation sets, or the same after personalization on less: both are
parts of the sets that a client has. Methods know nothing of it.
"""

import collections
from collections.abc import Callable, Mapping
import contextlib
import dataclasses
from typing import Any

import numpy as np
import tree

from algorithms import method as methods
from algorithms import process
from base import errors
from base import seeds
from base import settings
from personalization import cohorts
from personalization import prefetch
from personalization import schedule
from personalization import summaries
from personalization import training
from tasks import task as task_lib
from tasks.data import populations

# Clients that are evaluated at a time.
_COHORT = 100
# Nothing is learned from these batches, so that they may be large. But already
# 64 sentences are a thousand words, and each takes a number for any next word.
BATCH_SIZE = 64


# Further evaluation sets: examples of all clients, and those of a client's
# personalization set that it was not personalized on.
OOD, HELD_OUT = 'ood', 'held_out'


@dataclasses.dataclass(frozen=True)
class Measured(settings.Settings):
  """What is measured of the test clients beside their metric."""

  ood_examples: int = settings.field(
    0,
    'On how many examples drawn from those of all test clients each'
    ' personalized model is judged as well (out of distribution); 0 for none.',
    minimum=0,
  )
  evaluation_fractions: tuple[float, ...] = settings.field(
    (),
    'By which parts of its evaluation set each client is judged as well.',
    above=0,
    maximum=1,
  )
  personalization_fractions: tuple[float, ...] = settings.field(
    (),
    'On which parts of its personalization set each client is personalized as'
    ' well.',
    above=0,
    maximum=1,
  )
  acceptance_min_examples: int = settings.field(
    0,
    'Also shown: that a client takes its personalized model only if it has so'
    ' many examples to adapt to; 0 to not show it.',
    minimum=0,
  )
  acceptance_margin: float | None = settings.field(
    None,
    'Also shown: that a client takes its personalized model only if that is'
    ' better by more than this margin on examples held out; none to not show'
    ' it.',
    minimum=0,
  )
  acceptance_fraction: float = settings.field(
    0.2,
    'The part of the personalization set that is held out for that. In a'
    ' cross-silo task it is the validation examples instead.',
    above=0,
    maximum=0.9,
  )

  @property
  def not_held_out(self) -> float:
    """The part of the personalization set that is left."""
    return 1 - self.acceptance_fraction


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
    metric: The name of the metric to choose by and to report.
    higher_is_better: Its direction.
    candidates: The names of the candidates.
    baseline: Which of them is without personalization; None if none is.
    validation: The metrics to choose by.
    test: The metrics to report.
    skipped: The clients that lack examples to adapt to or be judged by.
    num_personalization: The number of examples that each test client has to
      adapt to.
    further: The metrics of the test clients on further evaluation sets; what is
      no number is of a client without examples in such a set.
    after_less: The evaluations after personalization on less, by the part of
      the personalization sets.
  """

  metric: str
  higher_is_better: bool
  candidates: tuple[str, ...]
  baseline: int | None
  validation: Metrics
  test: Metrics
  skipped: tuple[str, ...]
  num_personalization: np.ndarray
  further: Mapping[str, Metrics] = dataclasses.field(default_factory=dict)
  after_less: Mapping[float, 'Evaluation'] = dataclasses.field(
    default_factory=dict
  )


Populations = Mapping[tuple[str, ...], cohorts.Cohorts]
# A part of a set of a client's: the set, and where it starts and stops.
_Part = tuple[str, float, float]


def _own_sets(task: task_lib.Task) -> tuple[str, ...]:
  """The sets of a client to judge it by; the last one is reported.

  Those of cross-silo tasks are both of the same clients, which are personalized
  only once for both.
  """
  return ('validation', 'test') if task.cross_silo else ('evaluation',)


def part_of_evaluation(fraction: float) -> str:
  """The name of the evaluation set that is a part of each client's."""
  return f'part_{fraction:g}'


def _further_sets(
  task: task_lib.Task, measured: Measured, personalized_on: float
) -> dict[str, _Part]:
  """The further evaluation sets of test clients.

  Args:
    task: The task.
    measured: What is measured.
    personalized_on: The part of the personalization set that the models come
      from. The further sets are for those that come from all of it, but for
      what is held out.

  Returns:
    The parts that they consist of, some of which are empty.
  """
  own, all_of_it = _own_sets(task)[-1], personalized_on == 1
  sets = {
    part_of_evaluation(fraction): (own, 0.0, all_of_it * fraction)
    for fraction in measured.evaluation_fractions
  }
  if measured.ood_examples:
    sets[OOD] = OOD, 0.0, float(all_of_it)
  if _holds_out(task, measured):
    sets[HELD_OUT] = 'personalization', personalized_on, 1.0
  return sets


def _holds_out(task: task_lib.Task, measured: Measured) -> bool:
  return measured.acceptance_margin is not None and not task.cross_silo


def evaluation_sets(
  task: task_lib.Task, measured: Measured = Measured()
) -> tuple[str, ...]:
  """The names of the sets that a client is evaluated on at a time."""
  return (*_own_sets(task), *_further_sets(task, measured, 1.0))


def personalization_parts(
  task: task_lib.Task, measured: Measured
) -> tuple[float, ...]:
  """On which parts of their sets clients are personalized, on all first."""
  parts = (1.0, *measured.personalization_fractions)
  if _holds_out(task, measured):
    parts += (measured.not_held_out,)
  return tuple(dict.fromkeys(parts))


def _populations(
  task: task_lib.Task,
) -> dict[tuple[str, ...], populations.Population]:
  """What to evaluate: the parts that it gives, and the clients."""
  if not task.cross_silo:
    return {('validation',): task.validation, ('test',): task.test}
  sets = dict(
    personalization=task.test.sets['personalization'],
    validation=task.validation.sets['evaluation'],
    test=task.test.sets['evaluation'],
  )
  return {
    ('validation', 'test'): populations.Population(task.test.client_ids, sets)
  }


def prepare(
  task: task_lib.Task,
  kept: int = 1,
  measured: Measured = Measured(),
  seed: int = 0,
) -> Populations:
  """The clients to evaluate; several evaluations may share them.

  Args:
    task: The task.
    kept: Of how many cohorts to keep the data for another evaluation.
    measured: What is measured beside the metric of each client.
    seed: Decides which examples are drawn for that.

  Returns:
    The clients, by the parts of the evaluation that they give; those to report
    are the last.

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
  if measured.ood_examples:
    drawn = clients.sample(
      _own_sets(task)[-1],
      measured.ood_examples,
      seeds.generator(OOD, seed),
    )
    for clients in populations.values():
      clients.share(OOD, drawn)
  return populations


def _evaluate_population(
  algorithm: methods.Method,
  task: task_lib.Task,
  trained: training.Trained,
  clients: cohorts.Cohorts,
  personalized_on: float,
  sets: Mapping[str, _Part],
  batch_size: int,
  cohort_size: int,
  options: schedule.TrainingSettings,
  on_cohort: Callable[[int], None],
) -> Any:
  """{set: {metric: <total, weight>}}, each `[clients, candidates]`."""

  def cohort(first: int) -> tuple[np.ndarray, dict[str, Any]]:
    """The rows of the clients from `first` on, and what they have."""
    rows = np.arange(first, first + cohort_size)
    if clients.padded:
      # All cohorts have the same size, so that one program serves all of them:
      # the last client stands in for those that the last cohort lacks.
      rows = rows.clip(max=len(clients) - 1)
    else:
      rows = rows[: len(clients) - first]
    data = {
      name: clients.data(part, rows, BATCH_SIZE, start=start, stop=stop)
      for name, (part, start, stop) in sets.items()
    }
    if any(isinstance(own, list) for own in data.values()):
      evaluation = [
        collections.OrderedDict(zip(sets, own)) for own in zip(*data.values())
      ]
    else:
      evaluation = collections.OrderedDict(data)
    return rows, dict(
      personalization=clients.data(
        'personalization',
        rows,
        batch_size,
        shuffle=('shuffle', options.seed, first)
        if algorithm.shuffled_epochs
        else (),
        drop_partial=options.drop_partial_batches and algorithm.takes_steps,
        epochs=algorithm.shuffled_epochs or 1,
        stop=personalized_on,
      ),
      evaluation=evaluation,
      seed=seeds.pairs(
        seeds.generator('personalize', options.seed, first), len(rows)
      ),
    )

  parts = []
  to_come = map(cohort, range(0, len(clients), cohort_size))
  with contextlib.closing(prefetch.prefetch(to_come)) as coming:
    for rows, own in coming:
      states = trained.states_of(
        [clients.client_ids[row] for row in rows], int(rows[0])
      )
      attributes = clients.attributes(task.attributes, algorithm.needs, rows)
      result = algorithm.personalize(
        trained.server_state,
        cohorts.clients(
          process.HeldOutClient,
          len(rows),
          state=states,
          attributes=attributes,
          **own,
        ),
      )
      num_clients = len(np.unique(rows))
      parts.append(
        tree.map_structure(
          lambda leaf: leaf[:num_clients],  # noqa: B023
          cohorts.stack(result),
        )
      )
      on_cohort(num_clients)
  return tree.map_structure(lambda *leaves: np.concatenate(leaves), *parts)


def _divide(
  result: Mapping[str, tuple[np.ndarray, np.ndarray]],
  client_ids: np.ndarray,
  judged: np.ndarray,
) -> Metrics:
  """The metrics of the clients in `judged`, from totals and weights."""
  values_, weights = {}, {}
  for metric, (total, weight) in result.items():
    total, weight = total[judged], weight[judged]
    values_[metric] = np.divide(
      total, weight, out=np.full_like(total, np.nan), where=weight > 0
    )
    weights[metric] = weight[:, 0]
  return Metrics(tuple(map(str, client_ids[judged])), values_, weights)


def evaluate(
  algorithm: methods.Method,
  trained: training.Trained,
  task: task_lib.Task,
  options: schedule.TrainingSettings,
  on_cohort: Callable[[int], None] = lambda _: None,
  populations: Populations | None = None,
  measured: Measured = Measured(),
) -> Evaluation:
  """Personalizes and evaluates all clients of a task.

  Args:
    algorithm: The method, built for `evaluation_sets(task, measured)`.
    trained: Where its training ended.
    task: The task.
    options: How it was trained.
    on_cohort: Called with the number of clients that were just evaluated: each
      is for each of the `personalization_parts(task, measured)`.
    populations: What `prepare` gives, if the caller has it already.
    measured: What is measured beside the metric of each client.

  Returns:
    The metrics of all candidates.

  Raises:
    UserError: If there is nobody to choose by, or to report.
  """
  populations = populations or prepare(
    task, measured=measured, seed=options.seed
  )
  own = _own_sets(task)
  *_, reported = populations.values()
  # Cohorts of the same size, and no larger than need be for that.
  most = max(map(len, populations.values()))
  cohort_size = -(-most // -(-most // _COHORT))

  def evaluate_after(personalized_on: float) -> Evaluation:
    """The evaluation after personalization on that part of each set."""
    metrics, skipped = {}, []
    further_sets = _further_sets(task, measured, personalized_on)
    for parts, clients in populations.items():
      sets = {name: (name, 0.0, 1.0) for name in own}
      for name, part in further_sets.items():
        sets[name] = part if clients is reported else (part[0], 0.0, 0.0)
      result = _evaluate_population(
        algorithm,
        task,
        trained,
        clients,
        personalized_on,
        sets,
        options.batch_size or task.batch_size,
        cohort_size,
        options,
        on_cohort,
      )
      # There may be nothing to judge a client by in the examples that it has,
      # as sentences in which no word counts.
      judged = np.all(
        [w[:, 0] > 0 for name in own for _, w in result[name].values()], axis=0
      )
      client_ids = np.array(clients.client_ids)
      skipped += [*clients.skipped, *map(str, client_ids[~judged])]
      for part, name in zip(parts, own, strict=True):
        metrics[part] = _divide(result[name], client_ids, judged)
    # `reported`, the test clients, came last.
    return Evaluation(
      task.metric,
      task.higher_is_better,
      tuple(algorithm.candidates),
      algorithm.baseline,
      metrics['validation'],
      metrics['test'],
      tuple(skipped),
      reported.sizes['personalization'][judged],
      further={
        name: _divide(result[name], client_ids, judged)
        for name, (_, start, stop) in further_sets.items()
        if stop > start
      },
    )

  all_of_it, *less = personalization_parts(task, measured)
  return dataclasses.replace(
    evaluate_after(all_of_it),
    after_less={part: evaluate_after(part) for part in less},
  )


@dataclasses.dataclass(frozen=True)
class Choice:
  """How candidates are chosen.

  Attributes:
    each: Whether each client chooses for itself, by its own validation examples
      (in a cross-silo task), or all take the one of the best unweighted mean.
    offer_baseline: Whether the model without personalization, if there are
      others, can be chosen.
  """

  each: bool = False
  offer_baseline: bool = True


def choose(evaluation: Evaluation, choice: Choice = Choice()) -> np.ndarray:
  """Chooses a candidate by validation.

  Args:
    evaluation: The metrics.
    choice: How to choose.

  Returns:
    The chosen candidate of each test client; the earlier one on a tie.
  """
  scores = evaluation.validation.values[evaluation.metric]
  if not evaluation.higher_is_better:
    scores = -scores
  # What diverged is never chosen.
  scores = np.where(np.isfinite(scores), scores, -np.inf)
  if not choice.offer_baseline and evaluation.baseline is not None:
    others = np.arange(scores.shape[1]) != evaluation.baseline
    if others.any():
      scores = np.where(others, scores, -np.inf)
  num_clients = len(evaluation.test.client_ids)
  if choice.each:
    return np.argmax(scores, axis=1)
  return np.full(num_clients, np.argmax(scores.mean(axis=0)))


def at(values_: np.ndarray, chosen: np.ndarray) -> np.ndarray:
  """What each client has of `[clients, candidates]`, at its chosen one."""
  return values_[np.arange(len(values_)), chosen]


def summarize(
  evaluation: Evaluation, chosen: np.ndarray, further: str | None = None
) -> summaries.Summary:
  """The statistics of the test clients at their chosen candidates.

  Args:
    evaluation: The metrics.
    chosen: The chosen candidate of each test client.
    further: One of the further evaluation sets, in the place of the clients'
      own. Those without examples in it are left out.

  Returns:
    The summaries.
  """
  metrics = evaluation.further[further] if further else evaluation.test
  there = metrics.weights[evaluation.metric] > 0
  values_ = metrics.values[evaluation.metric][there]
  return summaries.summarize(
    at(values_, chosen[there]),
    metrics.weights[evaluation.metric][there],
    evaluation.higher_is_better,
    None if evaluation.baseline is None else values_[:, evaluation.baseline],
  )
