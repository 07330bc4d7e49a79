"""Tables of privacy: each method at several ε, counted in two ways.

The file of such a table has, beside what other tables have,

  epsilons = [1, 6]
  [accountings]               # the settings of each way to count
  published = {"privacy.counted_as_poisson" = true}
  run = {poisson_batches = true}

so that each row of its grids, as `fedavg`, stands for one at each ε in each
way: `fedavg_1_published`, and so on. The first way is the published one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import rich.box
import rich.markup
import rich.table

from experiments.command_line import terminal
from experiments.sweeps import grid_results

_WIDTH = 150
# The metric of all clients together, each by its examples.
_FIGURE = 'weighted_mean'


class Cell(NamedTuple):
  """A row of the grids as a cell of the table."""

  method: str
  epsilon: str
  accounting: str


def expand(
  contents: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Cell]]:
  """Makes of each row of the grids one at each ε in each way to count.

  Args:
    contents: The contents of the file. They stay as they are.

  Returns:
    The contents without `epsilons` and `accountings`, and the cell of each row.
  """
  rest = dict(contents)
  epsilons, accountings = rest.pop('epsilons'), rest.pop('accountings')
  known, rows, cells, grids = rest.pop('rows', {}), {}, {}, []
  for grid in rest['grid']:
    names = []
    for method in grid['algorithms']:
      row = known.get(method, {'algorithm': method})
      for accounting, how in accountings.items():
        for epsilon in epsilons:
          name = f'{method}_{epsilon:g}_{accounting}'
          cells[name] = Cell(method, f'{epsilon:g}', accounting)
          own = {**row.get('settings', {}), **how, 'privacy.epsilon': epsilon}
          rows[name] = {'algorithm': row['algorithm'], 'settings': own}
          names.append(name)
    grids.append({**grid, 'algorithms': names})
  return {**rest, 'rows': rows, 'grid': grids}, cells


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
    'point': result.point.describe(),
  }


def compare(
  cells: Mapping[str, Cell],
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
  first = next(iter(cells.values())).accounting
  table: dict[str, dict[str, dict[str, Any]]] = {}
  for name, cell in cells.items():
    of_cell = table.setdefault(cell.method, {}).setdefault(cell.epsilon, {})
    figures = _figures(winners.get(name))
    if cell.accounting == first:
      mean = published.get(name, {}).get('mean')
      of_cell.update(figures, published=mean)
    else:
      of_cell[cell.accounting] = figures
  return table


def _text(figures: Mapping[str, Any]) -> str:
  if figures['ours'] is None:
    return '–'
  return f'{figures["ours"]:.5f} ± {figures["over_repeats"]:.5f}'


def show(
  title: str,
  cells: Mapping[str, Cell],
  published: Mapping[str, Mapping[str, float]],
  winners: Mapping[str, grid_results.PointResult],
) -> dict[str, dict[str, dict[str, Any]]]:
  """Prints the table; returns its figures, see `compare`."""
  compared = compare(cells, published, winners)
  others: Sequence[str] = list(
    dict.fromkeys(cell.accounting for cell in cells.values())
  )[1:]
  printed = rich.table.Table(
    title=title, title_justify='left', box=rich.box.SIMPLE
  )
  printed.add_column('method')
  for name in ('ε', 'ours, counted as published', 'published', 'difference'):
    printed.add_column(name, justify='right')
  printed.add_column('its ε as run', justify='right')
  for name in others:
    printed.add_column(f'ours, {name}', justify='right')
  printed.add_column('best point', overflow='fold')
  for method, of_method in compared.items():
    for epsilon, own in of_method.items():
      mean, ours = own['published'], own['ours']
      has_both = None not in (mean, ours)
      printed.add_row(
        method,
        epsilon,
        _text(own),
        '' if mean is None else f'{mean:.5f}',
        f'{ours - mean:+.5f}' if has_both else '',
        f'{own["epsilon"]:.3g}' if own.get('epsilon') else '',
        *(_text(own[name]) for name in others),
        rich.markup.escape(own.get('point', '')),
      )
  terminal.print_table(printed, width=_WIDTH)
  return compared
