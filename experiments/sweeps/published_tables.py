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
    published: The published figures of each method: 'mean', and maybe 'hurt'
      and 'largest_cluster'.
    whole: The grids of the paper.
    best: The best points, as found here.
  """

  title: str
  published: Mapping[str, Mapping[str, float]]
  whole: grid_file.GridFile
  best: grid_file.GridFile


def read(name: str) -> PublishedTable:
  """Reads a table; raises a `UserError` if there is none of that name."""
  if name not in table_names():
    raise errors.unknown('table', name, table_names())
  contents = tomllib.loads((_TABLES / f'{name}.toml').read_text('utf-8'))
  title, published = contents.pop('title'), contents.pop('published')
  best = contents.pop('best')
  whole = grid_file.parse(contents, name)
  points = tuple(
    grid_file.Point(method, values, {}) for method, values in best.items()
  )
  return PublishedTable(
    title, published, whole, dataclasses.replace(whole, points=points)
  )
