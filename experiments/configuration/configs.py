"""The configuration of a run: all of its settings, checked.

`user_settings` reads them from presets, `--set` and flags.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import hashlib
import json
import pathlib
from typing import TypeVar

from algorithms import registry as algorithm_registry
from base import errors
from base import settings
from base.aliases import Json
from experiments.command_line import paths
from experiments.configuration import user_settings
from personalization.judgement import measurements
from personalization.privacy import ways
from personalization.rounds import schedules
from tasks import registry as task_registry

_T = TypeVar('_T')
_S = TypeVar('_S', bound=settings.Settings)


# The settings of every run.
RUN_SETTINGS: tuple[type[settings.Settings], ...] = (
  user_settings.RunSettings,
  schedules.TrainingSettings,
  measurements.MeasurementSettings,
)

# The settings that say how a run is carried out, and not which run it is.
_EXCHANGEABLE = frozenset(
  field.name
  for cls in RUN_SETTINGS
  for field in dataclasses.fields(cls)
  if field.metadata.get('exchangeable')
)


@dataclasses.dataclass(frozen=True)
class Config:
  """All settings of a run, checked.

  Attributes:
    run: The settings of the run itself, for all methods.
    training: The settings of trainings.
    measurement: The settings of further measurements.
    task: The name of the task.
    task_settings: The settings of the task.
    privacy: The name of the way to train privately.
    privacy_settings: The settings of that way.
    method_settings: The settings of each method, by its name.
  """

  run: user_settings.RunSettings
  training: schedules.TrainingSettings
  measurement: measurements.MeasurementSettings
  task: str
  task_settings: settings.Settings
  privacy: str
  privacy_settings: settings.Settings
  method_settings: Mapping[str, algorithm_registry.MethodSettings]

  def to_dict(self) -> dict[str, Json]:
    """Returns all settings as a preset, which gives an equal configuration."""
    return {
      **_to_toml(self.run),
      **_to_toml(self.training),
      **_to_toml(self.measurement),
      'task': {
        'name': self.task,
        **_to_toml(self.task_settings),
      },
      'privacy': {
        'name': self.privacy,
        **_to_toml(self.privacy_settings),
      },
      **{
        name: {**_to_toml(halves.trainer), **_to_toml(halves.personalizer)}
        for name, halves in self.method_settings.items()
      },
    }

  def differences_from(self, path: pathlib.Path) -> list[str]:
    """Lists how the configuration in a file differs from this one.

    Returns:
      A line for each setting that differs.

    Raises:
      UserError: If there is no configuration in the file.
    """
    return differences(read(path), self)

  def digest(self) -> str:
    """Makes a name that only a configuration of the same run has."""
    same = {
      name: value
      for name, value in self.to_dict().items()
      if name not in _EXCHANGEABLE
    }
    text = json.dumps(same, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _to_toml(given: settings.Settings) -> dict[str, Json]:
  """Writes settings for TOML, which has neither tuples nor None."""

  def value(setting: Json) -> Json:
    if setting is None:
      return 'none'
    return list(setting) if isinstance(setting, tuple) else setting

  return {n: value(v) for n, v in dataclasses.asdict(given).items()}


def _make(
  make: Callable[[Mapping[str, Json]], _T],
  given: '_Given',
) -> _T:
  """Makes settings; an error says where the wrong value was set."""
  try:
    return make({name: value for name, (value, _) in given.items()})
  except settings.SettingError as error:
    # A default may be invalid together with a value that was set.
    if error.name not in given:
      raise
    raise errors.UserError(f'{given[error.name][1]}: {error}') from error


def _full_path(path: str) -> str:
  """Returns the absolute path, which is valid in any folder."""
  return str(paths.user_path(str(paths.user_path(path).resolve())))


def _names(cls: type[settings.Settings]) -> set[str]:
  return {field.name for field in dataclasses.fields(cls)}


def _unknown(
  layer: user_settings.SettingsLayer,
  name: str,
  known: Iterable[str],
  kind: str,
  owner: str,
) -> errors.UserError:
  """Makes the error for an unknown setting.

  Args:
    layer: The place where it is set.
    name: The name of the setting.
    known: The known names.
    kind: The kind of thing that it was set for, such as 'task'.
    owner: The name of this thing, such as 'school'; empty if it has none.
  """
  listed = f'{kind} {owner}' if owner else f'run, and {kind} NAME'
  unknown = errors.unknown('setting', name, known, f'experiments:list {listed}')
  where = f'{kind} {owner}: ' if owner else ''
  return errors.UserError(f'{layer.source}: {where}{unknown}')


def _owners(
  name: str,
  layer: user_settings.SettingsLayer,
  request: user_settings.Request,
  others: Iterable[str],
) -> list[str]:
  """Finds the chosen methods that a setting is for.

  Args:
    name: The name of the setting.
    layer: The place where it is set.
    request: The user's request.
    others: The names of the settings that do not belong to methods.

  Returns:
    The methods. There may be none only if the setting is in a preset.

  Raises:
    UserError: If no method has such a setting, or only methods that are not
      chosen.
  """
  # Beside the short names, as a chosen method may be a pair without one.
  methods = dict.fromkeys(
    (*algorithm_registry.short_names(), *request.algorithms)
  )
  group, _, own_name = name.rpartition('.')
  if group and group not in methods:
    try:
      group = algorithm_registry.canonical_name(group)
    except errors.UserError as error:
      unknown = errors.unknown(
        'task, privacy or algorithm', group, ['task', 'privacy', *methods]
      )
      raise errors.UserError(f'{layer.source}: {unknown}') from error
  known = {
    method: algorithm_registry.settings_names(method)
    for method in ([group] if group else methods)
  }
  owners = [method for method in known if own_name in known[method]]
  if not owners:
    names = set().union(*known.values(), () if group else others)
    raise _unknown(layer, own_name, names, 'method', group)
  chosen = [method for method in request.algorithms if method in owners]
  if not chosen and not layer.is_preset:
    raise errors.UserError(
      f'{layer.source}: {name} is a setting of {", ".join(owners)}, not of'
      f' the chosen {", ".join(request.algorithms)}.'
    )
  return chosen


# The value of each setting, and the place where it was set.
_Given = dict[str, tuple[Json, str]]


@dataclasses.dataclass(frozen=True)
class _Sorted:
  """The settings that a user gave, sorted by their owners.

  Attributes:
    run: The settings of the run, its trainings and its measurements.
    task: The settings of the task.
    privacy: The settings of the way to train privately.
    methods: The settings of each chosen method.
  """

  run: _Given
  task: _Given
  privacy: _Given
  methods: dict[str, _Given]


def _sort(
  request: user_settings.Request,
  run_names: set[str],
  task_names: set[str],
  privacy_names: set[str],
) -> _Sorted:
  """Sorts the settings that a user gave by their owners."""
  others = (
    run_names
    | {f'task.{name}' for name in task_names}
    | {f'privacy.{name}' for name in privacy_names}
  )
  found = _Sorted({}, {}, {}, {name: {} for name in request.algorithms})
  groups = {
    'task': (request.task, task_names, found.task),
    'privacy': (request.privacy, privacy_names, found.privacy),
  }
  for layer in request.layers:
    for name, value in layer.settings:
      group, _, own_name = name.rpartition('.')
      if group in groups:
        chosen, known, given = groups[group]
        # A preset's settings of its task do not apply to another chosen task.
        preset_has = layer.last(f'{group}.name') or chosen
        is_for_chosen = not layer.is_preset or preset_has == chosen
        if own_name != 'name' and is_for_chosen:
          if chosen == ways.NONE:
            raise errors.UserError(
              f'{layer.source}: {own_name} is a setting of privacy, but'
              ' training is not private. Choose a way, for example'
              ' --privacy=gaussian.'
            )
          if own_name not in known:
            raise _unknown(layer, own_name, known, group, chosen)
          given[own_name] = value, layer.source
      elif name in run_names:
        found.run[name] = value, layer.source
      else:
        for method in _owners(name, layer, request, others):
          found.methods[method][own_name] = value, layer.source
  return found


def resolve(request: user_settings.Request) -> Config:
  """Makes the configuration that a user asked for.

  Raises:
    UserError: If there is no such setting, or it cannot have this value.
  """
  task_class = task_registry.settings_class(request.task)
  privacy_class = ways.settings_class(request.privacy)
  given = _sort(
    request,
    set().union(*map(_names, RUN_SETTINGS)),
    _names(task_class),
    _names(privacy_class),
  )
  given.run['algorithms'] = request.algorithms, ''
  for cheapest in ways.ENTRIES[request.privacy].samplings[:1]:
    given.run.setdefault('client_sampling', (cheapest, ''))

  def make(cls: type[_S], found: _Given, where: str = 'settings') -> _S:
    own = {name: found[name] for name in found if name in _names(cls)}
    return _make(lambda values: settings.parse(cls, values, where), own)

  task_settings = make(task_class, given.task, f'task {request.task}')
  return Config(
    run=make(user_settings.RunSettings, given.run).replace_paths(_full_path),
    training=make(schedules.TrainingSettings, given.run),
    measurement=make(measurements.MeasurementSettings, given.run),
    task=request.task,
    task_settings=task_settings.replace_paths(_full_path),
    privacy=request.privacy,
    privacy_settings=make(
      privacy_class, given.privacy, f'privacy {request.privacy}'
    ),
    method_settings={
      name: _make(
        functools.partial(algorithm_registry.make_settings, name), values
      )
      for name, values in given.methods.items()
    },
  )


def read(path: pathlib.Path) -> Config:
  """Reads the configuration in a file."""
  layer = user_settings.read_preset(path)
  return resolve(user_settings.make_request((layer,)))


def differences(first: Config, second: Config) -> list[str]:
  """Lists how two configurations differ, a line for each setting of both.

  Exchangeable settings are left out. A setting that only one of them has
  belongs to a task or a method that the other lacks, which `task.name` or
  `algorithms` shows.
  """
  one, other = (
    dict(user_settings.flatten(config.to_dict())) for config in (first, second)
  )
  return [
    f'{name}: {one[name]}, not {other[name]}'
    for name in one
    if name in other and one[name] != other[name] and name not in _EXCHANGEABLE
  ]
