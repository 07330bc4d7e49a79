"""The published tables that come with the code, each in a TOML file."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import tomllib
from typing import Any

from base import errors
from experiments.reproduction import crossed_grids
from experiments.sweeps import grid_file

_TABLES = pathlib.Path(__file__).parents[1] / 'tables'


def table_names() -> tuple[str, ...]:
  """Lists the tables that come with the code."""
  return tuple(sorted(path.stem for path in _TABLES.glob('*.toml')))


@dataclasses.dataclass(frozen=True)
class PublishedTable:
  """A published table.

  Attributes:
    title: What it shows.
    kind: How it is shown: 'means' beside published ones; 'compared' on clients,
      see `compared_tables`; 'crossed' with conditions, see `crossed_tables`;
      'private', see `private_tables`; or 'fedpc', see `fedpc_tables`.
    published: The published figures of each row that has any: 'mean', and
      maybe 'hurt' and 'largest_cluster'; in a crossed table by column.
    whole: All grids.
    best: The best points, as found here; None if they are not known yet.
    columns: What a compared table shows of the records of runs.
    cells: The cell of each row, where rows are crossed with conditions.
    groups: The groups of clients that a crossed table shows.
  """

  title: str
  kind: str
  published: Mapping[str, Mapping[str, float]]
  whole: grid_file.GridFile
  best: grid_file.GridFile | None
  columns: tuple[str, ...] = ()
  cells: Mapping[str, crossed_grids.Cell] = dataclasses.field(
    default_factory=dict
  )
  groups: Mapping[str, Mapping[str, Sequence[str]]] = dataclasses.field(
    default_factory=dict
  )

  @property
  def rows(self) -> tuple[str, ...]:
    """The rows, methods or named ones, in the order of the grids."""
    return tuple(dict.fromkeys(point.name for point in self.whole.points))

  def changed(
    self,
    num_repeats: int | None,
    settings: Mapping[str, Any],
    only: Sequence[str] = (),
  ) -> 'PublishedTable':
    """Returns the table with other grids, see `GridFile.changed`.

    Args:
      num_repeats: The number of seeds, the first ones; None for all.
      settings: Settings of all points.
      only: The rows to run, as the file names them; if empty, all of them.

    Raises:
      UserError: If there is no such row, or not as many seeds.
    """
    named = {
      row: self.cells[row].method if self.cells else row for row in self.rows
    }
    for name in only:
      if name not in named.values():
        known = dict.fromkeys(named.values())
        raise errors.UserError(f'--row: {errors.unknown("row", name, known)}')
    rows = tuple(row for row, name in named.items() if name in only)
    return dataclasses.replace(
      self,
      whole=self.whole.changed(num_repeats, settings, rows),
      best=self.best and self.best.changed(num_repeats, settings, rows),
    )


def read(name: str) -> PublishedTable:
  """Reads a table; raises a `UserError` if there is none of that name."""
  if name not in table_names():
    raise errors.unknown('table', name, table_names())
  contents = tomllib.loads((_TABLES / f'{name}.toml').read_text('utf-8'))
  title, published = contents.pop('title'), contents.pop('published', {})
  kind = contents.pop('kind', 'means')
  columns = tuple(contents.pop('columns', ()))
  groups = contents.pop('groups', {})
  best = contents.pop('best', None)
  cells: dict[str, crossed_grids.Cell] = {}
  if 'crossed' in contents:
    contents, cells = crossed_grids.expand(contents)
  whole = grid_file.parse(contents, name)
  if best is not None:
    grids = [
      {'algorithms': [row], 'values': {name: [values[name]] for name in values}}
      for row, values in best.items()
    ]
    best = grid_file.parse({**contents, 'grid': grids}, name)
  return PublishedTable(
    title, kind, published, whole, best, columns, cells, groups
  )
