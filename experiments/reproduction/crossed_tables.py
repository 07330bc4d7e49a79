"""Tables of methods under several conditions, beside published figures.

A figure is the mean over the clients. Under some conditions there are figures
of some clients, too: of those whose known groups the file names together,

  [groups.imbalanced]
  "25 %" = ["0"]
  "15 %" = ["1"]

which are the columns `imbalanced, 25 %`. Published figures have the columns'
names.
"""

from collections.abc import Mapping, Sequence
import json
import pathlib

from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.reporting import repeats
from experiments.reproduction import crossed_grids
from experiments.sweeps import grid_results

# For a condition, the groups that stand together, by name.
Groups = Mapping[str, Mapping[str, Sequence[str]]]
_FIGURES = 'figures.json'


def _figures(
  result: grid_results.PointResult, of_groups: Sequence[str] | None
) -> dict[str, float]:
  """Takes the mean over clients, maybe of some groups, and over the repeats."""
  pair = result.mean
  if of_groups is not None:
    within = result.mean_within(of_groups)
    if within is None:
      return {}
    pair = within
  figures = dict(zip(('ours', 'over_repeats'), pair))
  for name in ('epsilon', 'matched'):
    found = result.over_repeats(name)
    if found and of_groups is None:
      figures[name] = found[0]
  return figures


def compare(
  cells: Mapping[str, crossed_grids.Cell],
  groups: Groups,
  published: Mapping[str, Mapping[str, float]],
  winners: Mapping[str, grid_results.PointResult],
) -> dict[str, dict[str, dict[str, float | None]]]:
  """Puts our figures beside the published ones.

  Args:
    cells: The cell of each row.
    groups: The groups of clients that are columns, too.
    published: {method: {column: figure}}.
    winners: The best point of each row that is finished.

  Returns:
    {method: {column: {'ours', 'over_repeats', 'published'}}}; of all clients
    also the 'epsilon' of what was trained privately, and the share that is
    'matched' of those in clusters, see `measures.match`.
  """
  table: dict[str, dict[str, dict[str, float | None]]] = {}
  for row, (method, conditions) in cells.items():
    column = ' '.join(conditions)
    columns: dict[str, Sequence[str] | None] = {column: None}
    for condition in conditions:
      for name, members in groups.get(condition, {}).items():
        columns[f'{column}, {name}'] = members
    for name, of_groups in columns.items():
      figures: dict[str, float | None] = {'ours': None}
      if row in winners:
        figures.update(_figures(winners[row], of_groups))
      figures['published'] = published.get(method, {}).get(name)
      table.setdefault(method, {})[name] = figures
  return table


def _text(figures: Mapping[str, float | None]) -> str:
  text = '–'
  if figures['ours'] is not None:
    text = repeats.spread(
      figures['ours'], figures['over_repeats'] or 0.0, '.3f'
    )
  if figures['published'] is not None:
    text += f' ({figures["published"]:.2f})'
  return text


def _print(
  title: str,
  table: Mapping[str, Mapping[str, Mapping[str, float | None]]],
  columns: Sequence[str],
) -> None:
  printed = terminal.make_table(title, 'method', numbers=columns)
  for method, figures in table.items():
    printed.add_row(
      method,
      *(_text(figures[name]) if name in figures else '' for name in columns),
    )
  terminal.print_table(printed)


def show(
  title: str,
  cells: Mapping[str, crossed_grids.Cell],
  groups: Groups,
  published: Mapping[str, Mapping[str, float]],
  winners: Mapping[str, grid_results.PointResult],
  folder: pathlib.Path,
) -> dict[str, dict[str, dict[str, float | None]]]:
  """Prints the table and writes its figures, which it returns; see `compare`.

  Args:
    title: What it shows.
    cells: The cell of each row.
    groups: The groups of clients that are columns, too.
    published: {method: {column: figure}}.
    winners: The best point of each row that is finished.
    folder: The folder to write to.
  """
  table = compare(cells, groups, published, winners)
  columns = list(
    dict.fromkeys(name for figures in table.values() for name in figures)
  )
  whole = [name for name in columns if ',' not in name]
  note = '; published in brackets' if published else ''
  _print(f'{title}{note}', table, whole)
  for condition in whole:
    parts = [name for name in columns if name.startswith(f'{condition},')]
    if parts:
      _print(f'{condition}: clients by their groups', table, parts)
  for condition in whole:
    epsilons = [
      epsilon
      for figures in table.values()
      if (epsilon := figures.get(condition, {}).get('epsilon')) is not None
    ]
    if epsilons:
      terminal.say(
        f'{condition}: the noise guarantees at most ε = {max(epsilons):.3g}.'
      )
  folders.write(folder / _FIGURES, f'{json.dumps(table, indent=2)}\n')
  return table
