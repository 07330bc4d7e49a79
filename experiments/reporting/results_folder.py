"""The output folder of a run: how it is written, and how it is read.

  config.toml      all settings; --preset with this file repeats the run
  encoding.json    how a user's table became examples
  results.json     each method's statistics over the test clients
  per_client.csv   each test client's metric and further measurements
  privacy.json     all uses of protected data, and the ε of all together
  metrics/         each round's training metrics, a CSV file for each training
  validation/      metrics of the validation clients every few rounds, a CSV
                   file for each method, if validation was requested
  tensorboard/     the same metrics for TensorBoard
  checkpoints/     the state from which a stopped run continues
  manifest.json    the SHA-256 of all of these, see `manifests`

The results are rewritten after each method, and a restarted run continues with
the missing methods. The results have a checksum, so that damaged or changed
files are refused.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import math
import pathlib
from typing import Protocol

import numpy as np
import tomli_w

from base import errors
from base import inputs
from base.aliases import Json
from experiments.configuration import user_settings
from experiments.reporting import folders
from experiments.reporting import manifests
from personalization.judgement import comparison
from personalization.rounds import client_states

# A method in results.json, and a client of one in per_client.csv.
Result = Mapping[str, Json]
Row = Mapping[str, Json]

# The files of all settings, and of the results.
CONFIG, RESULTS = 'config.toml', 'results.json'
# The file of how a user's table became examples, if the data determine that.
ENCODING = 'encoding.json'
# The file of all uses of protected data, see `experiments.runs.ledgers`.
PRIVACY = 'privacy.json'
_CONFIG_HEADER = '# All settings of a run. To do it again: --preset=THIS_FILE\n'
_CLIENTS = 'per_client.csv'
# The size of the largest file that is read.
_MOST_BYTES = 2**32
_METRICS, _VALIDATION = 'metrics', 'validation'
# The name of 'started_from_training' in the results of older versions.
_OLD_STARTED_FROM = 'begins_with'
_DAMAGE = (*folders.DAMAGE, csv.Error)
# Columns that are always there, even if empty; columns of further measurements
# follow.
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


class WritableConfig(Protocol):
  """A configuration that can be written, see `configs.Config`.

  The class itself imports TensorFlow Federated, which reading a folder does not
  need.
  """

  def to_dict(self) -> dict[str, Json]:
    """Returns all settings."""

  def differences_from(self, path: pathlib.Path) -> Sequence[str]:
    """Lists how the configuration in a file differs, a line for each setting.

    Raises:
      UserError: If there is no configuration in the file.
    """


def checkpoint_dir(folder: pathlib.Path, training: str) -> pathlib.Path:
  """Returns the folder of the checkpoints of a run's training."""
  return folder / 'checkpoints' / training


def _to_json(value: Json) -> Json:
  """Replaces infinite numbers and NaN, which JSON does not have, by None."""
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  if isinstance(value, Mapping):
    return {key: _to_json(inner) for key, inner in value.items()}
  if isinstance(value, (list, tuple)):
    return [_to_json(inner) for inner in value]
  return value


def _parse_table(text: str) -> list[dict[str, str]]:
  return list(csv.DictReader(io.StringIO(text, newline='')))


def _read_text(path: pathlib.Path) -> str:
  return inputs.read_text(path, _MOST_BYTES)


def checksum(
  contents: Mapping[str, Json], rows: Sequence[Mapping[str, str]]
) -> str:
  """Computes the checksum of results.

  Args:
    contents: The contents of results.json.
    rows: The clients, as read from per_client.csv.
  """
  # Empty values are left out, as later methods may add columns.
  filled = [[item for item in row.items() if item[1]] for row in rows]
  return folders.checksum(
    [contents['configuration'], contents['methods'], filled]
  )


def _read_results(
  path: pathlib.Path,
) -> tuple[dict[str, Json], list[dict[str, str]]]:
  """Reads results.json, and the clients of its methods.

  Raises:
    OSError, or one of `_DAMAGE`: If they cannot be read, or were changed.
  """
  contents = json.loads(_read_text(path / RESULTS))
  # results.json is written last. Clients of a method that it lacks are left
  # out, as this method will be evaluated again.
  rows = [
    row
    for row in _parse_table(_read_text(path / _CLIENTS))
    if row['method'] in contents['methods']
  ]
  if contents['checksum'] != checksum(contents, rows):
    raise ValueError('they are not as they were written')
  for result in contents['methods'].values():
    if _OLD_STARTED_FROM in result:
      result['started_from_training'] = result.pop(_OLD_STARTED_FROM)
  return contents, rows


def _read_rounds(path: pathlib.Path) -> dict[str, list[float]]:
  """Reads metrics by round, without an incomplete last line."""
  text = _read_text(path)
  table = _parse_table(text[: text.rfind('\n') + 1])
  names = table[0] if table else ()
  return {name: [float(row[name]) for row in table] for name in names}


class RunFolder:
  """The folder of a run in progress, to which it writes while it is open.

  Attributes:
    path: The folder.
    results: The results of the finished methods, by name, as they were when the
      folder was last opened, and those that were added since.
  """

  def __init__(self, path: pathlib.Path, config: WritableConfig):
    self.results: dict[str, Result] = {}
    self._rows: list[Row] = []
    self.path = path
    self._config = config
    self._manifest: manifests.Manifest

  @contextlib.contextmanager
  def open(self) -> Iterator[None]:
    """Opens the folder, which no other process can open in the meantime.

    Yields:
      Nothing.

    Raises:
      UserError: If the folder belongs to another run, or cannot be written to.
    """
    with folders.locked(self.path, folders.RUN):
      self.results, self._rows = {}, []
      try:
        self._manifest = manifests.Manifest(self.path)
        if self._belongs_to_config():
          self._read()
          self._check()
      except OSError as error:
        raise folders.unusable(self.path, error) from error
      yield

  def _belongs_to_config(self) -> bool:
    """Tells whether this run was started here before; refuses other runs."""
    there = self.path / CONFIG
    if not there.exists():
      return False
    try:
      differences = self._config.differences_from(there)
    except errors.UserError as error:  # An old task, or a manual change.
      differences = [str(error)]
    if differences:
      raise errors.UserError(
        f'{self.path} belongs to another configuration. Name another'
        ' output_dir, or delete this one. It has\n  ' + '\n  '.join(differences)
      )
    return True

  def _read(self) -> None:
    """Reads the results of the finished methods."""
    results = self.path / RESULTS
    if not results.exists():
      return
    try:
      contents, rows = _read_results(self.path)
      self.results, self._rows = contents['methods'], list(rows)
    except _DAMAGE as error:
      raise errors.UserError(
        f'The results in {self.path} are damaged ({folders.fault(error)}).'
        f' Delete {results} to have them made again.'
      ) from error

  def _check(self) -> None:
    """Checks that the files are those that the run wrote."""
    self._manifest.check_own()
    manifests.tell_of_modules(self.path)

  def begin(self, encoding: Mapping[str, Json]) -> None:
    """Writes what the run is, unless that is written already.

    Before that, nothing is in the folder, so that a run that is refused leaves
    nothing behind.

    Args:
      encoding: How a user's table became examples; empty if it is not known.
    """
    texts = {}
    if encoding:
      texts[ENCODING] = folders.to_json(encoding, ensure_ascii=False)
    # The configuration comes last, as it says that the others are there.
    if not (self.path / CONFIG).exists():
      settings = self._config.to_dict()
      texts[CONFIG] = _CONFIG_HEADER + tomli_w.dumps(settings)
      self._manifest.modules = manifests.describe_modules(
        settings.get('modules', ())
      )
    self._manifest.write(texts)

  def write_privacy(self, text: str) -> None:
    """Writes the uses of protected data."""
    self._manifest.write({PRIVACY: text})

  def note_checkpoint(self, path: pathlib.Path, digest: str) -> None:
    """Notes a checkpoint, before it is written, and its SHA-256."""
    self._manifest.note_checkpoint(path, digest)

  def reopen(self, training: str, methods: Iterable[str]) -> None:
    """Notes that the files of a training will grow, and of its methods."""
    paths = [
      self.metrics_file(training),
      self.checkpoint_dir(training) / client_states.FILE_NAME,
      *map(self.validation_file, methods),
    ]
    self._manifest.unseal(
      path.relative_to(self.path).as_posix() for path in paths
    )

  def client_rows(self, method: str) -> list[Row]:
    """Returns the clients of a finished method."""
    return [row for row in self._rows if row['method'] == method]

  def checkpoint_dir(self, training: str) -> pathlib.Path:
    """Returns the folder of the checkpoints of a training."""
    return checkpoint_dir(self.path, training)

  def metrics_file(self, training: str) -> pathlib.Path:
    """Returns the file of the metrics of the rounds of a training."""
    return self.path / _METRICS / f'{training}.csv'

  def validation_file(self, method: str) -> pathlib.Path:
    """Returns the file of the metrics of validation clients in a training."""
    return self.path / _VALIDATION / f'{method}.csv'

  def tensorboard_dir(self, training: str) -> pathlib.Path:
    """Returns the folder of a training's metrics for TensorBoard."""
    return self.path / 'tensorboard' / training

  def write_groups(self, training: str, groups: Mapping[str, int]) -> None:
    """Writes the groups of clients that were found for a training."""
    with errors.writing(self.path / 'groups'):
      (self.path / 'groups').mkdir(exist_ok=True)
    found = folders.to_json(dict(sorted(groups.items())))
    self._manifest.write({f'groups/{training}.json': found})

  def communication(
    self, training: str, parameters_down: int, parameters_up: int
  ) -> dict[str, float]:
    """Counts the parameters that a training sent, by the metrics of its rounds.

    Args:
      training: The name of the training.
      parameters_down: The number of parameters that a client receives in a
        round.
      parameters_up: The number of parameters that a client sends.

    Returns:
      The numbers of parameters that a client received and sent in a round, as
      means over clients and rounds, and the total; zeros if there were no
      rounds.

    Raises:
      UserError: If the file of the metrics is damaged.
    """
    rounds = self._read_training(training)
    sent = rounds.get('num_clients', np.zeros(0))
    received = sent + rounds.get('dropped_clients', 0)
    down = parameters_down * np.sum(received * rounds.get('share_received', 1))
    up = parameters_up * np.sum(sent * rounds.get('share_sent', 1))
    clients = max(np.sum(received), 1)
    return {
      'parameters_down': float(down / clients),
      'parameters_up': float(up / clients),
      'total_parameters': float(down + up),
    }

  def passes(self, training: str) -> float:
    """Returns the mean of the measured 'passes'; 1 if they are not measured.

    Raises:
      UserError: If the file of the metrics is damaged.
    """
    rounds = self._read_training(training)
    if 'passes' not in rounds or not np.any(rounds['num_clients']):
      return 1.0
    return float(np.average(rounds['passes'], weights=rounds['num_clients']))

  def _read_training(self, training: str) -> dict[str, np.ndarray]:
    """Reads the metrics of a training's rounds; empty if there are none."""
    path = self.metrics_file(training)
    try:
      rounds = _read_rounds(path) if path.exists() else {}
      return {name: np.array(values) for name, values in rounds.items()}
    except _DAMAGE as error:
      raise errors.UserError(
        f'{path} is damaged ({folders.fault(error)}). Delete it and'
        f' {self.checkpoint_dir(training)} to train again.'
      ) from error

  def add(self, method: str, result: Result, rows: Sequence[Row]) -> None:
    """Adds the result and the clients of a method, and writes them."""
    against = {
      other: dataclasses.asdict(compare(rows, self.client_rows(other), result))
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
    text = json.dumps(
      {'configuration': self._config.to_dict(), 'methods': self.results},
      allow_nan=False,
    )
    contents = json.loads(text)  # In the form in which it will be read.
    contents['checksum'] = checksum(contents, _parse_table(table.getvalue()))
    self._manifest.note(
      texts := {
        _CLIENTS: table.getvalue(),
        RESULTS: folders.to_json(contents),
      }
    )
    for name, text in texts.items():
      folders.write(self.path / name, text)
    self._manifest.seal()


def metric_range(result: Result) -> tuple[float, float]:
  """Returns the range of a result's metric, which older ones do not have."""
  lowest, highest = result.get('metric_range', (None, None))
  return (
    -math.inf if lowest is None else lowest,
    math.inf if highest is None else highest,
  )


def compare(
  first: Sequence[Row], second: Sequence[Row], result: Result
) -> comparison.Comparison:
  """Compares two methods on the clients that both were evaluated on.

  Args:
    first: The clients of one method.
    second: The clients of the other.
    result: The result of either, for the direction and range of the metric.
  """
  other = {row['client']: float(row['metric']) for row in second}
  one = {row['client']: float(row['metric']) for row in first}
  clients = [client for client in one if client in other]
  return comparison.compare(
    np.array([one[client] for client in clients]),
    np.array([other[client] for client in clients]),
    result['higher_is_better'],
    metric_range(result),
  )


@contextlib.contextmanager
def open_folder(
  path: pathlib.Path, config: WritableConfig
) -> Iterator[RunFolder]:
  """Makes the folder of a run, or opens it if it exists.

  Yields:
    The folder, which no other process can open in the meantime.

  Raises:
    UserError: If the folder belongs to another run, or cannot be written to.
  """
  folder = RunFolder(path, config)
  with folder.open():
    yield folder


@dataclasses.dataclass(frozen=True)
class FinishedRun:
  """The contents of the output folder of a run.

  Attributes:
    path: The folder.
    configuration: All settings, by their names.
    methods: The results of each method, see `serialization.make_result`.
    clients: The test clients of each method, as in per_client.csv.
    rounds: The metrics of each training's rounds, by their names.
    validation: The metrics of the validation clients during each method's
      training, by their names.
  """

  path: pathlib.Path
  configuration: Mapping[str, Json]
  methods: Mapping[str, Result]
  clients: Mapping[str, Sequence[Mapping[str, str]]]
  rounds: Mapping[str, Mapping[str, Sequence[float]]]
  validation: Mapping[str, Mapping[str, Sequence[float]]]


def _read_series(folder: pathlib.Path) -> dict[str, dict[str, list[float]]]:
  """Reads the columns of each file of metrics by round."""
  return {
    file.stem: _read_rounds(file) for file in sorted(folder.glob('*.csv'))
  }


def read_rounds(path: pathlib.Path) -> dict[str, dict[str, list[float]]]:
  """Reads the metrics of the rounds of each training of a run, by name."""
  return _read_series(path / _METRICS)


def read_validation(path: pathlib.Path) -> dict[str, dict[str, list[float]]]:
  """Reads the metrics of validation clients by round, for each method."""
  return _read_series(path / _VALIDATION)


def read(path: pathlib.Path) -> FinishedRun:
  """Reads the output folder of a run.

  Raises:
    UserError: If it is not such a folder, or is damaged.
  """
  try:
    contents, rows = _read_results(path)
    manifests.check(path)
    methods = contents['methods']
    rounds = read_rounds(path)
    for result in methods.values():
      found = rounds.get(result.get('training'))
      if found is not None and len(found['round']) != result['rounds']:
        raise ValueError(f'{result["training"]}.csv lacks rounds')
    return FinishedRun(
      path,
      dict(user_settings.flatten(contents['configuration'])),
      methods,
      {
        name: [row for row in rows if row['method'] == name] for name in methods
      },
      rounds,
      read_validation(path),
    )
  except (FileNotFoundError, NotADirectoryError) as error:
    raise errors.UserError(
      f'{path} is not an output folder of a run that has finished a method:'
      f' {error.filename} is missing.{folders.describe(path)}'
    ) from error
  except _DAMAGE as error:
    raise errors.UserError(
      f'The results in {path} are damaged ({folders.fault(error)}). Do the run'
      ' again, in another folder.'
    ) from error
