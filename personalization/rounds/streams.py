"""Streams of random numbers, of which each private training has its own.

Trainings of one seed draw the same numbers, so that their methods meet the same
clients and batches. But the noise of several private releases must be
independent: the difference of two that share it has none. So must be who takes
part, where chance amplifies privacy. A private training, such as a stage of
`group`, a point of a grid, or a warm start, hence draws by a key of all that
tells it from others. A training that goes on has the same key. If the seed of
privacy is secret, only who has it can make these keys. The seed of the run
still draws what no guarantee rests on, such as the order of batches.
"""

import dataclasses
import hashlib
import hmac

import numpy as np

from algorithms import methods
from personalization.rounds import schedules
from tasks import task as tasks

# The first part of a key of `seeds.generator`, after its purpose.
Stream = tuple[int | str, ...]


def _find(
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
  *release: object,
) -> Stream:
  of_rounds = dataclasses.replace(
    training_settings,
    # These do not change what happens in a round.
    total_rounds=0,
    total_epochs=0,
    rounds_per_checkpoint=1,
    rounds_per_evaluation=0,
  )
  described = repr((task.name, task.settings, of_rounds, *release)).encode()
  if method.guarantee.is_simulated:
    return training_settings.seed, hashlib.sha256(described).hexdigest()
  if not method.secret:
    raise ValueError('The secret seed of a private training is not there.')
  return (hmac.new(method.secret, described, 'sha256').hexdigest(),)


def find_for_training(
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> Stream:
  """Returns the stream by which a training draws."""
  if method.guarantee is None:
    return (training_settings.seed,)
  first = hashlib.sha256()
  for model in method.first_models:
    for name, weight in model.items():
      first.update(name.encode() + np.asarray(weight).tobytes())
  return _find(
    method, task, training_settings, method.release, first.hexdigest()
  )


def find_for_evaluation(
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> Stream:
  """Returns the stream by which clients draw when they are personalized."""
  if method.protections is None:  # Only then do they add noise.
    return (training_settings.seed,)
  personalizer = method.personalizer
  return _find(
    method,
    task,
    training_settings,
    method.release,
    type(personalizer).__name__,
    personalizer.settings,
  )
