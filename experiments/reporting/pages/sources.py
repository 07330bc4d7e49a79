"""Reads the folders of a report: runs and grids, finished or not."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import json
import math
import pathlib
import re
import statistics
from typing import Any

from base import errors
from experiments.configuration import user_settings
from experiments.reporting import folders
from experiments.reporting import grid_records
from experiments.reporting import names
from experiments.reporting import results_folder

# The settings in which repeats of one configuration differ.
SEEDS = ('seed', 'task.split_seed')
# The folder of a seed, see `experiments.runs.repeated_runs`.
_SEED = re.compile(r'seed_\d+$')
# A longer label could not be read in charts.
_LONGEST_LABEL = 40
# The label of a configuration has at most this many settings.
_MOST_IN_LABEL = 2


@dataclasses.dataclass(frozen=True)
class Client:
  """A test client of a method.

  Attributes:
    name: Its name.
    value: The metric of its model; NaN if the model diverged.
    before: The same before personalization; NaN if there is no such model.
    examples: The number of examples that its model was personalized on.
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
    result: The method's entry in results.json, or the record of a grid's run.
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
    name: The name in the report.
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
    methods: The finished methods' entries in results.json.
    clients: The rows of per_client.csv, by method.
    rounds: The metrics of the rounds so far, by training.
    validation: The metrics of the validation clients during training, by
      method.
  """

  path: pathlib.Path
  configuration: Mapping[str, Any]
  asked: Sequence[str]
  methods: Mapping[str, results_folder.Result]
  clients: Mapping[str, Sequence[Mapping[str, str]]]
  rounds: Mapping[str, Mapping[str, Sequence[float]]]
  validation: Mapping[str, Mapping[str, Sequence[float]]]

  @property
  def task(self) -> str:
    """The name of the task; for a user's table, also what is predicted."""
    name: str = self.configuration['task.name']
    target = self.configuration.get('task.target_column')
    return name if target is None else f'{target} ({name})'

  @property
  def metric(self) -> str | None:
    """The name of the metric; None before a method is finished."""
    return next((result['metric'] for result in self.methods.values()), None)

  @property
  def status(self) -> str:
    """The progress of the run."""
    missing = [name for name in self.asked if name not in self.methods]
    if not missing:
      return 'finished'
    rounds = max(
      (
        metrics['round'][-1]
        for metrics in self.rounds.values()
        if metrics.get('round')
      ),
      default=0,
    )
    return (
      f'not finished: {", ".join(missing)} missing; the last round on disk is'
      f' {rounds:.0f}'
    )

  def repeat(self, method: str) -> Repeat:
    """Returns a finished method of the run."""
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
    name: Its row in a table, or its method.
    values: The point's values of the settings that the grid varies.
    records: The records of its runs, one for each seed.
  """

  name: str
  values: Mapping[str, Any]
  records: Sequence[Mapping[str, Any]]

  @property
  def validation(self) -> float:
    """The mean of the validation metric; NaN if a repeat diverged."""
    return _mean([_number(record['validation']) for record in self.records])

  @property
  def test(self) -> float:
    """The mean of the test clients' means; NaN if a repeat diverged."""
    return _mean(
      [_mean(map(_number, record['test'])) for record in self.records]
    )

  def series(self, task: str) -> Series:
    """Returns the point as a series of a task."""
    method = self.records[0]['algorithm']
    repeats = [*map(_of_record, self.records)]
    return Series(names.written_out(self.name), method, task, repeats)


@dataclasses.dataclass(frozen=True)
class Grid:
  """The folder of a grid.

  Attributes:
    path: The folder.
    points: The points that have results.
    failures: The errors of failed runs from their logs, a line for each.
    chosen: The best point of each row, from results.json; empty while the grid
      is not finished.
    configurations: All settings of the chosen points; the names of settings
      have no method in front.
  """

  path: pathlib.Path
  points: Sequence[GridPoint]
  failures: Sequence[str] = ()
  chosen: Mapping[str, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )
  configurations: Mapping[str, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )

  @property
  def num_runs(self) -> int:
    """The number of finished runs."""
    return sum(len(point.records) for point in self.points)

  def best(self) -> list[GridPoint]:
    """Finds the best point of each row: the chosen one, or the best so far.

    The best so far has the best validation metric among the points that were
    run with the most seeds.
    """
    by_name = collections.defaultdict(list)
    for point in self.points:
      if math.isfinite(point.validation) and math.isfinite(point.test):
        by_name[point.name].append(point)
    winners = []
    for name, points in by_name.items():
      values = self.chosen.get(name, {}).get('values')
      points = [point for point in points if point.values == values] or points
      most = max(len(point.records) for point in points)
      points = [point for point in points if len(point.records) == most]
      lower = grid_records.lower_is_chosen(points[0].records[0])
      choose = min if lower else max
      winners.append(choose(points, key=lambda point: point.validation))
    return winners


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
  finished = grid_records.GridRecords(path).by_key
  for record in finished.values():
    name = record.get('name', record['algorithm'])
    key = json.dumps([name, record['values']], sort_keys=True)
    points.setdefault(key, []).append(record)
  failures = []
  for log in sorted((path / 'logs').glob('*.log')):
    # What failed here may have been finished elsewhere.
    if not log.name.startswith('worker-') and log.stem not in finished:
      lines = log.read_text(encoding='utf-8', errors='replace').splitlines()
      failures.append(f'{lines[0]}: {lines[-1]}')
  made = [
    GridPoint(json.loads(key)[0], records[0]['values'], records)
    for key, records in points.items()
  ]
  results = path / results_folder.RESULTS
  chosen: dict[str, Any] = {}
  if results.exists():
    chosen = json.loads(results.read_text(encoding='utf-8'))
  configurations = {row: _read_point(path / f'{row}.toml') for row in chosen}
  return Grid(path, made, failures, chosen, configurations)


def _read_point(path: pathlib.Path) -> dict[str, Any]:
  """Reads the settings of a point, without its method's name in front."""
  settings = dict(user_settings.flatten(user_settings.read_toml(path)))
  (method,) = settings['algorithms']
  return {
    name.removeprefix(f'{method}.'): value for name, value in settings.items()
  }


def read(paths: Sequence[pathlib.Path]) -> list[Run | Grid]:
  """Reads the folders of runs and grids.

  Args:
    paths: Folders of runs or grids, or folders that contain folders of runs.

  Returns:
    The runs and grids, each of them once.

  Raises:
    UserError: If a folder has neither a run nor a grid, or one is damaged.
  """
  entries = [entry for path in paths for entry in _read_folder(path)]
  return list({entry.path.resolve(): entry for entry in entries}.values())


def _read_folder(path: pathlib.Path) -> list[Run | Grid]:
  try:
    if grid_records.is_grid(path):
      return [_read_grid(path)]
    if (path / results_folder.CONFIG).exists():
      return [_read_run(path)]
    inside = sorted(path.glob(f'*/{results_folder.CONFIG}'))
    if inside:
      return [_read_run(config.parent) for config in inside]
  except folders.DAMAGE as error:
    raise errors.UserError(
      f'{path} is damaged ({folders.fault(error)}).'
    ) from error
  raise errors.UserError(
    f'{path} is not the output folder of a run or a grid, and contains none.'
    ' Name such a folder.'
  )


def differences(
  configured: Sequence[Mapping[str, Any]],
) -> dict[str, list[Any]]:
  """Finds the settings in which configurations differ.

  Args:
    configured: The settings of each configuration, by their names.

  Returns:
    The values of these settings in each configuration, or None where it does
    not have the setting, for example because the setting belongs to a method
    that it does not run. A missing value does not count as a difference.
  """
  values = {
    name: [other.get(name) for other in configured]
    for settings in configured
    for name in settings
  }
  return {
    name: found
    for name, found in values.items()
    if len({str(value) for value in found if value is not None}) > 1
  }


@dataclasses.dataclass(frozen=True)
class Configuration:
  """Runs that differ only in their seed.

  Attributes:
    label: A text that distinguishes it from the task's other configurations;
      empty if there is no other one.
    runs: The runs.
  """

  label: str
  runs: Sequence[Run]

  def name(self, method: str) -> str:
    """Writes the name of a method, or training, with this configuration."""
    written = names.written_out(method)
    return f'{written} ({self.label})' if self.label else written


def _settings_label(run: Run, names: Sequence[str]) -> str:
  return ', '.join(f'{name}={run.configuration.get(name)}' for name in names)


def _folder_name(runs: Sequence[Run]) -> str:
  """Names the folder of a configuration, not of one of its seeds."""
  first = runs[0].path
  parents = {run.path.parent for run in runs}
  of_seeds = len(runs) > 1 and len(parents) == 1
  if of_seeds and _SEED.match(first.name):
    return first.parent.name
  return first.name


def configurations(runs: Sequence[Run]) -> list[Configuration]:
  """Groups runs by all settings but the seed.

  Args:
    runs: The runs.

  Returns:
    The configurations. Each is labeled with the settings in which those of its
    task differ or, if these are many or long, by its first folder.
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
  for repeats in grouped.values():
    alike = [run for run in runs if run.task == repeats[0].task]
    differing = differences([run.configuration for run in alike])
    names = [name for name in differing if name not in (*SEEDS, 'algorithms')]
    # Either all configurations of a task have settings as labels, or folders.
    longest = max(len(_settings_label(run, names)) for run in alike)
    if len(names) > _MOST_IN_LABEL or longest > _LONGEST_LABEL:
      label = _folder_name(repeats)
    else:
      label = _settings_label(repeats[0], names)
    made.append(Configuration(label, repeats))
  labels = [(one.runs[0].task, one.label) for one in made]
  return [
    # Folders of different parents may have the same name.
    Configuration(str(one.runs[0].path), one.runs)
    if one.label and labels.count(label) > 1
    else one
    for one, label in zip(made, labels)
  ]


def series_of(entries: Sequence[Run | Grid]) -> list[Series]:
  """Groups the repeats of each method with the same configuration.

  Args:
    entries: The runs and the grids. Only the best points of grids are used.

  Returns:
    The series.
  """
  runs = [entry for entry in entries if isinstance(entry, Run)]
  made = []
  for configuration in configurations(runs):
    methods = dict.fromkeys(
      name for run in configuration.runs for name in run.methods
    )
    made += [
      Series(
        configuration.name(method),
        method,
        configuration.runs[0].task,
        [
          run.repeat(method)
          for run in configuration.runs
          if method in run.methods
        ],
      )
      for method in methods
    ]
  for grid in entries:
    if isinstance(grid, Grid):
      made += [point.series(f'grid {grid.path.name}') for point in grid.best()]
  return made
