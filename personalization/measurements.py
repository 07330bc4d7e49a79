"""Measurements of an evaluation, and the parts of clients' sets they need.

Beside the metric of each test client on its own examples, the same personalized
models can be judged by further evaluation sets, and clients can be personalized
on less than they have. Both are parts of the sets that a client has; methods
know nothing of it.
"""

import dataclasses
from typing import NamedTuple

from base import settings
from tasks import task

# Further evaluation sets: examples of all clients; those that a client compares
# its model with the global one on; and, of a silo, those that chose this model.
OOD, HELD_OUT, NOT_HELD_OUT = 'ood', 'held_out', 'not_held_out'


@dataclasses.dataclass(frozen=True)
class MeasurementSettings(settings.Settings):
  """The settings of further measurements of the test clients."""

  ood_examples: int = settings.field(
    0,
    'Number of examples, drawn from those of all test clients, by which each'
    ' personalized model is judged as well (out of distribution); 0 for none.',
    minimum=0,
  )
  evaluation_fractions: tuple[float, ...] = settings.field(
    (),
    'Parts of its evaluation set by which each client is judged as well.',
    above=0,
    maximum=1,
  )
  personalization_fractions: tuple[float, ...] = settings.field(
    (),
    'Parts of its personalization set on which each client is personalized as'
    ' well.',
    above=0,
    maximum=1,
  )
  acceptance_min_examples: int = settings.field(
    0,
    'Also shown: each client takes its personalized model only if it has at'
    ' least this many examples to adapt to; 0 to not show it.',
    minimum=0,
  )
  acceptance_margin: float | None = settings.field(
    None,
    'Also shown: each client takes its personalized model only if that is'
    ' better by more than this margin on examples held out; none to not show'
    ' it.',
    minimum=0,
  )
  acceptance_fraction: float = settings.field(
    0.2,
    'The part of the personalization set that is held out for the margin; in a'
    ' cross-silo task, of the validation set, which then chooses by the rest.',
    above=0,
    maximum=0.9,
  )

  @property
  def not_held_out(self) -> float:
    """The part of the set that is left."""
    return 1 - self.acceptance_fraction


class SetPart(NamedTuple):
  """A part of a client's set, from the fraction `start` to `stop` of it."""

  name: str
  start: float = 0.0
  stop: float = 1.0


def own_sets(task: task.Task) -> tuple[str, ...]:
  """Names the sets of a client to judge it by; the last one is reported.

  Those of cross-silo tasks are both of the same clients, which are personalized
  only once for both.
  """
  return ('validation', 'test') if task.cross_silo else ('evaluation',)


def part_of_evaluation(fraction: float) -> str:
  """Names the evaluation set that is a part of each client's."""
  return f'part_{fraction:g}'


def further_sets(
  task: task.Task, measurement: MeasurementSettings, personalized_on: float
) -> dict[str, SetPart]:
  """Tells what the further evaluation sets of test clients consist of.

  Args:
    task: The task.
    measurement: What is measured.
    personalized_on: The part of the personalization set that the models come
      from. Only models that come from all of it are judged by further sets,
      but for what is held out.

  Returns:
    The part that each further set is; it may be empty.
  """
  own, all_of_it = own_sets(task)[-1], personalized_on == 1
  sets = {
    part_of_evaluation(fraction): SetPart(own, 0.0, all_of_it * fraction)
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
  """Lists the parts of their sets that clients are personalized on, 1 first."""
  parts = (1.0, *measurement.personalization_fractions)
  if measurement.acceptance_margin is not None and not task.cross_silo:
    parts += (measurement.not_held_out,)
  return tuple(dict.fromkeys(parts))
