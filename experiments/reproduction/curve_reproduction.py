"""Published curves run again, as figures and a table."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
import pathlib

from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.reporting.plots import method_plots
from experiments.reporting.plots import style
from experiments.reproduction import curves
from experiments.reproduction import reruns
from experiments.sweeps import captions
from experiments.sweeps import grid_results
from experiments.sweeps import grids
from personalization.privacy import accounting

# For each figure and curve, each method's values over x, those of all repeats.
_Drawn = Mapping[tuple[str, str], dict[str, dict[float, list[float]]]]


def collect(
  table: curves.CurveTable, results: Sequence[grid_results.PointResult]
) -> _Drawn:
  """Collects the values to draw, from the points that are finished."""
  drawn: _Drawn = {
    (figure, curve): {} for figure in table.figures for curve in table.curves
  }
  for result in results:
    figure, x = table.place(result.point)
    for name, curve in table.curves.items():
      values = [
        record['means'][curve.metric][curve.of] for record in result.records
      ]
      if values and None not in values:
        of_method = drawn[figure, name].setdefault(result.point.name, {})
        of_method[x] = values
  return drawn


def extrapolated(table: curves.CurveTable) -> dict[float, float]:
  """Computes the ε that a larger population would have with each noise.

  It has as many rounds as the points, its clients are drawn by Poisson
  sampling, and δ is N^-1.1.

  Args:
    table: The curves. Without a `population`, no ε is computed.

  Returns:
    {x: ε}.
  """
  epsilons: dict[float, float] = {}
  if table.population is None:
    return epsilons
  total, per_round = dataclasses.astuple(table.population)
  for point in table.grid.points:
    _, noise = table.place(point)
    if noise not in epsilons:
      seed = table.grid.repeats[0]
      how = configs.resolve(table.grid.request(point, seed)).training
      epsilons[noise], _ = accounting.epsilon(
        accounting.poisson(noise, per_round / total, how.total_rounds),
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
  for (figure, curve), methods in drawn.items():
    for x in sorted({x for by_x in methods.values() for x in by_x}):
      row = rows[f'{figure} {curve} {x:g}'] = {}
      if x in epsilons:
        finite = math.isfinite(epsilons[x])
        row['epsilon'] = epsilons[x] if finite else None
      for method, by_x in methods.items():
        if x in by_x:
          row[method] = sum(by_x[x]) / len(by_x[x])
  return rows


def _text(column: str, row: Mapping[str, float | None]) -> str:
  if column not in row:
    return '–'
  value = row[column]
  if column == 'epsilon':
    return '∞' if value is None else f'{value:.3g}'
  return f'{value:.5f}'


def _print(
  table: curves.CurveTable, rows: Mapping[str, Mapping[str, float | None]]
) -> None:
  columns = list(dict.fromkeys(name for row in rows.values() for name in row))
  printed = terminal.make_table(
    table.title,
    f'figure, curve, {table.x_label}',
    numbers=[name.replace('epsilon', 'ε, extrapolated') for name in columns],
  )
  for name, row in rows.items():
    printed.add_row(name, *(_text(column, row) for column in columns))
  terminal.print_table(printed)


def draw(
  table: curves.CurveTable,
  methods: Mapping[str, Mapping[float, list[float]]],
  epsilons: Mapping[float, float],
  metric: str,
  higher_is_better: bool,
) -> style.Figure:
  """Draws methods over noise with its ε, a share, or another number."""
  label = table.x_label
  if epsilons:
    label += ', and ε extrapolated'
    ticks = {
      x: f'{x:g}\n{epsilon:.3g}'.replace('inf', '∞')
      for x, epsilon in epsilons.items()
    }
  elif table.most is not None:
    return method_plots.fractions(methods, label, metric, higher_is_better)
  else:
    ticks = {x: f'{x:g}' for by_x in methods.values() for x in by_x}
  return method_plots.against(methods, label, ticks, metric, higher_is_better)


def _show(
  table: curves.CurveTable, folder: pathlib.Path, grid: grids.Grid
) -> dict[str, dict[str, float | None]]:
  """Draws and prints the curves of a grid; returns their rows."""
  results = grid.results()
  drawn = collect(table, results)
  for line in grid.diverged():
    terminal.say(line)
  epsilons = extrapolated(table)
  higher_is_better = any(
    record['higher_is_better']
    for result in results
    for record in result.records
  )
  for (figure, curve), methods in drawn.items():
    metric = f'{table.curves[curve].metric.replace("parent_", "")}, {curve}'
    drawing = draw(table, methods, epsilons, metric, higher_is_better)
    style.add_caption(drawing, captions.of_points(table.title, results))
    style.save(drawing, folder / 'plots', f'{figure}_{curve}')
  rows = make_rows(drawn, epsilons)
  _print(table, rows)
  return rows


def main(table: curves.CurveTable, rerun: reruns.Rerun) -> int:
  """Runs curves again and draws them; returns the exit status."""
  show = functools.partial(_show, table, rerun.folder)
  return rerun.carry_out(table.grid, show)
