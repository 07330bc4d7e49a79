"""Reads the folders of runs, of repeats and of grids, finished or not."""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import json
import math
import pathlib
import re
import statistics

from algorithms import registry
from base import errors
from base import inputs
from base.aliases import Json
from experiments.configuration import user_settings
from experiments.reporting import folders
from experiments.reporting import grid_records
from experiments.reporting import manifests
from experiments.reporting import repeats
from experiments.reporting import results_folder

# The settings in which repeats of one configuration differ.
SEEDS = ('seed', 'task.split_seed')
_ROUNDS = 'total_rounds'
# The folder of a seed, see `experiments.runs.repeated_runs`.
_SEED = re.compile(r'seed_\d+$')
# A longer label could not be read in charts.
_LONGEST_LABEL = 40
# The label of a configuration has at most this many settings.
_MOST_IN_LABEL = 2


class Run(results_folder.FinishedRun):
  """The folder of a run, of which some methods may not be finished."""

  @property
  def task(self) -> str:
    """The name of the task; for a user's table, also what is predicted."""
    name: str = self.configuration['task.name']
    target = self.configuration.get('task.target_column')
    return name if target is None else f'{target} ({name})'

  @property
  def privacy(self) -> str | None:
    """The guarantee of all private trainings together, as a sentence.

    For one of several repeats it is the guarantee of all repeats. It is None if
    no training is private.
    """
    folder = self.path.parent if _SEED.match(self.path.name) else self.path
    file = folder / results_folder.PRIVACY
    if not file.exists():
      file = self.path / results_folder.PRIVACY
    elif folder != self.path:
      manifests.check(folder, is_whole=False)
    try:
      text = json.loads(inputs.read_text(file))['text']
    except FileNotFoundError:
      return None
    except folders.DAMAGE as error:
      raise errors.UserError(
        f'{file} is damaged ({folders.fault(error)}). Do the run again, in'
        ' another folder.'
      ) from error
    return str(text)

  @property
  def metric(self) -> str | None:
    """The name of the metric; None before a method is finished."""
    return next((result['metric'] for result in self.methods.values()), None)

  @property
  def status(self) -> str:
    """The progress of the run."""
    asked = self.configuration['algorithms']
    missing = [name for name in asked if name not in self.methods]
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

  def repeat(self, method: str) -> repeats.Repeat:
    """Returns a finished method of the run."""
    result = self.methods[method]
    training = result.get('training') or ''
    return repeats.Repeat(
      self.configuration['seed'],
      result,
      self.clients[method],
      self.rounds.get(training, {}),
      results_folder.checkpoint_dir(self.path, training) if training else None,
    )


@dataclasses.dataclass(frozen=True)
class Curve:
  """The metrics of a training or of a method, by round.

  Attributes:
    name: Its name in figures.
    method: The name of the training or the method.
    repeats: The metrics by round of each repeat, by their names.
  """

  name: str
  method: str
  repeats: Sequence[Mapping[str, Sequence[float]]]


@dataclasses.dataclass(frozen=True)
class GridPoint:
  """A point of a grid.

  Attributes:
    name: Its row in a table, or its method.
    values: The point's values of the settings that the grid varies.
    records: The records of its runs, one for each seed.
  """

  name: str
  values: Mapping[str, Json]
  records: Sequence[Mapping[str, Json]]

  @property
  def validation(self) -> float:
    """The mean of the validation metric; NaN if a repeat diverged."""
    return statistics.fmean(
      [repeats.number(record['validation']) for record in self.records]
    )

  @property
  def test(self) -> float:
    """The mean of the test clients' means; NaN if a repeat diverged."""
    return statistics.fmean(
      [
        statistics.fmean(map(repeats.number, record['test']))
        for record in self.records
      ]
    )

  def series(self, task: str) -> repeats.Series:
    """Returns the point as a series of a task."""
    method = self.records[0]['algorithm']
    of_seeds = [*map(make_repeat, self.records)]
    return repeats.Series(method, task, of_seeds, row=self.name)


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
  chosen: Mapping[str, Mapping[str, Json]] = dataclasses.field(
    default_factory=dict
  )
  configurations: Mapping[str, Mapping[str, Json]] = dataclasses.field(
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


def make_repeat(record: Mapping[str, Json]) -> repeats.Repeat:
  """Returns a finished run of a grid."""
  columns = {
    'client': record['clients'],
    'metric': record['test'],
    'before': record.get('before') or [None] * len(record['clients']),
    'personalization_examples': record['personalization_examples'],
  }
  rows = [dict(zip(columns, cells)) for cells in zip(*columns.values())]
  return repeats.Repeat(record['seed'], record, rows)


def _read_run(path: pathlib.Path) -> Run:
  if (path / results_folder.RESULTS).exists():
    return Run(**vars(results_folder.read(path)))
  table = user_settings.read_toml(path / results_folder.CONFIG)
  manifests.check(path, is_whole=False)
  return Run(
    path,
    dict(user_settings.flatten(table)),
    {},
    {},
    results_folder.read_rounds(path),
    results_folder.read_validation(path),
  )


def _read_grid(path: pathlib.Path) -> Grid:
  points: dict[str, list[Mapping[str, Json]]] = {}
  finished = grid_records.GridRecords(path).by_key
  for record in finished.values():
    name = record.get('name', record['algorithm'])
    key = json.dumps([name, record['values']], sort_keys=True)
    points.setdefault(key, []).append(record)
  failures = []
  for log in sorted((path / 'logs').glob('*.log')):
    # What failed here may have been finished elsewhere.
    if not log.name.startswith('worker-') and log.stem not in finished:
      lines = inputs.read_bytes(log).decode(errors='replace').splitlines()
      failures.append(f'{lines[0]}: {lines[-1]}')
  made = [
    GridPoint(json.loads(key)[0], records[0]['values'], records)
    for key, records in points.items()
  ]
  manifests.check(path, is_whole=False)
  results = path / results_folder.RESULTS
  chosen: dict[str, Json] = {}
  if results.exists():
    chosen = json.loads(inputs.read_text(results))
  configurations = {row: _read_point(path / f'{row}.toml') for row in chosen}
  return Grid(path, made, failures, chosen, configurations)


def _read_point(path: pathlib.Path) -> dict[str, Json]:
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
    if folders.GRID.find(path):
      return [_read_grid(path)]
    # Beside repeats, there may be what a refused run of an older version left.
    has_results = (path / results_folder.RESULTS).exists()
    if folders.RUN.find(path) and (
      has_results or not folders.REPEATS.find(path)
    ):
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
    f'{folders.describe(path)} Name such a folder.'
  )


def differences(
  configured: Sequence[Mapping[str, Json]],
) -> dict[str, list[Json]]:
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
  for same in grouped.values():
    alike = [run for run in runs if run.task == same[0].task]
    differing = differences([run.configuration for run in alike])
    differing_names = [
      name for name in differing if name not in (*SEEDS, 'algorithms')
    ]
    # Either all configurations of a task have settings as labels, or folders.
    longest = max(len(_settings_label(run, differing_names)) for run in alike)
    if len(differing_names) > _MOST_IN_LABEL or longest > _LONGEST_LABEL:
      label = _folder_name(same)
    else:
      label = _settings_label(same[0], differing_names)
    made.append(Configuration(label, same))
  labels = [(one.runs[0].task, one.label) for one in made]
  return [
    # Folders of different parents may have the same name.
    Configuration(str(one.runs[0].path), one.runs)
    if one.label and labels.count(label) > 1
    else one
    for one, label in zip(made, labels)
  ]


def list_series(entries: Sequence[Run | Grid]) -> list[repeats.Series]:
  """Groups the repeats of each method with the same configuration.

  Args:
    entries: The runs and the grids. Only the best points of grids are used.

  Returns:
    The series.
  """
  runs = [entry for entry in entries if isinstance(entry, Run)]
  made = [
    repeats.Series(
      method,
      configuration.runs[0].task,
      [
        run.repeat(method)
        for run in configuration.runs
        if method in run.methods
      ],
      label=configuration.label,
    )
    for configuration in configurations(runs)
    for method in dict.fromkeys(
      name for run in configuration.runs for name in run.methods
    )
  ]
  for grid in entries:
    if isinstance(grid, Grid):
      made += [point.series(f'grid {grid.path.name}') for point in grid.best()]
  return made


def list_curves(runs: Sequence[Run], kind: str) -> list[Curve]:
  """Groups what was measured by round, also of trainings in progress.

  Args:
    runs: The runs.
    kind: The attribute of a run that has it.
  """
  return [
    Curve(
      repeats.labeled(registry.title(name), configuration.label),
      name,
      [
        getattr(run, kind)[name]
        for run in configuration.runs
        if name in getattr(run, kind)
      ],
    )
    for configuration in configurations(runs)
    for name in dict.fromkeys(
      name for run in configuration.runs for name in getattr(run, kind)
    )
  ]


def read_repeats(paths: Sequence[pathlib.Path]) -> list[list[Run]]:
  """Reads the folders of runs that differ in seed and number of rounds.

  Args:
    paths: The folders.

  Returns:
    The runs with each number of rounds, in ascending order. They have the
    methods that all runs with that number have finished.

  Raises:
    UserError: If a folder cannot be read, the runs differ in other settings,
      two of them do not differ at all, so that one would count twice, or there
      is no method that each has finished.
  """
  runs = [results_folder.read(path) for path in paths]
  first = runs[0].configuration
  for run in runs[1:]:
    different = [
      name
      for name in {**first, **run.configuration}
      if name not in (*SEEDS, _ROUNDS)
      and first.get(name) != run.configuration.get(name)
    ]
    if different:
      raise errors.UserError(
        f'{runs[0].path} and {run.path} are not repeats: they differ in'
        f' {", ".join(different)}. Name folders of runs that differ only in'
        f' seed and {_ROUNDS}.'
      )
  for run, other in itertools.combinations(runs, 2):
    if run.configuration == other.configuration:
      raise errors.UserError(
        f'{run.path} and {other.path} have the same run, seed and all. Name one'
        ' of them.'
      )
  by_rounds: dict[int, list[results_folder.FinishedRun]] = {}
  for run in runs:
    by_rounds.setdefault(run.configuration[_ROUNDS], []).append(run)
  return [_with_all_methods(alike) for _, alike in sorted(by_rounds.items())]


def _with_all_methods(runs: Sequence[results_folder.FinishedRun]) -> list[Run]:
  """Leaves out the methods that not all of the runs have finished."""
  methods = [
    m for m in runs[0].methods if all(m in run.methods for run in runs)
  ]
  if not methods:
    raise errors.UserError(
      'There is no method that has been finished in each of'
      f' {", ".join(str(run.path) for run in runs)}.'
    )
  return [
    Run(**vars(run) | {'methods': {m: run.methods[m] for m in methods}})
    for run in runs
  ]
