"""Grids whose rows are run under several conditions each.

The file of such a table names the conditions, in one table for each thing that
they differ in, and the settings of each:

  [crossed.epsilon]
  1 = {"privacy.epsilon" = 1}
  6 = {"privacy.epsilon" = 6}
  [crossed.accounting]
  published = {"privacy.counted_as_poisson" = true}
  run = {poisson_batches = true}

Each row of its grids, as `fedavg`, stands for one under each combination of
them: `fedavg_1_published`, and so on. A grid can name the conditions that it is
for, as in `only = {accounting = ["run"]}`.
"""

from collections.abc import Mapping
import itertools
from typing import Any, NamedTuple


class Cell(NamedTuple):
  """A row of the grids as a cell of the table.

  Attributes:
    method: The row as the file names it.
    conditions: The name of each of its conditions, in the order of the file.
  """

  method: str
  conditions: tuple[str, ...]


def expand(
  contents: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Cell]]:
  """Makes of each row of the grids one under each combination of conditions.

  Args:
    contents: The contents of the file. They stay as they are.

  Returns:
    The contents without `crossed`, and the cell of each row.
  """
  rest = dict(contents)
  crossed, known = rest.pop('crossed'), rest.pop('rows', {})
  rows, cells, grids = {}, {}, []
  for grid in rest['grid']:
    names = []
    own_grid = dict(grid)
    only = own_grid.pop('only', {})
    axes = [
      [name for name in conditions if name in only.get(axis, conditions)]
      for axis, conditions in crossed.items()
    ]
    for method in grid['algorithms']:
      row = known.get(method, {'algorithm': method})
      for conditions in itertools.product(*axes):
        name = '_'.join((method, *conditions))
        cells[name] = Cell(method, conditions)
        settings = dict(row.get('settings', {}))
        for axis, condition in zip(crossed.values(), conditions):
          settings |= axis[condition]
        rows[name] = {'algorithm': row['algorithm'], 'settings': settings}
        names.append(name)
    grids.append({**own_grid, 'algorithms': names})
  return {**rest, 'rows': rows, 'grid': grids}, cells
