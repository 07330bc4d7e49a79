"""The TOML file of a grid.

  preset = "school"             # as --preset of run
  repeats = [100, 1100, 2100]   # seeds; each point is run with each of them

  [[grid]]                      # there can be several
  algorithms = ["fedavg", "finetuning"]
  settings = {total_rounds = 500}
  [grid.values]                 # of which all combinations are tried
  client_learning_rate = [0.01, 0.1]
  server_learning_rate = [1, 3]

Settings and values have the names that they have in a preset. The best point of
a method is the best of all grids that the method is in. To compare a method at
several settings, name each as a row, and the rows as algorithms:

  [rows]
  equal = {algorithm = "fedavg", settings = {client_weighting = "uniform"}}
  sizes = {algorithm = "fedavg"}

Instead of all combinations, `samples` draws so many points at random: from the
lists of `values`, each alike, and from between the bounds of three more tables.
A grid with more samples has those of fewer.

  [[grid]]
  algorithms = ["ditto"]
  samples = 30
  [grid.values]
  batch_size = [10, 20, 50]
  [grid.log_uniform]            # evenly on a logarithmic scale
  client_learning_rate = [0.001, 1]
  [grid.uniform]
  proximal = [0, 2]
  [grid.whole]                  # whole numbers, both bounds among them
  personal_epochs = [1, 5]

Successive halving tries all points with few rounds, and the best third of each
row with three times as many, and so on. The last ones have the total_rounds of
the points, and the first ones a third of a third of it, or as often as that
leaves at least `first_rounds`:

  [halving]
  first_rounds = 50
  factor = 3

A grid of more than 10,000 runs has to say that it means to be so large, by
`most_runs = 20000` at the top. With `detailed = true` what is kept of a run has
more, see `grid_work.make_details`.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import math
import pathlib

from base import errors
from base import words
from base.aliases import Json
from experiments.configuration import user_settings
from experiments.sweeps import sampling

_KEYS = {
  'preset': str,
  'repeats': list,
  'metric': str,
  'detailed': bool,
  'most_runs': int,
  'halving': dict,
  'rows': dict,
  'grid': list,
}
_KINDS: Mapping[type, str] = {
  list: 'a list',
  dict: 'a table',
  str: 'a text',
  bool: 'true or false',
  int: 'a whole number',
}
# Settings that points cannot have, and what to name instead.
_ELSEWHERE = {'seed': 'repeats', 'algorithms': 'the algorithms of a grid'}
# The largest number of runs, unless the file sets another one.
_MOST_RUNS = 10_000
_MOST_CHARACTERS = 100  # The limit for names of rows, which files have.
_HALVING_KEYS = {'first_rounds': int, 'factor': int}
_ROW_KEYS = {'algorithm': str, 'settings': dict}
_GRID_KEYS = {
  'algorithms': list,
  'settings': dict,
  'values': dict,
  'samples': int,
  **dict.fromkeys(sampling.DISTRIBUTIONS, dict),
}


@dataclasses.dataclass(frozen=True)
class Point:
  """A method with all of its settings, but for the seed.

  Attributes:
    algorithm: The method.
    values: The settings whose values the grid tries.
    settings: The settings that are the same in all of its points.
    row: The row that it is a point of, if that is not all of the method's.
  """

  algorithm: str
  values: Mapping[str, Json]
  settings: Mapping[str, Json]
  row: str = ''

  @property
  def name(self) -> str:
    """The row that it is a point of, or the method."""
    return self.row or self.algorithm

  def describe(self, with_settings: bool = True) -> str:
    """Writes its values, and by default its settings before them."""
    shown = {**(self.settings if with_settings else {}), **self.values}
    return ' '.join(f'{name}={value}' for name, value in shown.items())

  def __str__(self) -> str:
    return f'{self.name} {self.describe()}'


@dataclasses.dataclass(frozen=True)
class Halving:
  """The settings of successive halving.

  Attributes:
    first_rounds: The fewest rounds that all points are tried with first.
    factor: One of so many points goes on, with so many times the rounds.
  """

  first_rounds: int
  factor: int = 3

  def __post_init__(self) -> None:
    if self.first_rounds < 1 or self.factor < 2:
      raise errors.UserError(
        'halving: first_rounds must be at least 1, and factor at least 2.'
      )


@dataclasses.dataclass(frozen=True)
class GridFile:
  """The contents of a grid's file.

  Attributes:
    source: The file.
    preset: The preset of all points.
    repeats: The seeds.
    metric: The metric to choose by; None for the task's.
    points: The points.
    detailed: Whether the records of runs have `grid_work.make_details`.
    halving: How points are tried for fewer rounds first; None if they are not.
    only: The rows to run; if empty, all of them. The results of the others are
      shown if they are finished.
  """

  source: str
  preset: str | None
  repeats: tuple[int, ...]
  metric: str | None
  points: tuple[Point, ...]
  detailed: bool = False
  halving: Halving | None = None
  only: tuple[str, ...] = ()

  def runs_row(self, row: str) -> bool:
    """Tells whether the points of a row are to be run."""
    return not self.only or row in self.only

  def changed(
    self,
    num_repeats: int | None,
    settings: Mapping[str, Json],
    only: tuple[str, ...] = (),
  ) -> 'GridFile':
    """Returns the grid with fewer repeats, other settings, or fewer rows.

    Args:
      num_repeats: The number of seeds, the first ones; None for all.
      settings: Settings of all points.
      only: The rows to run; if empty, all of them.

    Raises:
      UserError: If there are not as many seeds.
    """
    if num_repeats is not None and num_repeats > len(self.repeats):
      raise errors.UserError(
        f'--repeats={num_repeats}: the table has only'
        f' {words.count(len(self.repeats), "seeds")}.'
      )
    points = tuple(
      dataclasses.replace(point, settings={**point.settings, **settings})
      for point in self.points
    )
    return dataclasses.replace(
      self, repeats=self.repeats[:num_repeats], points=points, only=only
    )

  def origins(self) -> list[str]:
    """Says which presets the settings of the points come from."""
    (seed, *_) = self.repeats
    found = (self.request(point, seed).origin for point in self.points)
    return list(dict.fromkeys(found))

  def request(self, point: Point, seed: int) -> user_settings.Request:
    """Asks for one run of a point.

    Raises:
      UserError: If there is no such task or method.
    """
    of_run = {'algorithms': [point.algorithm], 'seed': seed}
    given = (
      user_settings.SettingsLayer(
        f'{self.source}: settings', tuple(point.settings.items())
      ),
      user_settings.SettingsLayer(
        f'{self.source}: values', tuple(point.values.items())
      ),
      user_settings.SettingsLayer(self.source, tuple(of_run.items())),
    )
    return user_settings.read_layers(self.preset, given)


def _check(
  table: Json, keys: Mapping[str, type], where: str
) -> Mapping[str, Json]:
  if not isinstance(table, dict):
    raise errors.UserError(f'{where} must be a table.')
  for name, value in table.items():
    if name not in keys:
      raise errors.UserError(f'{where}: {errors.unknown("key", name, keys)}')
    # In Python, a bool is an int as well.
    if type(value) is not keys[name]:
      kind = _KINDS[keys[name]]
      raise errors.UserError(
        f'{where}: {name} must be {kind}, not {errors.quote(value)}.'
      )
  return table


def _settings(table: Mapping[str, Json], where: str) -> dict[str, Json]:
  """Returns the settings of points by their full names."""
  settings = dict(user_settings.flatten(table))
  for name in _ELSEWHERE.keys() & settings:
    raise errors.UserError(
      f'{where}: {name} cannot be set here; name {_ELSEWHERE[name]}.'
    )
  return settings


@dataclasses.dataclass(frozen=True)
class _Grid:
  """One of the grids of a file.

  Attributes:
    algorithms: The methods, or rows.
    settings: The settings of all points.
    values: The values to try of some settings.
    bounds: The bounds of the settings to draw, by distribution.
    samples: The number of points to draw; None for all combinations.
  """

  algorithms: Sequence[str]
  settings: Mapping[str, Json]
  values: Mapping[str, list[Json]]
  bounds: Mapping[str, Mapping[str, list[Json]]]
  samples: int | None

  def count(self) -> int:
    """Counts its points, without making them."""
    combinations = math.prod(map(len, self.values.values()))
    return len(self.algorithms) * (self.samples or combinations)

  def _draw(self) -> Iterator[dict[str, Json]]:
    """Yields the values of its points, which may repeat."""
    if self.samples is None:
      for combination in itertools.product(*self.values.values()):
        yield dict(zip(self.values, combination))
    else:
      for number in range(self.samples):
        yield sampling.draw(number, self.values, self.bounds)

  def points(self, rows: Mapping[str, Mapping[str, Json]]) -> Iterator[Point]:
    """Makes its points, of which some may be those of rows."""
    combinations = list(
      {repr(values): values for values in self._draw()}.values()
    )
    for name in map(str, self.algorithms):
      row = rows.get(name, {})
      settings = _settings(row.get('settings', {}), name)
      for values in combinations:
        yield Point(
          row.get('algorithm', name),
          values,
          {**settings, **self.settings},
          name if name in rows else '',
        )


def _parse_grid(table: Mapping[str, Json], where: str) -> _Grid:
  """Makes a grid of its table; raises a `UserError` if it cannot be one."""
  if not _check(table, _GRID_KEYS, where).get('algorithms'):
    raise errors.UserError(f'{where} must name its algorithms.')
  _check_different(table['algorithms'], where)
  values = _settings(table.get('values', {}), where)
  for name, tried in values.items():
    if not isinstance(tried, list) or not tried:
      raise errors.UserError(
        f'{where}: {name} must be a list of the values to try, not'
        f' {errors.quote(tried)}.'
      )
    _check_different(tried, f'{where}: {name}')
  bounds = {
    distribution: _settings(table[distribution], where)
    for distribution in sampling.DISTRIBUTIONS
    if distribution in table
  }
  samples = table.get('samples')
  if samples is not None and samples < 1:
    raise errors.UserError(f'{where}: samples must be at least 1.')
  if bounds and samples is None:
    raise errors.UserError(
      f'{where}: {next(iter(bounds))} draws values at random. Say how many'
      ' points to draw, as samples = 30.'
    )
  if samples is not None and not (values or bounds):
    raise errors.UserError(
      f'{where} has samples, but no values or bounds to draw from.'
    )
  for distribution, by_name in bounds.items():
    for name, given in by_name.items():
      sampling.check_bounds(distribution, name, given, where)
  listed = [name for by_name in bounds.values() for name in by_name]
  _check_different([*listed, *values], where)
  settings = _settings(table.get('settings', {}), where)
  return _Grid(table['algorithms'], settings, values, bounds, samples)


def _check_different(elements: list[Json], where: str) -> None:
  """Raises a `UserError` if a list names something twice."""
  for i, element in enumerate(elements):
    if element in elements[:i]:
      raise errors.UserError(
        f'{where} names {errors.quote(element)} twice. Name it once.'
      )


def _check_row_name(name: str, where: str) -> None:
  """Raises a `UserError` if a row cannot have this name, which a file has."""
  if '/' in name or '\0' in name or name.startswith('.'):
    raise errors.UserError(
      f'{where}: a name of a file has no /, and no point at its beginning.'
    )
  if not 0 < len(name.encode()) <= _MOST_CHARACTERS:
    raise errors.UserError(
      f'{where}: a name has 1 to {_MOST_CHARACTERS} characters.'
    )
  if name == 'config':
    raise errors.UserError(
      f'{where}: config.toml is the file of a run. Name another row.'
    )


def _halving(table: Mapping[str, Json], source: str) -> Halving | None:
  if 'halving' not in table:
    return None
  given = _check(table['halving'], _HALVING_KEYS, f'{source}: halving')
  if 'first_rounds' not in given:
    raise errors.UserError(f'{source}: halving must name its first_rounds.')
  try:
    return Halving(**given)
  except errors.UserError as error:
    raise errors.UserError(f'{source}: {error}') from error


def parse(table: Mapping[str, Json], source: str) -> GridFile:
  """Makes a grid of what a TOML file has.

  Args:
    table: The contents.
    source: The name of the file, for errors.

  Raises:
    UserError: If it cannot be one.
  """
  table = _check(table, _KEYS, source)
  repeats = table.get('repeats', [0])
  are_seeds = all(type(seed) is int and 0 <= seed < 2**31 for seed in repeats)
  if not repeats or not are_seeds or len(set(repeats)) < len(repeats):
    raise errors.UserError(
      f'{source}: repeats must be a list of different seeds, not'
      f' {errors.quote(repeats)}.'
    )
  rows = table.get('rows', {})
  for name, row in rows.items():
    where = f'{source}: row {name}'
    if not _check(row, _ROW_KEYS, where).get('algorithm'):
      raise errors.UserError(f'{where} must name its algorithm.')
    _check_row_name(name, where)
    _settings(row.get('settings', {}), where)
  grids = [
    _parse_grid(grid, f'{source}: grid {number}')
    for number, grid in enumerate(table.get('grid', []), 1)
  ]
  if not grids:
    raise errors.UserError(f'{source} has no [[grid]] to run.')
  num_runs = len(repeats) * sum(grid.count() for grid in grids)
  if num_runs > table.get('most_runs', _MOST_RUNS):
    raise errors.UserError(
      f'{source} has {num_runs} runs. Try fewer values, or allow it by'
      f' most_runs = {num_runs}.'
    )
  return GridFile(
    source,
    table.get('preset'),
    tuple(repeats),
    table.get('metric'),
    tuple(point for grid in grids for point in grid.points(rows)),
    table.get('detailed', False),
    _halving(table, source),
  )


def read(path: pathlib.Path) -> GridFile:
  """Reads a grid from its file; raises a `UserError` if it cannot be."""
  return parse(user_settings.read_toml(path), str(path))
