"""The ways to train privately, by name.

Nothing heavy is imported here, so that the names can be listed, and a wrong one
refused, without the seconds that TensorFlow Federated takes to import.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import importlib
from typing import TYPE_CHECKING

from base import errors
from base import settings

if TYPE_CHECKING:
  from algorithms import methods
  from personalization.rounds import schedules
  from tasks import task as tasks

NONE = 'none'
# Where the noise comes from.
SEEDS = PUBLIC, SECRET = 'public', 'secret'

# The smallest positive float of 32 bits that has all of its digits.
_LEAST_NOISE = 2.0**-126


@dataclasses.dataclass(frozen=True)
class NoPrivacySettings(settings.Settings):
  """No settings."""


@dataclasses.dataclass(frozen=True)
class PrivacySettings(settings.Settings):
  """The settings of all ways to train privately."""

  epsilon: float | None = settings.field(
    None, 'The ε to guarantee, from which the noise follows.', above=0
  )
  noise: float | None = settings.field(
    None,
    'The deviation of the noise on a sum, over the clipping norm, from which ε'
    ' follows; at 0 nothing is private.',
    minimum=0,
  )
  delta: float | None = settings.field(
    None,
    'The δ of the guarantee, which must be below 1/N for N protected clients or'
    ' examples; none for N^-1.1.',
    above=0,
  )
  clip: float = settings.field(
    1.0,
    'The norm to which the contribution of a protected client or example is'
    ' clipped.',
    above=0,
  )
  seed: str = settings.field(
    PUBLIC,
    'Where the noise comes from: the seed of the run, so that the privacy is'
    ' simulated (public), or 128 bits that the operating system draws, in a'
    ' file of their own (secret).',
    choices=SEEDS,
    repr=False,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if (self.epsilon is None) == (self.noise is None):
      raise settings.SettingError(
        'Set either the epsilon or the noise of privacy, and not both:'
        ' --epsilon=2 or --set privacy.noise=1.',
        'noise' if self.epsilon is None else 'epsilon',
      )
    if self.noise and self.noise < _LEAST_NOISE:
      raise settings.SettingError(
        f'noise must be 0 or at least {_LEAST_NOISE:.2g}, as it is drawn in 32'
        f' bits, not {self.noise:g}.',
        'noise',
      )


@dataclasses.dataclass(frozen=True)
class CentralSettings(PrivacySettings):
  """The settings of independent noise that the server adds."""

  noise_cohort: int = settings.field(
    0,
    'The clients of a round that is too large to be simulated. The noise on the'
    ' mean of a round is that of so many clients, and so is ε, which is'
    ' extrapolated; 0 for the clients that are trained.',
    minimum=0,
  )
  noise_population: int = settings.field(
    0,
    'The clients that the rounds of noise_cohort would be drawn from; 0 for as'
    ' large a share as in the rounds that are trained.',
    minimum=0,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.noise_population and self.noise_population < self.noise_cohort:
      raise settings.SettingError(
        f'noise_population must be at least noise_cohort, {self.noise_cohort},'
        f' not {self.noise_population}.',
        'noise_population',
      )
    if self.noise_population and not self.noise_cohort:
      raise settings.SettingError(
        'noise_population is the population of noise_cohort, which is not set.',
        'noise_population',
      )


@dataclasses.dataclass(frozen=True)
class ExampleSettings(PrivacySettings):
  """The settings of privacy of each example within its silo."""

  choice_epsilon: float | None = settings.field(
    None,
    'The ε of each choice of a cluster by its loss; none for .03 of epsilon.',
    above=0,
  )
  most_loss: float = settings.field(
    0.1,
    "The value to which each example's loss is clipped in a choice of a"
    ' cluster.',
    above=0,
  )
  counted_as_poisson: bool = settings.field(
    False,
    'Whether epsilon finds the noise as if batches were Poisson samples, though'
    ' they are parts of shuffled passes, as in Liu et al. 2022. The results'
    ' show the guarantee of the batches that are really run.',
  )


@dataclasses.dataclass(frozen=True)
class TreeSettings(PrivacySettings):
  """The settings of tree aggregation."""

  restarts: bool = settings.field(
    True, 'Whether each pass over the clients has a new tree.'
  )


@dataclasses.dataclass(frozen=True)
class DistributedSettings(PrivacySettings):
  """The settings of noise that clients add together."""

  bits: int = settings.field(
    20,
    'The number of bits of each entry that a client sends.',
    minimum=8,
    maximum=22,
  )


@dataclasses.dataclass(frozen=True)
class Entry:
  """A way to train privately.

  Attributes:
    path: Its module and a function there, which makes a method private.
    settings_class: The class of its settings.
    of_examples: Whether it protects each example within a client; this also
      covers the client's personal model.
    samplings: The `client_sampling` that costs least, the default with privacy;
      and another one that it is compared with, if noise then means the same.
  """

  path: str
  settings_class: type[settings.Settings]
  of_examples: bool = False
  samplings: tuple[str, ...] = ()


# The module of the ways that protect whole clients.
_OF_CLIENTS = 'personalization.privacy.client_privacy'

ENTRIES: Mapping[str, Entry] = {
  NONE: Entry('', NoPrivacySettings),
  'gaussian': Entry(
    f'{_OF_CLIENTS}:make_gaussian',
    CentralSettings,
    samplings=('poisson', 'fixed_size'),
  ),
  'example': Entry(
    'personalization.privacy.silo_privacy:make_example',
    ExampleSettings,
    of_examples=True,
  ),
  'adaptive': Entry(
    f'{_OF_CLIENTS}:make_adaptive',
    CentralSettings,
    samplings=('poisson', 'fixed_size'),
  ),
  'tree': Entry(
    f'{_OF_CLIENTS}:make_tree', TreeSettings, samplings=('cycles', 'passes')
  ),
  'matrix': Entry(
    f'{_OF_CLIENTS}:make_matrix',
    PrivacySettings,
    samplings=('cyclic_poisson',),
  ),
  'local': Entry(f'{_OF_CLIENTS}:make_local', PrivacySettings),
  'distributed': Entry(
    f'{_OF_CLIENTS}:make_distributed',
    DistributedSettings,
  ),
}


def names() -> tuple[str, ...]:
  """Lists the names of all ways, `NONE` among them."""
  return tuple(ENTRIES)


def ways() -> tuple[str, ...]:
  """Lists the names of the ways that are private."""
  return tuple(name for name in ENTRIES if name != NONE)


def settings_class(name: str) -> type[settings.Settings]:
  """Returns the class of the settings of a way; raises a `UserError`."""
  if name not in ENTRIES:
    raise errors.unknown('privacy', name, ENTRIES)
  return ENTRIES[name].settings_class


def apply(
  way: str,
  privacy_settings: settings.Settings,
  name: str,
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> methods.Method:
  """Makes a method private.

  Args:
    way: The name of the way, not `NONE`.
    privacy_settings: Its settings.
    name: The name of the method.
    method: The method.
    task: The task.
    training_settings: How to train.

  Returns:
    The method, with its guarantee.

  Raises:
    UserError: If it cannot be private in this way or with these settings.
  """
  module, _, function = ENTRIES[way].path.partition(':')
  make = getattr(importlib.import_module(module), function)
  try:
    made: methods.Method = make(
      privacy_settings, method, task, training_settings
    )
  except errors.UserError as error:
    raise errors.UserError(f'{name} with privacy {way}: {error}') from error
  return made
