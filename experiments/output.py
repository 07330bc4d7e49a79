"""What a run leaves in its folder and shows on the screen.

  config.toml      all settings; given back as --preset it is the same run
  results.json     each method's statistics over the test clients
  per_client.csv   each test client's metric
  metrics/         each round's training metrics, a CSV file a method
  tensorboard/     the same for TensorBoard
  checkpoints/     where a run that was stopped goes on

Every file is there whole or not at all. Results are written after each method,
and a run in the same folder goes on behind the methods that are there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import csv
import fcntl
import io
import json
import math
import os
import pathlib
import sys
import time
from typing import Any, Optional, TextIO

import numpy as np
import rich.box
import rich.console
import rich.progress
import rich.table
import tensorflow_federated as tff
import tomli_w

from experiments import config as config_lib
from personalization import evaluation as evaluation_lib
from personalization import statistics
from tasks import errors
from tasks import task as task_lib

_CONFIG_HEADER = """\
# All settings of a run. To do it again: --preset=THIS_FILE
"""
_FIELDS = (
    'method',
    'client',
    'examples',
    'metric',
    'before',
    'candidate',
    'hurt',
)
# Seconds between lines where there is no terminal to draw a bar on.
_SECONDS_PER_LINE = 10.0

Result = Mapping[str, Any]
Row = Mapping[str, Any]


def _write(path: pathlib.Path, text: str) -> None:
  """Writes a file that is there whole or not at all."""
  temporary = path.with_name(f'.{path.name}.tmp')
  with temporary.open('w', encoding='utf-8', newline='') as file:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
  temporary.replace(path)


def _to_json(value: Any) -> Any:
  """`value` without what JSON has no word for: infinity, and no number."""
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  if isinstance(value, Mapping):
    return {key: _to_json(inner) for key, inner in value.items()}
  if isinstance(value, (list, tuple)):
    return [_to_json(inner) for inner in value]
  return value


class Folder:
  """The folder of a run, and what is there of its results.

  Attributes:
    results: The finished methods' results, by name.
  """

  def __init__(self, path: pathlib.Path, config: config_lib.Config):
    """Makes the folder, or opens that of the same configuration.

    Args:
      path: The folder.
      config: The configuration of the run.

    Raises:
      UserError: If it is another run's folder, or none that can be written to.
    """
    self.path = path
    self._config = config
    self.results: dict[str, Result] = {}
    self._rows: list[Row] = []
    try:
      path.mkdir(parents=True, exist_ok=True)
      self._lock()
      if self._is_new():
        text = _CONFIG_HEADER + tomli_w.dumps(config.to_dict())
        _write(path / 'config.toml', text)
      else:
        self._read()
    except OSError as error:
      raise errors.UserError(
          f'The output folder {path} cannot be used: {error}.'
      ) from error

  def _lock(self) -> None:
    """Keeps other runs out for as long as this process lives."""
    folder = os.open(self.path, os.O_RDONLY)
    try:
      fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise errors.UserError(
          f'Another run is writing to {self.path}. Wait for it, or name another'
          ' output_dir.'
      ) from error
    self._locked = folder

  def close(self) -> None:
    """Lets other runs write to the folder."""
    os.close(self._locked)

  def _is_new(self) -> bool:
    """Whether nothing was run here; raises if it was something else."""
    there = self.path / 'config.toml'
    if not there.exists():
      for name in ('checkpoints', 'results.json'):
        if (self.path / name).exists():
          raise errors.UserError(
              f'{self.path} has {name} but no config.toml, so that it is not'
              ' known of what. Name another output_dir.'
          )
      return True
    other = config_lib.from_file(there)
    differences = config_lib.differences(other, self._config)
    if differences:
      raise errors.UserError(
          f'{self.path} belongs to another configuration. Name another'
          ' output_dir, or delete it. What is there has:\n  '
          + '\n  '.join(differences)
      )
    return False

  def _read(self) -> None:
    """Reads the finished methods' results."""
    results = self.path / 'results.json'
    if not results.exists():
      return
    try:
      self.results = json.loads(results.read_text(encoding='utf-8'))['methods']
      rows_path = self.path / 'per_client.csv'
      with rows_path.open(encoding='utf-8', newline='') as file:
        rows = list(csv.DictReader(file))
      # A method counts when it is in results.json, which is written last.
      self._rows = [row for row in rows if row['method'] in self.results]
    except (ValueError, KeyError, TypeError) as error:
      raise errors.UserError(
          f'The results in {self.path} are damaged: {error!r}. Delete'
          ' results.json to have them made again.'
      ) from error

  def checkpoint_dir(self, training: str) -> pathlib.Path:
    return self.path / 'checkpoints' / training

  def release_managers(
      self, training: str
  ) -> tuple[tff.program.ReleaseManager, ...]:
    """What keeps the metrics of each round."""
    return (
        tff.program.CSVFileReleaseManager(
            self.path / 'metrics' / f'{training}.csv', key_fieldname='round'
        ),
        tff.program.TensorBoardReleaseManager(
            self.path / 'tensorboard' / training
        ),
    )

  def add(self, method: str, result: Result, rows: Sequence[Row]) -> None:
    """Adds a method's results to the files."""
    self.results[method] = result
    self._rows.extend(rows)
    table = io.StringIO()
    writer = csv.DictWriter(table, _FIELDS)
    writer.writeheader()
    writer.writerows(self._rows)
    _write(self.path / 'per_client.csv', table.getvalue())
    contents = _to_json(
        {'configuration': self._config.to_dict(), 'methods': self.results}
    )
    _write(
        self.path / 'results.json',
        json.dumps(contents, indent=2, allow_nan=False) + '\n',
    )


def make_result(
    evaluation: evaluation_lib.Evaluation,
    task: task_lib.Task,
    chosen: np.ndarray,
) -> Result:
  """What results.json has on a method, as far as it was evaluated.

  Args:
    evaluation: The metrics of all clients and candidates.
    task: The task.
    chosen: The chosen candidate of each test client.

  Returns:
    The task's metric and its direction, how many clients use which candidate,
    the statistics of the test clients at those and without personalization, and
    each candidate's mean over the validation clients.
  """

  def summary(candidates: np.ndarray) -> dict[str, Any]:
    return dataclasses.asdict(
        evaluation_lib.summarize(
            evaluation, task.metric, task.higher_is_better, candidates
        )
    )

  names, counts = np.unique(chosen, return_counts=True)
  validation = evaluation.validation.values[task.metric].mean(axis=0)
  return {
      'metric': task.metric,
      'higher_is_better': task.higher_is_better,
      'chosen': {
          evaluation.candidates[name]: int(count)
          for name, count in zip(names, counts)
      },
      'test': summary(chosen),
      'before': None
      if evaluation.baseline is None
      else summary(np.full_like(chosen, evaluation.baseline)),
      'validation': {
          name: float(mean)
          for name, mean in zip(evaluation.candidates, validation)
      },
      'skipped_test_clients': list(evaluation.skipped),
  }


def make_rows(
    method: str,
    evaluation: evaluation_lib.Evaluation,
    task: task_lib.Task,
    chosen: np.ndarray,
) -> list[Row]:
  """What per_client.csv has on a method."""
  metrics = evaluation.test.values[task.metric]
  examples = evaluation.test.weights[task.metric]
  after = metrics[np.arange(len(metrics)), chosen]
  rows = []
  for i, client_id in enumerate(evaluation.test.client_ids):
    row = dict(
        method=method,
        client=client_id,
        examples=f'{examples[i]:g}',
        metric=float(after[i]),
        candidate=evaluation.candidates[chosen[i]],
    )
    if evaluation.baseline is not None:
      before = metrics[i, evaluation.baseline]
      row['before'] = float(before)
      row['hurt'] = int(
          statistics.is_worse(after[i], before, task.higher_is_better)
      )
    rows.append(row)
  return rows


def _number(value: Optional[float]) -> str:
  return 'diverged' if value is None else f'{value:#.4g}'


def _describe(chosen: Mapping[str, int]) -> str:
  """The chosen candidate in a few words."""
  if len(chosen) == 1:
    return next(iter(chosen))
  most = max(chosen, key=chosen.get)
  return f'its own for each client, most often {most}'


def table(results: Mapping[str, Result]) -> rich.table.Table:
  """The methods side by side; the results are as results.json has them."""
  first = next(iter(results.values()))
  clients = first['test']['num_clients']
  better = 'higher' if first['higher_is_better'] else 'lower'
  made = rich.table.Table(
      title=f'{first["metric"]} of {clients} test clients ({better} is better)',
      box=rich.box.SIMPLE,
      title_justify='left',
  )
  made.add_column('method')
  made.add_column('mean ± deviation', justify='right')
  made.add_column('worst tenth', justify='right')
  made.add_column('hurt', justify='right')
  made.add_column('chosen candidate')
  for method, result in results.items():
    test = result['test']
    hurt = test['hurt']
    made.add_row(
        method,
        f'{_number(test["mean"])} ± {_number(test["deviation"])}',
        _number(test['worst_tenth']),
        '–' if hurt is None else f'{hurt:.0%}',
        _describe(result['chosen']),
    )
  return made


def print_table(
    results: Mapping[str, Result], file: Optional[TextIO] = None
) -> None:
  """Prints the table; what is no terminal is taken to have wide lines."""
  file = file or sys.stdout
  console = rich.console.Console(
      file=file, width=None if file.isatty() else 120, highlight=False
  )
  console.print(table(_to_json(results)))


# Told how many steps were done, and something to show about them.
Advance = Callable[[int, str], None]


@contextlib.contextmanager
def progress(
    what: str, total: int, done_before: int = 0, unit: str = 'rounds'
) -> Iterator[Advance]:
  """Shows how far something is: a bar on a terminal, else a line now and then.

  Args:
    what: What is being done.
    total: The number of its steps.
    unit: What a step is.

  Yields:
    What to call after each step.
  """
