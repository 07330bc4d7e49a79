"""What the output folders of runs tell: of one, or of repeats of it."""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import json
import math
import pathlib
import statistics
from typing import Any

import rich.box
import rich.table

from base import errors
from experiments.configuration import config as config_lib
from experiments.reporting import terminal

# What repeats may differ in.
_SEEDS = ('seed', 'task.split_seed')
_ROUNDS = 'total_rounds'
# When a client takes its personalized model, for a reader.
CRITERIA = {
  'min_examples': 'enough examples',
  'margin': 'better held out',
}


@dataclasses.dataclass(frozen=True)
class Run:
  """An output folder.

  Attributes:
    path: The folder.
    configuration: All settings, by their names.
    methods: The results of each method, see `experiments.reporting.output`.
    clients: The test clients of each method, as in per_client.csv.
    rounds: The metrics of each training's rounds, by their names.
  """

  path: pathlib.Path
  configuration: Mapping[str, Any]
  methods: Mapping[str, Mapping[str, Any]]
  clients: Mapping[str, Sequence[Mapping[str, str]]]
  rounds: Mapping[str, Mapping[str, Sequence[float]]]


def _read_table(path: pathlib.Path) -> list[dict[str, str]]:
  with path.open(encoding='utf-8', newline='') as file:
    return list(csv.DictReader(file))


def read(path: pathlib.Path) -> Run:
  """Reads an output folder of `experiments:run`.

  Args:
    path: The folder.

  Returns:
    What is in it.

  Raises:
    UserError: If it is no such folder, or damaged.
  """
  try:
    contents = json.loads((path / 'results.json').read_text(encoding='utf-8'))
    methods = contents['methods']
    rows = _read_table(path / 'per_client.csv')
    rounds = {}
    for file in sorted(path.glob('metrics/*.csv')):
      table = _read_table(file)
      rounds[file.stem] = {
        name: [float(row[name]) for row in table] for name in table[0]
      }
    return Run(
      path,
      dict(config_lib.flatten(contents['configuration'])),
      methods,
      {
        name: [row for row in rows if row['method'] == name] for name in methods
      },
      rounds,
    )
  except FileNotFoundError as error:
    raise errors.UserError(
      f'{path} is no output folder of a run that has finished a method:'
      f' {error.filename} is missing.'
    ) from error
  except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
    raise errors.UserError(
      f'The results in {path} are damaged ({error!r}).'
    ) from error


class Repeats:
  """Runs that differ in nothing but their seed, or a single run.

  Attributes:
    runs: The runs.
    methods: The methods that all of them have finished.
    metric: The name of the metric.
    higher_is_better: Its direction.
  """

  def __init__(self, runs: Sequence[Run]):
    self.runs = tuple(runs)
    self.methods = tuple(
      name
      for name in runs[0].methods
      if all(name in run.methods for run in runs)
    )
    if not self.methods:
      raise errors.UserError(
        'There is no method that has been finished in each of'
        f' {", ".join(str(run.path) for run in runs)}.'
      )
    of_any = runs[0].methods[self.methods[0]]
    self.metric = of_any['metric']
    self.higher_is_better = of_any['higher_is_better']

  def names(self, method: str, *keys: str) -> list[str]:
    """The names that there are somewhere in the results of a method."""
    found = _look_up(self.runs[0].methods[method], keys)
    return list(found) if isinstance(found, dict) else []

  def values(self, method: str, *keys: str) -> list[float]:
    """Each run's number somewhere in the results of a method; NaN for none."""
    found = [_look_up(run.methods[method], keys) for run in self.runs]
    return [math.nan if value is None else float(value) for value in found]

  def of_clients(self, method: str, column: str) -> list[float]:
    """A column of per_client.csv, of all runs; NaN where there is nothing."""
    return [
      float(row.get(column) or math.nan)
      for run in self.runs
      for row in run.clients[method]
    ]


def _look_up(result: Any, keys: Sequence[str]) -> Any:
  for key in keys:
    result = result.get(key) if isinstance(result, dict) else None
  return result


def read_repeats(paths: Sequence[pathlib.Path]) -> list[Repeats]:
  """Reads the folders of runs that differ in seed and number of rounds.

  Args:
    paths: The folders.

  Returns:
    The repeats of each number of rounds; those of the most are the last.

  Raises:
    UserError: If a folder cannot be read, or the runs differ in more.
  """
  runs = [read(path) for path in paths]
  first = runs[0].configuration
  for run in runs[1:]:
    differences = [
      name
      for name in {**first, **run.configuration}
      if name not in (*_SEEDS, _ROUNDS)
      and first.get(name) != run.configuration.get(name)
    ]
    if differences:
      raise errors.UserError(
        f'{runs[0].path} and {run.path} are no repeats: they differ in'
        f' {", ".join(differences)}. Name folders of runs that differ in no'
        f' more than seed and {_ROUNDS}.'
      )
  by_rounds: dict[int, list[Run]] = {}
  for run in runs:
    by_rounds.setdefault(run.configuration[_ROUNDS], []).append(run)
  return [Repeats(own) for _, own in sorted(by_rounds.items())]


def _cell(numbers: Sequence[float], form: str) -> str:
  """The mean and the deviation of numbers; nothing if one is none."""
  if math.isnan(sum(numbers)):
    return '–'
  deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
  return f'{statistics.fmean(numbers):{form}} ± {deviation:{form}}'


def make_table(repeats: Repeats) -> rich.table.Table:
  """The methods over repeats, a row each, as in Motley's tables 6 and 7."""
  better = 'higher' if repeats.higher_is_better else 'lower'
  table = rich.table.Table(
    title=(
      f'{repeats.metric} over {len(repeats.runs)} repeats; {better} is better'
    ),
    title_justify='left',
    box=rich.box.SIMPLE,
  )
  table.add_column('method')
  for column in ('mean', 'deviation over clients', 'hurt'):
    table.add_column(f'{column} ± over repeats', justify='right')
  for method in repeats.methods:
    table.add_row(
      method,
      *(
        _cell(repeats.values(method, 'test', name), form)
        for name, form in (
          ('mean', '#.4g'),
          ('deviation', '#.4g'),
          ('hurt', '.1%'),
        )
      ),
    )
  return table


def print_table(repeats: Repeats) -> None:
  """Prints the table of the methods over repeats."""
  terminal.print_table(make_table(repeats))
