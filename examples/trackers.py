"""Copies finished runs to MLflow or Weights & Biases.

Neither fits beside TensorFlow Federated. So this program needs nothing but one
of them and Python, in an environment of its own:

  python3 -m venv trackers
  trackers/bin/pip install mlflow wandb
  trackers/bin/python examples/trackers.py mlflow FOLDER …
  WANDB_MODE=offline trackers/bin/python examples/trackers.py wandb FOLDER …

Each method becomes a run there. It has the method's settings, the metrics of
training and of validation clients by round, the statistics of the test clients,
and the files of the run. Variables of the packages say where that goes, such as
MLFLOW_TRACKING_URI and WANDB_DIR.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import csv
import dataclasses
import importlib
import json
import math
import pathlib
import time
from typing import Any

_FILES = 'config.toml', 'results.json', 'per_client.csv', 'encoding.json'
# MLflow takes no more values at once.
_MOST_VALUES = 1000


@dataclasses.dataclass(frozen=True)
class Record:
  """A method of a finished run, as trackers take it.

  Attributes:
    project: The name of the task.
    name: The name of the folder, and of the method.
    settings: The settings of the run and of the method.
    rounds: The metrics after rounds, by the number of the round.
    results: The statistics of the test clients, and the communication.
    clients: The test clients, as in per_client.csv.
    files: The files of the run.
  """

  project: str
  name: str
  settings: Mapping[str, Any]
  rounds: Mapping[int, Mapping[str, float]]
  results: Mapping[str, float]
  clients: Sequence[Mapping[str, str]]
  files: Sequence[pathlib.Path]


def _read_csv(path: pathlib.Path) -> list[dict[str, str]]:
  """Reads a CSV file; nothing if there is none."""
  if not path.exists():
    return []
  with path.open(encoding='utf-8', newline='') as file:
    return list(csv.DictReader(file))


def _numbers(values: Mapping[str, Any], prefix: str = '') -> dict[str, float]:
  """Finds the numbers in a table of tables, by their full names."""
  found: dict[str, float] = {}
  for name, value in values.items():
    if isinstance(value, dict):
      found |= _numbers(value, f'{prefix}{name}/')
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
      found[f'{prefix}{name}'] = float(value)
  return found


def _settings(
  configuration: Mapping[str, Any], method: str
) -> Iterator[tuple[str, Any]]:
  """Yields the settings of a run, without those of its other methods."""
  for name, value in configuration.items():
    if not isinstance(value, dict):
      yield name, value
    elif name in ('task', 'privacy'):
      for setting, chosen in value.items():
        yield f'{name}.{setting}', chosen
    elif name == method:
      yield from value.items()


def _rounds(
  folder: pathlib.Path, method: str, training: str | None
) -> dict[int, dict[str, float]]:
  """Reads the metrics of a method's training, and of its validation clients."""
  found: dict[int, dict[str, float]] = {}
  for kind, name in (('metrics', training), ('validation', method)):
    for row in _read_csv(folder / kind / f'{name}.csv'):
      values = {f'{kind}/{n}': float(v) for n, v in row.items() if n != 'round'}
      finite = {n: value for n, value in values.items() if math.isfinite(value)}
      found.setdefault(int(float(row['round'])), {}).update(finite)
  return dict(sorted(found.items()))


def read(folder: pathlib.Path) -> list[Record]:
  """Reads the methods of a finished run.

  Args:
    folder: The output folder of the run.

  Returns:
    A record for each method.

  Raises:
    OSError or ValueError: If it is no such folder.
  """
  contents = json.loads((folder / 'results.json').read_text(encoding='utf-8'))
  configuration = contents['configuration']
  rows = _read_csv(folder / 'per_client.csv')
  return [
    Record(
      project=configuration['task']['name'],
      name=f'{folder.resolve().name}/{method}',
      settings={'method': method, **dict(_settings(configuration, method))},
      rounds=_rounds(folder, method, result['training']),
      results=_numbers(
        {
          name: result.get(name) or {}
          for name in ('test', 'before', 'communication')
        }
      ),
      clients=[row for row in rows if row['method'] == method],
      files=[folder / name for name in _FILES if (folder / name).exists()],
    )
    for method, result in contents['methods'].items()
  ]


def to_mlflow(mlflow: Any, record: Record) -> None:
  """Copies a record to MLflow."""
  mlflow.set_experiment(record.project)
  with mlflow.start_run(run_name=record.name) as run:
    mlflow.log_params(record.settings)
    mlflow.log_metrics(record.results)
    now = int(1000 * time.time())
    values = [
      mlflow.entities.Metric(name, value, now, step)
      for step, metrics in record.rounds.items()
      for name, value in metrics.items()
    ]
    for i in range(0, len(values), _MOST_VALUES):
      mlflow.MlflowClient().log_batch(
        run.info.run_id, values[i : i + _MOST_VALUES]
      )
    for path in record.files:
      mlflow.log_artifact(str(path))


def to_wandb(wandb: Any, record: Record) -> None:
  """Copies a record to Weights & Biases."""
  with wandb.init(
    project=record.project, name=record.name, config=dict(record.settings)
  ) as run:
    for step, metrics in record.rounds.items():
      run.log(metrics, step=step)
    run.summary.update(record.results)
    columns = list(record.clients[0])
    data = [list(row.values()) for row in record.clients]
    run.log({'clients': wandb.Table(columns=columns, data=data)})
    for path in record.files:
      run.save(str(path), base_path=str(path.parent), policy='now')


# The packages are not among those that this project needs.
_TRACKERS = {'mlflow': to_mlflow, 'wandb': to_wandb}


def main(arguments: Sequence[str] | None = None) -> None:
  """Copies the runs that the arguments name."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('tracker', choices=_TRACKERS)
  parser.add_argument('folder', nargs='+', type=pathlib.Path)
  given = parser.parse_args(arguments)
  records = []
  for folder in given.folder:
    try:
      records += read(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
      parser.error(f'{folder} has no results of a run: {error!r}.')
  try:
    package = importlib.import_module(given.tracker)
  except ImportError:
    parser.error(f'{given.tracker} is not installed; --help says how to.')
  for record in records:
    _TRACKERS[given.tracker](package, record)
    print(f'Copied {record.name}')


if __name__ == '__main__':
  main()
