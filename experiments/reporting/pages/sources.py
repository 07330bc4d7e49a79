"""What a report is of: the folders of runs and of grids, finished or not."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import contextlib
import dataclasses
import json
import math
import pathlib
import statistics
import tomllib
from typing import Any

from base import errors
from experiments.configuration import user_settings
from experiments.reporting import results_folder

# What tells repeats of one configuration apart.
SEEDS = ('seed', 'task.split_seed')
_RUNS_OF_GRID = 'runs.jsonl'


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
    repeats: The repeats.
  """

  name: str
  method: str
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
  """

  path: pathlib.Path
  configuration: Mapping[str, Any]
  asked: Sequence[str]
  methods: Mapping[str, results_folder.Result]
  clients: Mapping[str, Sequence[Mapping[str, str]]]
  rounds: Mapping[str, Mapping[str, Sequence[float]]]

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

  def series(self) -> Series:
    """Returns the point as a method."""
    return Series(
      self.name, self.records[0]['algorithm'], [*map(_of_record, self.records)]
    )


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
    text = (path / results_folder.CONFIG).read_text(encoding='utf-8')
    configuration = dict(user_settings.flatten(tomllib.loads(text)))
    methods, clients = {}, {}
  return Run(
    path,
    configuration,
    configuration['algorithms'],
    methods,
    clients,
    results_folder.read_rounds(path),
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
  except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
    raise errors.UserError(f'{path} is damaged ({error!r}).') from error
  raise errors.UserError(
    f'{path} is no folder of a run or of a grid, and has none inside. Name an'
    ' output_dir.'
  )


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
  """Finds the settings in which runs differ, and their values in each run."""
  names = dict.fromkeys(name for run in runs for name in run.configuration)
  values = {
    name: [run.configuration.get(name) for run in runs] for name in names
  }
  return {
    name: own
    for name, own in values.items()
    if any(value != own[0] for value in own)
  }


def series_of(entries: Sequence[Run | Grid]) -> list[Series]:
  """Takes together the repeats of each method with the same configuration.

  Args:
    entries: The runs, and the grids, of which the best points are taken.

  Returns:
    The series. Methods that there are with several configurations are named
    with what differs.
  """
  runs = [entry for entry in entries if isinstance(entry, Run)]
  differing = [name for name in differences(runs) if name not in SEEDS]
  grouped: dict[tuple[str, str], list[Repeat]] = {}
  for run in runs:
    label = ', '.join(
      f'{name}={run.configuration.get(name)}'
      for name in differing
      if name != 'algorithms'
    )
    for method in run.methods:
      grouped.setdefault((method, label), []).append(run.repeat(method))
  several = {
    method
    for method, label in grouped
    if any(m == method and other != label for m, other in grouped)
  }
  made = [
    Series(
      f'{method} ({label})' if method in several and label else method,
      method,
      repeats,
    )
    for (method, label), repeats in grouped.items()
  ]
  grids = [entry for entry in entries if isinstance(entry, Grid)]
  for grid in grids:
    for point in grid.best():
      own = point.series()
      if len(entries) > 1:
        own = dataclasses.replace(own, name=f'{own.name} ({grid.path.name})')
      made.append(own)
  return made
