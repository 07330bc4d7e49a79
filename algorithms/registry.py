"""The methods by name.

A method is named by a trainer and a personalizer, such as
`hypcluster+finetuning`. Some pairs have short names.

The module of a trainer, or of a personalizer, registers it with all that
listings, tables, figures and tests need to know, see `base.registrations`.
Nothing heavy is imported before a method is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import importlib
import pathlib
import typing
from typing import TYPE_CHECKING, Any

from base import errors
from base import registrations
from base import settings

if TYPE_CHECKING:
  from algorithms import aggregation
  from algorithms import methods
  from algorithms import personalizers
  from algorithms import trainers
  from tasks.models import models

# Some settings, by name.
Values = Mapping[str, settings.Value]
# The personalizer that a trainer's name stands for, if it names no other.
AS_TRAINED = 'as_trained'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """A trainer or a personalizer, as its module registers it.

  Attributes:
    path: Its module and its class, which names the class of its settings.
    title: Its name as papers write it.
    does: What it trains, or does with a client's personalization set.
    paper: The paper that it is from, as authors and year.
    defaults: The settings whose default is not that of their class.
    small: Settings with which it is quick to run in tests, and does all that it
      can do.
  """

  path: str
  title: str
  does: str
  paper: str = ''
  defaults: Values = dataclasses.field(default_factory=dict)
  small: Values = dataclasses.field(default_factory=dict)

  def load(self) -> Any:
    """Returns the class."""
    module, _, class_name = self.path.partition(':')
    return getattr(importlib.import_module(module), class_name)

  def settings_class(self) -> type[settings.Settings]:
    """Returns the class of its settings."""
    return typing.get_type_hints(self.load())['settings']


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerEntry(Entry):
  """A trainer, as its module registers it.

  Attributes:
    sends: What a client sends in a round, beside the metrics of the round.
    keeps: What a client keeps.
    personalizer: The personalizer of the method with the trainer's own name.
  """

  sends: str
  keeps: str = ''
  personalizer: str = AS_TRAINED


@dataclasses.dataclass(frozen=True, kw_only=True)
class PersonalizerEntry(Entry):
  """A personalizer, as its module registers it.

  Attributes:
    trainer: The trainer of the method with the personalizer's own name, if
      there is such a method.
    method_title: The name of this method as papers write it, if it is not that
      of both halves.
  """

  trainer: str | None = None
  method_title: str | None = None


TRAINERS: dict[str, TrainerEntry] = {}
PERSONALIZERS: dict[str, PersonalizerEntry] = {}


def register_trainer(
  name: str, trainer: type[trainers.Trainer], **about: Any
) -> None:
  """Registers a trainer under a name.

  Args:
    name: The name, in lower case.
    trainer: The class.
    **about: The attributes of `TrainerEntry`.

  Raises:
    ValueError: If the name is no name, or another trainer has it.
    TypeError: If the class is no trainer, or an attribute is not known.
  """
  base = importlib.import_module('algorithms.trainers').Trainer
  path = registrations.path_of(trainer, base)
  registrations.add(TRAINERS, name, TrainerEntry(path=path, **about))


def register_personalizer(
  name: str, personalizer: type[personalizers.Personalizer], **about: Any
) -> None:
  """Registers a personalizer under a name.

  Args:
    name: The name, in lower case.
    personalizer: The class.
    **about: The attributes of `PersonalizerEntry`.

  Raises:
    ValueError: If the name is no name, or another personalizer has it.
    TypeError: If the class is no personalizer, or an attribute is not known.
  """
  base = importlib.import_module('algorithms.personalizers').Personalizer
  path = registrations.path_of(personalizer, base)
  registrations.add(PERSONALIZERS, name, PersonalizerEntry(path=path, **about))


def _read_registrations() -> None:
  """Registers what the modules of this folder register."""
  here = pathlib.Path(__file__).parent
  for name, path, about in registrations.read(
    here, 'algorithms', 'register_trainer'
  ):
    registrations.add(TRAINERS, name, TrainerEntry(path=path, **about))
  for name, path, about in registrations.read(
    here, 'algorithms', 'register_personalizer'
  ):
    entry = PersonalizerEntry(path=path, **about)
    registrations.add(PERSONALIZERS, name, entry)


_read_registrations()


def _pairs() -> dict[str, tuple[str, str]]:
  """Returns the trainer and the personalizer of each short name."""
  of_trainers = {
    name: (name, entry.personalizer) for name, entry in TRAINERS.items()
  }
  of_personalizers = {
    name: (entry.trainer, name)
    for name, entry in PERSONALIZERS.items()
    if entry.trainer
  }
  return of_trainers | of_personalizers


def title(name: str) -> str:
  """Returns a method's name as papers write it, or else the name itself."""
  trainer, plus, personalizer = name.partition('+')
  if not plus:
    if name in TRAINERS:
      return TRAINERS[name].title
    if name not in _pairs():
      return name
    method_title = PERSONALIZERS[name].method_title
    if method_title is not None:
      return method_title
    trainer, personalizer = _pairs()[name]
  first = TRAINERS[trainer].title if trainer in TRAINERS else trainer
  known = PERSONALIZERS.get(personalizer)
  return f'{first} + {known.title if known else personalizer}'


def short_names() -> tuple[str, ...]:
  """Returns the short names of methods."""
  return tuple(sorted(_pairs()))


def canonical_name(name: str) -> str:
  """Returns the name of a method, which is the short one if there is one.

  Args:
    name: A short name, or `trainer+personalizer`.

  Raises:
    UserError: If there is no such method.
  """
  if name in _pairs():
    return name
  trainer, plus, personalizer = name.partition('+')
  if not plus:
    raise errors.unknown('algorithm', name, short_names())
  for kind, part, known in (
    ('trainer', trainer, tuple(TRAINERS)),
    ('personalizer', personalizer, tuple(PERSONALIZERS)),
  ):
    if part not in known:
      raise errors.UserError(f'{name}: {errors.unknown(kind, part, known)}')
  if personalizer in TRAINERS and personalizer != trainer:
    raise errors.UserError(
      f'{name}: {personalizer} personalizes only what {personalizer} trained.'
    )
  for short, pair in _pairs().items():
    if pair == (trainer, personalizer):
      return short
  return name


def halves(name: str) -> tuple[str, str]:
  """Returns the names of the trainer and the personalizer of a method."""
  name = canonical_name(name)
  trainer, personalizer = _pairs().get(name) or name.split('+')
  return trainer, personalizer


def personalizer_class(name: str) -> type[personalizers.Personalizer]:
  """Returns the class of the personalizer of a method."""
  found: type[personalizers.Personalizer] = entries(name)[1].load()
  return found


def entries(name: str) -> tuple[TrainerEntry, PersonalizerEntry]:
  """Returns the trainer and the personalizer of a method."""
  trainer, personalizer = halves(name)
  return TRAINERS[trainer], PERSONALIZERS[personalizer]


@dataclasses.dataclass(frozen=True)
class MethodSettings:
  """The settings of a trainer and a personalizer, which share no names."""

  trainer: Any
  personalizer: Any

  def to_dict(self) -> dict[str, object]:
    """Returns all settings by their names."""
    return {
      **dataclasses.asdict(self.trainer),
      **dataclasses.asdict(self.personalizer),
    }


def _names(settings_class: type[settings.Settings]) -> tuple[str, ...]:
  return tuple(field.name for field in dataclasses.fields(settings_class))


@functools.cache  # Looking up the types of settings is slow.
def settings_names(name: str) -> tuple[str, ...]:
  """Returns the names of a method's settings."""
  return tuple(
    setting
    for entry in entries(name)
    for setting in _names(entry.settings_class())
  )


def make_settings(name: str, values: Values) -> MethodSettings:
  """Makes a method's settings.

  Args:
    name: The name of the method.
    values: The settings that differ from the method's defaults, as text or with
      their types.

  Returns:
    All settings of the method.

  Raises:
    UserError: If there is no such method, setting or value.
  """
  known = settings_names(name)
  for setting in values:
    if setting not in known:
      unknown = errors.unknown('setting', setting, known)
      raise settings.SettingError(f'{name}: {unknown}', setting)
  halves = []
  for entry in entries(name):
    settings_class = entry.settings_class()
    chosen = {
      setting: value
      for setting, value in {**entry.defaults, **values}.items()
      if setting in _names(settings_class)
    }
    halves.append(settings.parse(settings_class, chosen, name))
  return MethodSettings(*halves)


def build(
  name: str,
  model: models.Model,
  method_settings: MethodSettings,
  aggregator: aggregation.Factory,
  evaluation_sets: Sequence[str],
  num_clients: int = 0,
  num_groups: int = 0,
) -> methods.Method:
  """Builds a method.

  Args:
    name: The name of the method.
    model: The model to learn.
    method_settings: The method's settings, as `make_settings` makes them.
    aggregator: Aggregates the clients' updates.
    evaluation_sets: The names of the sets that clients are evaluated on.
    num_clients: The number of clients to train on, for trainers whose setting
      `num_clients` is 0.
    num_groups: The number of known groups, for trainers whose setting
      `num_groups` is 0.

  Returns:
    The method for that model.
  """
  known = {'num_clients': num_clients, 'num_groups': num_groups}
  left_open = [
    n for n in known if getattr(method_settings.trainer, n, None) == 0
  ]
  trainer_settings = dataclasses.replace(
    method_settings.trainer, **{n: known[n] for n in left_open}
  )
  trainer_class, personalizer_class = (e.load() for e in entries(name))
  trainer = trainer_class(model, trainer_settings)
  if model.parts.get('statistics') and trainer.why_no_statistics is not None:
    raise errors.UserError(
      f'{name} cannot train this model with batch normalization:'
      f' {trainer.why_no_statistics}. Set task.norm=group, or'
      ' task.statistics=recomputed.'
    )
  return importlib.import_module('algorithms.methods').Method(
    personalizer_class(trainer, method_settings.personalizer),
    aggregator,
    tuple(evaluation_sets),
  )
