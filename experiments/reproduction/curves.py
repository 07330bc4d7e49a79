"""The published curves that come with the code, each in a TOML file.

The file is that of a grid, see `grid_file`, and says how its points are drawn:
a metric of each method against one of its settings, in a figure for each of
some tasks. If the setting is noise, the ε of a larger population is shown, too.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
import tomllib
from typing import Any

from base import errors
from experiments.sweeps import grid_file

_CURVES = pathlib.Path(__file__).parents[1] / 'tables' / 'curves'


def table_names() -> tuple[str, ...]:
  """Lists the curves that come with the code."""
  return tuple(sorted(path.stem for path in _CURVES.glob('*.toml')))


@dataclasses.dataclass(frozen=True)
class Curve:
  """A curve of each method.

  Attributes:
    metric: The metric of the test clients.
    of: 'personal' for the models that are chosen, 'global' for those before.
  """

  metric: str
  of: str


@dataclasses.dataclass(frozen=True)
class Population:
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
class CurveTable:
  """Published curves.

  Attributes:
    title: Their title.
    x: The setting on the x axis.
    x_label: The label of the x axis.
    curves: The curves in each figure, by name.
    figures: The settings that the points of a figure have, by its name.
    grid: The points.
    most: The value of x that is drawn at 1; None if x is drawn as it is.
    population: The population that private trainings are extrapolated to, if
      they are.
  """

  title: str
  x: str
  x_label: str
  curves: Mapping[str, Curve]
  figures: Mapping[str, Mapping[str, Any]]
  grid: grid_file.GridFile
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


def read(name: str) -> CurveTable:
  """Reads curves; raises a `UserError` if there are none of that name."""
  if name not in table_names():
    raise errors.unknown('table', name, table_names())
  contents = tomllib.loads((_CURVES / f'{name}.toml').read_text('utf-8'))
  curves = {
    name: Curve(**curve) for name, curve in contents.pop('curves').items()
  }
  keys = ('title', 'x', 'x_label', 'figures', 'most')
  named = {key: contents.pop(key) for key in keys if key in contents}
  population = contents.pop('population', None)
  return CurveTable(
    curves=curves,
    population=population and Population(**population),
    grid=grid_file.parse(contents, name),
    **named,
  )
