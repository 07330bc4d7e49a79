"""Reads the folders that a report is of: runs and grids, finished or not."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import contextlib
import dataclasses
import json
import math
import pathlib
import statistics
from typing import Any

from base import errors
from experiments.configuration import user_settings
from experiments.reporting import folders
from experiments.reporting import names
from experiments.reporting import results_folder

# What tells repeats of one configuration apart.
SEEDS = ('seed', 'task.split_seed')
_RUNS_OF_GRID = 'runs.jsonl'
# The most settings that a label of a configuration has.
_MOST_IN_LABEL = 2


@dataclasses.dataclass(frozen=True)
class Client:
  """A test client of a method.

  Attributes:
    name: Its name.
    value: The metric of its model; NaN if the model diverged.
    before: The same before personalization; NaN if there is no such model.
    examples: The number of examples that it personalized on.
  """

  name: str
  value: float
  before: float = math.nan
  examples: float = math.nan


@dataclasses.dataclass(frozen=True)
class Repeat:
  """A method with one seed.

  Attributes:
    seed: The seed.
    clients: The test clients.
    result: The method in results.json, or the record of a grid's run.
    rounds: The metrics of the rounds of its training, by their names.
  """

  seed: int
  clients: Sequence[Client]
  result: Mapping[str, Any]
  rounds: Mapping[str, Sequence[float]] = dataclasses.field(
    default_factory=dict
  )

  @property
  def mean(self) -> float:
    """The mean over clients; NaN if a model diverged."""
    return statistics.fmean(client.value for client in self.clients)


@dataclasses.dataclass(frozen=True)
class Series:
  """A method with one configuration, and one seed or several.

  Attributes:
    name: The name that it has in the report.
    method: The name of the method.
    task: The name of the task, or of the grid.
    repeats: The repeats.
  """

  name: str
  method: str
  task: str
  repeats: Sequence[Repeat]

  @property
  def metric(self) -> str:
    """The name of the metric."""
    return self.repeats[0].result['metric']

  @property
  def higher_is_better(self) -> bool:
    """Whether a larger metric is better."""
    return self.repeats[0].result['higher_is_better']


@dataclasses.dataclass(frozen=True)
class Run:
  """The folder of a run.

  Attributes:
    path: The folder.
    configuration: All settings, by their names.
    asked: The methods that it is to compare.
    methods: Those that are finished, as results.json has them.
    clients: The rows of per_client.csv of each.
    rounds: The metrics of the rounds of each training so far.
    validation: Those of the validation clients, of each method in its training.
  """

  path: pathlib.Path
  configuration: Mapping[str, Any]
  asked: Sequence[str]
  methods: Mapping[str, results_folder.Result]
  clients: Mapping[str, Sequence[Mapping[str, str]]]
  rounds: Mapping[str, Mapping[str, Sequence[float]]]
  validation: Mapping[str, Mapping[str, Sequence[float]]]

  @property
  def status(self) -> str:
    """How far it is."""
    missing = [name for name in self.asked if name not in self.methods]
    if not missing:
      return 'finished'
    rounds = max(
      (own['round'][-1] for own in self.rounds.values() if own.get('round')),
      default=0,
    )
    return (
      f'not finished: {", ".join(missing)} missing; the last round on disk is'
      f' {rounds:.0f}'
    )

  def repeat(self, method: str) -> Repeat:
    """Returns what came of a method."""
    result = self.methods[method]
    clients = [
      Client(
        row['client'],
        _number(row.get('metric')),
        _number(row.get('before')),
        _number(row.get('personalization_examples')),
      )
      for row in self.clients[method]
    ]
    rounds = self.rounds.get(result.get('training') or '', {})
    return Repeat(self.configuration['seed'], clients, result, rounds)


@dataclasses.dataclass(frozen=True)
class GridPoint:
  """A point of a grid.

  Attributes:
    name: Its row, or method.
    values: The values that the grid tries.
    records: The records of its runs, one a seed.
  """

  name: str
  values: Mapping[str, Any]
  records: Sequence[Mapping[str, Any]]

  @property
  def validation(self) -> float:
    """The mean of the validation metric; NaN if a repeat diverged."""
    return _mean([_number(own['validation']) for own in self.records])

  @property
  def test(self) -> float:
    """The mean of the test clients' means; NaN if a repeat diverged."""
    return _mean([_mean(map(_number, own['test'])) for own in self.records])

  def series(self, task: str) -> Series:
    """Returns the point as a method of a task."""
    method = self.records[0]['algorithm']
    repeats = [*map(_of_record, self.records)]
    return Series(names.written_out(self.name), method, task, repeats)


@dataclasses.dataclass(frozen=True)
class Grid:
  """The folder of a grid.

  Attributes:
    path: The folder.
    points: The points of which there are results.
    failures: What the logs say of runs that failed, a line for each.
  """

  path: pathlib.Path
  points: Sequence[GridPoint]
  failures: Sequence[str]

  @property
  def num_runs(self) -> int:
    """The number of runs that are done."""
    return sum(len(point.records) for point in self.points)

  def best(self) -> list[GridPoint]:
    """Finds the best point of each row, by validation, of those run most."""
    by_name = collections.defaultdict(list)
    for point in self.points:
      if math.isfinite(point.validation):
        by_name[point.name].append(point)
    winners = []
    for points in by_name.values():
      most = max(len(point.records) for point in points)
      record = points[0].records[0]
      sign = -1 if lower_is_chosen(record) else 1
      winners.append(
        max(
          (point for point in points if len(point.records) == most),
          key=lambda point: sign * point.validation,  # noqa: B023
        )
      )
    return winners


def lower_is_chosen(record: Mapping[str, Any]) -> bool:
  """Whether a grid chooses the point of the lower validation metric."""
  return not (
    record['higher_is_better'] and record['chosen_by'] == record['metric']
  )


def _number(text: Any) -> float:
  """Reads a number; NaN if there is none."""
  return math.nan if text in (None, '') else float(text)


def _mean(values: Iterable[float]) -> float:
  return statistics.fmean(values)


def _of_record(record: Mapping[str, Any]) -> Repeat:
  num_clients = len(record['clients'])
  before = record.get('before', [None] * num_clients)
  columns = record['test'], before, record['personalization_examples']
  clients = [
    Client(name, *map(_number, numbers))
    for name, *numbers in zip(record['clients'], *columns)
  ]
  return Repeat(record['seed'], clients, record)


def _read_run(path: pathlib.Path) -> Run:
  if (path / results_folder.RESULTS).exists():
    finished = results_folder.read(path)
    configuration = finished.configuration
    methods, clients = finished.methods, finished.clients
  else:
    table = user_settings.read_toml(path / results_folder.CONFIG)
    configuration = dict(user_settings.flatten(table))
    methods, clients = {}, {}
  return Run(
    path,
    configuration,
    configuration['algorithms'],
    methods,
    clients,
    results_folder.read_rounds(path),
    results_folder.read_validation(path),
  )


def _read_grid(path: pathlib.Path) -> Grid:
  points: dict[str, list[Mapping[str, Any]]] = {}
  text = (path / _RUNS_OF_GRID).read_text(encoding='utf-8')
  for line in text.splitlines():
    # A line may be cut off, as the grid may be under way.
    with contextlib.suppress(json.JSONDecodeError):
      record = json.loads(line)
      name = record.get('name', record['algorithm'])
      key = json.dumps([name, record['values']], sort_keys=True)
      points.setdefault(key, []).append(record)
  failures = []
  for log in sorted((path / 'logs').glob('*.log')):
    if not log.name.startswith('worker-'):
      lines = log.read_text(encoding='utf-8', errors='replace').splitlines()
      failures.append(f'{lines[0]}: {lines[-1]}')
  made = [
    GridPoint(json.loads(key)[0], records[0]['values'], records)
    for key, records in points.items()
  ]
  return Grid(path, made, failures)


def read(paths: Sequence[pathlib.Path]) -> list[Run | Grid]:
  """Reads folders.

  Args:
    paths: Folders of runs or of grids, or such that have them inside.

  Returns:
    What is in them.

  Raises:
    UserError: If there is neither a run nor a grid, or one is damaged.
  """
  return [entry for path in paths for entry in _read_folder(path)]


def _read_folder(path: pathlib.Path) -> list[Run | Grid]:
  try:
    if (path / _RUNS_OF_GRID).exists():
      return [_read_grid(path)]
    if (path / results_folder.CONFIG).exists():
      return [_read_run(path)]
    inside = sorted(path.glob(f'*/{results_folder.CONFIG}'))
    if inside:
      return [_read_run(config.parent) for config in inside]
  except folders.DAMAGE as error:
    raise errors.UserError(f'{path} is damaged ({error!r}).') from error
  raise errors.UserError(
    f'{path} is no folder of a run or of a grid, and has none inside. Name an'
    ' output_dir.'
  )


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
  """Finds the settings in which runs differ, and their values in each run.

  A setting that only some of the runs have, as that of a method, makes no
  difference; its value is then None.
  """
  values = {
    name: [run.configuration.get(name) for run in runs]
    for run in runs
    for name in run.configuration
  }
  return {
    name: own
    for name, own in values.items()
    if len({str(value) for value in own if value is not None}) > 1
  }


@dataclasses.dataclass(frozen=True)
class Configuration:
  """Runs that differ in nothing but their seed.

  Attributes:
    label: What tells it from other configurations of the task; empty if there
      is no other one.
    runs: The runs.
  """

  label: str
  runs: Sequence[Run]

  def name(self, method: str) -> str:
    """Writes the name of a method, or training, with this configuration."""
    written = names.written_out(method)
    return f'{written} ({self.label})' if self.label else written


def _task(run: Run) -> str:
  name: str = run.configuration['task.name']
  return name


def configurations(runs: Sequence[Run]) -> list[Configuration]:
  """Groups runs by all settings but the seed.

  Args:
    runs: The runs.

  Returns:
    The configurations. One is labelled with the settings in which it differs
    or, if these are many, with its folder.
  """
  grouped: dict[str, list[Run]] = {}
  for run in runs:
    settings = {
      name: value
      for name, value in run.configuration.items()
      if name not in SEEDS
    }
    grouped.setdefault(json.dumps(settings, sort_keys=True), []).append(run)
  made = []
  for own in grouped.values():
    alike = [run for run in runs if _task(run) == _task(own[0])]
    names = [
      name for name in differences(alike) if name not in (*SEEDS, 'algorithms')
    ]
    label = ', '.join(
      f'{name}={own[0].configuration.get(name)}' for name in names
    )
    if len(names) > _MOST_IN_LABEL:
      label = own[0].path.name
    made.append(Configuration(label, own))
  return made


def series_of(entries: Sequence[Run | Grid]) -> list[Series]:
  """Takes together the repeats of each method with the same configuration.

  Args:
    entries: The runs, and the grids, of which the best points are taken.

  Returns:
    The series.
  """
  runs = [entry for entry in entries if isinstance(entry, Run)]
  made = []
  for own in configurations(runs):
    methods = dict.fromkeys(name for run in own.runs for name in run.methods)
    made += [
      Series(
        own.name(method),
        method,
        _task(own.runs[0]),
        [run.repeat(method) for run in own.runs if method in run.methods],
      )
      for method in methods
    ]
  for grid in entries:
    if isinstance(grid, Grid):
      made += [point.series(f'grid {grid.path.name}') for point in grid.best()]
  return made
