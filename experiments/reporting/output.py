"""What a run leaves in its folder, and what it shows.

  config.toml      all settings; given back as --preset it is the same run
  results.json     each method's statistics over the test clients
  per_client.csv   each test client's metric, and what else is measured of it
  metrics/         each round's training metrics, a CSV file for each training
  tensorboard/     the same for TensorBoard
  checkpoints/     where a run that was stopped goes on

The results are written anew after each method, and a run that is started again
goes on behind the methods that are there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import math
import pathlib
import sys
import time
from typing import Any, TextIO

import numpy as np
import rich.box
import rich.console
import rich.progress
import rich.table
import tensorflow_federated as tff
import tomli_w

from algorithms import method as methods
from base import errors
from experiments.configuration import config as config_lib
from experiments.reporting import folders
from experiments.reporting import report
from experiments.reporting import terminal
from personalization import comparison
from personalization import evaluation as evaluation_lib
from personalization import measures
from personalization import summaries
from tasks import task as task_lib

# A method in results.json, and a client of one in per_client.csv.
Result = Mapping[str, Any]
Row = Mapping[str, Any]

# The file of all settings.
CONFIG = 'config.toml'
_CONFIG_HEADER = '# All settings of a run. To do it again: --preset=THIS_FILE\n'
# Those that are there in any case; what else is measured has columns behind.
_COLUMNS = (
  'method',
  'client',
  'examples',
  'personalization_examples',
  'metric',
  'before',
  'candidate',
  'hurt',
)
# Where there is no terminal to draw a bar on.
_SECONDS_PER_LINE = 10.0


def _to_json(value: Any) -> Any:
  """`value` with None for what JSON has no word for: infinite, or no number."""
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  if isinstance(value, Mapping):
    return {key: _to_json(inner) for key, inner in value.items()}
  if isinstance(value, (list, tuple)):
    return [_to_json(inner) for inner in value]
  return value


def checkpoint_dir(folder: pathlib.Path, training: str) -> pathlib.Path:
  """Where the checkpoints of a training of a run are."""
  return folder / 'checkpoints' / training


class Folder:
  """The folder of a run; `open_folder` makes it.

  Attributes:
    results: The results of the finished methods, by name.
  """

  def __init__(self, path: pathlib.Path, config: config_lib.Config):
    self.results: dict[str, Result] = {}
    self._rows: list[Row] = []
    self._path = path
    self._config = config
    if self._belongs_to_config():
      self._read()
    else:
      text = _CONFIG_HEADER + tomli_w.dumps(config.to_dict())
      folders.write(path / CONFIG, text)

  def _belongs_to_config(self) -> bool:
    """Whether this run was started here before, and no other run was."""
    there = self._path / CONFIG
    if not there.exists():
      for name in ('checkpoints', 'results.json'):
        if (self._path / name).exists():
          raise errors.UserError(
            f'{self._path} has {name} but no config.toml to tell of what.'
            ' Name another output_dir.'
          )
      return False
    try:
      other = config_lib.from_file(there)
      differences = config_lib.differences(other, self._config)
    except errors.UserError as error:  # Of a task that is no more, or by hand.
      differences = [str(error)]
    if differences:
      raise errors.UserError(
        f'{self._path} belongs to another configuration. Name another'
        ' output_dir, or delete this one. It has\n  ' + '\n  '.join(differences)
      )
    return True

  def _read(self) -> None:
    """Reads the results of the finished methods."""
    results = self._path / 'results.json'
    if not results.exists():
      return
    try:
      self.results = json.loads(results.read_text(encoding='utf-8'))['methods']
      table = self._path / 'per_client.csv'
      with table.open(encoding='utf-8', newline='') as file:
        # Those of a method that is not in results.json, which is written last,
        # will come again.
        self._rows = [
          row for row in csv.DictReader(file) if row['method'] in self.results
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise errors.UserError(
        f'The results in {self._path} are damaged ({error!r}). Delete'
        f' {results} to have them made again.'
      ) from error

  def _rows_of(self, method: str) -> list[Row]:
    return [row for row in self._rows if row['method'] == method]

  def checkpoint_dir(self, training: str) -> pathlib.Path:
    """Where the checkpoints of a training are."""
    return checkpoint_dir(self._path, training)

  def release_managers(
    self, training: str
  ) -> tuple[tff.program.ReleaseManager, ...]:
    """What keeps the metrics of the rounds of a training."""
    return (
      tff.program.CSVFileReleaseManager(
        self._path / 'metrics' / f'{training}.csv', key_fieldname='round'
      ),
      tff.program.TensorBoardReleaseManager(
        self._path / 'tensorboard' / training
      ),
    )

  def communication(
    self, training: str, algorithm: methods.Method
  ) -> dict[str, float]:
    """What a training sent, in parameters, from the metrics of its rounds.

    Args:
      training: The name of the training.
      algorithm: What was trained.

    Returns:
      How many parameters a client was sent in a round and sent itself, as means
      over clients and rounds, and how many that were in total.
    """
    down = up = clients = 0.0
    path = self._path / 'metrics' / f'{training}.csv'
    if algorithm.trains and path.exists():
      with path.open(encoding='utf-8', newline='') as file:
        for row in csv.DictReader(file):
          sent = float(row['num_clients'])
          received = sent + float(row['dropped_clients'])
          clients += received
          down += received * float(row.get('share_received', 1))
          up += sent * float(row.get('share_sent', 1))
    down *= algorithm.parameters_down
    up *= algorithm.parameters_up
    return {
      'parameters_down': down / max(clients, 1),
      'parameters_up': up / max(clients, 1),
      'total_parameters': down + up,
    }

  def add(self, method: str, result: Result, rows: Sequence[Row]) -> None:
    """Adds what came out for a method, and writes it."""
    against = {
      other: _compare(rows, self._rows_of(other), result['higher_is_better'])
      for other in self.results
    }
    self.results[method] = _to_json({**result, 'against': against})
    self._rows.extend(rows)
    table = io.StringIO()
    columns = dict.fromkeys(
      itertools.chain.from_iterable([_COLUMNS, *self._rows])
    )
    writer = csv.DictWriter(table, columns, lineterminator='\n')
    writer.writeheader()
    writer.writerows(self._rows)
    folders.write(self._path / 'per_client.csv', table.getvalue())
    contents = {
      'configuration': self._config.to_dict(),
      'methods': self.results,
    }
    text = json.dumps(contents, indent=2, allow_nan=False)
    folders.write(self._path / 'results.json', f'{text}\n')


def _compare(
  first: Sequence[Row], second: Sequence[Row], higher_is_better: bool
) -> dict[str, Any]:
  """Compares two methods on the clients that both have been judged by."""
  other = {row['client']: float(row['metric']) for row in second}
  pairs = [
    (float(row['metric']), other[row['client']])
    for row in first
    if row['client'] in other
  ]
  return dataclasses.asdict(comparison.compare(*zip(*pairs), higher_is_better))


@contextlib.contextmanager
def open_folder(
  path: pathlib.Path, config: config_lib.Config
) -> Iterator[Folder]:
  """Makes the folder of a run, or opens the one that it has.

  Args:
    path: The folder.
    config: The configuration of the run.

  Yields:
    The folder, which no other process can open in the meantime.

  Raises:
    UserError: If it is another run's folder, or none that can be written to.
  """
  with folders.locked(path):
    try:
      folder = Folder(path, config)
    except OSError as error:
      raise folders.unusable(path, error) from error
    yield folder


def make_result(
  evaluation: evaluation_lib.Evaluation,
  task: task_lib.Task,
  measured: evaluation_lib.Measured,
  choice: evaluation_lib.Choice,
) -> Result:
  """What results.json says of a method's evaluation.

  Args:
    evaluation: The metrics of all clients and candidates.
    task: The task.
    measured: What else was measured.
    choice: How candidates are chosen.

  Returns:
    The metric and its direction, how many clients use which candidate, the
    statistics of the test clients with those and without personalization, what
    each candidate would be for all, the clients left out, and what else was
    measured.
  """

  def summary(
    chosen: np.ndarray,
    evaluation: evaluation_lib.Evaluation = evaluation,
    further: str | None = None,
  ) -> dict[str, Any]:
    return dataclasses.asdict(
      evaluation_lib.summarize(evaluation, chosen, further)
    )

  chosen = evaluation_lib.choose(evaluation, choice)
  used, counts = np.unique(chosen, return_counts=True)
  result = {
    'metric': evaluation.metric,
    'higher_is_better': evaluation.higher_is_better,
    'chosen': {
      evaluation.candidates[candidate]: int(count)
      for candidate, count in zip(used, counts)
    },
    'test': summary(chosen),
    'before': None
    if evaluation.baseline is None
    else summary(np.full_like(chosen, evaluation.baseline)),
    'candidates': measures.by_candidate(evaluation),
    'skipped_in_evaluation': list(evaluation.skipped),
  }
  if task.cross_silo and len(evaluation.candidates) > 1:
    result['tuning'] = {
      name: summary(
        evaluation_lib.choose(evaluation, dataclasses.replace(choice, each=own))
      )
      for name, own in (('all', False), ('each', True))
    }
  if measured.ood_examples:
    result['out_of_distribution'] = summary(chosen, further=evaluation_lib.OOD)
  if measured.evaluation_fractions:
    result['evaluation_fractions'] = {
      f'{fraction:g}': summary(
        chosen, further=evaluation_lib.part_of_evaluation(fraction)
      )
      for fraction in measured.evaluation_fractions
    }
  if measured.personalization_fractions:
    result['personalization_fractions'] = {}
    for fraction in measured.personalization_fractions:
      less = evaluation.after_less.get(fraction, evaluation)
      result['personalization_fractions'][f'{fraction:g}'] = summary(
        evaluation_lib.choose(less, choice), less
      )
  acceptance = measures.acceptance(evaluation, measured, choice)
  if acceptance:
    result['acceptance'] = {
      criterion: {
        'accepted': float(own.accepted.mean()),
        'test': dataclasses.asdict(own.summary),
      }
      for criterion, own in acceptance.items()
    }
  clusters = measures.clusters(evaluation, chosen)
  if clusters is not None:
    result['clusters'] = measures.describe_clusters(
      clusters, _known_groups(task, evaluation.test.client_ids)
    )
  return result


def _known_groups(
  task: task_lib.Task, client_ids: Sequence[str]
) -> list[str] | None:
  """The group of each client; None if the task has no groups."""
  if task_lib.GROUP not in task.attributes:
    return None
  return [task.attributes[task_lib.GROUP].name(c) for c in client_ids]


def make_rows(
  method: str,
  evaluation: evaluation_lib.Evaluation,
  task: task_lib.Task,
  measured: evaluation_lib.Measured,
  choice: evaluation_lib.Choice,
) -> list[Row]:
  """What per_client.csv says of a method: its test clients one by one.

  Args:
    method: The name of the method.
    evaluation: The metrics of all clients and candidates.
    task: The task.
    measured: What else was measured.
    choice: How candidates are chosen.

  Returns:
    The rows. `examples` are those that the metric is the mean over; columns
    that end in a set are the metric on it, and before personalization.
  """
  chosen = evaluation_lib.choose(evaluation, choice)
  metric = evaluation.metric
  columns: dict[str, Sequence[Any]] = {
    'examples': evaluation.test.weights[metric].astype(int),
    'personalization_examples': evaluation.num_personalization,
    'candidate': [evaluation.candidates[i] for i in chosen],
  }
  sets = {'': evaluation.test} | {
    f'_{name}': metrics for name, metrics in evaluation.further.items()
  }
  for name, metrics in sets.items():
    values = metrics.values[metric]
    columns[f'metric{name}'] = evaluation_lib.at(values, chosen)
    if evaluation.baseline is not None:
      columns[f'before{name}'] = values[:, evaluation.baseline]
  if evaluation.baseline is not None:
    columns['hurt'] = summaries.is_worse(
      columns['metric'], columns['before'], evaluation.higher_is_better
    ).astype(int)
  for criterion, own in measures.acceptance(
    evaluation, measured, choice
  ).items():
    columns[f'accepted_{criterion}'] = own.accepted.astype(int)
  clusters = measures.clusters(evaluation, chosen)
  if clusters is not None:
    columns['cluster'] = clusters
  client_ids = evaluation.test.client_ids
  groups = _known_groups(task, client_ids)
  if groups is not None:
    columns['group'] = groups
  # As Python's own numbers, which are written in full.
  clients = zip(*(np.asarray(column).tolist() for column in columns.values()))
  return [
    {'method': method, 'client': client_id, **dict(zip(columns, own))}
    for client_id, own in zip(client_ids, clients, strict=True)
  ]


def _interval(interval: Sequence[float] | None) -> str:
  return '–' if interval is None else ' to '.join(map(_number, interval))


def _number(value: float | None) -> str:
  return 'diverged' if value is None else f'{value:#.4g}'


def _describe_choice(chosen: Mapping[str, int]) -> str:
  most_often = max(chosen, key=lambda candidate: chosen[candidate])
  return most_often if len(chosen) == 1 else f'each its own, most {most_often}'


def make_table(results: Mapping[str, Result]) -> rich.table.Table:
  """The methods of one run, a row each."""
  any_result = next(iter(results.values()))
  better = 'higher' if any_result['higher_is_better'] else 'lower'
  table = rich.table.Table(
    title=(
      f'{any_result["metric"]} of {any_result["test"]["num_clients"]} test'
      f' clients; {better} is better'
    ),
    title_justify='left',
    box=rich.box.SIMPLE,
  )
  table.add_column('method')
  table.add_column('mean ± deviation', justify='right')
  table.add_column('95% interval of the mean', justify='right')
  table.add_column('worst tenth', justify='right')
  table.add_column('hurt', justify='right')
  table.add_column('chosen candidate')

  def add_row(name: str, test: Mapping[str, Any], candidate: str) -> None:
    table.add_row(
      name,
      f'{_number(test["mean"])} ± {_number(test["deviation"])}',
      _interval(test['interval']),
      _number(test['worst_tenth']),
      '–' if test['hurt'] is None else f'{test["hurt"]:.0%}',
      candidate,
    )

  for method, result in results.items():
    add_row(method, result['test'], _describe_choice(result['chosen']))
    for criterion, own in result.get('acceptance', {}).items():
      add_row(
        f'  if {report.CRITERIA[criterion]}',
        own['test'],
        f'taken by {own["accepted"]:.0%}',
      )
  return table


def print_table(
  results: Mapping[str, Result], file: TextIO | None = None
) -> None:
  """Prints the table of a run's methods."""
  terminal.print_table(make_table(results), file)


# Told how many steps are done, and something about the last of them.
ShowProgress = Callable[[int, str], None]


@contextlib.contextmanager
def progress(
  what: str, total: int, unit: str, file: TextIO | None = None
) -> Iterator[ShowProgress]:
  """Shows how far something is: a bar in a terminal, else a line now and then.

  Args:
    what: What is being done.
    total: How many steps it takes.
    unit: What the steps are.
    file: Where to show it; by default stderr.

  Yields:
    A function to call after a step.
  """
  console = rich.console.Console(file=file or sys.stderr, highlight=False)
  if console.is_terminal:
    columns = (
      rich.progress.TextColumn('{task.description:<24}'),
      rich.progress.BarColumn(),
      rich.progress.MofNCompleteColumn(),
      rich.progress.TextColumn(unit),
      rich.progress.TimeElapsedColumn(),
      rich.progress.TextColumn('{task.fields[note]}'),
    )
    with rich.progress.Progress(*columns, console=console) as bars:
      bar = bars.add_task(what, total=total, note='')
      yield lambda done, note='': bars.update(bar, completed=done, note=note)
    return

  start = last_time = time.monotonic()
  line = ''

  def show(done: int, note: str = '') -> None:
    nonlocal last_time, line
    now = time.monotonic()
    parts = (f'{what}: {done} of {total} {unit}', f'{now - start:.1f} s', note)
    line = ', '.join(filter(None, parts))
    if now >= last_time + _SECONDS_PER_LINE:
      print_line()
      last_time = now

  def print_line() -> None:
    nonlocal line
    if line:
      print(line, file=console.file, flush=True)
    line = ''

  yield show
  print_line()  # How it ended.
