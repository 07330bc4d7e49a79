"""Methods with one seed or several, and statistics over the seeds."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
import statistics

from algorithms import candidates
from algorithms import registry
from base.aliases import Json

# A number in each repeat.
OfRepeats = Sequence[float]


@dataclasses.dataclass(frozen=True)
class Repeat:
  """A method with one seed.

  Attributes:
    seed: The seed.
    result: The method's entry in results.json, or the record of a grid's run.
    clients: The test clients, with the columns of per_client.csv.
    rounds: The metrics of the rounds of its training, by their names.
    checkpoints: The folder of the checkpoints of its training, if any.
  """

  seed: int
  result: Mapping[str, Json]
  clients: Sequence[Mapping[str, Json]]
  rounds: Mapping[str, Sequence[float]] = dataclasses.field(
    default_factory=dict
  )
  checkpoints: pathlib.Path | None = None

  def client_values(self, column: str) -> list[float]:
    """Returns a number of each client; NaN where there is none."""
    return [number(row.get(column)) for row in self.clients]

  @property
  def mean(self) -> float:
    """The mean over clients; NaN if a model diverged."""
    return statistics.fmean(self.client_values('metric'))


@dataclasses.dataclass(frozen=True)
class Series:
  """A method with one configuration, and one seed or several.

  Attributes:
    method: The name of the method.
    task: The name of the task, or of the grid.
    repeats: The repeats.
    row: The name of its row in a table; by default that of the method.
    label: A text that distinguishes its configuration from the task's others;
      empty if there is no other one.
  """

  method: str
  task: str
  repeats: Sequence[Repeat]
  row: str = ''
  label: str = ''

  @property
  def key(self) -> str:
    """The name in the names of files."""
    return labeled(self.row or self.method, self.label)

  @property
  def name(self) -> str:
    """The name in figures and tables."""
    return labeled(registry.title(self.row or self.method), self.label)

  @property
  def metric(self) -> str:
    """The name of the metric."""
    return self.repeats[0].result['metric']

  @property
  def higher_is_better(self) -> bool:
    """Whether a larger metric is better."""
    return self.repeats[0].result['higher_is_better']

  @property
  def judged(self) -> tuple[str, bool]:
    """The metric and its direction."""
    return self.metric, self.higher_is_better

  @property
  def candidates(self) -> list[candidates.Candidate]:
    """The candidates of the method."""
    return [
      candidates.Candidate(
        found.get('value'),
        found.get('unit', ''),
        found.get('label', ''),
        text=name,
      )
      for name, found in self.repeats[0].result.get('candidates', {}).items()
    ]

  def names(self, *keys: str) -> list[str]:
    """Lists the names at a place in the results."""
    found = _look_up(self.repeats[0].result, keys)
    return list(found) if isinstance(found, dict) else []

  def values(self, *keys: str) -> list[float]:
    """Returns each repeat's number at a place in its results; NaN if missing.

    Args:
      *keys: The path of names to the number in the results.
    """
    return [number(_look_up(repeat.result, keys)) for repeat in self.repeats]

  def client_values(self, column: str) -> list[float]:
    """Returns a number of each client in all repeats; NaN where empty."""
    return [
      value for repeat in self.repeats for value in repeat.client_values(column)
    ]


def labeled(name: str, label: str) -> str:
  """Adds the label of a configuration to a name, if there is one."""
  return f'{name} ({label})' if label else name


def number(text: Json) -> float:
  """Reads a number; NaN if there is none."""
  return math.nan if text in (None, '') else float(text)


def _look_up(result: Json, keys: Sequence[str]) -> Json:
  for key in keys:
    result = result.get(key) if isinstance(result, Mapping) else None
  return result


def summarize(compared: Sequence[Series]) -> dict[str, Json]:
  """Computes statistics over repeats of the statistics over test clients.

  Args:
    compared: The methods.

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
    'metric': compared[0].metric,
    'higher_is_better': compared[0].higher_is_better,
    'methods': {
      series.method: {
        name: describe_values(series.values('test', name))
        for name in ('mean', 'deviation', 'worst_tenth', 'hurt')
      }
      for series in compared
    },
  }


def mean_and_deviation(values: OfRepeats) -> tuple[float, float]:
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
