"""The results of a grid, and the best of them.

points.csv         a line for each point, over its repeats
results.json       the best point of each method, or row
<name>.toml        that point, for --preset of run
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import csv
import dataclasses
import io
import math
import pathlib

import numpy as np
import tomli_w

from base.aliases import Json
from experiments.configuration import configs
from experiments.reporting import folders
from experiments.reporting import grid_records
from experiments.sweeps import grid_file

# In the preset of a best point, by which a program knows its own.
_PRESET_MARK = '# To run it: --preset=THIS_FILE'


def _mean_and_deviation(values: Sequence[Json]) -> tuple[float, float]:
  return float(np.mean(values)), float(np.std(values))


@dataclasses.dataclass(frozen=True)
class PointResult:
  """The results of a point over its repeats.

  Attributes:
    point: The point.
    records: Its finished runs.
    validation: The mean over the repeats of the validation metric to choose by;
      None if a repeat is missing or diverged.
  """

  point: grid_file.Point
  records: tuple[grid_records.Record, ...]
  validation: float | None

  def statistic(self, name: str) -> tuple[float, float] | None:
    """Takes the mean and the deviation over repeats of a number in records.

    Args:
      name: Its name, or 'mean' or 'deviation' of the test clients' metric.

    Returns:
      Both; None if the records have no such number.
    """
    if name in ('mean', 'deviation'):
      return self.mean if name == 'mean' else self.deviation
    values = [r[name] for r in self.records if r.get(name) is not None]
    return _mean_and_deviation(values) if values else None

  @property
  def mean(self) -> tuple[float, float]:
    """The test clients' mean: its mean and its deviation over repeats."""
    return _mean_and_deviation([np.mean(test) for test in self._test()])

  def mean_within(self, groups: Collection[str]) -> tuple[float, float] | None:
    """The same of the test clients of some groups; None if there are none."""
    of_groups = [
      test[np.isin(record['client_groups'], list(groups))]
      for test, record in zip(self._test(), self.records)
    ]
    means = [np.mean(test) for test in of_groups if len(test)]
    return _mean_and_deviation(means) if means else None

  @property
  def deviation(self) -> tuple[float, float]:
    """The deviation over test clients: its mean and deviation over repeats."""
    return _mean_and_deviation([np.std(test) for test in self._test()])

  def _test(self) -> list[np.ndarray]:
    return [np.array(r['test'], np.float64) for r in self.records]

  def values_by_client(self, name: str) -> dict[str, list[float]]:
    """Returns a number of each test client, in the repeats that have one."""
    found: dict[str, list[float]] = {}
    for record in self.records:
      for client, value in zip(record['clients'], record[name]):
        if value is not None:
          found.setdefault(client, []).append(value)
    return found

  def client_values(self, name: str) -> list[float]:
    """Returns a number of each test client, those of all repeats."""
    return [
      math.nan if value is None else value
      for record in self.records
      for value in record[name]
    ]


def has_diverged(record: grid_records.Record) -> bool:
  """Tells whether a metric, of validation or of a test client, is no number."""
  return record['validation'] is None or None in record['test']


def summarize(
  point: grid_file.Point, records: Sequence[grid_records.Record | None]
) -> PointResult:
  """Summarizes the runs of a point.

  Args:
    point: The point.
    records: The records of its repeats, None for those that are missing.
  """
  finished = tuple(record for record in records if record is not None)
  validation = None
  if len(finished) == len(records) and not any(map(has_diverged, finished)):
    validation = float(np.mean([record['validation'] for record in finished]))
  return PointResult(point, finished, validation)


def score(result: PointResult) -> float:
  """Returns what to choose by, of which more is better."""
  assert result.validation is not None
  lower = grid_records.lower_is_chosen(result.records[0])
  return -result.validation if lower else result.validation


def best(results: Iterable[PointResult]) -> dict[str, PointResult]:
  """Finds the best point of each row by validation, the first on a tie."""
  winners: dict[str, PointResult] = {}
  for result in results:
    if result.validation is None:
      continue
    name = result.point.name
    if name not in winners or score(result) > score(winners[name]):
      winners[name] = result
  return winners


def diverged(results: Sequence[PointResult]) -> set[str]:
  """Finds the rows that have no best point, as all of their points diverged."""
  others = {
    result.point.name
    for result in results
    if not any(map(has_diverged, result.records))
  }
  return {result.point.name for result in results} - others


def describe(result: PointResult) -> dict[str, Json]:
  """Writes a point as results.json has it."""
  record = result.records[0]
  pairs = {
    name: result.statistic(name)
    for name in ('mean', 'deviation', 'hurt', 'largest_cluster')
  }
  return {
    'values': dict(result.point.values),
    'settings': dict(result.point.settings),
    'repeats': [record['seed'] for record in result.records],
    'metric': record['metric'],
    'higher_is_better': record['higher_is_better'],
    'validation': result.validation,
    'test': {
      name: {'mean': pair[0], 'deviation_over_repeats': pair[1]}
      for name, pair in pairs.items()
      if pair is not None
    },
  }


def files(
  grid: grid_file.GridFile,
  results: Sequence[PointResult],
  winners: Mapping[str, PointResult],
) -> dict[str, str]:
  """Makes points.csv, results.json and the presets of the best points.

  Args:
    grid: The grid's file.
    results: The results of all points.
    winners: The best points, by their rows.

  Returns:
    The files by their names, in the order in which to write them.
  """
  table = io.StringIO()
  names = dict.fromkeys(n for r in results for n in r.point.values)
  columns = ['algorithm', *names, 'repeats', 'validation', 'test', 'hurt']
  writer = csv.DictWriter(table, columns, lineterminator='\n')
  writer.writeheader()
  for result in results:
    row: dict[str, Json] = {
      'algorithm': result.point.name,
      'repeats': len(result.records),
    }
    if result.validation is not None:
      hurt = result.statistic('hurt')
      row |= {
        'validation': f'{result.validation:.7g}',
        'test': f'{result.mean[0]:.7g}',
        'hurt': f'{hurt[0]:.4g}' if hurt else '',
      }
    writer.writerow(row | dict(result.point.values))
  made = {'points.csv': table.getvalue()}
  for name, winner in winners.items():
    config = configs.resolve(grid.request(winner.point, grid.repeats[0]))
    seeds = ', '.join(map(str, grid.repeats))
    header = (
      f'# The best point of {name}, with the first of the seeds {seeds}.\n'
      f'{_PRESET_MARK}\n'
    )
    made[_preset(name)] = header + tomli_w.dumps(config.to_dict())
  # It comes last, as a report expects a preset for each row in it.
  described = {name: describe(winner) for name, winner in winners.items()}
  return made | {'results.json': folders.to_json(described)}


def check_presets(folder: pathlib.Path, names: Iterable[str]) -> None:
  """Raises a `UserError` if the preset of a row would replace another file."""
  for name in names:
    folders.check_own(folder / _preset(name), _PRESET_MARK)


def _preset(name: str) -> str:
  """Returns the name of the file of the best point of a row."""
  return f'{name}.toml'
