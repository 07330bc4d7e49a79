"""What a run is of: all its settings, and the places where a user gives them.

A setting has one name wherever it is given:

  total_rounds                     of the run
  task.name, task.alpha            the task, and its own settings
  finetuning.client_learning_rate  of one method
  client_learning_rate             of every chosen method that has it

A preset is a TOML file of them, where what comes before the full stop is the
name of a table. Each of these overrides those before it: the defaults, the
preset, `--set`, the flags. So does, within one of them, what comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import tomllib
from typing import TYPE_CHECKING, Any, TypeVar

from algorithms import registry as algorithm_registry
from base import errors
from base import settings
from tasks import registry as task_registry

if TYPE_CHECKING:
  from personalization import evaluation
  from personalization import schedule

_T = TypeVar('_T')

_PRESETS = pathlib.Path(__file__).parents[1] / 'presets'
_DEFAULT_TASK = 'synthetic'

RUNTIMES = ('cohort', 'native')


@dataclasses.dataclass(frozen=True)
class Settings(settings.Settings):
  """What is settled for all methods of a run."""

  algorithms: tuple[str, ...] = settings.field(
    ('fedavg', 'fedavgm', 'fedadam', 'local', 'finetuning'),
    'The methods to compare.',
  )
  runtime: str = settings.field(
    'cohort',
    "What runs the computations: TFF's own native runtime, or ours.",
    choices=RUNTIMES,
  )
  aggregator: str = settings.field(
    'mean',
    "How clients' updates are averaged; robust zeroes and clips large ones.",
    choices=('mean', 'robust'),
  )
  offer_baseline: bool = settings.field(
    True,
    'Whether the model without personalization can be chosen as well.',
  )
  choose: str = settings.field(
    'all',
    'Whether one candidate (epoch of fine-tuning, …) is chosen for all'
    ' clients or one for each, by its own validation examples.',
    choices=('all', 'each'),
  )
  warmstart_from: tuple[str, ...] = settings.field(
    (),
    'Output folders of finished runs, whose models training begins with: one'
    ' model, or one for each cluster; FOLDER:METHOD if it trained several.',
  )


@dataclasses.dataclass(frozen=True)
class Config:
  """All settings of a run, checked.

  Attributes:
    settings: What is settled for all methods.
    options: How to train.
    measured: What is measured of the test clients beside their metric.
    task: The name of the task.
    task_parameters: The task's own settings.
    hyperparameters: Those of each method.
  """

  settings: Settings
  options: schedule.TrainingSettings
  measured: evaluation.Measured
  task: str
  task_parameters: settings.Settings
  hyperparameters: Mapping[str, settings.Settings]

  def to_dict(self) -> dict[str, Any]:
    """All settings in the form of a preset, which gives this again."""
    return {
      **_to_toml(self.settings),
      **_to_toml(self.options),
      **_to_toml(self.measured),
      'task': {'name': self.task, **_to_toml(self.task_parameters)},
      **{
        name: _method_to_toml(own) for name, own in self.hyperparameters.items()
      },
    }

  def digest(self) -> str:
    """A name that only an equal configuration has."""
    text = json.dumps(self.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _method_to_toml(own: Any) -> dict[str, Any]:
  return {**_to_toml(own.trainer), **_to_toml(own.personalizer)}


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


def flatten(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
  """The settings of a preset by their full names."""
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
  return Layer(f'preset {path}', tuple(flatten(table)), is_preset=True)


def _assignment(text: str) -> tuple[str, str]:
  name, equals, value = text.partition('=')
  if not name.strip() or not equals:
    raise errors.UserError(f'--set takes name=value, not {text!r}.')
  return name.strip(), value.strip()


def read(
  preset: str | None = None,
  assignments: Sequence[str] = (),
  flags: Mapping[str, Any] | None = None,
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
  return read_layers(
    preset,
    (
      Layer('--set', tuple(map(_assignment, assignments))),
      Layer('the flags', tuple((flags or {}).items())),
    ),
  )


def read_layers(preset: str | None, layers: Sequence[Layer]) -> Request:
  """Reads a preset, and what a user set in other places, as `read` does.

  Args:
    preset: As in `read`.
    layers: The other places, the later the stronger.

  Returns:
    The request.

  Raises:
    UserError: As in `read`.
  """
  if preset is None and _task_name(layers) in preset_names():
    preset = _task_name(layers)
  if preset is not None:
    layers = (read_preset(_find_preset(preset)), *layers)
  return _request(tuple(layers))


def _last(name: str, layers: Sequence[Layer], default: Any) -> tuple[Any, str]:
  """What a setting is in the last layer that has it, and where that is."""
  for layer in reversed(layers):
    if layer.last(name) is not None:
      return layer.last(name), layer.source
  return default, 'the defaults'


def _task_name(layers: Sequence[Layer]) -> str:
  return str(_last('task.name', layers, _DEFAULT_TASK)[0])


def _make(
  make: Callable[[Mapping[str, Any]], _T], given: Mapping[str, tuple[Any, str]]
) -> _T:
  """Makes settings of their values, each given with where it was set."""
  try:
    return make({name: value for name, (value, _) in given.items()})
  except settings.SettingError as error:
    # A default may be wrong beside what was set.
    if error.name not in given:
      raise
    raise errors.UserError(f'{given[error.name][1]}: {error}') from error


def _request(layers: tuple[Layer, ...]) -> Request:
  """Checks the names of the task and the methods."""
  task, source = _last('task.name', layers, _DEFAULT_TASK)
  if task not in task_registry.task_names():
    unknown = errors.unknown('task', str(task), task_registry.task_names())
    raise errors.UserError(f'{source}: {unknown}')
  chosen, source = _last('algorithms', layers, Settings().algorithms)
  try:
    own = settings.from_dict(Settings, {'algorithms': chosen}, 'settings')
    if not own.algorithms:
      raise errors.UserError('No algorithm is chosen. Name one at least.')
    for name in own.algorithms:
      algorithm_registry.canonical_name(name)
  except errors.UserError as error:
    raise errors.UserError(f'{source}: {error}') from error
  # One that is named twice runs once.
  algorithms = tuple(dict.fromkeys(own.algorithms))
  return Request(task, algorithms, layers)


def _names(cls: type[settings.Settings]) -> set[str]:
  return {field.name for field in dataclasses.fields(cls)}


def _owners(
  name: str, layer: Layer, request: Request, others: Iterable[str]
) -> list[str]:
  """The chosen methods that a setting is for.

  Args:
    name: The name of the setting.
    layer: Where it is set.
    request: What else is asked for.
    others: The names of the settings that are no method's.

  Returns:
    The methods. There may be none only if the setting is in a preset.

  Raises:
    UserError: If no method has such a setting, or only others than the chosen.
  """
  methods = algorithm_registry.short_names()
  group, _, own_name = name.rpartition('.')
  if group and group not in methods:
    unknown = errors.unknown('task or algorithm', group, ['task', *methods])
    raise errors.UserError(f'{layer.source}: {unknown}')
  known = {
    method: algorithm_registry.settings_names(method)
    for method in ([group] if group else methods)
  }
  owners = [method for method in known if own_name in known[method]]
  if not owners:
    names = set().union(*known.values(), () if group else others)
    unknown = errors.unknown('setting', own_name, names)
    where = f'{layer.source}: {group}' if group else layer.source
    raise errors.UserError(f'{where}: {unknown}')
  chosen = [method for method in request.algorithms if method in owners]
  if not chosen and not layer.is_preset:
    raise errors.UserError(
      f'{layer.source}: {name} is a setting of {", ".join(owners)}, not of'
      f' the chosen {", ".join(request.algorithms)}.'
    )
  return chosen


def resolve(request: Request) -> Config:
  """Makes the configuration that a user asked for.

  Args:
    request: The request.

  Returns:
    The configuration, complete.

  Raises:
    UserError: If there is no such setting, or it cannot have that value.
  """
  # As the methods' settings, in modules that import TensorFlow Federated.
  from personalization import evaluation
  from personalization import schedule

  of_task = task_registry.settings_class(request.task)
  of_run = set().union(
    *map(_names, (Settings, schedule.TrainingSettings, evaluation.Measured))
  )
  others = of_run | {f'task.{name}' for name in _names(of_task)}
  # The values by name, each with where it was set.
  run: dict[str, tuple[Any, str]] = {}
  task: dict[str, tuple[Any, str]] = {}
  methods: dict[str, dict[str, tuple[Any, str]]] = {
    name: {} for name in request.algorithms
  }

  for layer in request.layers:
    # What a preset says of its task means nothing to the one taken instead.
    own_task = layer.last('task.name') or request.task
    is_for_task = not layer.is_preset or own_task == request.task
    for name, value in layer.settings:
      group, _, own_name = name.rpartition('.')
      if group == 'task':
        if own_name != 'name' and is_for_task:
          task[own_name] = value, layer.source
      elif name in of_run:
        run[name] = value, layer.source
      else:
        for method in _owners(name, layer, request, others):
          methods[method][own_name] = value, layer.source

  def make(cls: type[_T]) -> _T:
    own = {name: run[name] for name in run if name in _names(cls)}
    return _make(lambda own: settings.from_dict(cls, own, 'settings'), own)

  run['algorithms'] = request.algorithms, ''
  own = make(Settings)
  # In full, so that it is the same from wherever it is named.
  folders = (str(user_path(path).resolve()) for path in own.warmstart_from)
  return Config(
    settings=dataclasses.replace(own, warmstart_from=tuple(folders)),
    options=make(schedule.TrainingSettings),
    measured=make(evaluation.Measured),
    task=request.task,
    task_parameters=_make(
      lambda own: settings.from_dict(of_task, own, f'task {request.task}'),
      task,
    ),
    hyperparameters={
      name: _make(
        functools.partial(algorithm_registry.make_settings, name), own
      )
      for name, own in methods.items()
    },
  )


def from_file(path: pathlib.Path) -> Config:
  """The configuration that is in a file."""
  return resolve(_request((read_preset(path),)))


def differences(first: Config, second: Config) -> list[str]:
  """How two configurations differ, a line for each setting that both have.

  What only one of them has is a setting of a task or of a method that is not in
  the other, which shows in `task.name` or in `algorithms`.
  """
  one, other = (dict(flatten(c.to_dict())) for c in (first, second))
  return [
    f'{name}: {one[name]}, not {other[name]}'
    for name in one
    if name in other and one[name] != other[name]
  ]
