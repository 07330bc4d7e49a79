"""The kinds of published tables: how each is shown, beside its figures.

means      the mean of each row over the clients, who is hurt, the best point
crossed    methods under several conditions, maybe also by groups of clients
private    methods at several ε, counted in two ways
compared   columns of the records, with rows compared client by client
fedpc      FedPC's perplexities and claims
adapters   those of adapters of a frozen language model
curves     figures of methods against a setting

Each is a function of the table, its grid and the folder of its results, which
returns the figures that it shows.
"""

from collections.abc import Callable, Mapping
import functools
import pathlib

from base.aliases import Json
from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.reporting.figures import figure
from experiments.reporting.figures import methods as method_figures
from experiments.reproduction import compared
from experiments.reproduction import curves
from experiments.reproduction import entries
from experiments.reproduction import fedpc
from experiments.reproduction import tables
from experiments.sweeps import captions
from experiments.sweeps import grid_results
from experiments.sweeps import grids

_WIDTH = 150


def _number(value: float | None, form: str) -> str:
  return '' if value is None else f'{value:{form}}'


def _share(ours: float | None, published: float | None) -> str:
  if published is None:
    return f'{ours:.1%}' if ours else ''
  return ' / '.join('–' if s is None else f'{s:.1%}' for s in (ours, published))


def show_means(
  table: tables.Table, grid: grids.Grid, _: pathlib.Path
) -> dict[str, entries.Entry]:
  """Prints the mean of each row beside the published one.

  Returns:
    {row: {'ours', 'over_repeats', 'published', 'hurt'}}, without what a row
    does not have.
  """
  winners = grid.write()
  diverged = grid_results.diverged(grid.results())
  numbers = ['ours ± over repeats', 'published', 'difference']
  numbers += ['± over clients', 'hurt, and published', 'largest cluster']
  printed = terminal.make_table(table.title, 'method', numbers=numbers)
  printed.add_column('best point', overflow='fold')
  shown: dict[str, entries.Entry] = {}
  for row in table.cells:
    published = table.published.get(row, {})
    mean = published.get('mean')
    if row in winners:
      winner = winners[row]
      entry = entries.make(winner.mean) | {'published': mean}
      hurt, largest = (
        pair and pair[0]
        for pair in map(winner.statistic, ('hurt', 'largest_cluster'))
      )
      entry['hurt'] = hurt
      printed.add_row(
        row,
        entries.text(entry, '.5f'),
        _number(mean, '.4g'),
        _difference(entry),
        f'{winner.deviation[0]:.4f}',
        _share(hurt, published.get('hurt')),
        _share(largest, published.get('largest_cluster')),
        winner.point.describe(),
      )
    else:
      entry = {'published': mean}
      why = 'diverged' if row in diverged else 'not finished'
      printed.add_row(row, why, _number(mean, '.4g'))
    shown[row] = {n: value for n, value in entry.items() if value is not None}
  terminal.print_table(printed, width=_WIDTH)
  return shown


def _difference(entry: Mapping[str, float | None]) -> str:
  ours, published = entry['ours'], entry['published']
  if ours is None or published is None:
    return ''
  return f'{ours - published:+.5f}'


def show_crossed(
  table: tables.Table, grid: grids.Grid, folder: pathlib.Path
) -> dict[str, dict[str, entries.Entry]]:
  """Prints the mean of each method under each condition, maybe by groups.

  The columns of a condition `imbalanced` for which the file has groups,

    [groups.imbalanced]
    "25 %" = ["0"]
    "15 %" = ["1"]

  are `imbalanced`, and of these clients `imbalanced, 25 %` and so on.

  Returns:
    {method: {column: {'ours', 'over_repeats', 'published'}}}, which it writes,
    too; of all clients also the 'epsilon' of what was trained privately, and
    the share that is 'matched' of those in clusters, see `summaries.match`.
  """
  winners = grid.write()
  shown: dict[str, dict[str, entries.Entry]] = {}
  parts: dict[str, list[str]] = {}
  for row, cell in table.cells.items():
    winner = winners.get(row)
    pairs = {cell.column: winner.mean if winner else None}
    for condition in cell.conditions:
      for name, members in table.groups.get(condition, {}).items():
        part = f'{cell.column}, {name}'
        pairs[part] = winner.mean_within(members) if winner else None
    parts[cell.column] = list(pairs)[1:]
    published = table.published.get(cell.method, {})
    of_method = shown.setdefault(cell.method, {})
    for column, pair in pairs.items():
      entry = of_method[column] = entries.make(pair)
      if winner and column == cell.column:
        for name in ('epsilon', 'matched'):
          found = winner.statistic(name)
          if found:
            entry[name] = found[0]
      entry['published'] = published.get(column)
  texts = {
    method: {n: entries.text(f, '.3f', '.2f') for n, f in by_column.items()}
    for method, by_column in shown.items()
  }
  note = '; published in brackets' if table.published else ''
  entries.print_table(f'{table.title}{note}', texts, parts, blank='')
  for column, names in parts.items():
    if names:
      title = f'{column}: clients by their groups'
      entries.print_table(title, texts, names, blank='')
  for column in parts:
    epsilons = [
      epsilon
      for by_column in shown.values()
      if (epsilon := by_column.get(column, {}).get('epsilon')) is not None
    ]
    if epsilons:
      terminal.say(
        f'{column}: the noise guarantees at most ε = {max(epsilons):.3g}.'
      )
  folders.write_json(folder / 'figures.json', shown)
  return shown


def show_private(
  table: tables.Table, grid: grids.Grid, folder: pathlib.Path
) -> dict[str, dict[str, dict[str, Json]]]:
  """Prints methods at several ε, and draws them, counted in two ways.

  The conditions of a cell are ε and the way to count. The figures are the means
  of clients weighted by their examples.

  Returns:
    {method: {ε: figures}}: 'ours' and 'published', counted in the first way,
    with the ε that this is as run; and under the names of other ways to count,
    ours.
  """
  winners = grid.write()
  _draw_private(table, winners, folder / 'plots')
  ways = list(dict.fromkeys(c.conditions[1] for c in table.cells.values()))
  shown: dict[str, dict[str, dict[str, Json]]] = {}
  for row, cell in table.cells.items():
    epsilon, way = cell.conditions
    entry: dict[str, Json] = {'ours': None}
    if row in winners:
      winner = winners[row]
      entry |= entries.make(winner.statistic('weighted_mean'))
      epsilons = winner.statistic('epsilon')
      entry['epsilon'] = epsilons and epsilons[0]
      entry['point'] = winner.point.describe(with_settings=False)
    of_cell = shown.setdefault(cell.method, {}).setdefault(epsilon, {})
    if way == ways[0]:
      published = table.published.get(cell.method, {})
      of_cell |= entry | {'published': published.get(cell.column)}
    else:
      of_cell[way] = entry
  numbers = ['ε', 'ours, counted as published', 'published', 'difference']
  numbers += ['its ε as run', *(f'ours, {way}' for way in ways[1:])]
  printed = terminal.make_table(table.title, 'method', numbers=numbers)
  printed.add_column('best point', overflow='fold')
  for method, by_epsilon in shown.items():
    for epsilon, entry in by_epsilon.items():
      printed.add_row(
        method,
        epsilon,
        entries.text(entry, '.5f'),
        _number(entry['published'], '.5f'),
        _difference(entry),
        _number(entry.get('epsilon'), '.3g'),
        *(entries.text(entry[way], '.5f') for way in ways[1:]),
        entry.get('point', ''),
      )
  terminal.print_table(printed, width=_WIDTH, num_keys=2)
  return shown


def _draw_private(
  table: tables.Table,
  winners: Mapping[str, grid_results.PointResult],
  folder: pathlib.Path,
) -> None:
  """Draws each method against ε, in a figure for each way to count."""
  drawn: dict[str, dict[str, dict[float, list[float]]]] = {}
  metric, higher_is_better = '', False
  ticks: dict[float, str] = {}
  for row, (method, (epsilon, way)) in table.cells.items():
    ticks[float(epsilon)] = epsilon
    if row in winners:
      records = winners[row].records
      metric = records[0]['metric'].replace('_', ' ')
      higher_is_better = records[0]['higher_is_better']
      drawn.setdefault(way, {}).setdefault(method, {})[float(epsilon)] = [
        record['weighted_mean'] for record in records
      ]
  for way, methods in drawn.items():
    label = f'ε of an example, counted as {way}'
    made = method_figures.draw_against(
      way,
      method_figures.make_curves(methods),
      label,
      ticks,
      metric,
      higher_is_better,
    )
    caption = captions.describe(table.title, winners.values())
    figure.save(made.add_captions(caption), folder)


SHOW: Mapping[str, Callable[[tables.Table, grids.Grid, pathlib.Path], Json]] = {
  'means': show_means,
  'crossed': show_crossed,
  'private': show_private,
  'compared': compared.show,
  'fedpc': functools.partial(fedpc.show, fedpc.FEDPC),
  'adapters': functools.partial(fedpc.show, fedpc.ADAPTERS),
  'curves': curves.show,
}
