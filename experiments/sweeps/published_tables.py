"""The published tables that come with the code, each in a TOML file."""

from collections.abc import Mapping
import dataclasses
import pathlib
import tomllib

from base import errors
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
    published: The published figures of each method that has any: 'mean', and
      maybe 'hurt' and 'largest_cluster'.
    whole: All grids.
    best: The best points, as found here; None if they are not known yet.
    rows: Of a table of known groups, the method of each row; empty for a table
      of methods' means.
  """

  title: str
  published: Mapping[str, Mapping[str, float]]
  whole: grid_file.GridFile
  best: grid_file.GridFile | None
  rows: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def methods(self) -> tuple[str, ...]:
    """The methods, in the order of the grids."""
    return tuple(dict.fromkeys(point.algorithm for point in self.whole.points))


def read(name: str) -> PublishedTable:
  """Reads a table; raises a `UserError` if there is none of that name."""
  if name not in table_names():
    raise errors.unknown('table', name, table_names())
  contents = tomllib.loads((_TABLES / f'{name}.toml').read_text('utf-8'))
  title, published = contents.pop('title'), contents.pop('published', {})
  rows = contents.pop('rows', {})
  best = contents.pop('best', None)
  whole = grid_file.parse(contents, name)
  if best is not None:
    points = tuple(
      grid_file.Point(method, values, {}) for method, values in best.items()
    )
    best = dataclasses.replace(whole, points=points)
  return PublishedTable(title, published, whole, best, rows)
