"""The evaluation of all methods: on held-out examples, client by client.

A method offers candidates of each client's personalized model: the epochs of
fine-tuning, the coefficients of an interpolation, … All of them are evaluated
here; `choosing` picks one by validation, and `outcomes` derives the results.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import itertools
from typing import Self

import numpy as np
import tree

from algorithms import candidates
from algorithms import methods
from algorithms import process
from base import aliases
from base import errors
from base import seeds
from personalization.judgement import measurements
from personalization.rounds import cohorts
from personalization.rounds import prefetch
from personalization.rounds import schedules
from personalization.rounds import streams
from personalization.rounds import training
from tasks import task
from tasks.data import populations as data_populations
from tasks.models import metrics

# The number of clients that are evaluated at a time.
_COHORT = 100
# Nothing is learned from these batches, so that they may be large. But 64
# sentences are already a thousand words, each with a score for every next word.
BATCH_SIZE = 64

_NOTHING_ELSE = measurements.MeasurementSettings()


@dataclasses.dataclass(frozen=True)
class ClientMetrics:
  """The metrics of all candidates of each client of a population.

  Attributes:
    client_ids: The clients.
    sums: For each metric, its statistics summed over each client's examples:
      any structure of arrays `[clients, candidates, …]`.
    known: The metrics of the model, see `Model.metrics`.
  """

  client_ids: tuple[str, ...]
  sums: Mapping[str, aliases.Structure]
  known: Mapping[str, metrics.Metric] = dataclasses.field(default_factory=dict)

  def select(self, clients: np.ndarray) -> Self:
    """Returns the metrics of the clients in a mask, `[clients]`."""
    return dataclasses.replace(
      self,
      client_ids=tuple(itertools.compress(self.client_ids, clients)),
      sums=tree.map_structure(lambda leaf: leaf[clients], dict(self.sums)),
    )

  def metric(self, name: str) -> metrics.Metric:
    """Returns the function that computes a metric from its sums."""
    return self.known.get(name, metrics.MEAN)

  @property
  def names(self) -> tuple[str, ...]:
    """The names of the metrics."""
    return tuple(name for name in self.sums if name != metrics.DIVERGED)

  @property
  def diverged(self) -> np.ndarray:
    """Whether a client's model diverged, `[clients, candidates]`."""
    return np.asarray(self.sums.get(metrics.DIVERGED, 0)) > 0

  @functools.cached_property
  def values(self) -> Mapping[str, np.ndarray]:
    """The value of each metric, `[clients, candidates]`; NaN if it diverged."""

    def value(name: str) -> np.ndarray:
      found = self.metric(name).value(self.sums[name])
      no_number = self.diverged | np.isinf(found)
      return np.where(no_number, np.nan, found)

    return {name: value(name) for name in self.names}

  @functools.cached_property
  def weights(self) -> Mapping[str, np.ndarray]:
    """The examples or words that each metric is over, `[clients]`."""
    return {n: self.metric(n).weight(self.sums[n])[:, 0] for n in self.names}

  def pooled(
    self, name: str, clients: np.ndarray, chosen: np.ndarray
  ) -> np.ndarray:
    """Computes a metric over several clients' examples together.

    Args:
      name: The metric.
      clients: The clients, as indices or a mask.
      chosen: The candidate of each of these clients.

    Returns:
      The metric, a scalar.
    """
    rows = np.arange(len(self.client_ids))[clients]
    sums = tree.map_structure(
      lambda leaf: leaf[rows, chosen].sum(axis=0, dtype=np.float64)[np.newaxis],
      {n: self.sums[n] for n in (name, metrics.DIVERGED) if n in self.sums},
    )
    return dataclasses.replace(self, sums=sums).values[name][0]


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A method's metrics on validation and on test examples.

  Attributes:
    metric: The name of the metric to choose by and to report.
    higher_is_better: Its direction.
    candidates: The candidates.
    baseline: The index of the candidate without personalization; None if there
      is none.
    validation: The metrics to choose by; of no clients if there is
      nothing to choose.
    test: The metrics to report.
    skipped: The clients that lack examples to adapt to or to be evaluated on.
    num_personalization: The number of examples that each test client has to
      adapt to.
    further: The metrics of the test clients on further evaluation sets, which
      are NaN for a client without examples in such a set.
    partly_personalized: The evaluations after personalization on a part of the
      personalization sets, by that part.
    candidates_compete: Whether one of the candidates is chosen.
  """

  metric: str
  higher_is_better: bool
  candidates: tuple[candidates.Candidate, ...]
  baseline: int | None
  validation: ClientMetrics
  test: ClientMetrics
  skipped: tuple[str, ...]
  num_personalization: np.ndarray
  further: Mapping[str, ClientMetrics] = dataclasses.field(default_factory=dict)
  partly_personalized: Mapping[float, 'Evaluation'] = dataclasses.field(
    default_factory=dict
  )
  candidates_compete: bool = True

  @property
  def metric_range(self) -> tuple[float, float]:
    """The lowest and the highest value of the metric."""
    return self.test.metric(self.metric).range


# The clients to evaluate, by the parts of the evaluation that they are in:
# 'validation', 'test', or both.
Populations = Mapping[tuple[str, ...], cohorts.Cohorts]


def _populations(
  task: task.Task,
) -> dict[tuple[str, ...], data_populations.Population]:
  """Returns the clients to evaluate, by the parts that they are in."""
  if not task.cross_silo:
    return {('validation',): task.validation, ('test',): task.test}
  sets = dict(
    personalization=task.test.sets['personalization'],
    validation=task.validation.sets['evaluation'],
    test=task.test.sets['evaluation'],
  )
  return {
    ('validation', 'test'): data_populations.Population(
      task.test.client_ids, sets
    )
  }


def prepare(
  task: task.Task,
  kept: int = 1,
  measurement: measurements.MeasurementSettings = _NOTHING_ELSE,
  seed: int = 0,
  chooses: bool = True,
) -> Populations:
  """Prepares the clients to evaluate; several evaluations may share them.

  Args:
    task: The task.
    kept: The number of cohorts whose data are kept for another evaluation.
    measurement: The further measurements.
    seed: The seed for examples that are drawn for them.
    chooses: Whether a candidate is to be chosen. If not, there need not be any
      validation clients.

  Returns:
    The clients, by the parts of the evaluation that they are in; test clients
    come last.

  Raises:
    UserError: If there are no validation clients, or no test clients.
  """
  populations = {
    parts: cohorts.Cohorts(population, task.padded, kept, by_size=True)
    for parts, population in _populations(task).items()
    if chooses or 'test' in parts or population.client_ids
  }
  for parts, clients in populations.items():
    if not len(clients):
      raise errors.UserError(
        f'{task.name} has no clients for {" and ".join(parts)} with examples'
        ' both to adapt to and to be evaluated on. Change its settings.'
      )
    for others in populations.values():
      clients.pad_as(others)
  if measurement.ood_examples:
    drawn = clients.sample(
      measurements.own_sets(task)[-1],
      measurement.ood_examples,
      seeds.generator(measurements.OOD, seed),
    )
    for clients in populations.values():
      clients.share(measurements.OOD, drawn)
  return populations


@dataclasses.dataclass(frozen=True)
class _Evaluator:
  """Personalizes and evaluates clients, cohort by cohort.

  Attributes:
    method: The method.
    trained: The result of its training.
    task: The task.
    training_settings: How it was trained.
    cohort_size: The number of clients at a time.
    on_cohort: Called with the number of clients that were just evaluated.
  """

  method: methods.Method
  trained: training.Trained
  task: task.Task
  training_settings: schedules.TrainingSettings
  cohort_size: int
  on_cohort: Callable[[int], None] = lambda _: None

  @functools.cached_property
  def _stream(self) -> streams.Stream:
    return streams.find_for_evaluation(
      self.method, self.task, self.training_settings
    )

  def _find_rows(self, clients: cohorts.Cohorts, first: int) -> np.ndarray:
    """Returns the rows of a cohort, whose clients follow `first` in order."""
    places = np.arange(first, first + self.cohort_size)
    if clients.padded:
      # All cohorts have the same size, so that a program serves many of them:
      # the last cohort is filled up with copies of the last client.
      places = places.clip(max=len(clients) - 1)
    else:
      places = places[: len(clients) - first]
    return clients.order[places]

  def _batching(self, first: int) -> cohorts.Batching:
    """Returns the batches in which a cohort adapts, given its first place."""
    method, settings = self.method, self.training_settings
    in_order = cohorts.Batching(
      settings.batch_size or self.task.batch_size,
      drop_partial=settings.drop_partial_batches and method.takes_steps,
    )
    if not method.shuffled_epochs:
      return in_order
    # Only on Poisson batches rests a guarantee.
    stream = self._stream if settings.poisson_batches else (settings.seed,)
    return dataclasses.replace(
      in_order,
      shuffle=('shuffle', *stream, first),
      epochs=method.shuffled_epochs,
      poisson=settings.poisson_batches,
    )

  def _load_cohort(
    self,
    clients: cohorts.Cohorts,
    first: int,
    personalized_on: float,
    sets: Mapping[str, measurements.SetPart],
  ) -> tuple[np.ndarray, dict[str, aliases.Structure]]:
    """Returns the rows of a cohort, and its data and seeds."""
    rows = self._find_rows(clients, first)
    by_name = {
      name: clients.data(
        part.name, rows, cohorts.Batching(BATCH_SIZE), part.start, part.stop
      )
      for name, part in sets.items()
    }
    evaluated: aliases.Structure = collections.OrderedDict(by_name)
    if not clients.padded:
      evaluated = [
        collections.OrderedDict(zip(sets, of_client))
        for of_client in zip(*by_name.values())
      ]
    rng = seeds.generator('personalize', *self._stream, first)
    return rows, dict(
      personalization=clients.data(
        'personalization', rows, self._batching(first), stop=personalized_on
      ),
      evaluation=evaluated,
      seed=seeds.pairs(rng, len(rows)),
    )

  def evaluate(
    self,
    clients: cohorts.Cohorts,
    personalized_on: float,
    sets: Mapping[str, measurements.SetPart],
  ) -> dict[str, dict[str, aliases.Structure]]:
    """Personalizes clients on a part of their sets and evaluates them.

    Args:
      clients: The clients.
      personalized_on: The part of the personalization set.
      sets: The sets to evaluate on.

    Returns:
      {set: {metric: sums}}, each `[clients, candidates, …]`.
    """
    coming = (
      self._load_cohort(clients, first, personalized_on, sets)
      for first in range(0, len(clients), self.cohort_size)
    )
    parts = []
    with contextlib.closing(prefetch.prefetch(coming)) as loaded:
      for rows, inputs in loaded:
        cohort = cohorts.clients(
          process.EvaluatedClient,
          len(rows),
          state=self.trained.read_states(
            [clients.client_ids[row] for row in rows], rows.tolist()
          ),
          attributes=clients.attributes(
            {**self.task.attributes, **self.method.attributes},
            self.method.needs,
            rows,
          ),
          **inputs,
        )
        result = cohorts.stack(
          self.method.personalize(self.trained.server_state, cohort)
        )
        num_clients = len(np.unique(rows))
        parts.append(tree.map_structure(lambda x: x[:num_clients], result))  # noqa: B023
        self.on_cohort(num_clients)
    place = np.argsort(clients.order)
    return tree.map_structure(
      lambda *leaves: np.concatenate(leaves)[place], *parts
    )


def measure(
  method: methods.Method,
  trained: training.Trained,
  clients: data_populations.Population,
  task: task.Task,
  training_settings: schedules.TrainingSettings,
  measured_on: str = 'personalization',
) -> tuple[tuple[str, ...], dict[str, aliases.Structure]]:
  """Evaluates a method's candidates on any clients of a task.

  Args:
    method: The method, built for any evaluation sets.
    trained: The result of its training.
    clients: The clients. They adapt to their set 'personalization', or 'train'
      if they have none.
    task: Their task.
    training_settings: How it was trained.
    measured_on: The set that they are measured on; by default the one that they
      adapt to.

  Returns:
    The ids of the clients with examples, and the sums of each metric by its
    name, `[clients, candidates, …]`.
  """
  load = clients.sets.get('personalization') or clients.sets['train']
  sets_of_clients = {**clients.sets, 'personalization': load}
  sets_of_clients = {
    name: sets_of_clients[name] for name in ('personalization', measured_on)
  }
  in_cohorts = cohorts.Cohorts(
    data_populations.Population(clients.client_ids, sets_of_clients),
    task.padded,
    by_size=True,
  )
  evaluator = _Evaluator(
    dataclasses.replace(method, evaluation_sets=(measured_on,)),
    trained,
    task,
    training_settings,
    min(len(in_cohorts), _COHORT),
  )
  sets = {measured_on: measurements.SetPart(measured_on)}
  sums = evaluator.evaluate(in_cohorts, 1.0, sets)
  return in_cohorts.client_ids, sums[measured_on]


def _are_judged(judged_by: Sequence[ClientMetrics]) -> np.ndarray:
  """Tells which clients have something to evaluate in each set.

  A client's examples may have nothing, such as sentences in which no word
  counts.
  """
  return np.all(
    [weight > 0 for of_set in judged_by for weight in of_set.weights.values()],
    axis=0,
  )


def _find_cohort_size(populations: Populations) -> int:
  """Returns one size for all cohorts, no larger than necessary for that."""
  most = max(map(len, populations.values()))
  return -(-most // -(-most // _COHORT))


def validate(
  method: methods.Method,
  trained: training.Trained,
  task: task.Task,
  training_settings: schedules.TrainingSettings,
  on_cohort: Callable[[int], None],
  populations: Populations,
) -> Evaluation:
  """Personalizes and evaluates only the validation clients.

  Args:
    method: The method, built for `measurements.evaluation_sets`.
    trained: The state of its training.
    task: The task.
    training_settings: How it is trained.
    on_cohort: Called with the number of clients that were just evaluated.
    populations: The result of `prepare`.

  Returns:
    The metrics of all candidates, both as validation and as test metrics.
  """
  name = measurements.own_sets(task)[0]
  clients, *_ = populations.values()
  # Other sets, such as the test examples of a silo, are left out.
  sets = {
    other: measurements.SetPart(name, 0.0, float(other == name))
    for other in method.evaluation_sets
  }
  sums = _Evaluator(
    method,
    trained,
    task,
    training_settings,
    _find_cohort_size(populations),
    on_cohort,
  ).evaluate(clients, 1.0, sets)
  found = ClientMetrics(clients.client_ids, sums[name], task.model.metrics)
  judged = _are_judged([found])
  return Evaluation(
    task.metric,
    task.higher_is_better,
    tuple(method.candidates),
    method.baseline,
    found.select(judged),
    found.select(judged),
    (),
    clients.sizes['personalization'][judged],
    candidates_compete=method.candidates_compete,
  )


def _evaluate_part(
  evaluator: _Evaluator,
  populations: Populations,
  measurement: measurements.MeasurementSettings,
  personalized_on: float,
) -> Evaluation:
  """Evaluates all clients, personalized on this part of their sets."""
  method, task = evaluator.method, evaluator.task
  own_sets = measurements.own_sets(task)
  further_sets = measurements.further_sets(task, measurement, personalized_on)
  *_, reported = populations.values()
  by_part: dict[str, ClientMetrics] = {}
  skipped: list[str] = []
  for parts, clients in populations.items():
    sets = {name: measurements.SetPart(name) for name in own_sets}
    for name, part in further_sets.items():
      is_judged = clients is reported
      sets[name] = part if is_judged else part._replace(start=0.0, stop=0.0)
    sums = evaluator.evaluate(clients, personalized_on, sets)
    if evaluator.trained.diverged:
      for of_set in sums.values():
        of_set[metrics.DIVERGED] = np.ones(
          [len(clients), len(method.candidates)]
        )
    by_set = {
      name: ClientMetrics(clients.client_ids, of_set, task.model.metrics)
      for name, of_set in sums.items()
    }
    judged = _are_judged([by_set[name] for name in own_sets])
    if not judged.any():
      raise errors.UserError(
        f'{task.name} has no clients for {" and ".join(parts)} with examples'
        f' on which {task.metric} can be computed. Change its settings.'
      )
    skipped += clients.skipped
    skipped += itertools.compress(clients.client_ids, ~judged)
    by_set = {name: of_set.select(judged) for name, of_set in by_set.items()}
    for reported_part, name in zip(parts, own_sets, strict=True):
      by_part[reported_part] = by_set[name]
  # `reported`, the test clients, came last.
  nobody = by_part['test'].select(np.zeros(judged.sum(), bool))
  return Evaluation(
    task.metric,
    task.higher_is_better,
    tuple(method.candidates),
    method.baseline,
    by_part.get('validation', nobody),
    by_part['test'],
    tuple(skipped),
    reported.sizes['personalization'][judged],
    further={
      name: by_set[name]
      for name, part in further_sets.items()
      if part.stop > part.start
    },
    candidates_compete=method.candidates_compete,
  )


def evaluate(
  method: methods.Method,
  trained: training.Trained,
  task: task.Task,
  training_settings: schedules.TrainingSettings,
  on_cohort: Callable[[int], None] = lambda _: None,
  populations: Populations | None = None,
  measurement: measurements.MeasurementSettings = _NOTHING_ELSE,
) -> Evaluation:
  """Personalizes and evaluates all clients of a task.

  Args:
    method: The method, built for `measurements.evaluation_sets`.
    trained: The result of its training. If that diverged, all candidates count
      as diverged.
    task: The task.
    training_settings: How it was trained.
    on_cohort: Called with the number of clients that were just evaluated; each
      client is evaluated for each of `measurements.personalization_parts`.
    populations: The result of `prepare`, if the caller has it already.
    measurement: The further measurements.

  Returns:
    The metrics of all candidates.

  Raises:
    UserError: If there are no validation clients, or no test clients.
  """
  populations = populations or prepare(
    task, measurement=measurement, seed=training_settings.seed
  )
  evaluator = _Evaluator(
    method,
    trained,
    task,
    training_settings,
    _find_cohort_size(populations),
    on_cohort,
  )
  all_of_it, *less = measurements.personalization_parts(task, measurement)
  return dataclasses.replace(
    _evaluate_part(evaluator, populations, measurement, all_of_it),
    partly_personalized={
      part: _evaluate_part(evaluator, populations, measurement, part)
      for part in less
    },
  )
