"""Measurements of an evaluation, and the parts of clients' sets they need.

Beside the metric of each test client on its own examples, the same personalized
models can be evaluated on further sets, and clients can be personalized on a
part of their examples. Both use parts of the sets that a client has; methods
know nothing of them.
"""

import dataclasses
from typing import NamedTuple

from base import settings
from tasks import task

# Further evaluation sets: examples of all clients; the examples on which a
# client compares its model with the global one; and, in a silo, the examples by
# which this model was chosen.
OOD, HELD_OUT, NOT_HELD_OUT = 'ood', 'held_out', 'not_held_out'
# The smallest part of a set that is a part of it, however few examples there
# are, as parts are rounded up.
_SMALLEST_PART = 0.001


@dataclasses.dataclass(frozen=True)
class MeasurementSettings(settings.Settings):
  """The settings of further measurements of the test clients."""

  ood_examples: int = settings.field(
    0,
    'The number of examples, drawn from all test clients, on which each'
    ' personalized model is also evaluated (out of distribution); 0 for none.',
    minimum=0,
  )
  evaluation_fractions: tuple[float, ...] = settings.field(
    (),
    'Parts of its evaluation set on which each client is also evaluated.',
    minimum=_SMALLEST_PART,
    maximum=1,
  )
  personalization_fractions: tuple[float, ...] = settings.field(
    (),
    'Parts of its personalization set on which each client is also'
    ' personalized.',
    minimum=_SMALLEST_PART,
    maximum=1,
  )
  acceptance_min_examples: int = settings.field(
    0,
    'Also reports results if each client uses its personalized model only if it'
    ' has at least this many examples to adapt to; 0 for no such report.',
    minimum=0,
  )
  acceptance_margin: float | None = settings.field(
    None,
    'Also reports results if each client uses its personalized model only if'
    ' that is better by more than this margin on held-out examples; none for no'
    ' such report.',
    minimum=0,
  )
  acceptance_fraction: float = settings.field(
    0.2,
    'The part of the personalization set that is held out for the margin; in a'
    ' cross-silo task, the part of the validation set, the rest of which then'
    ' chooses the candidate.',
    above=0,
    maximum=0.9,
  )

  @property
  def not_held_out(self) -> float:
    """The part of the set that is not held out."""
    return 1 - self.acceptance_fraction


class SetPart(NamedTuple):
  """A part of a client's set, from the fraction `start` to `stop`."""

  name: str
  start: float = 0.0
  stop: float = 1.0


def own_sets(task: task.Task) -> tuple[str, ...]:
  """Names the sets on which a client is evaluated; the last one is reported.

  In cross-silo tasks the same clients have both sets, and are personalized only
  once for both.
  """
  return ('validation', 'test') if task.cross_silo else ('evaluation',)


def part_of_evaluation(fraction: float) -> str:
  """Names the set that is a part of each client's evaluation set."""
  return f'part_{fraction:g}'


def further_sets(
  task: task.Task, measurement: MeasurementSettings, personalized_on: float
) -> dict[str, SetPart]:
  """Returns the further evaluation sets of test clients.

  Args:
    task: The task.
    measurement: The further measurements.
    personalized_on: The part of the personalization set that clients adapt to.
      If it is not the whole set, models are evaluated only on the set that is
      held out for the margin.

  Returns:
    The part of a client's set that each further set is; it may be empty.
  """
  test_set, all_of_it = own_sets(task)[-1], personalized_on == 1
  sets = {
    part_of_evaluation(fraction): SetPart(test_set, 0.0, all_of_it * fraction)
    for fraction in measurement.evaluation_fractions
  }
  if measurement.ood_examples:
    sets[OOD] = SetPart(OOD, 0.0, float(all_of_it))
  if measurement.acceptance_margin is not None:
    if task.cross_silo:
      end = measurement.not_held_out * all_of_it
      sets[NOT_HELD_OUT] = SetPart('validation', 0.0, end)
      sets[HELD_OUT] = SetPart('validation', end, float(all_of_it))
    else:
      sets[HELD_OUT] = SetPart('personalization', personalized_on, 1.0)
  return sets


def evaluation_sets(
  task: task.Task, measurement: MeasurementSettings = MeasurementSettings()
) -> tuple[str, ...]:
  """Names the sets that a personalized client is evaluated on."""
  return (*own_sets(task), *further_sets(task, measurement, 1.0))


def personalization_parts(
  task: task.Task, measurement: MeasurementSettings
) -> tuple[float, ...]:
  """Lists the parts of the personalization sets to adapt to, 1 first."""
  parts = (1.0, *measurement.personalization_fractions)
  if measurement.acceptance_margin is not None and not task.cross_silo:
    parts += (measurement.not_held_out,)
  return tuple(dict.fromkeys(parts))
