"""Tables of several columns, whose rows are compared client by client.

A column is a number in the records of runs, see `grid_work.make_record`; the
column `groups` stands for one for each known group of clients. There, as in
`pooled`, the metric is that of all examples together, as in tables 3 and 6 of
Liu et al. 2022. Whether one row is better than another is tested on all
clients, and on those of each group, each with its mean over the repeats.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import json
import math
import pathlib
from typing import Any

import numpy as np

from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.reporting import repeats
from experiments.sweeps import grid_results
from personalization.judgement import comparison

# The name of all clients together, among the names of groups.
_ALL = 'all'
_COMPARISONS = 'comparisons.json'
# {row: {column: mean and deviation over repeats}}
_Cells = Mapping[str, Mapping[str, tuple[float, float]]]


def _cells(
  result: grid_results.PointResult, columns: Sequence[str]
) -> dict[str, tuple[float, float]]:
  """Computes the mean and the deviation of each column over repeats."""
  of_repeats: list[dict[str, float]] = []
  for record in result.records:
    of_repeats.append({})
    for name in columns:
      if name == 'groups':
        of_repeats[-1] |= record[name]
      else:
        of_repeats[-1][_ALL if name == 'pooled' else name] = record[name]
  return {
    name: (float(np.mean(values)), float(np.std(values)))
    for name in of_repeats[0]
    for values in [
      np.array([numbers[name] for numbers in of_repeats], np.float64)
    ]
  }


def _of_clients(result: grid_results.PointResult) -> dict[str, list[float]]:
  """Returns each client's metric in each repeat that judged it."""
  found: dict[str, list[float]] = {}
  for record in result.records:
    for client, value in zip(record['clients'], record['test']):
      if value is not None:
        found.setdefault(client, []).append(value)
  return found


def _metric_range(record: Mapping[str, Any]) -> tuple[float, float]:
  """Returns the range of the metric; older records do not have it."""
  lowest, highest = record.get('metric_range', (None, None))
  return (
    -math.inf if lowest is None else lowest,
    math.inf if highest is None else highest,
  )


def compare(
  winners: Mapping[str, grid_results.PointResult],
) -> dict[str, dict[str, dict[str, Any]]]:
  """Compares each two rows on all clients, and on those of each group.

  Args:
    winners: The point of each row.

  Returns:
    {'row against row': {group: a `comparison.Comparison`}}.
  """
  found: dict[str, dict[str, dict[str, Any]]] = {}
  clients = {row: _of_clients(winner) for row, winner in winners.items()}
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
        compared = comparison.compare(
          one, other, record['higher_is_better'], _metric_range(record)
        )
        of_pair[group] = dataclasses.asdict(compared)
  return found


def _text(mean: float, deviation: float) -> str:
  digits = 2 if mean >= 10 else 4
  return repeats.spread(mean, deviation, f'.{digits}f')


def _print(title: str, cells: _Cells) -> None:
  columns = list(next(iter(cells.values())))
  numbers = [name.replace('_', ' ') for name in columns]
  table = terminal.make_table(title, 'method', numbers=numbers)
  for row, of_row in cells.items():
    table.add_row(row, *(_text(*of_row[name]) for name in columns))
  terminal.print_table(table)


def _print_comparisons(
  compared: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> None:
  columns = list(
    dict.fromkeys(c for of_pair in compared.values() for c in of_pair)
  )
  title = 'Clients that are better : worse off, and the p of the sign test'
  table = terminal.make_table(title, '', numbers=columns)
  for pair, of_pair in compared.items():
    texts = (
      f'{of_pair[name]["better"]} : {of_pair[name]["worse"]}'
      f' ({of_pair[name]["p_sign"]:.2g})'
      if name in of_pair
      else '–'
      for name in columns
    )
    table.add_row(pair, *texts)
  terminal.print_table(table)


def show(
  title: str,
  columns: Sequence[str],
  rows: Mapping[str, grid_results.PointResult],
  folder: pathlib.Path,
) -> dict[str, dict[str, float | None]]:
  """Shows a table, and writes the comparisons of its rows.

  Args:
    title: Its title.
    columns: The entries of the records that it shows.
    rows: The best point of each row that is finished.
    folder: The folder to write to.

  Returns:
    The number of each row and column, the mean over the repeats; None where a
    repeat diverged.
  """
  cells = {row: _cells(result, columns) for row, result in rows.items()}
  if cells:
    _print(title, cells)
  compared = compare(rows)
  if compared:
    _print_comparisons(compared)
    text = json.dumps(compared, indent=2)
    folders.write(folder / _COMPARISONS, f'{text}\n')
  return {
    row: {
      name: mean if np.isfinite(mean) else None
      for name, (mean, _) in of_row.items()
    }
    for row, of_row in cells.items()
  }
