"""Stages: trainings that start from the results of other trainings."""

import dataclasses

from algorithms import methods
from personalization import groups
from personalization.rounds import schedules
from tasks import task as tasks


@dataclasses.dataclass(frozen=True)
class Stage:
  """A training that is ready to start.

  Attributes:
    method: The method, with the models that it starts from.
    task: The task, with the groups that earlier trainings found.
    found: The group of each client that was found; None if no groups were.
  """

  method: methods.Method
  task: tasks.Task
  found: tasks.Attribute | None = None


def prepare(
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
  train: groups.Train,
) -> Stage:
  """Runs the trainings that must come before a training.

  Args:
    method: The method.
    task: The task.
    training_settings: How to train.
    train: Trains an earlier method, or returns its result if it was trained.

  Returns:
    The training, ready to start.

  Raises:
    UserError: If the settings do not fit the task.
  """
  before = method.predecessor
  if before is None:
    return Stage(method, task)
  begins_with = train(before, 'global')
  found = groups.find(method, begins_with, task, training_settings, train)
  (model,) = before.models(begins_with.server_state)
  method = dataclasses.replace(
    method, first_models=(model,) * len(method.model_places)
  )
  if found is not None:
    attributes = {**task.attributes, tasks.GROUP: found}
    task = dataclasses.replace(task, attributes=attributes)
  return Stage(method, task, found)
