"""Finished runs that differ only in their seed, and statistics over them."""

from collections.abc import Sequence
import itertools
import math
import pathlib
import statistics

from algorithms import candidates
from base import errors
from base.aliases import Json
from experiments.reporting import results_folder

# The settings in which repeats may differ.
_SEEDS = ('seed', 'task.split_seed')
_ROUNDS = 'total_rounds'


class Repeats:
  """Runs that differ only in their seed, or a single run.

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
    """Lists the names at a place in the results of a method."""
    found = _look_up(self.runs[0].methods[method], keys)
    return list(found) if isinstance(found, dict) else []

  def values(self, method: str, *keys: str) -> list[float]:
    """Returns each run's number at a place in its results; NaN if missing.

    Args:
      method: The method.
      *keys: The path of names to the number in the method's results.
    """
    found = [_look_up(run.methods[method], keys) for run in self.runs]
    return [math.nan if value is None else float(value) for value in found]

  def list_candidates(self, method: str) -> list[candidates.Candidate]:
    """Returns the candidates of a method."""
    return [
      candidates.Candidate(
        found.get('value'),
        found.get('unit', ''),
        found.get('label', ''),
        text=name,
      )
      for name, found in self.runs[0].methods[method]['candidates'].items()
    ]

  def client_values(self, method: str, column: str) -> list[float]:
    """Returns a column of per_client.csv in all runs; NaN where empty."""
    return [
      float(row.get(column) or math.nan)
      for run in self.runs
      for row in run.clients[method]
    ]


def summarize(repeated: Repeats) -> dict[str, Json]:
  """Computes statistics over repeats of the statistics over test clients.

  Returns:
    The metric and its direction; and for each method and several statistics
    over clients, the 'values' in the repeats, their 'mean' and their sample
    'deviation'. Numbers that are missing or not finite are None.
  """

  def describe_values(values: Sequence[float]) -> dict[str, Json]:
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
        name: describe_values(repeated.values(method, 'test', name))
        for name in ('mean', 'deviation', 'worst_tenth', 'hurt')
      }
      for method in repeated.methods
    },
  }


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
  """Returns the mean of numbers and their deviation, 0 for a single number."""
  if not all(map(math.isfinite, values)):
    return math.nan, math.nan
  deviation = statistics.stdev(values) if len(values) > 1 else 0.0
  return statistics.fmean(values), deviation


def spread(
  mean: float, deviation: float, form: str, deviation_form: str = ''
) -> str:
  """Writes a mean and its deviation over repeats, which is 0 for only one.

  Args:
    mean: The mean.
    deviation: The deviation.
    form: The format of both, as '.3f'.
    deviation_form: The format of the deviation, if it is another one.

  Returns:
    Both, or only the mean if the deviation is 0.
  """
  text = f'{mean:{form}}'
  return f'{text} ± {deviation:{deviation_form or form}}' if deviation else text


def _to_json(value: float) -> float | None:
  return value if math.isfinite(value) else None


def _look_up(result: Json, keys: Sequence[str]) -> Json:
  for key in keys:
    result = result.get(key) if isinstance(result, dict) else None
  return result


def read(paths: Sequence[pathlib.Path]) -> list[Repeats]:
  """Reads the folders of runs that differ in seed and number of rounds.

  Returns:
    The repeats with each number of rounds, in ascending order.

  Raises:
    UserError: If a folder cannot be read, the runs differ in other settings, or
      two of them do not differ at all, so that one would count twice.
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
        f'{runs[0].path} and {run.path} are not repeats: they differ in'
        f' {", ".join(differences)}. Name folders of runs that differ only in'
        f' seed and {_ROUNDS}.'
      )
  for run, other in itertools.combinations(runs, 2):
    if run.configuration == other.configuration:
      raise errors.UserError(
        f'{run.path} and {other.path} have the same run, seed and all. Name one'
        ' of them.'
      )
  by_rounds: dict[int, list[results_folder.FinishedRun]] = {}
  for run in runs:
    by_rounds.setdefault(run.configuration[_ROUNDS], []).append(run)
  return [Repeats(runs) for _, runs in sorted(by_rounds.items())]
