"""Finished runs that differ in nothing but their seed, and their numbers."""

from collections.abc import Sequence
import math
import pathlib
import statistics
from typing import Any

from algorithms import candidates
from base import errors
from experiments.reporting import results_folder

# What repeats may differ in.
_SEEDS = ('seed', 'task.split_seed')
_ROUNDS = 'total_rounds'


class Repeats:
  """Runs that differ in nothing but their seed, or a single run.

  Attributes:
    runs: The runs.
    methods: The methods that all of them have finished.
    metric: The name of the metric.
    higher_is_better: Its direction.
  """

  def __init__(self, runs: Sequence[results_folder.FinishedRun]):
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
    """Lists the names that there are somewhere in the results of a method."""
    found = _look_up(self.runs[0].methods[method], keys)
    return list(found) if isinstance(found, dict) else []

  def values(self, method: str, *keys: str) -> list[float]:
    """Returns each run's number somewhere in its results; NaN if it has none.

    Args:
      method: The method.
      *keys: The names on the way to the number in the method's results.

    Returns:
      The numbers.
    """
    found = [_look_up(run.methods[method], keys) for run in self.runs]
    return [math.nan if value is None else float(value) for value in found]

  def candidates_of(self, method: str) -> list[candidates.Candidate]:
    """Returns the candidates of a method."""
    return [
      candidates.Candidate(
        own.get('value'), own.get('unit', ''), own.get('label', ''), text=name
      )
      for name, own in self.runs[0].methods[method]['candidates'].items()
    ]

  def of_clients(self, method: str, column: str) -> list[float]:
    """Returns a column of per_client.csv, of all runs; NaN where empty."""
    return [
      float(row.get(column) or math.nan)
      for run in self.runs
      for row in run.clients[method]
    ]


def summarize(repeated: Repeats) -> dict[str, Any]:
  """Takes statistics over repeats of those over the test clients.

  Args:
    repeated: The repeats.

  Returns:
    The metric and its direction and, for each method and each of some
    statistics over clients, its 'values' in the repeats, their 'mean' and their
    'deviation', that of a sample; None for what is not a number, or not there.
  """

  def over(values: Sequence[float]) -> dict[str, Any]:
    mean, deviation = mean_and_deviation(values)
    return {
      'mean': _to_json(mean),
      'deviation': _to_json(deviation),
      'values': list(map(_to_json, values)),
    }

  return {
    'metric': repeated.metric,
    'higher_is_better': repeated.higher_is_better,
    'methods': {
      method: {
        name: over(repeated.values(method, 'test', name))
        for name in ('mean', 'deviation', 'worst_tenth', 'hurt')
      }
      for method in repeated.methods
    },
  }


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
  """Takes the mean of numbers and their deviation, 0 if there is just one."""
  if not all(map(math.isfinite, values)):
    return math.nan, math.nan
  deviation = statistics.stdev(values) if len(values) > 1 else 0.0
  return statistics.fmean(values), deviation


def _to_json(value: float) -> float | None:
  return value if math.isfinite(value) else None


def _look_up(result: Any, keys: Sequence[str]) -> Any:
  for key in keys:
    result = result.get(key) if isinstance(result, dict) else None
  return result


def read(paths: Sequence[pathlib.Path]) -> list[Repeats]:
  """Reads the folders of runs that differ in seed and number of rounds.

  Args:
    paths: The folders.

  Returns:
    The repeats of each number of rounds; those of the most are the last.

  Raises:
    UserError: If a folder cannot be read, or the runs differ in more.
  """
  runs = [results_folder.read(path) for path in paths]
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
  by_rounds: dict[int, list[results_folder.FinishedRun]] = {}
  for run in runs:
    by_rounds.setdefault(run.configuration[_ROUNDS], []).append(run)
  return [Repeats(own) for _, own in sorted(by_rounds.items())]
