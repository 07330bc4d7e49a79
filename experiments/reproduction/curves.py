"""Published curves run again, as figures and a table.

The points of a grid are drawn as a metric of each method against one of their
settings, in a figure for each of some tasks. If the setting is noise, the ε of
a larger population is shown, too.
"""

from collections.abc import Mapping, Sequence
import math
import pathlib

from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.reporting.figures import figure
from experiments.reporting.figures import methods as method_figures
from experiments.reproduction import entries
from experiments.reproduction import tables
from experiments.sweeps import captions
from experiments.sweeps import grid_results
from experiments.sweeps import grids
from personalization.privacy import accounting

# For each figure and curve, each method's values over x, those of all repeats.
_Drawn = Mapping[tuple[str, str], dict[str, dict[float, list[float]]]]


def collect(
  axes: tables.Axes, results: Sequence[grid_results.PointResult]
) -> _Drawn:
  """Collects the values to draw, from the points that are finished."""
  drawn: _Drawn = {
    (setting, curve): {} for setting in axes.figures for curve in axes.curves
  }
  for result in results:
    setting, x = axes.place(result.point)
    for curve, (metric, models) in axes.curves.items():
      values = [record['means'][metric][models] for record in result.records]
      if values and None not in values:
        drawn[setting, curve].setdefault(result.point.name, {})[x] = values
  return drawn


def extrapolate(table: tables.Table, axes: tables.Axes) -> dict[float, float]:
  """Computes the ε that a larger population would have with each noise.

  It has as many rounds as the points, its clients are drawn by Poisson
  sampling, and δ is N^-1.1.

  Args:
    table: The curves.
    axes: How they are drawn. Without a `population`, no ε is computed.

  Returns:
    {x: ε}.
  """
  epsilons: dict[float, float] = {}
  if axes.population is None:
    return epsilons
  total, per_round = axes.population
  grid = table.whole
  for point in grid.points:
    _, noise = axes.place(point)
    if noise not in epsilons:
      config = configs.resolve(grid.request(point, grid.repeats[0]))
      epsilons[noise], _ = accounting.epsilon(
        accounting.poisson(
          noise, per_round / total, config.training.total_rounds
        ),
        accounting.default_delta(total),
      )
  return epsilons


def make_rows(
  drawn: _Drawn, epsilons: Mapping[float, float]
) -> dict[str, dict[str, float | None]]:
  """Makes a row for each figure, curve and x.

  Args:
    drawn: The values that are drawn.
    epsilons: The ε of each x, if x is noise.

  Returns:
    {row: {method: the mean over the repeats}}, and 'epsilon', which is None
    where nothing is private.
  """
  rows: dict[str, dict[str, float | None]] = {}
  for (setting, curve), methods in drawn.items():
    for x in sorted({x for by_x in methods.values() for x in by_x}):
      row = rows[f'{setting} {curve} {x:g}'] = {}
      if x in epsilons:
        finite = math.isfinite(epsilons[x])
        row['epsilon'] = epsilons[x] if finite else None
      for method, by_x in methods.items():
        if x in by_x:
          row[method] = sum(by_x[x]) / len(by_x[x])
  return rows


def _texts(row: Mapping[str, float | None]) -> dict[str, str]:
  """Writes the numbers of a row, by what they are."""
  texts = {}
  for name, value in row.items():
    if name == 'epsilon':
      texts['ε, extrapolated'] = '∞' if value is None else f'{value:.3g}'
    else:
      texts[name] = f'{value:.5f}'
  return texts


def draw(
  name: str,
  axes: tables.Axes,
  methods: Mapping[str, Mapping[float, list[float]]],
  epsilons: Mapping[float, float],
  metric: str,
  higher_is_better: bool,
) -> figure.Figure:
  """Draws methods over noise with its ε, a share, or another number."""
  label = axes.label
  lines = method_figures.make_curves(methods)
  judged = metric, higher_is_better
  if epsilons:
    label += ', and ε extrapolated'
    ticks = {
      x: f'{x:g}\n{epsilon:.3g}'.replace('inf', '∞')
      for x, epsilon in epsilons.items()
    }
  elif axes.most is not None:
    return method_figures.draw_fractions(name, lines, label, *judged)
  else:
    ticks = {x: f'{x:g}' for by_x in methods.values() for x in by_x}
  return method_figures.draw_against(name, lines, label, ticks, *judged)


def show(
  table: tables.Table, grid: grids.Grid, folder: pathlib.Path
) -> dict[str, dict[str, float | None]]:
  """Draws and prints the curves of a grid; returns their rows."""
  axes = table.axes
  assert axes is not None
  results = grid.results()
  drawn = collect(axes, results)
  for line in grid.diverged():
    terminal.say(line)
  epsilons = extrapolate(table, axes)
  higher_is_better = any(
    record['higher_is_better']
    for result in results
    for record in result.records
  )
  caption = captions.describe(table.title, results)
  for (setting, curve), methods in drawn.items():
    metric = f'{axes.curves[curve][0].replace("parent_", "")}, {curve}'
    name = f'{setting}_{curve}'
    made = draw(name, axes, methods, epsilons, metric, higher_is_better)
    figure.save(made.add_captions(caption), folder / 'plots')
  rows = make_rows(drawn, epsilons)
  entries.print_table(
    table.title,
    {name: _texts(row) for name, row in rows.items()},
    corner=f'figure, curve, {axes.label}',
  )
  return rows
