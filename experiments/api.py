"""Experiments from scripts and notebooks.

    from experiments import api

    experiment = api.Experiment('school', ['fedavg', 'ditto', 'finetuning'])
    experiment.train()
    results = experiment.evaluate()
    print(results)                           # The table of experiments:run.
    print(results['ditto'].metric)           # An array: each test client's.
    print(results.compare('ditto', 'fedavg').p_wilcoxon)
    results.plot('clients')

An experiment is a run of `experiments:run`. It has the same settings by the
same names and writes the same folder, where it goes on if it was stopped. Its
results are the same bit for bit. A mistake of the user raises a `UserError`.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import io
import math
import os
import pathlib
from typing import Any, NoReturn
import warnings

import numpy as np

from base import errors
from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import terminal

with warnings.catch_warnings():
  launch.prepare_tensorflow()
  from experiments.configuration import configs
  from experiments.configuration import user_settings
  from experiments.reporting import results_folder
  from experiments.reporting import sources
  from experiments.reporting import tables
  from experiments.reporting.figures import drawing
  from experiments.reporting.figures import figure
  from experiments.runs import execution
  from experiments.runs import single_run
  from personalization.judgement import comparison
  from personalization.rounds import training

# What all functions here raise for a mistake of the user.
UserError = errors.UserError

_Path = str | os.PathLike[str]
# The columns of per_client.csv that are not numbers.
_TEXTS = ('client', 'candidate', 'group')


@dataclasses.dataclass(frozen=True)
class MethodResults:
  """The results of a method.

  Attributes:
    name: The name of the method.
    statistics: All statistics over the test clients, as in results.json:
      `statistics['test']['mean']` is the mean of the metric.
    columns: The columns of per_client.csv, an array with an element for each
      test client. Of numbers, those that are missing are NaN.
  """

  name: str
  statistics: Mapping[str, Any]
  columns: Mapping[str, np.ndarray]

  @property
  def clients(self) -> np.ndarray:
    """The names of the test clients."""
    return self.columns['client']

  @property
  def metric(self) -> np.ndarray:
    """Each test client's metric, once it is personalized."""
    return self.columns['metric']

  @property
  def before(self) -> np.ndarray:
    """Each test client's metric before; NaN if the method has no baseline."""
    return self.columns['before']

  @property
  def hurt(self) -> np.ndarray:
    """1 for a client that is worse off than before, else 0; NaN if unknown."""
    return self.columns['hurt']


@dataclasses.dataclass(frozen=True)
class Drawing:
  """A figure, which a notebook shows.

  Attributes:
    path: Its PNG file; beside it are the same as SVG and PDF.
  """

  path: pathlib.Path

  def _repr_png_(self) -> tuple[bytes, Mapping[str, int]]:
    png = self.path.read_bytes()
    # Print has twice as many dots an inch as a screen.
    return png, {'width': int.from_bytes(png[16:20], 'big') // 2}


def _column(name: str, values: Sequence[str]) -> np.ndarray:
  """Returns a column of per_client.csv as an array."""
  if name in _TEXTS:
    return np.array(values)
  return np.array([float(value or math.nan) for value in values])


def _read_method(run: results_folder.FinishedRun, name: str) -> MethodResults:
  """Returns the results of one method of a run."""
  rows = run.clients[name]
  columns = {
    column: _column(column, [row.get(column, '') for row in rows])
    for column in rows[0]
    if column != 'method'
  }
  return MethodResults(name, run.methods[name], columns)


class Results(dict[str, MethodResults]):
  """The results of a run, by method; as a text they are the program's table.

  Attributes:
    run: The contents of the folder of the run.
  """

  def __init__(self, run: results_folder.FinishedRun):
    super().__init__((name, _read_method(run, name)) for name in run.methods)
    self.run = run

  def __missing__(self, name: str) -> NoReturn:
    raise errors.unknown('method', name, self)

  def __repr__(self) -> str:
    text = io.StringIO()
    tables.print_results(self.run.methods, text)
    # The lines are padded to the width of a terminal.
    return '\n'.join(map(str.rstrip, text.getvalue().splitlines())).strip()

  def compare(self, first: str, second: str) -> comparison.Comparison:
    """Compares two methods client by client, with paired tests."""
    one, other = (self[name].name for name in (first, second))
    clients = self.run.clients
    return results_folder.compare(
      clients[one], clients[other], self.run.methods[one]
    )

  def plot(self, name: str) -> Drawing:
    """Draws one of the figures of experiments:plot, into FOLDER/plots.

    Args:
      name: The name of the figure, such as 'clients', 'learning' or
        'hurt_ditto'; see `experiments:plot --help`.

    Returns:
      The figure.

    Raises:
      UserError: If the run has no such figure; it names those that there are.
    """
    folder = self.run.path / 'plots'
    drawn = []
    for made in drawing.draw(sources.read_repeats([self.run.path])):
      if made.name == name:
        figure.save(made, folder)
        return Drawing(figure.paths(folder, name)['png'])
      drawn.append(made.name)
    raise errors.unknown('figure', name, drawn)


class Experiment:
  """A task, and methods to train, evaluate and compare on it.

  Attributes:
    config: All settings.
    folder: The folder that everything is written to.
    task: The task: its clients, its model, its metric.
    methods: The methods, by name.
  """

  def __init__(
    self,
    task: str | None = None,
    methods: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    preset: _Path | None = None,
    output_dir: _Path | None = None,
    data_dir: _Path | None = None,
  ):
    """Loads the task and builds the methods.

    Args:
      task: The name of the task; by default the preset's, or else 'synthetic'.
      methods: The names of the methods; by default the preset's.
      settings: Settings, by the names that they have everywhere, as in
        `{'total_rounds': 100, 'ditto.personal_epochs': 2, 'task.path': …}`.
      preset: A preset, by its name or path; by default the one with the task's
        name, if that is the task it is for.
      output_dir: The folder to write to; by default one for this configuration
        only, in `results/`.
      data_dir: The folder of the data sets; by default $PFL_DATA_DIR. Missing
        data sets are downloaded.

    Raises:
      UserError: If there is no such task, method or setting, a setting cannot
        have its value, or a method cannot do the task.
    """
    given = {
      'task.name': task,
      'algorithms': methods,
      **dict(user_settings.flatten(settings or {})),
    }
    layer = user_settings.SettingsLayer(
      'the arguments',
      [(name, _plain(v)) for name, v in given.items() if v is not None],
    )
    request = user_settings.read_layers(_plain(preset), [layer])
    terminal.say(request.origin)
    self.config = configs.resolve(request)
    self.folder = single_run.default_folder(self.config)
    if output_dir is not None:
      self.folder = paths.user_path(_plain(output_dir))
    data_folder = paths.data_folder(_plain(data_dir))
    self.task = execution.load_task(self.config, data_folder)
    if self.task.notes:
      terminal.say(self.task.notes)
    self._folder = results_folder.RunFolder(self.folder, self.config)
    with self._computing():
      self._run = single_run.Run(self.config, self.task, self._folder)
    self.methods = self._run.methods

  @contextlib.contextmanager
  def _computing(self) -> Iterator[None]:
    """Sets the runtime, and lets coroutines run, also in a notebook."""
    execution.set_runtime(self.config.run)
    # A notebook runs its cells in an event loop, and asyncio refuses to run
    # another one in the meantime.
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
      yield
    finally:
      asyncio._set_running_loop(outer)

  @contextlib.contextmanager
  def _working(self) -> Iterator[None]:
    """Opens the folder as well; other programs cannot in the meantime."""
    with self._computing(), self._folder.open():
      self._folder.begin(self.task.encoding)
      yield

  def _chosen(self, names: Sequence[str]) -> Sequence[str]:
    """Returns the names of methods; those of all by default."""
    for name in names:
      if name not in self.methods:
        raise errors.unknown('method', name, self.methods)
    return names or tuple(self.methods)

  def train(self, *names: str) -> dict[str, training.Trained]:
    """Trains methods, which goes on from the last checkpoint if there is one.

    Args:
      *names: The methods; by default all.

    Returns:
      What the training of each has ended with: the states of the server and of
      the clients.
    """
    chosen = self._chosen(names)
    with self._working():
      return {name: self._run.train(name).ended for name in chosen}

  def evaluate(self, *names: str) -> Results:
    """Evaluates methods, after training them if this is not yet done.

    Args:
      *names: The methods; by default all.

    Returns:
      The results of these, and of all methods that were evaluated before.
    """
    chosen = self._chosen(names)
    with self._working():
      self._run.evaluate(chosen)
    return read(self.folder)


def read(folder: _Path) -> Results:
  """Reads the results of a run from its folder.

  Args:
    folder: The folder, of an experiment or of `experiments:run`.

  Raises:
    UserError: If it is not such a folder, or is damaged.
  """
  return Results(results_folder.read(paths.user_path(_plain(folder))))


def _plain(value: Any) -> Any:
  """Returns a path or one of NumPy's numbers as Python's own."""
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  return value.item() if isinstance(value, np.generic) else value
