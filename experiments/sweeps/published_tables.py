"""The published tables that come with the code, each in a TOML file."""

from collections.abc import Mapping
import dataclasses
import pathlib
import tomllib

from base import errors
from experiments.sweeps import crossed_grids
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
    published: The published figures of each row that has any: 'mean', and
      maybe 'hurt' and 'largest_cluster'.
    whole: All grids.
    best: The best points, as found here; None if they are not known yet.
    columns: What is shown of the records of runs, see `compared_tables`; empty
      for a table of means beside published ones.
    cells: The cell of each row, of a table of privacy; else empty.
  """

  title: str
  published: Mapping[str, Mapping[str, float]]
  whole: grid_file.GridFile
  best: grid_file.GridFile | None
  columns: tuple[str, ...] = ()
  cells: Mapping[str, crossed_grids.Cell] = dataclasses.field(
    default_factory=dict
  )

  @property
  def rows(self) -> tuple[str, ...]:
    """The rows, methods or named ones, in the order of the grids."""
    return tuple(dict.fromkeys(point.name for point in self.whole.points))


def read(name: str) -> PublishedTable:
  """Reads a table; raises a `UserError` if there is none of that name."""
  if name not in table_names():
    raise errors.unknown('table', name, table_names())
  contents = tomllib.loads((_TABLES / f'{name}.toml').read_text('utf-8'))
  title, published = contents.pop('title'), contents.pop('published', {})
  columns = tuple(contents.pop('columns', ()))
  best = contents.pop('best', None)
  cells: dict[str, crossed_grids.Cell] = {}
  if 'crossed' in contents:
    contents, cells = crossed_grids.expand(contents)
  whole = grid_file.parse(contents, name)
  if best is not None:
    grids = [
      {'algorithms': [row], 'values': {name: [own[name]] for name in own}}
      for row, own in best.items()
    ]
    best = grid_file.parse({**contents, 'grid': grids}, name)
  return PublishedTable(title, published, whole, best, columns, cells)
