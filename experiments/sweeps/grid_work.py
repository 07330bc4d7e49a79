"""The work of a grid: runs, and which of them share a training or a program."""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
from typing import Any

import numpy as np

from algorithms import method as methods
from base import errors
from experiments.configuration import config as config_lib
from experiments.configuration import execution
from experiments.sweeps import grid_file
from personalization import evaluation as evaluation_lib
from personalization import measures
from personalization import schedule as schedules
from personalization import summaries
from personalization import training
from tasks import task as task_lib

# Batches of so many programs of rounds, and data of so many cohorts, are kept
# for the next training of the same seed.
_KEPT = 10
# Digits that a number keeps in a record.
_DIGITS = 7

# What is known of a finished run, as JSON has it.
Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
  """A point of the grid with a seed.

  Attributes:
    key: A name that only this configuration has.
    point: The point.
    config: All of its settings.
  """

  key: str
  point: grid_file.Point
  config: config_lib.Config


@dataclasses.dataclass(frozen=True)
class Job:
  """Runs of one training, which is evaluated in several ways or rounds.

  Attributes:
    runs: The runs, those of fewer rounds first.
    rounds: How many rounds that are.
    program: What its computations depend on.
    metric: The metric to choose by; None for the task's.
  """

  runs: tuple[Run, ...]
  rounds: int
  program: str
  metric: str | None


def make_runs(grid: grid_file.GridFile) -> list[Run]:
  """All runs of a grid; raises a `UserError` if one cannot be."""
  runs = {}
  for seed in grid.repeats:
    for point in grid.points:
      config = grid.config(point, seed)
      run = Run(config.digest(), point, config)
      runs.setdefault(run.key, run)
  return list(runs.values())


def make_jobs(
  runs: Iterable[Run], metric: str | None, data_dir: str | None
) -> list[Job]:
  """Groups runs by their training.

  Args:
    runs: The runs.
    metric: The metric to choose by; None for the task's.
    data_dir: The folder of the data sets.

  Returns:
    The jobs, in the order of the runs.

  Raises:
    UserError: If a run cannot be carried out.
  """
  tasks: dict[Any, task_lib.Task] = {}
  groups = collections.defaultdict(list)
  for run in runs:
    config = run.config
    # Another seed has other data, but neither another model nor other methods.
    which = config.task, config.task_parameters
    if which not in tasks:
      tasks[which] = execution.load_task(config, data_dir)
    task = tasks[which]
    if metric not in (None, 'loss', task.metric):
      raise errors.UserError(
        f'metric must be {task.metric} or loss, not {metric!r}.'
      )
    algorithm = _build(config, task)
    options = dataclasses.replace(config.options, total_rounds=0)
    trained_alike = (
      config.task,
      config.task_parameters,
      options,
      config.settings.runtime,
      config.settings.aggregator,
      config.settings.warmstart_from,
      algorithm.training_key if algorithm.trains else 'none',
    )
    rounds = config.options.total_rounds if algorithm.trains else 0
    groups[trained_alike].append((rounds, algorithm, run))
  jobs = []
  for group in groups.values():
    group.sort(key=lambda member: member[0])
    rounds, algorithm, run = group[-1]
    program = repr((run.config.task, options, algorithm.structure))
    members = tuple(run for _, _, run in group)
    jobs.append(Job(members, rounds, program, metric))
  return jobs


def _build(config: config_lib.Config, task: task_lib.Task) -> methods.Method:
  (algorithm,) = execution.build_algorithms(config, task).values()
  return algorithm


def _number(value: float) -> float | None:
  return float(f'{value:.{_DIGITS}g}') if np.isfinite(value) else None


def _numbers(values: np.ndarray) -> list[float | None]:
  return [_number(value) for value in values]


def make_record(
  run: Run,
  evaluation: evaluation_lib.Evaluation,
  task: task_lib.Task,
  metric: str | None,
) -> dict[str, Any]:
  """What is kept of a run.

  Args:
    run: The run.
    evaluation: Its evaluation.
    task: The task.
    metric: The metric to choose by; None for the task's.

  Returns:
    The mean over the clients of the validation metric at the chosen candidates,
    which tells the best point; and each test client's metric at them, and
    before personalization.
  """
  by = metric or task.metric
  higher = task.higher_is_better if by == task.metric else False
  choice = execution.choice(run.config.settings)
  chosen = evaluation_lib.choose(
    dataclasses.replace(evaluation, metric=by, higher_is_better=higher), choice
  )
  validation = evaluation.validation.values[by]
  if choice.each:
    validation = evaluation_lib.at(validation, chosen)
  else:
    validation = validation[:, chosen[0]]
  values = evaluation.test.values[task.metric]
  test = evaluation_lib.at(values, chosen)
  record = {
    'key': run.key,
    'algorithm': run.point.algorithm,
    'values': dict(run.point.values),
    'seed': run.config.options.seed,
    'metric': task.metric,
    'higher_is_better': task.higher_is_better,
    'chosen_by': by,
    'validation': _number(validation.mean()),
    'test': _numbers(test),
    'personalization_examples': evaluation.num_personalization.tolist(),
    'chosen': collections.Counter(
      str(evaluation.candidates[c]) for c in chosen
    ),
  }
  if evaluation.baseline is not None:
    before = values[:, evaluation.baseline]
    record['before'] = _numbers(before)
    hurt = summaries.is_worse(test, before, task.higher_is_better)
    record['hurt'] = float(hurt.mean())
  clusters = measures.clusters(evaluation, chosen)
  if clusters is not None:
    _, counts = np.unique(clusters, return_counts=True)
    record['largest_cluster'] = float(counts.max() / len(clusters))
  return record


class Runner:
  """Carries out jobs, one after another; those alike share what they can."""

  def __init__(self, data_dir: str | None):
    self._data_dir = data_dir
    self._runtime: str | None = None
    self._kept: dict[str, tuple[Any, Any]] = {}

  def _once(self, name: str, key: Any, make: Callable[[], Any]) -> Any:
    """What `make` makes, unless the last one of that name was for this key."""
    if name not in self._kept or self._kept[name][0] != key:
      self._kept[name] = key, make()
    return self._kept[name][1]

  def run(
    self, job: Job, on_progress: Callable[[int], None]
  ) -> Iterator[tuple[Run, Record]]:
    """Carries out a job.

    Args:
      job: The job.
      on_progress: Called with the round that training is in, now and then.

    Yields:
      The records of its runs.
    """
    config = job.runs[0].config
    if self._runtime != config.settings.runtime:
      self._runtime = config.settings.runtime
      execution.set_runtime(self._runtime)
    key = config.task, config.task_parameters, config.options.seed
    task = self._once(
      'task', key, lambda: execution.load_task(config, self._data_dir)
    )
    options = dataclasses.replace(config.options, total_rounds=0)
    schedule_ = self._once(
      'schedule',
      (key, options),
      lambda: schedules.Schedule(task, config.options, _KEPT),
    )
    populations = self._once(
      'populations', key, lambda: evaluation_lib.prepare(task, _KEPT)
    )
    trainer = _build(config, task)
    trained = None
    for run in job.runs:
      algorithm = _build(run.config, task)
      trained = training.train(
        trainer,
        task,
        run.config.options,
        schedule=schedule_,
        start=trained,
        on_round=lambda round_num, _: on_progress(round_num),
      )
      evaluation = evaluation_lib.evaluate(
        algorithm,
        trained,
        task,
        run.config.options,
        on_cohort=lambda _: on_progress(trained.round),  # noqa: B023
        populations=populations,
      )
      record = make_record(run, evaluation, task, job.metric)
      yield run, {**record, 'dropped_updates': trained.dropped_clients}
