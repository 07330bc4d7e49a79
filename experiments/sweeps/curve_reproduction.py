"""Published curves run again, as figures and a table."""

from collections.abc import Mapping, Sequence
import json
import pathlib
import time

import rich.box
import rich.table

from experiments.command_line import terminal
from experiments.reporting import plots
from experiments.sweeps import curves
from experiments.sweeps import grid_results
from experiments.sweeps import grids

# For each figure and curve, each method's values over x, those of all repeats.
_Drawn = Mapping[tuple[str, str], dict[str, dict[float, list[float]]]]


def collect(
  table: curves.CurveTable, results: Sequence[grid_results.PointResult]
) -> _Drawn:
  """Collects what is drawn, of the points that are finished."""
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
        of_method = drawn[figure, name].setdefault(result.point.algorithm, {})
        of_method[x] = values
  return drawn


def make_rows(drawn: _Drawn) -> dict[str, dict[str, float]]:
  """Makes a row for each figure, curve and x: the means over the repeats."""
  rows: dict[str, dict[str, float]] = {}
  for (figure, curve), methods in drawn.items():
    for x in sorted({x for own in methods.values() for x in own}):
      rows[f'{figure} {curve} {x:g}'] = {
        method: sum(own[x]) / len(own[x])
        for method, own in methods.items()
        if x in own
      }
  return rows


def _print(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
  printed = rich.table.Table(
    title=title, title_justify='left', box=rich.box.SIMPLE
  )
  methods = list(dict.fromkeys(name for row in rows.values() for name in row))
  printed.add_column('figure, parameter, part of the clients')
  for method in methods:
    printed.add_column(method, justify='right')
  for name, row in rows.items():
    printed.add_row(
      name, *(f'{row[m]:.5f}' if m in row else '–' for m in methods)
    )
  terminal.print_table(printed)


def main(
  table: curves.CurveTable,
  json_file: pathlib.Path | None,
  folder: pathlib.Path,
  data_dir: str | None,
  num_workers: int,
  is_dry_run: bool,
) -> int:
  """Runs curves again and draws them; returns the exit status.

  Args:
    table: The curves.
    json_file: Where to write the means over the repeats.
    folder: The folder of the results.
    data_dir: The folder of the data sets.
    num_workers: The number of processes.
    is_dry_run: Whether to only say what there is to do.
  """
  start = time.monotonic()
  with grids.open_grid(table.grid, folder, data_dir, num_workers) as grid:
    if is_dry_run:
      grid.dry_run()
      return 0
    failed = grid.carry_out()
    drawn = collect(table, grid.results())
    for line in grid.diverged():
      terminal.say(line)
  (folder / 'plots').mkdir(exist_ok=True)
  for (figure, curve), methods in drawn.items():
    metric = table.curves[curve].metric.replace('parent_', '')
    plots.save(
      plots.fractions(
        methods, 'clients in a round', f'{metric}, {curve} parameter', False
      ),
      folder / 'plots' / f'{figure}_{curve}',
    )
  rows = make_rows(drawn)
  _print(table.title, rows)
  if json_file:
    json_file.write_text(json.dumps(rows, indent=2) + '\n', encoding='utf-8')
  terminal.say(
    f'Written to {folder}, in'
    f' {terminal.duration(time.monotonic() - start)} with'
    f' {num_workers} processes.'
  )
  return 1 if failed else 0
