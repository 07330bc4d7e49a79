"""Grids of tables of privacy: each method at several ε, counted in two ways.

The file of such a table has, beside what other tables have,

  epsilons = [1, 6]
  [accountings]               # the settings of each way to count
  published = {"privacy.counted_as_poisson" = true}
  run = {poisson_batches = true}

so that each row of its grids, as `fedavg`, stands for one at each ε in each
way: `fedavg_1_published`, and so on. The first way is the published one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


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
