"""The results of a grid: kept as they come, and the best of them.

runs.jsonl         a line for each finished run
points.csv         a line for each point, over its repeats
results.json       the best point of each method, or row
<name>.toml        that point, for --preset of run
logs/              of what failed, and what the processes print
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
import contextlib
import csv
import dataclasses
import io
import json
import math
import pathlib
from typing import Any, TextIO

import numpy as np
import tomli_w

from base import errors
from experiments.configuration import configs
from experiments.reporting import folders
from experiments.sweeps import grid_file

Record = Mapping[str, Any]


RUNS = 'runs.jsonl'


def to_line(record: Record) -> str:
  """Writes a record with its checksum, as a line of runs.jsonl."""
  text = json.dumps(record, allow_nan=False)
  own = {'checksum': folders.checksum(json.loads(text))}
  return json.dumps({**record, **own}) + '\n'


def _read_line(line: str) -> Record | None:
  """Reads a record; None if a kill has cut it off.

  Raises:
    One of `folders.DAMAGE`: If it is not as it was written.
  """
  try:
    record = json.loads(line)
  except ValueError:
    if line.startswith('{'):
      return None
    raise
  if record.pop('checksum') != folders.checksum(record):
    raise ValueError('it is not as it was written')
  return record


class RunStore:
  """The finished runs of a grid; each is written as soon as it is there.

  Attributes:
    records: The records of the runs, by their keys.
  """

  def __init__(self, folder: pathlib.Path):
    """Reads the runs; the file is first touched by `add`.

    Args:
      folder: The folder of the grid.

    Raises:
      UserError: If the file is damaged.
    """
    self._path = folder / RUNS
    self.records: dict[str, Record] = {}
    self._file: TextIO | None = None
    if not self._path.exists():
      return
    try:
      for line in self._path.read_text(encoding='utf-8').splitlines():
        record = _read_line(line) if line else None
        if record is not None:
          self.records[record['key']] = record
    except folders.DAMAGE as error:
      raise errors.UserError(
        f'{self._path} is damaged ({error!r}). Delete the lines at fault, which'
        ' are then run again, or name another output_dir.'
      ) from error

  def add(self, record: Record) -> None:
    """Adds the record of a run, and writes it."""
    with errors.writing(self._path):
      if self._file is None:
        self._file = self._path.open('a', encoding='utf-8')
        self._file.write('\n')  # So that what was cut off stays a line.
      self._file.write(to_line(record))
      self._file.flush()
    self.records[record['key']] = record

  def close(self) -> None:
    """Closes the file."""
    if self._file is None:
      return
    # What could not be written would be tried again.
    with contextlib.suppress(OSError):
      self._file.close()


@contextlib.contextmanager
def open_store(folder: pathlib.Path) -> Iterator[RunStore]:
  """Opens the folder of a grid's results, and keeps other processes out.

  Args:
    folder: The folder; it is made if need be.

  Yields:
    The finished runs.

  Raises:
    UserError: If it has other results, or cannot be written to.
  """
  with folders.locked(folder, RUNS):
    try:
      store = RunStore(folder)
    except OSError as error:
      raise folders.unusable(folder, error) from error
    with contextlib.closing(store):
      yield store


def _over_repeats(values: Sequence[Any]) -> tuple[float, float]:
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
  records: tuple[Record, ...]
  validation: float | None

  def over_repeats(self, name: str) -> tuple[float, float] | None:
    """Takes the mean and the deviation over repeats of a number in records.

    Args:
      name: Its name, or 'mean' or 'deviation' of the test clients' metric.

    Returns:
      Both; None if the records have no such number.
    """
    if name in ('mean', 'deviation'):
      return self.mean if name == 'mean' else self.deviation
    values = [r[name] for r in self.records if r.get(name) is not None]
    return _over_repeats(values) if values else None

  @property
  def mean(self) -> tuple[float, float]:
    """The test clients' mean: its mean and its deviation over repeats."""
    return _over_repeats([np.mean(own) for own in self._test()])

  def mean_within(self, groups: Collection[str]) -> tuple[float, float] | None:
    """The same of the test clients of some groups; None if there are none."""
    of_groups = [
      own[np.isin(record['client_groups'], list(groups))]
      for own, record in zip(self._test(), self.records)
    ]
    means = [np.mean(own) for own in of_groups if len(own)]
    return _over_repeats(means) if means else None

  @property
  def deviation(self) -> tuple[float, float]:
    """The deviation over test clients: its mean and deviation over repeats."""
    return _over_repeats([np.std(own) for own in self._test()])

  def _test(self) -> list[np.ndarray]:
    return [np.array(r['test'], np.float64) for r in self.records]

  def of_clients(self, name: str) -> list[float]:
    """Returns a number of each test client, those of all repeats."""
    return [
      math.nan if value is None else value
      for record in self.records
      for value in record[name]
    ]


def of_point(
  point: grid_file.Point, records: Sequence[Record | None]
) -> PointResult:
  """Takes together what came of a point.

  Args:
    point: The point.
    records: The records of its repeats, None for those that are missing.

  Returns:
    The result of the point.
  """
  finished = tuple(record for record in records if record is not None)
  complete = len(finished) == len(records) and all(
    record['validation'] is not None for record in finished
  )
  validation = None
  if complete:
    validation = float(np.mean([record['validation'] for record in finished]))
  return PointResult(point, finished, validation)


def best(results: Iterable[PointResult]) -> dict[str, PointResult]:
  """Finds the best point of each row by validation, the first on a tie."""
  winners: dict[str, tuple[float, PointResult]] = {}
  for result in results:
    if result.validation is None:
      continue
    record = result.records[0]
    higher = record['higher_is_better'] and (
      record['chosen_by'] == record['metric']
    )
    score = result.validation if higher else -result.validation
    name = result.point.name
    if name not in winners or score > winners[name][0]:
      winners[name] = score, result
  return {name: result for name, (_, result) in winners.items()}


def describe(result: PointResult) -> dict[str, Any]:
  """Writes a point as results.json has it."""
  record = result.records[0]
  pairs = {
    name: result.over_repeats(name)
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


def write(
  folder: pathlib.Path,
  grid: grid_file.GridFile,
  results: Sequence[PointResult],
  winners: Mapping[str, PointResult],
) -> None:
  """Writes points.csv, results.json and the presets of the best points."""
  table = io.StringIO()
  names = dict.fromkeys(n for r in results for n in r.point.values)
  columns = ['algorithm', *names, 'repeats', 'validation', 'test', 'hurt']
  writer = csv.DictWriter(table, columns, lineterminator='\n')
  writer.writeheader()
  for own in results:
    row: dict[str, Any] = {
      'algorithm': own.point.name,
      'repeats': len(own.records),
    }
    if own.validation is not None:
      hurt = own.over_repeats('hurt')
      row |= {
        'validation': f'{own.validation:.7g}',
        'test': f'{own.mean[0]:.7g}',
        'hurt': f'{hurt[0]:.4g}' if hurt else '',
      }
    writer.writerow(row | dict(own.point.values))
  folders.write(folder / 'points.csv', table.getvalue())
  text = json.dumps(
    {name: describe(own) for name, own in winners.items()}, indent=2
  )
  folders.write(folder / 'results.json', f'{text}\n')
  for name, own in winners.items():
    config = configs.resolve(grid.request(own.point, grid.repeats[0]))
    seeds = ', '.join(map(str, grid.repeats))
    header = (
      f'# The best point of {name}, with the first of the seeds {seeds}.\n'
      f'# To run it: --preset=THIS_FILE\n'
    )
    text = header + tomli_w.dumps(config.to_dict())
    folders.write(folder / f'{name}.toml', text)
