"""A ledger of all that is released about the same clients, or their examples.

A guarantee is that of one method. Whoever sees several results, such as those
of two methods of a run, of its repeats, or of the points of a grid, knows more
than from one of them. The noise of each is independent, so that who is in all
of them has the ε of all their events together.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import inspect
import itertools
import math

import dp_accounting

from base.aliases import Json
from personalization.privacy import accounting

# Those of whom nothing more is known than that they are protected.
ALL = ''

# The events that can be written and read, by name.
_EVENTS: Mapping[str, type[dp_accounting.DpEvent]] = {
  cls.__name__: cls
  for cls in (
    dp_accounting.ComposedDpEvent,
    dp_accounting.GaussianDpEvent,
    dp_accounting.LaplaceDpEvent,
    dp_accounting.NoOpDpEvent,
    dp_accounting.NonPrivateDpEvent,
    dp_accounting.PoissonSampledDpEvent,
    dp_accounting.SampledWithoutReplacementDpEvent,
    dp_accounting.SelfComposedDpEvent,
    accounting.ConcentratedDpEvent,
    accounting.SkellamDpEvent,
  )
}


def write_event(event: dp_accounting.DpEvent) -> Json:
  """Writes an event in the form of JSON."""

  def write(value: object) -> Json:
    if isinstance(value, dp_accounting.DpEvent):
      return write_event(value)
    return [*map(write, value)] if isinstance(value, (list, tuple)) else value

  names = inspect.signature(type(event)).parameters
  fields = {name: write(getattr(event, name)) for name in names}
  return {'kind': type(event).__name__, **fields}


def read_event(written: Json) -> dp_accounting.DpEvent:
  """Reads an event that `write_event` wrote.

  Raises:
    KeyError, TypeError: If it is none.
  """

  def read(value: Json) -> object:
    if isinstance(value, list):
      return [*map(read, value)]
    return read_event(value) if isinstance(value, Mapping) else value

  fields = {name: read(value) for name, value in written.items()}
  return _EVENTS[str(fields.pop('kind'))](**fields)


@dataclasses.dataclass(frozen=True)
class Use:
  """A use of the protected data, such as a training.

  Attributes:
    name: The name of the training, or what else it is.
    unit: Whose data are protected, as in `accounting.Guarantee`.
    neighbors: The difference between neighboring data sets.
    delta: The δ of its guarantee.
    caveats: Why the data are not protected as ε says, in a word each.
    events: What it does with the data of each kind of clients or silos; `ALL`
      if all are of one kind.
    before: The names of the uses whose results it starts from.
    times: The number of uses that are like this one, each with its own noise.
  """

  name: str
  unit: str
  neighbors: str
  delta: float
  caveats: tuple[str, ...]
  events: Mapping[str, dp_accounting.DpEvent]
  before: tuple[str, ...] = ()
  times: int = 1

  @property
  def is_open(self) -> bool:
    """Whether it has no noise."""
    open_event = dp_accounting.NonPrivateDpEvent()
    composed = (accounting.compose([(e, 1)]) for e in self.events.values())
    return any(event == open_event for event in composed)

  def to_json(self) -> dict[str, Json]:
    """Writes it in the form of JSON."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    events = {kind: write_event(event) for kind, event in self.events.items()}
    return {
      **fields,
      'events': events,
      'before': list(self.before),
      'caveats': list(self.caveats),
    }

  @classmethod
  def from_json(cls, written: Mapping[str, Json]) -> 'Use':
    """Reads what `to_json` wrote; raises a KeyError or TypeError."""
    events = {
      kind: read_event(event) for kind, event in written['events'].items()
    }
    texts = {name: tuple(written[name]) for name in ('before', 'caveats')}
    return cls(**{**written, **texts, 'events': events})


@dataclasses.dataclass(frozen=True)
class Total:
  """The guarantee of several uses together.

  Attributes:
    unit: Whose data are protected, of all uses.
    neighbors: The difference between neighboring data sets, of all uses.
    epsilon: ε; infinite if one use is not private; None if the uses protect
      other units or have other neighbors, so that no number holds for all.
    delta: δ, the smallest of the uses.
    accountant: The accountant that computed ε.
    caveats: The caveats of all uses.
    num_uses: The number of uses.
  """

  unit: str
  neighbors: str
  epsilon: float | None
  delta: float
  accountant: str
  caveats: tuple[str, ...]
  num_uses: int

  def to_json(self) -> dict[str, Json]:
    """Writes it in the form of JSON, in which an infinite ε is None."""
    finite = self.epsilon is not None and math.isfinite(self.epsilon)
    epsilon = self.epsilon if finite else None
    return {**dataclasses.asdict(self), 'epsilon': epsilon, 'text': str(self)}

  def __str__(self) -> str:
    if self.epsilon is None:
      return (
        'no single ε, as their neighboring data sets differ in other ways:'
        f' {self.neighbors} ({self.unit})'
      )
    return accounting.describe(
      self.unit, self.epsilon, self.delta, self.caveats
    )


def _compose(uses: Iterable[Use]) -> list[dp_accounting.DpEvent]:
  """Composes the events of uses for each kind of clients or silos."""
  uses = list(uses)
  # Uses of the same kinds, such as the groups of a task, have the same members.
  kinds = {tuple(use.events) for use in uses}
  return [
    accounting.compose(
      (use.events[of_kinds[tuple(use.events)]], use.times) for use in uses
    )
    for combination in itertools.product(*kinds)
    for of_kinds in [dict(zip(kinds, combination))]
  ]


def add(uses: Iterable[Use]) -> Total:
  """Finds the guarantee of all uses together; there is at least one."""
  uses = list(uses)
  num_uses = sum(use.times for use in uses)
  caveats = tuple(dict.fromkeys(word for use in uses for word in use.caveats))
  delta = min(use.delta for use in uses)
  unit = ' and '.join(dict.fromkeys(use.unit for use in uses))
  neighbors = '; or '.join(dict.fromkeys(use.neighbors for use in uses))
  epsilon, accountant = None, ''
  if (unit, neighbors) == (uses[0].unit, uses[0].neighbors):
    epsilon, accountant = accounting.largest_epsilon(_compose(uses), delta)
  return Total(unit, neighbors, epsilon, delta, accountant, caveats, num_uses)


def find_chain(uses: Iterable[Use], names: Iterable[str]) -> list[Use]:
  """Returns the uses of these names, and all that they start from."""
  by_name = {use.name: use for use in uses}
  found: dict[str, Use] = {}
  left = list(names)
  while left:
    name = left.pop()
    if name not in found:
      found[name] = by_name[name]
      left += found[name].before
  return list(found.values())
