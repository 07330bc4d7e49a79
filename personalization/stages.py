"""Stages: trainings that begin with what others have ended with."""

import dataclasses

from algorithms import methods
from personalization import groups
from personalization import schedules
from tasks import task as tasks


@dataclasses.dataclass(frozen=True)
class Stage:
  """A training that is ready to begin.

  Attributes:
    method: The method, with the models that it begins with.
    task: The task, with what earlier trainings have found of its clients.
    found: What that is: the group of each client; None if nothing is.
  """

  method: methods.Method
  task: tasks.Task
  found: tasks.Attribute | None = None


def prepare(
  method: methods.Method,
  task: tasks.Task,
  how: schedules.TrainingSettings,
  train: groups.Train,
) -> Stage:
  """Does what must come before a training.

  Args:
    method: The method.
    task: The task.
    how: How to train.
    train: Trains a method that comes before, or knows what came of it.

  Returns:
    The training, ready to begin.

  Raises:
    UserError: If the settings do not go with the task.
  """
  before = method.before
  if before is None:
    return Stage(method, task)
  begins_with = train(before, 'global')
  found = groups.find(method, begins_with, task, how, train)
  (model,) = before.models(begins_with.server_state)
  method = dataclasses.replace(
    method, first_models=(model,) * len(method.model_places)
  )
  if found is not None:
    attributes = {**task.attributes, tasks.GROUP: found}
    task = dataclasses.replace(task, attributes=attributes)
  return Stage(method, task, found)
