"""The work of a grid: runs, and which of them share a training or a program."""

import collections
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
import dataclasses
import math
import time
from typing import Any, TypeVar

import numpy as np

from algorithms import methods
from base import errors
from base.aliases import Json
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import grid_records
from experiments.runs import execution
from experiments.runs import ledgers
from experiments.sweeps import grid_file
from personalization import stages
from personalization.judgement import choosing
from personalization.judgement import evaluation
from personalization.judgement import measures
from personalization.judgement import outcomes
from personalization.judgement import summaries
from personalization.privacy import ledger
from personalization.privacy import ways
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import task as tasks

_T = TypeVar('_T')

# The number of programs of rounds whose batches are kept for the next training
# with the same seed, and of cohorts whose data are kept.
_KEPT = 10
# The number of digits of a number in a record, and of each client's metric, of
# which true ties must not be broken.
_DIGITS = 7
_CLIENT_DIGITS = 15


@dataclasses.dataclass(frozen=True)
class GridRun:
  """A point of the grid with a seed.

  Attributes:
    key: A name that only this configuration has.
    point: The point.
    config: All of its settings.
  """

  key: str
  point: grid_file.Point
  config: configs.Config


@dataclasses.dataclass(frozen=True)
class Job:
  """Runs of one training, which is evaluated after several numbers of rounds.

  They may differ in how clients are personalized. Trainings that start from the
  model of this one belong to the same job.

  Attributes:
    name: A name that is the same in every program that has the grid.
    runs: The runs, those of fewer rounds first.
    rounds: The number of rounds of the training that comes first.
    program: A text that jobs with the same computations have in common.
    metric: The metric to choose by; None for the task's.
    detailed: Whether the records have `make_details`.
  """

  name: str
  runs: tuple[GridRun, ...]
  rounds: int
  program: str
  metric: str | None
  detailed: bool = False

  def drop(self, finished: Container[str]) -> 'Job':
    """Returns the job without the runs of these keys."""
    left = tuple(run for run in self.runs if run.key not in finished)
    return dataclasses.replace(self, runs=left)


def make_runs(grid: grid_file.GridFile) -> list[GridRun]:
  """Makes all runs of a grid.

  Returns:
    A run of each point with the first seed, then with the second, and so on.
    Points that are configured alike have runs with the same keys.

  Raises:
    UserError: If a point cannot be run.
  """
  runs = []
  for seed in grid.repeats:
    for point in grid.points:
      config = configs.resolve(grid.request(point, seed))
      if config.training.rounds_per_evaluation:
        raise errors.UserError(
          f'{point}: rounds_per_evaluation must be 0 in a grid. Do a point with'
          ' experiments:run to see its course.'
        )
      if getattr(config.privacy_settings, 'seed', ways.PUBLIC) != ways.PUBLIC:
        raise errors.UserError(
          f'{point}: privacy.seed must be public in a grid, whose trainings are'
          ' not meant to be released. Do the chosen point with experiments:run.'
        )
      runs.append(GridRun(config.digest(), point, config))
  return runs


def make_jobs(
  runs: Iterable[GridRun],
  metric: str | None,
  data_dir: str | None,
  detailed: bool = False,
) -> tuple[list[Job], list[ledger.Use]]:
  """Groups runs by their training.

  Args:
    runs: The runs.
    metric: The metric to choose by; None for the task's.
    data_dir: The folder of the data sets.
    detailed: Whether the records have `make_details`.

  Returns:
    The jobs, in the order of the runs; and the uses of protected data by all
    runs, of which a training of several runs is one.

  Raises:
    UserError: If a run cannot be carried out.
  """
  loaded: dict[Hashable, tasks.Task] = {}
  trainings = collections.defaultdict(list)
  uses: dict[Hashable, tuple[int, list[ledger.Use]]] = {}
  for run in runs:
    config = run.config
    # Another seed has other data, but neither another model nor other methods.
    which = config.task, config.task_settings
    if which not in loaded:
      loaded[which] = execution.load_task(config, data_dir)
    own_task = loaded[which]
    if metric not in (None, 'loss', own_task.metric):
      raise errors.UserError(
        f'metric must be {own_task.metric} or loss, not {metric!r}.'
      )
    method = _build(config, own_task)
    settings = _drop_length(config.training)
    trained_alike = (
      config.task,
      config.task_settings,
      settings,
      config.run.runtime,
      config.run.aggregator,
      config.run.warmstart_from,
      method.first.training_key,
    )
    rounds = config.training.total_rounds if method.trains else 0
    if method.trains and config.training.total_epochs:
      schedule = training.make_schedule(method.first, own_task, config.training)
      rounds = schedule.num_rounds(config.training, None)
    alike = dataclasses.replace(settings, seed=0)
    program = repr((config.task, alike, method.structure))
    trainings[trained_alike].append((rounds, program, run))
    if method.guarantee is not None:
      in_silos = ways.ENTRIES[config.privacy].of_examples
      release = run.key if in_silos else (trained_alike, method.training_key)
      if rounds >= uses.get(release, (0, []))[0]:
        uses[release] = rounds, ledgers.make(config, {run.key: method})[0]
  jobs = []
  for members in trainings.values():
    members.sort(key=lambda member: member[0])
    rounds, program, _ = members[-1]
    own_runs = tuple(run for *_, run in members)
    name = own_runs[0].key
    jobs.append(Job(name, own_runs, rounds, program, metric, detailed))
  of_all = (use for _, listed in uses.values() for use in listed)
  return jobs, ledgers.merge(of_all)


def _drop_length(
  settings: schedules.TrainingSettings,
) -> schedules.TrainingSettings:
  """Returns the settings without the number of rounds or epochs."""
  return dataclasses.replace(settings, total_rounds=0, total_epochs=0)


def _build(config: configs.Config, task: tasks.Task) -> methods.Method:
  (method,) = execution.build_methods(config, task).values()
  return method


def _number(value: float, digits: int = _DIGITS) -> float | None:
  return float(f'{value:.{digits}g}') if np.isfinite(value) else None


def _client_numbers(values: np.ndarray) -> list[float | None]:
  return [_number(value, _CLIENT_DIGITS) for value in values]


def _means(outcome: outcomes.Outcome, name: str) -> dict[str, float | None]:
  """Computes means of a metric over test clients.

  Returns:
    The mean at the chosen candidates ('personal') and, if there is a baseline,
    the mean at the baseline ('global').
  """
  values = outcome.evaluated.test.values[name]
  means = {
    'personal': _number(choosing.take_chosen(values, outcome.chosen).mean())
  }
  if outcome.evaluated.baseline is not None:
    means['global'] = _number(values[:, outcome.evaluated.baseline].mean())
  return means


def make_record(run: GridRun, outcome: outcomes.Outcome) -> dict[str, Json]:
  """Makes the record of a run.

  Returns:
    The mean over clients of the validation metric at the chosen candidates, by
    which the best point is chosen; each test client's metric at them, and
    before personalization; statistics of these, for tables; and the means of
    all metrics. If clients are in known groups, also the metric over all
    examples of each group together.
  """
  evaluated, test = outcome.evaluated, outcome.test
  record = {
    'key': run.key,
    'name': run.point.name,
    'algorithm': run.point.algorithm,
    'values': dict(run.point.values),
    'seed': run.config.training.seed,
    'metric': evaluated.metric,
    'higher_is_better': evaluated.higher_is_better,
    'metric_range': [_number(end) for end in evaluated.metric_range],
    'chosen_by': outcome.choice.metric or evaluated.metric,
    'validation': _number(outcome.validation),
    'clients': list(evaluated.test.client_ids),
    'test': _client_numbers(test.values),
    'weighted_mean': _number(
      summaries.weighted_mean(test.values, test.weights)
    ),
    'largest_tenth': _number(
      summaries.largest_tenth(test.values, test.weights)
    ),
    'worst_tenth': _number(
      summaries.worst_tenth(test.values, evaluated.higher_is_better)
    ),
    'personalization_examples': evaluated.num_personalization.tolist(),
    'chosen': dict(outcome.num_chosen),
    'means': {name: _means(outcome, name) for name in evaluated.test.names},
  }
  if test.before is not None and test.hurt is not None:
    record['before'] = _client_numbers(test.before.values)
    record['hurt'] = _number(test.hurt.mean())
  if outcome.groups is not None:
    record['client_groups'] = list(outcome.groups)
    record['pooled'] = _number(test.pooled())
    known = np.array(outcome.groups)
    record['groups'] = {
      str(name): _number(test.pooled(known == name))
      for name in np.unique(known)
    }
  if outcome.clusters is not None:
    found = measures.describe_clusters(outcome.clusters, outcome.groups)
    sizes = found['sizes'].values()
    record['largest_cluster'] = max(sizes) / len(outcome.clusters)
    if 'matched' in found:
      record['matched'] = found['matched']
  return record


class _Clock:
  """The times at which rounds, or cohorts of an evaluation, have ended."""

  def __init__(self) -> None:
    self._ends: list[float] = []
    self._sizes: list[int] = []

  def tick(self, size: int) -> None:
    """Notes that a round or cohort of `size` clients has just ended."""
    self._ends.append(time.monotonic())
    self._sizes.append(size)

  @property
  def seconds(self) -> float | None:
    """The seconds per client, without the first round or cohort.

    The first one includes compiling. None if there was no second one.
    """
    if len(self._ends) < 2:
      return None
    return (self._ends[-1] - self._ends[0]) / sum(self._sizes[1:])


def make_details(
  outcome: outcomes.Outcome, rounds: _Clock, cohorts: _Clock
) -> dict[str, Json]:
  """Makes the further entries of a run's record in a detailed grid.

  Args:
    outcome: The outcome of the run.
    rounds: The times at which its rounds ended.
    cohorts: The times at which the cohorts of its evaluation ended.

  Returns:
    For each candidate, the metric over all test clients' examples together and
    that of each test client; the seconds that a client trains in a round and
    that its evaluation takes, None if they were too short to measure; and the
    number of the model's frozen weights.
  """
  evaluated = outcome.evaluated
  by_candidate = {}
  for i, candidate in enumerate(evaluated.candidates):
    chosen = np.full(len(evaluated.test.client_ids), i)
    of_candidate = outcomes.SetOutcome(evaluated, evaluated.test, chosen)
    by_candidate[str(candidate)] = {
      'pooled': _number(of_candidate.pooled()),
      'test': _client_numbers(of_candidate.values),
    }
  frozen = outcome.task.model.frozen.values()
  return {
    'candidates': by_candidate,
    'training_seconds': rounds.seconds,
    'evaluation_seconds': cohorts.seconds,
    'frozen_weights': sum(math.prod(weight.shape) for weight in frozen),
  }


class _Trainings:
  """The trainings of a job, each done once."""

  def __init__(
    self,
    task: tasks.Task,
    schedule: schedules.Schedule,
    on_progress: Callable[[int], None],
  ):
    self._task = task
    self._schedule = schedule
    self._on_progress = on_progress
    self._done: dict[Hashable, tuple[stages.Stage, training.Trained]] = {}

  def get(
    self, method: methods.Method, settings: schedules.TrainingSettings
  ) -> tuple[stages.Stage, training.Trained]:
    """Returns the training of a method, ready to begin and ended.

    Args:
      method: The method.
      settings: The settings of the training. They must have at least as many
        rounds as in earlier calls.
    """
    key: Hashable = method.training_key
    schedule: schedules.Schedule | None = self._schedule
    if method.guarantee is not None:
      schedule = None  # It draws its own rounds.
    if method.predecessor is not None:
      # The training before it has another model after more rounds.
      key, schedule = (key, settings.total_rounds, settings.total_epochs), None
      if key in self._done:
        return self._done[key]
    # What was trained for fewer rounds goes on.
    _, start = self._done.get(key, (None, None))
    stage = stages.prepare(
      method,
      self._task,
      settings,
      lambda other, _: self.get(other, settings)[1],
    )
    trained = training.train(
      stage.method,
      stage.task,
      settings,
      schedule=schedule,
      start=start,
      callbacks=training.Callbacks(
        on_round=lambda round_num, _: self._on_progress(round_num)
      ),
    )
    self._done[key] = stage, trained
    return stage, trained


class Runner:
  """Carries out jobs one after another; similar ones share what they can."""

  def __init__(self, data_dir: str | None):
    self._data_dir = data_dir
    self._runtime: str | None = None
    self._kept: dict[str, tuple[Hashable, Any]] = {}

  def _once(self, name: str, key: Hashable, make: Callable[[], _T]) -> _T:
    """Makes something, or returns what was last made, if for the same key."""
    if name not in self._kept or self._kept[name][0] != key:
      self._kept[name] = key, make()
    kept: _T = self._kept[name][1]
    return kept

  def run(
    self, job: Job, on_progress: Callable[[int], None]
  ) -> Iterator[tuple[GridRun, grid_records.Record]]:
    """Carries out a job.

    Args:
      job: The job.
      on_progress: Called with the round that training is in, now and then.

    Yields:
      The records of its runs.
    """
    config = job.runs[0].config
    # A process of its own has not registered their methods and tasks yet.
    user_settings.import_modules(config.run.modules, 'the grid')
    if self._runtime != config.run.runtime:
      self._runtime = config.run.runtime
      execution.set_runtime(config.run)
    key = config.task, config.task_settings, config.training.seed
    task = self._once(
      'task', key, lambda: execution.load_task(config, self._data_dir)
    )
    settings = _drop_length(config.training)
    schedule = self._once(
      'schedule',
      (key, settings),
      lambda: schedules.Schedule(task, config.training, _KEPT),
    )
    populations = self._once(
      'populations', key, lambda: evaluation.prepare(task, _KEPT)
    )
    of_rounds = _Clock()
    per_round = settings.clients_per_round or len(task.train.client_ids)

    def on_round(number: int) -> None:
      of_rounds.tick(per_round)
      on_progress(number)

    trainings = _Trainings(task, schedule, on_round)

    def run_once(run: GridRun) -> grid_records.Record:
      method = _build(run.config, task)
      stage, trained = trainings.get(method, run.config.training)
      of_cohorts = _Clock()

      def on_cohort(size: int) -> None:
        of_cohorts.tick(size)
        on_progress(trained.round)

      evaluated = evaluation.evaluate(
        method,
        trained,
        stage.task,
        run.config.training,
        on_cohort=on_cohort,
        populations=populations,
      )
      outcome = outcomes.Outcome(
        evaluated, task, choice=execution.choice(run.config.run, job.metric)
      )
      record = make_record(run, outcome)
      if job.detailed:
        record |= make_details(outcome, of_rounds, of_cohorts)
      if method.guarantee is not None:
        record['epsilon'] = _number(method.guarantee.epsilon)
      return {**record, 'dropped_updates': trained.dropped_clients}

    for run in job.runs:
      yield run, run_once(run)
