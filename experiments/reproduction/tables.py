"""The published tables and curves that come with the code, each in a TOML file.

The file is that of a grid, see `grid_file`, with a title and what is published:

  [published]                  # of each row, by column
  fedavg = {mean = 0.0130}
  [best]                       # the values that were found best before
  fedavg = {client_learning_rate = 0.1, server_learning_rate = 0.3}

Its `kind` says how it is shown, see `kinds`. Rows can be run under several
conditions each, in one table for each thing that they differ in, with settings:

  [crossed.epsilon]
  1 = {"privacy.epsilon" = 1}
  6 = {"privacy.epsilon" = 6}
  [crossed.accounting]
  published = {"privacy.counted_as_poisson" = true}
  run = {poisson_batches = true}

Each row of the grids, as `fedavg`, then stands for one under each combination
of them: `fedavg_1_published`, and so on. A grid can name the conditions that it
is for, as in `only = {accounting = ["run"]}`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import pathlib
import tomllib
from typing import NamedTuple

from base import errors
from base.aliases import Json
from experiments.sweeps import grid_file

_TABLES = pathlib.Path(__file__).parents[1] / 'tables'


class Cell(NamedTuple):
  """A row of the grids as a cell of the table.

  Attributes:
    method: The row as the file names it.
    conditions: The name of each of its conditions, in the order of the file.
  """

  method: str
  conditions: tuple[str, ...] = ()

  @property
  def column(self) -> str:
    """The column of the table that it is in."""
    return ' '.join(self.conditions)


class Population(NamedTuple):
  """Clients that a private training is extrapolated to.

  A round of n clients with noise z on their sum is taken for one of n' with
  noise z n' / n, whose mean has the same noise (McMahan et al. 2018).

  Attributes:
    num_clients: The clients that could take part.
    clients_per_round: n', the clients that a round is expected to have.
  """

  num_clients: int
  clients_per_round: int


@dataclasses.dataclass(frozen=True)
class Axes:
  """How curves are drawn: methods against a setting, in several figures.

  Attributes:
    x: The setting on the x axis.
    label: The label of the x axis.
    curves: The metric of each curve, and whether it is that of the 'personal'
      models, which are chosen, or of the 'global' ones before.
    figures: The settings that the points of a figure have, by its name.
    most: The value of x that is drawn at 1; None if x is drawn as it is.
    population: The population that private trainings are extrapolated to, if
      they are.
  """

  x: str
  label: str
  curves: Mapping[str, tuple[str, str]]
  figures: Mapping[str, Mapping[str, Json]]
  most: float | None = None
  population: Population | None = None

  def place(self, point: grid_file.Point) -> tuple[str, float]:
    """Returns the figure of a point, and where it is on the x axis."""
    settings_of_point = {**point.settings, **point.values}
    (figure,) = (
      name
      for name, settings in self.figures.items()
      if settings.items() <= settings_of_point.items()
    )
    return figure, settings_of_point[self.x] / (self.most or 1)


@dataclasses.dataclass(frozen=True)
class Table:
  """A published table, or published curves.

  Attributes:
    title: What it shows.
    kind: How it is shown, see `kinds`.
    published: The published figures of each method that has any, by column.
    whole: All grids.
    best: The best points, as found here; None if they are not known yet.
    cells: The cell of each row of the grids, in their order.
    columns: What a table of the kind 'compared' shows of the records of runs.
    groups: For a condition, the known groups of clients that stand together in
      a table of the kind 'crossed', by name.
    axes: How curves are drawn, if they are what is published.
  """

  title: str
  kind: str
  published: Mapping[str, Mapping[str, float]]
  whole: grid_file.GridFile
  best: grid_file.GridFile | None
  cells: Mapping[str, Cell]
  columns: Sequence[str] = ()
  groups: Mapping[str, Mapping[str, Sequence[str]]] = dataclasses.field(
    default_factory=dict
  )
  axes: Axes | None = None

  def changed(
    self,
    num_repeats: int | None,
    settings: Mapping[str, Json],
    only: Sequence[str] = (),
  ) -> 'Table':
    """Returns the table with other grids, see `GridFile.changed`.

    Args:
      num_repeats: The number of seeds, the first ones; None for all.
      settings: Settings of all points.
      only: The rows to run, as the file names them; if empty, all of them.

    Raises:
      UserError: If there is no such row, or not as many seeds.
    """
    methods = dict.fromkeys(cell.method for cell in self.cells.values())
    for name in only:
      if name not in methods:
        raise errors.UserError(f'--row: {errors.unknown("row", name, methods)}')
    rows = tuple(row for row, cell in self.cells.items() if cell.method in only)
    return dataclasses.replace(
      self,
      whole=self.whole.changed(num_repeats, settings, rows),
      best=self.best and self.best.changed(num_repeats, settings, rows),
    )


def names() -> tuple[str, ...]:
  """Lists the tables and curves that come with the code."""
  return tuple(sorted(path.stem for path in _TABLES.glob('*.toml')))


def make(contents: Mapping[str, Json], source: str) -> Table:
  """Makes a table of what a TOML file has.

  Args:
    contents: The contents, which stay as they are.
    source: The name of the table.
  """
  grid = dict(contents)
  title, kind = grid.pop('title'), grid.pop('kind', 'means')
  published, best = grid.pop('published', {}), grid.pop('best', None)
  named = {key: grid.pop(key) for key in ('columns', 'groups') if key in grid}
  if 'axes' in grid:
    axes = grid.pop('axes')
    if 'population' in axes:
      axes = {**axes, 'population': Population(**axes['population'])}
    named['axes'] = Axes(**axes)
  cells = _cross(grid)
  whole = grid_file.parse(grid, source)
  if best is not None:
    grids = [
      {'algorithms': [row], 'values': {name: [values[name]] for name in values}}
      for row, values in best.items()
    ]
    best = grid_file.parse({**grid, 'grid': grids}, source)
  return Table(title, kind, published, whole, best, cells, **named)


def _cross(contents: dict[str, Json]) -> dict[str, Cell]:
  """Makes of each row of the grids one under each combination of conditions.

  Args:
    contents: The contents of the file, which have these rows then.
  """
  crossed, known = contents.pop('crossed', {}), contents.get('rows', {})
  rows, cells, grids = {}, {}, []
  for grid in contents['grid']:
    of_grid = []
    only = grid.get('only', {})
    axes = [
      [name for name in conditions if name in only.get(axis, conditions)]
      for axis, conditions in crossed.items()
    ]
    for method in grid['algorithms']:
      row = {'algorithm': method, **known.get(method, {})}
      for conditions in itertools.product(*axes):
        name = '_'.join((method, *conditions))
        cells[name] = Cell(method, conditions)
        settings = dict(row.get('settings', {}))
        for axis, condition in zip(crossed.values(), conditions):
          settings |= axis[condition]
        rows[name] = {**row, 'settings': settings}
        of_grid.append(name)
    own = {key: value for key, value in grid.items() if key != 'only'}
    grids.append({**own, 'algorithms': of_grid})
  contents |= {'rows': rows, 'grid': grids}
  return cells


def read(name: str) -> Table:
  """Reads a table; raises a `UserError` if there is none of that name."""
  if name not in names():
    raise errors.unknown('table', name, names())
  text = (_TABLES / f'{name}.toml').read_text('utf-8')
  return make(tomllib.loads(text), name)
