"""Reads the settings that a user gives in presets, by --set and by flags.

A setting has the same name in all places:

  total_rounds                     of the run
  task.name, task.alpha            the task, and its settings
  privacy.name, privacy.epsilon    the way to train privately, and its settings
  finetuning.client_learning_rate  of one method
  client_learning_rate             of every chosen method that has it

A preset is a TOML file of settings, where the part of a name before the full
stop is the name of a table. Each of these places overrides the ones before it:
the defaults, the preset, `--set`, the flags. Within a place, later values
override earlier ones.

Only the names of the task, the methods and the way to train privately are
checked here. This is fast, as it imports nothing heavy. `configs` checks the
rest.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib
import re
import sys
import tomllib

from algorithms import registry as algorithm_registry
from base import errors
from base import inputs
from base import settings
from base.aliases import Json
from experiments.command_line import launch
from experiments.command_line import own_modules
from experiments.command_line import paths
from experiments.command_line import stopping
from personalization.privacy import ways
from tasks import registry as task_registry

_LAST_PORT = 65535
_PRESETS = pathlib.Path(__file__).parents[1] / 'presets'
_DEFAULT_TASK = 'synthetic'

RUNTIMES = ('cohort', 'native', 'remote')


@dataclasses.dataclass(frozen=True)
class RunSettings(settings.Settings):
  """The settings of a run itself, for all of its methods."""

  algorithms: tuple[str, ...] = settings.field(
    ('fedavg', 'fedavgm', 'fedadam', 'local', 'finetuning'),
    'The methods to compare.',
  )
  runtime: str = settings.field(
    'cohort',
    "The runtime of the computations: our cohort runtime, TFF's native one, or"
    ' the workers in remote_workers.',
    choices=RUNTIMES,
  )
  allow_exposed: bool = settings.field(
    False,
    "Whether TFF's worker of the runtime 'native' is started, too, where this"
    ' system cannot hide its port, which is then open without a password.',
    exchangeable=True,
  )
  remote_workers: tuple[str, ...] = settings.field(
    (),
    'The workers of the remote runtime, each HOST:PORT. python -m'
    ' tff_runtimes.worker starts one.',
    exchangeable=True,
  )
  remote_ca: str | None = settings.field(
    None,
    "A PEM file: the certificate authority that signed the workers'"
    ' certificates. Without it, TLS is not used.',
    path=True,
    exchangeable=True,
  )
  remote_certificate: str | None = settings.field(
    None,
    'A PEM file: the certificate to show to workers that ask for one.',
    path=True,
    exchangeable=True,
  )
  remote_key: str | None = settings.field(
    None,
    'A PEM file: the private key of remote_certificate.',
    path=True,
    exchangeable=True,
  )
  aggregator: str = settings.field(
    'mean',
    "How clients' updates are averaged; 'robust' zeroes and clips large ones.",
    choices=('mean', 'robust'),
  )
  offer_baseline: bool = settings.field(
    True,
    'Whether the candidate without personalization can be chosen as well.',
  )
  choose: str = settings.field(
    'all',
    'Whether one candidate (epoch of fine-tuning, …) is chosen for all'
    ' clients or one for each, by its own validation examples.',
    choices=('all', 'each'),
  )
  baseline: str | None = settings.field(
    None,
    'A method of the run, which is the baseline of methods without one, such as'
    ' local or hypcluster: their clients are hurt if they are worse off than'
    ' with it.',
  )
  modules: tuple[str, ...] = settings.field(
    (),
    'Python modules that are imported first, and register your own methods or'
    ' tasks, like those in examples/. They are searched for where Python'
    ' finds modules, and in the current folder.',
  )
  warmstart_from: tuple[str, ...] = settings.field(
    (),
    'Output folders of finished runs, from whose models training starts: one'
    ' model, or one for each cluster; FOLDER:METHOD if a run trained several.',
    path=True,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.baseline is not None and self.baseline not in self.algorithms:
      raise settings.SettingError(
        f'baseline must be a method of the run, not {self.baseline!r}. It has'
        f' {", ".join(self.algorithms)}.',
        'baseline',
      )
    if self.runtime == 'remote' and not self.remote_workers:
      raise settings.SettingError(
        "runtime must not be 'remote' without workers. Name them, as in"
        ' --remote_workers=10.0.0.2:10000,10.0.0.3:10000.',
        'runtime',
      )
    for address in self.remote_workers:
      found = re.fullmatch(r'[^/\s]+:(\d{1,5})', address)
      if not found or not 0 < int(found[1]) <= _LAST_PORT:
        raise settings.SettingError(
          f'remote_workers must be HOST:PORT, as 10.0.0.2:10000, not'
          f' {address!r}.',
          'remote_workers',
        )
    if self.remote_workers and self.runtime != 'remote':
      raise settings.SettingError(
        f"remote_workers must be empty with the runtime '{self.runtime}', which"
        ' uses none. Leave them out, or add --runtime=remote.',
        'remote_workers',
      )
    if bool(self.remote_certificate) != bool(self.remote_key):
      raise settings.SettingError(
        'remote_certificate and remote_key must be given together.',
        'remote_certificate',
      )
    if self.remote_certificate and not self.remote_ca:
      raise settings.SettingError(
        'remote_certificate must go with remote_ca, by which the workers are'
        ' known.',
        'remote_certificate',
      )


@dataclasses.dataclass(frozen=True)
class SettingsLayer:
  """The settings that a user gave in one place.

  Attributes:
    source: The place.
    settings: The names and values, in the given order.
    is_preset: Whether it may have settings that the run does not need: those of
      a task or of methods that the user has replaced by others.
  """

  source: str
  settings: Sequence[tuple[str, Json]]
  is_preset: bool = False

  def last(self, name: str) -> Json:
    """Returns the value of a setting; None if it is not set."""
    return dict(self.settings).get(name)


@dataclasses.dataclass(frozen=True)
class Request:
  """A user's request, in which only names are checked."""

  task: str
  privacy: str
  algorithms: tuple[str, ...]
  layers: tuple[SettingsLayer, ...]

  @property
  def origin(self) -> str:
    """Says which preset the settings come from."""
    for layer in self.layers:
      if layer.is_preset:
        own_task = layer.last('task.name') or self.task
        but = f' without those of its task {own_task}'
        return (
          f'Settings start from {layer.source}'
          f'{"" if own_task == self.task else but}.'
        )
    return 'Settings start from the defaults, without a preset.'


def preset_names() -> tuple[str, ...]:
  """Lists the presets that come with the code."""
  return tuple(sorted(path.stem for path in _PRESETS.glob('*.toml')))


def find_preset(name: str) -> pathlib.Path:
  """Finds the file of a preset, given its path or its name."""
  path = paths.user_path(name)
  # What is no regular file either is refused by whoever opens it.
  if path.exists() and not path.is_dir():
    return path
  if name.removesuffix('.toml') in preset_names():
    return _PRESETS / f'{name.removesuffix(".toml")}.toml'
  unknown = errors.unknown('preset', name, preset_names())
  raise errors.UserError(f'There is no file {path}. {unknown}')


def flatten(table: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
  """Yields the settings of a preset by their full names."""
  for name, value in table.items():
    if isinstance(value, dict):
      for inner, setting in value.items():
        yield f'{name}.{inner}', setting
    else:
      yield name, value


def read_toml(path: pathlib.Path) -> dict[str, Json]:
  """Reads a file of settings; raises a `UserError` if it cannot be read."""
  try:
    if path.is_dir():
      raise ValueError('it is not a file')
    return tomllib.loads(inputs.read_bytes(path).decode('utf-8-sig'))
  # A TOMLDecodeError is a ValueError.
  except (OSError, ValueError, RecursionError) as error:
    raise errors.UserError(f'{path} cannot be read: {error}.') from error


def read_preset(path: pathlib.Path) -> SettingsLayer:
  """Reads a preset from its file."""
  settings_of_file = tuple(flatten(read_toml(path)))
  name = path.stem if path.parent == _PRESETS else path
  return SettingsLayer(f'preset {name}', settings_of_file, is_preset=True)


def _assignment(text: str) -> tuple[str, str]:
  name, equals, value = text.partition('=')
  if not name.strip() or not equals:
    raise errors.UserError(f'--set takes name=value, not {text!r}.')
  return name.strip(), value.strip()


def read(
  preset: str | None = None,
  assignments: Sequence[str] = (),
  flags: Mapping[str, Json] | None = None,
) -> Request:
  """Reads a user's request, and checks the names of the task and the methods.

  Args:
    preset: The path of a preset, or its name if it comes with the code; by
      default the one with the task's name, if that is the task it is for.
    assignments: The values of `--set`, each 'name=value'.
    flags: The values of settings that have a separate flag.

  Raises:
    UserError: If something cannot be read, or there is no such task or method.
  """
  return read_layers(
    preset,
    (
      SettingsLayer('--set', tuple(map(_assignment, assignments))),
      SettingsLayer('the flags', tuple((flags or {}).items())),
    ),
  )


def read_layers(preset: str | None, layers: Sequence[SettingsLayer]) -> Request:
  """Reads a preset and settings from other places, as `read` does.

  Args:
    preset: As in `read`.
    layers: The other places; later ones override earlier ones.

  Raises:
    UserError: As in `read`.
  """
  if preset is not None:
    layers = (read_preset(find_preset(preset)), *layers)
  else:
    layers = (*_preset_of_task(_task_name(layers)), *layers)
  return make_request(tuple(layers))


def _preset_of_task(task: str) -> list[SettingsLayer]:
  """Returns the preset with the name of a task, unless it is for another."""
  if task not in preset_names():
    return []
  preset = read_preset(_PRESETS / f'{task}.toml')
  return [preset] if preset.last('task.name') == task else []


def _last(
  name: str, layers: Sequence[SettingsLayer], default: Json
) -> tuple[Json, str]:
  """Returns a setting in the last layer that has it, and this layer's place."""
  for layer in reversed(layers):
    if layer.last(name) is not None:
      return layer.last(name), layer.source
  return default, 'the defaults'


def _task_name(layers: Sequence[SettingsLayer]) -> str:
  return str(_last('task.name', layers, _DEFAULT_TASK)[0])


def _registered() -> dict[tuple[str, str], object]:
  """Returns what is registered, to which modules can add, by kind and name."""
  kinds: dict[str, Mapping[str, object]] = {
    'trainer': algorithm_registry.TRAINERS,
    'personalizer': algorithm_registry.PERSONALIZERS,
    'task': task_registry.TASKS,
  }
  return {
    (kind, name): entry
    for kind, entries in kinds.items()
    for name, entry in entries.items()
  }


def _search_here(modules: Sequence[str]) -> None:
  """Has Python search for modules in the user's folder, too."""
  folder = str(paths.user_path('.'))
  if modules and folder not in sys.path:
    sys.path.append(folder)


def import_modules(modules: Sequence[str], source: str) -> None:
  """Imports the user's modules, which register methods and tasks.

  Args:
    modules: The names of the modules.
    source: The place where they are named, for errors.

  Raises:
    UserError: If a module cannot be imported, registers nothing, or replaces
      what is registered.
  """
  _search_here(modules)
  for name in modules:
    # Python imports a module only once, so that later it registers nothing.
    is_new, before = name not in sys.modules, _registered()
    own_modules.note(name)
    try:
      launch.load(name)
    except stopping.Stopped:
      raise
    except BaseException as error:  # A module may raise anything.
      described = own_modules.describe(error)
      why = f'.\n{described}' if described else f': {error!r}.'
      raise errors.UserError(
        f'{source}: modules: {name} cannot be imported{why}'
      ) from error
    now = _registered()
    for (kind, known), entry in before.items():
      if now.get((kind, known)) != entry:
        raise errors.UserError(
          f'{source}: modules: {name} replaces the {kind} {known!r}. Give its'
          ' own another name.'
        )
    if is_new and len(now) == len(before):
      sys.modules.pop(name, None)
      raise errors.UserError(
        f'{source}: modules: {name} registers no method or task. End it with a'
        ' line that does, as examples/fedexp.py and examples/sine_waves.py do.'
      )


def make_request(layers: tuple[SettingsLayer, ...]) -> Request:
  """Checks the names of the task and the methods in all layers together."""
  modules, source = _last('modules', layers, ())
  checked = settings.parse(RunSettings, {'modules': modules}, source)
  _search_here(checked.modules)
  if any(layer.source == source and layer.is_preset for layer in layers):
    own_modules.check(checked.modules, source)
  import_modules(checked.modules, source)
  task, source = _last('task.name', layers, _DEFAULT_TASK)
  if task not in task_registry.task_names():
    unknown = errors.unknown('task', str(task), task_registry.task_names())
    raise errors.UserError(f'{source}: {unknown}')
  privately, source = _last('privacy.name', layers, ways.NONE)
  if privately not in ways.names():
    unknown = errors.unknown('privacy', str(privately), ways.names())
    raise errors.UserError(f'{source}: {unknown}')
  chosen, source = _last('algorithms', layers, RunSettings().algorithms)
  try:
    run_settings = settings.parse(
      RunSettings, {'algorithms': chosen}, 'settings'
    )
    names = map(algorithm_registry.canonical_name, run_settings.algorithms)
    # A method that is named twice, or by two names, runs once.
    algorithms = tuple(dict.fromkeys(names))
  except errors.UserError as error:
    raise errors.UserError(f'{source}: {error}') from error
  return Request(task, privately, algorithms, layers)
