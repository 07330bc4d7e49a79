"""A published table run again, beside its published figures."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from base import errors
from experiments.command_line import terminal
from experiments.reporting import repeats
from experiments.reproduction import compared_tables
from experiments.reproduction import crossed_tables
from experiments.reproduction import fedpc_tables
from experiments.reproduction import private_tables
from experiments.reproduction import published_tables
from experiments.reproduction import reruns
from experiments.sweeps import grid_results

_TABLE_WIDTH = 150
# Those of the file of figures.
_COLUMNS = ('ours', 'over_repeats', 'published', 'hurt')


def compare(
  table: published_tables.PublishedTable,
  winners: Mapping[str, grid_results.PointResult],
) -> dict[str, dict[str, Any]]:
  """Puts our figures beside the published ones, for each row."""
  rows = {}
  for method in table.rows:
    published = table.published.get(method, {})
    row: dict[str, Any] = {'ours': None, 'published': published.get('mean')}
    if method in winners:
      for name in ('mean', 'deviation', 'hurt', 'largest_cluster'):
        row[name] = winners[method].over_repeats(name)
      row['ours'], row['over_repeats'] = row['mean']
      row['hurt'] = row['hurt'] and row['hurt'][0]
      row['point'] = winners[method].point.describe()
    rows[method] = row
  return rows


def _share(ours: float | None, published: float | None) -> str:
  if published is None:
    return f'{ours:.1%}' if ours else ''
  return ' / '.join('–' if s is None else f'{s:.1%}' for s in (ours, published))


def _print(
  table: published_tables.PublishedTable,
  rows: Mapping[str, Mapping[str, Any]],
  diverged: Collection[str],
) -> None:
  numbers = ['ours ± over repeats', 'published', 'difference']
  numbers += ['± over clients', 'hurt, and published', 'largest cluster']
  printed = terminal.make_table(table.title, 'method', numbers=numbers)
  printed.add_column('best point', overflow='fold')
  for method, row in rows.items():
    published = table.published.get(method, {})
    mean = row['published']
    of_paper = '' if mean is None else f'{mean:.4g}'
    if row['ours'] is None:
      why = 'diverged' if method in diverged else 'not finished'
      printed.add_row(method, why, of_paper)
      continue
    largest = row['largest_cluster']
    printed.add_row(
      method,
      repeats.spread(row['ours'], row['over_repeats'], '.5f'),
      of_paper,
      '' if mean is None else f'{row["ours"] - mean:+.5f}',
      f'{row["deviation"][0]:.4f}',
      _share(row['hurt'], published.get('hurt')),
      _share(largest and largest[0], published.get('largest_cluster')),
      row['point'],
    )
  terminal.print_table(printed, width=_TABLE_WIDTH)


def _show_means(
  table: published_tables.PublishedTable,
  winners: Mapping[str, grid_results.PointResult],
  results: Sequence[grid_results.PointResult],
) -> Mapping[str, Any]:
  """Prints a table of means, and returns its figures."""
  rows = compare(table, winners)
  _print(table, rows, grid_results.diverged(results))
  return {
    method: {name: row[name] for name in _COLUMNS if row.get(name) is not None}
    for method, row in rows.items()
  }


# How each kind of tables is shown, given its best points, the results of all
# points and the folder; its figures are returned.
_SHOW: Mapping[str, Callable[..., Mapping[str, Any]]] = {
  'means': lambda table, winners, results, _: _show_means(
    table, winners, results
  ),
  'compared': lambda table, winners, _, folder: compared_tables.show(
    table.title,
    table.columns,
    {row: winners[row] for row in table.rows if row in winners},
    folder,
  ),
  'crossed': lambda table, winners, _, folder: crossed_tables.show(
    table.title, table.cells, table.groups, table.published, winners, folder
  ),
  'private': lambda table, winners, _, folder: private_tables.show(
    table.title, table.cells, table.published, winners, folder / 'plots'
  ),
  'fedpc': lambda table, winners, _, folder: fedpc_tables.show(
    table.title, table.cells, table.published, winners, folder
  ),
}


def main(
  table: published_tables.PublishedTable, only_best: bool, rerun: reruns.Rerun
) -> int:
  """Runs a table again and shows it; returns the exit status.

  Args:
    table: The table.
    only_best: Whether to run only the points that were found best before.
    rerun: How to run it.
  """
  contents = table.best if only_best else table.whole
  if contents is None:
    raise errors.UserError(
      '--best: which points are the best of this table is not known yet. Leave'
      ' the flag out to run all of its points.'
    )
  return rerun.carry_out(
    contents,
    lambda grid: _SHOW[table.kind](
      table, grid.write(), grid.results(), rerun.folder
    ),
  )
