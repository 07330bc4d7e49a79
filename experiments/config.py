"""What a run is of: all its settings, and the places where a user gives them.

A setting has one name wherever it is given:

  total_rounds                     of the run
  task.name, task.alpha            the task, and its own settings
  finetuning.client_learning_rate  of one method
  client_learning_rate             of every chosen method that has it

A preset is a TOML file of them, where what comes before the full stop is the
name of a table. What is given later in this list overrides what comes before:
the defaults, the preset, `--set`, the flags; and within one of them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import hashlib
import importlib
import json
import os
import pathlib
import tomllib
from typing import TYPE_CHECKING, Any, Optional

from algorithms import registry as algorithm_registry
from tasks import errors
from tasks import parameters
from tasks import registry as task_registry

if TYPE_CHECKING:
  from personalization import training

_PRESETS = pathlib.Path(__file__).parent / 'presets'
_DEFAULT_TASK = 'synthetic'


@dataclasses.dataclass(frozen=True)
class Settings(parameters.Parameters):
  """What is settled for all methods of a run."""

  algorithms: tuple[str, ...] = parameters.field(
      ('fedavg', 'fedavgm', 'fedadam', 'local', 'finetuning'),
      'The methods to compare.',
  )
  runtime: str = parameters.field(
      'cohort',
      "What runs the computations: TFF's own native runtime, or ours.",
      choices=('cohort', 'native'),
  )
  aggregator: str = parameters.field(
      'mean',
      "How clients' updates are averaged; robust zeroes and clips large ones.",
      choices=('mean', 'robust'),
  )
  choose: str = parameters.field(
      'all',
      'Whether one candidate (epoch of fine-tuning, …) is chosen for all'
      ' clients or one for each, by its own validation examples.',
      choices=('all', 'each'),
  )


@dataclasses.dataclass(frozen=True)
class Config:
  """All settings of a run, checked.

  Attributes:
    settings: What is settled for all methods.
    options: How to train.
    task: The name of the task.
    task_parameters: The task's own settings.
    hyperparameters: Those of each method.
  """

  settings: Settings
  options: training.Options
  task: str
  task_parameters: parameters.Parameters
  hyperparameters: Mapping[str, parameters.Parameters]

  def to_dict(self) -> dict[str, Any]:
    """All settings in the form of a preset, which gives this again."""
    return {
        **_to_toml(self.settings),
        **_to_toml(self.options),
        'task': {'name': self.task, **_to_toml(self.task_parameters)},
        **{name: _to_toml(own) for name, own in self.hyperparameters.items()},
    }

  def digest(self) -> str:
    """A name that only an equal configuration has."""
    text = json.dumps(self.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _to_toml(settings: Any) -> dict[str, Any]:
  """The settings as TOML has them, which knows neither tuples nor None."""

  def value(setting: Any) -> Any:
    if setting is None:
      return 'none'
    return list(setting) if isinstance(setting, tuple) else setting

  return {
      field.name: value(getattr(settings, field.name))
      for field in dataclasses.fields(settings)
  }


@dataclasses.dataclass(frozen=True)
class Layer:
  """What a user set in one place.

  Attributes:
    source: The place.
    settings: The names and values, in the order given.
    is_preset: Whether it may hold what the run does not need: settings of a
      task or of methods that the user has exchanged for others.
  """

  source: str
  settings: Sequence[tuple[str, Any]]
  is_preset: bool = False

  def last(self, name: str) -> Any:
    """The value of a setting; None if it is not set."""
    return dict(self.settings).get(name)


@dataclasses.dataclass(frozen=True)
class Request:
  """What a user asked for, of which no more than the names is checked."""

  task: str
  algorithms: tuple[str, ...]
  layers: tuple[Layer, ...]


def user_path(path: str) -> pathlib.Path:
  """A path as the user means it, who is not where `bazel run` starts us."""
  base = os.environ.get('BUILD_WORKING_DIRECTORY', '')
  return pathlib.Path(base, pathlib.Path(path).expanduser())


def preset_names() -> tuple[str, ...]:
  """The names of the presets that come with the code."""
  return tuple(sorted(path.stem for path in _PRESETS.glob('*.toml')))


def _find_preset(name: str) -> pathlib.Path:
  """The file of a preset, given by its path or by a name of ours."""
  path = user_path(name)
  if path.is_file():
    return path
  if name.removesuffix('.toml') in preset_names():
    return _PRESETS / f'{name.removesuffix(".toml")}.toml'
  unknown = errors.unknown('preset', name, preset_names())
  raise errors.UserError(f'There is no file {path}. {unknown}')


def _flatten(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
  for name, value in table.items():
    if isinstance(value, dict):
      for inner, setting in value.items():
        yield f'{name}.{inner}', setting
    else:
      yield name, value


def read_preset(path: pathlib.Path) -> Layer:
  """Reads a preset from its file."""
  try:
    table = tomllib.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError) as error:  # Of which TOMLDecodeError is one.
    raise errors.UserError(
        f'The preset {path} cannot be read: {error}.'
    ) from error
  return Layer(f'preset {path}', tuple(_flatten(table)), is_preset=True)


def _assignment(text: str) -> tuple[str, str]:
  name, equals, value = text.partition('=')
  if not name.strip() or not equals:
    raise errors.UserError(f'--set takes name=value, not {text!r}.')
  return name.strip(), value.strip()


def read(
    preset: Optional[str] = None,
    assignments: Sequence[str] = (),
    flags: Optional[Mapping[str, Any]] = None,
) -> Request:
  """Reads what a user asked for, and checks the names of task and methods.

  It takes no time, as nothing heavy is imported for it.

  Args:
    preset: The path of a preset, or its name if it comes with the code; by
      default that of the task's name, if there is one.
    assignments: What was given to `--set`, each 'name=value'.
    flags: The values of settings that have a flag of their own.

  Returns:
    The request, for `resolve`.

  Raises:
    UserError: If something cannot be read, or there is no such task or method.
  """
  layers = (
      Layer('--set', tuple(map(_assignment, assignments))),
      Layer('the flags', tuple((flags or {}).items())),
  )
  if preset is None:
    name = _last('task.name', layers) or _DEFAULT_TASK
    if name in preset_names():
      preset = name
  if preset is not None:
    layers = (read_preset(_find_preset(preset)), *layers)
  return _request(layers)


def _last(name: str, layers: Sequence[Layer]) -> Any:
  """The value that a setting has at the end; None if nobody sets it."""
  values = [layer.last(name) for layer in layers]
  return next((v for v in reversed(values) if v is not None), None)


def _request(layers: tuple[Layer, ...]) -> Request:
  task = str(_last('task.name', layers) or _DEFAULT_TASK)
  if task not in task_registry.task_names():
    raise errors.unknown('task', task, task_registry.task_names())
  chosen = _last('algorithms', layers)
  settings = parameters.from_dict(
      Settings, {} if chosen is None else {'algorithms': chosen}, 'settings'
  )
  for name in settings.algorithms:
    algorithm_registry.check(name)
  if not settings.algorithms:
    raise errors.UserError('No algorithm is chosen. Name one at least.')
  # One that is named twice runs once.
  return Request(task, tuple(dict.fromkeys(settings.algorithms)), layers)


def _methods_of(name: str, among: Sequence[str]) -> list[str]:
  """The methods that have a hyperparameter."""
  return [
      method
      for method in among
      if name in algorithm_registry.hyperparameter_names(method)
  ]


def _task_parameters(
    name: str, values: Mapping[str, Any]
) -> parameters.Parameters:
  """A task's own settings."""
  module = importlib.import_module(task_registry._MODULES[name])
  return parameters.from_dict(module.Parameters, values, f'task {name}')


def resolve(request: Request) -> Config:
  """Makes the configuration that a user asked for.

  Args:
    request: The request.

  Returns:
    The configuration, complete.

  Raises:
    UserError: If there is no such setting, or it cannot have that value.
  """
  # It imports TensorFlow Federated.
  from personalization import training

  shared = {field.name for field in dataclasses.fields(Settings)}
  options = {field.name for field in dataclasses.fields(training.Options)}
  run: dict[str, Any] = {}
  task: dict[str, Any] = {}
  methods: dict[str, dict[str, Any]] = {name: {} for name in request.algorithms}

  for layer in request.layers:
    # The settings of a preset's task mean nothing to another task.
    of_other_task = layer.is_preset and (
        layer.last('task.name') or _DEFAULT_TASK
    ) != request.task
    for name, value in layer.settings:
      group, _, own_name = name.rpartition('.')
      if group == 'task':
        if own_name != 'name' and not of_other_task:
          task[own_name] = value
      elif group in methods:
        methods[group][own_name] = value
      elif group:
        _check_unused(layer, name, request.algorithms)
      elif name in shared | options:
        run[name] = value
      else:
        owners = _methods_of(name, request.algorithms)
        if not owners:
          _check_unused(layer, name, request.algorithms, shared | options)
        for owner in owners:
          methods[owner][name] = value

  run['algorithms'] = request.algorithms
  return Config(
      parameters.from_dict(
          Settings, {n: v for n, v in run.items() if n in shared}, 'settings'
      ),
      parameters.from_dict(
          training.Options,
          {n: v for n, v in run.items() if n in options},
          'settings',
      ),
      request.task,
      _task_parameters(request.task, task),
      {
          name: algorithm_registry.hyperparameters(name, own)
          for name, own in methods.items()
      },
  )


def _check_unused(
    layer: Layer,
    name: str,
    chosen: Sequence[str],
    known: frozenset[str] | set[str] = frozenset(),
) -> None:
  """Raises if a setting that no chosen method has is a mistake.

  Args:
    layer: Where it is set.
    name: The name of the setting.
    chosen: The methods of the run.
    known: The settings that are no method's.
  """
  methods = algorithm_registry.algorithm_names()
  group, _, own_name = name.rpartition('.')
  if group and group not in methods:
    raise errors.UserError(
        f'{layer.source}: {name}: '
        f'{errors.unknown("task or algorithm", group, ("task", *methods))}'
    )
  owners = _methods_of(own_name, [group] if group else methods)
  if not owners:
    names = {
        known_name
        for method in ([group] if group else methods)
        for known_name in algorithm_registry.hyperparameter_names(method)
    }
    raise errors.UserError(
        f'{layer.source}: {errors.unknown("setting", own_name, names | known)}'
    )
  if not layer.is_preset:
    raise errors.UserError(
        f'{layer.source}: {name} is a setting of {", ".join(owners)}, and not'
        f' of the chosen {", ".join(chosen)}.'
    )


def from_file(path: pathlib.Path) -> Config:
  """The configuration that is in a file."""
  return resolve(_request((read_preset(path),)))


def differences(first: Config, second: Config) -> list[str]:
  """How two configurations differ, a line for each setting."""
  one, other = (dict(_flatten(c.to_dict())) for c in (first, second))
  return [
      f'{name}: {one.get(name, "not there")}, not {other.get(name, "there")}'
      for name in dict.fromkeys([*one, *other])
      if one.get(name) != other.get(name)
  ]
