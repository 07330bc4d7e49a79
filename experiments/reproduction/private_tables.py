"""Tables of privacy: each method at several ε, counted in two ways.

The conditions of a cell are ε and the way to count, see `crossed_grids`.
"""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from experiments.command_line import terminal
from experiments.reporting import repeats
from experiments.reporting.plots import method_plots
from experiments.reporting.plots import style
from experiments.reproduction import crossed_grids
from experiments.sweeps import captions
from experiments.sweeps import grid_results

_WIDTH = 150
# The metric of all clients together, each by its examples.
_FIGURE = 'weighted_mean'


def _figures(
  result: grid_results.PointResult | None,
) -> dict[str, Any]:
  """Returns what is shown of a row; nothing if it is not finished."""
  if result is None:
    return {'ours': None}
  mean, deviation = result.over_repeats(_FIGURE) or (None, None)
  epsilons = result.over_repeats('epsilon')
  return {
    'ours': mean,
    'over_repeats': deviation,
    'epsilon': epsilons and epsilons[0],
    'point': result.point.describe(with_settings=False),
  }


def compare(
  cells: Mapping[str, crossed_grids.Cell],
  published: Mapping[str, Mapping[str, float]],
  winners: Mapping[str, grid_results.PointResult],
) -> dict[str, dict[str, dict[str, Any]]]:
  """Puts our figures beside the published ones.

  Args:
    cells: The cell of each row.
    published: The published figures of rows that have any.
    winners: The best point of each row that is finished.

  Returns:
    {method: {ε: figures}}: 'ours' and 'published', counted as published, with
    the ε that this is as run; and under the names of other ways to count, ours.
  """
  _, first = next(iter(cells.values())).conditions
  table: dict[str, dict[str, dict[str, Any]]] = {}
  for name, cell in cells.items():
    epsilon, accounting = cell.conditions
    of_cell = table.setdefault(cell.method, {}).setdefault(epsilon, {})
    figures = _figures(winners.get(name))
    if accounting == first:
      mean = published.get(name, {}).get('mean')
      of_cell.update(figures, published=mean)
    else:
      of_cell[accounting] = figures
  return table


def _text(figures: Mapping[str, Any]) -> str:
  if figures['ours'] is None:
    return '–'
  return repeats.spread(figures['ours'], figures['over_repeats'], '.5f')


def _draw(
  cells: Mapping[str, crossed_grids.Cell],
  winners: Mapping[str, grid_results.PointResult],
  folder: pathlib.Path,
  title: str,
) -> None:
  """Draws each method against ε, in a figure for each way to count."""
  drawn: dict[str, dict[str, dict[float, list[float]]]] = {}
  metric, higher_is_better = '', False
  ticks: dict[float, str] = {}
  for name, (method, (epsilon, accounting)) in cells.items():
    ticks[float(epsilon)] = epsilon
    if name in winners:
      record = winners[name].records[0]
      metric = record['metric'].replace('_', ' ')
      higher_is_better = record['higher_is_better']
      of_way = drawn.setdefault(accounting, {})
      of_way.setdefault(method, {})[float(epsilon)] = [
        record[_FIGURE] for record in winners[name].records
      ]
  for way, methods in drawn.items():
    label = f'ε of an example, counted as {way}'
    figure = method_plots.against(
      methods, label, ticks, metric, higher_is_better
    )
    style.add_caption(figure, captions.of_points(title, winners.values()))
    style.save(figure, folder, way)


def show(
  title: str,
  cells: Mapping[str, crossed_grids.Cell],
  published: Mapping[str, Mapping[str, float]],
  winners: Mapping[str, grid_results.PointResult],
  folder: pathlib.Path,
) -> dict[str, dict[str, dict[str, Any]]]:
  """Prints the table and draws it; returns its figures, see `compare`.

  Args:
    title: What it shows.
    cells: The cell of each row.
    published: The published figures of rows that have any.
    winners: The best point of each row that is finished.
    folder: The folder to draw it in.
  """
  compared = compare(cells, published, winners)
  _draw(cells, winners, folder, title)
  others: Sequence[str] = list(
    dict.fromkeys(accounting for _, (_, accounting) in cells.values())
  )[1:]
  numbers = ['ε', 'ours, counted as published', 'published', 'difference']
  numbers += ['its ε as run', *(f'ours, {name}' for name in others)]
  printed = terminal.make_table(title, 'method', numbers=numbers)
  printed.add_column('best point', overflow='fold')
  for method, of_method in compared.items():
    for epsilon, figures in of_method.items():
      mean, ours = figures['published'], figures['ours']
      has_both = None not in (mean, ours)
      printed.add_row(
        method,
        epsilon,
        _text(figures),
        '' if mean is None else f'{mean:.5f}',
        f'{ours - mean:+.5f}' if has_both else '',
        f'{figures["epsilon"]:.3g}' if figures.get('epsilon') else '',
        *(_text(figures[name]) for name in others),
        figures.get('point', ''),
      )
  terminal.print_table(printed, width=_WIDTH, num_keys=2)
  return compared
