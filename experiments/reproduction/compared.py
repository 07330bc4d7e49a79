"""Tables of several columns, whose rows are compared client by client.

A column is a number in the records of runs, see `grid_work.make_record`; the
column `groups` stands for one for each known group of clients. There, as in
`pooled`, the metric is that of all examples together, as in tables 3 and 6 of
Liu et al. 2022. Whether one row is better than another is tested on all
clients, and on those of each group, each with its mean over the repeats.
"""

from collections.abc import Mapping
import dataclasses
import itertools
import pathlib

import numpy as np

from experiments.reporting import folders
from experiments.reporting import grid_records
from experiments.reporting import repeats
from experiments.reporting import results_folder
from experiments.reproduction import entries
from experiments.reproduction import tables
from experiments.sweeps import grid_results
from experiments.sweeps import grids
from personalization.judgement import comparison

# The name of all clients together, among the names of groups.
_ALL = 'all'
_Comparisons = dict[str, dict[str, comparison.Comparison]]


def _take(record: grid_records.Record, column: str) -> dict[str, float | None]:
  """Takes the numbers of a column from a record."""
  if column == 'groups':
    return dict(record['groups'])
  return {_ALL if column == 'pooled' else column: record[column]}


def _cells(
  result: grid_results.PointResult, table: tables.Table
) -> dict[str, tuple[float, float]]:
  """Computes the mean and the deviation of each column over repeats."""
  values: dict[str, list[float | None]] = {}
  for record in result.records:
    for column in table.columns:
      for name, value in _take(record, column).items():
        values.setdefault(name, []).append(value)
  # What diverged, which is None, is NaN in an array.
  arrays = {name: np.array(v, np.float64) for name, v in values.items()}
  return {n: (float(a.mean()), float(a.std())) for n, a in arrays.items()}


def compare(
  winners: Mapping[str, grid_results.PointResult],
) -> _Comparisons:
  """Compares each two rows on all clients, and on those of each group.

  Returns:
    {'row against row': {group: comparison}}.
  """
  found: _Comparisons = {}
  clients = {
    row: winner.values_by_client('test') for row, winner in winners.items()
  }
  for second, first in itertools.combinations(winners, 2):
    record = winners[first].records[0]
    everybody = [_ALL] * len(record['clients'])
    groups = dict(
      zip(record['clients'], record.get('client_groups', everybody))
    )
    # Clients whose model diverged in a repeat have no mean to compare.
    shared = [
      c
      for c in groups
      if len(clients[first].get(c, ())) == len(clients[second].get(c, ())) > 0
    ]
    of_pair = found[f'{first} against {second}'] = {}
    for group in (*record.get('groups', ()), _ALL):
      chosen = [c for c in shared if group in (groups[c], _ALL)]
      if chosen:
        one, other = (
          np.array([np.mean(clients[row][c]) for c in chosen])
          for row in (first, second)
        )
        of_pair[group] = comparison.compare(
          one,
          other,
          record['higher_is_better'],
          results_folder.metric_range(record),
        )
  return found


def show(
  table: tables.Table, grid: grids.Grid, folder: pathlib.Path
) -> dict[str, dict[str, float | None]]:
  """Prints the table, and writes the comparisons of its rows.

  Returns:
    The number of each row and column, the mean over the repeats; None where a
    repeat diverged.
  """
  winners = grid.write()
  rows = {row: winners[row] for row in table.cells if row in winners}
  cells = {row: _cells(winner, table) for row, winner in rows.items()}
  if cells:
    texts = {
      row: {
        name.replace('_', ' '): repeats.spread(
          mean, deviation, '.2f' if mean >= 10 else '.4f'
        )
        for name, (mean, deviation) in by_column.items()
      }
      for row, by_column in cells.items()
    }
    entries.print_table(table.title, texts)
  compared = compare(rows)
  if compared:
    texts = {
      pair: {
        group: f'{found.better} : {found.worse} ({found.p_sign:.2g})'
        for group, found in by_group.items()
      }
      for pair, by_group in compared.items()
    }
    title = 'Clients that are better : worse off, and the p of the sign test'
    entries.print_table(title, texts, corner='')
    path = folder / 'comparisons.json'
    folders.write_json(path, compared, default=dataclasses.asdict)
  return {
    row: {
      name: mean if np.isfinite(mean) else None
      for name, (mean, _) in by_column.items()
    }
    for row, by_column in cells.items()
  }
