"""Costs of a method for a client, as Liu et al. 2022 count them (table 4).

A client receives models in each round of its group, whether or not it is
sampled; its other costs are those of the rounds for which it is sampled, on
average. Computation is the number of passes over its own examples, in training
and in personalization. What it takes to find groups is not counted.
"""

from collections.abc import Iterable, Mapping
import dataclasses

import numpy as np

from algorithms import methods
from personalization.rounds import schedules


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of a method for each client of a group, in all trainings.

  Attributes:
    models_received: The models that it receives. Each is as large as the model
      of the task.
    models_sent: The models that it sends.
    gradient_passes: The passes over its examples that compute gradients.
    loss_passes: The passes over its examples that only compute losses.
  """

  models_received: float = 0.0
  models_sent: float = 0.0
  gradient_passes: float = 0.0
  loss_passes: float = 0.0

  def __add__(self, other: 'Cost') -> 'Cost':
    mine, others = dataclasses.astuple(self), dataclasses.astuple(other)
    return Cost(*(a + b for a, b in zip(mine, others)))


@dataclasses.dataclass(frozen=True)
class Round:
  """A round of a training for an average client that takes part.

  Attributes:
    models_received: The models that the client receives.
    models_sent: The models that it sends.
    passes: The multiple of the trainer's passes that it takes, see
      `Trainer.passes`.
  """

  models_received: float = 1.0
  models_sent: float = 1.0
  passes: float = 1.0


def training_cost(
  method: methods.Method,
  schedule: schedules.Schedule,
  training_settings: schedules.TrainingSettings,
  measured: Round = Round(),
) -> Mapping[int, Cost]:
  """Counts the cost of a training for a client of each group.

  Args:
    method: The method that is trained.
    schedule: Its rounds.
    training_settings: How it is trained.
    measured: What was measured of its rounds.

  Returns:
    The cost by the number of the group, which is 0 if there are no groups.
  """
  if not method.trains:
    return {0: Cost()}
  rounds = schedule.num_rounds(training_settings, method.trainer.num_epochs)
  rounds_per_epoch = schedule.rounds_per_epoch
  num_clients = len(schedule.clients)
  taken_part: float | None = method.trainer.num_epochs
  if taken_part is None:
    drawn = training_settings.clients_per_round or num_clients
    taken_part = training_settings.total_epochs or rounds * drawn / num_clients
  epochs: float = training_settings.client_epochs
  if training_settings.client_steps:
    taken = training_settings.client_steps * schedule.batch_size
    epochs = float(np.mean(taken / schedule.clients.sizes['train']))
  gradients, losses = (
    taken_part * epochs * measured.passes * passes / max(rounds, 1)
    for passes in method.trainer.passes(rounds)
  )
  return {
    group: Cost(
      rounds
      * of_group
      // sum(rounds_per_epoch.values())
      * measured.models_received,
      taken_part * measured.models_sent,
      gradients,
      losses,
    )
    for group, of_group in rounds_per_epoch.items()
  }


def personalization_cost(
  method: methods.Method, sizes: Iterable[int], batch_size: int
) -> Cost:
  """Counts the mean cost of personalization, with all that is tried.

  Args:
    method: The method.
    sizes: The number of examples that each client has to adapt to.
    batch_size: The number of examples in a batch.
  """
  passes = [method.personalizer.passes(n, batch_size) for n in sizes]
  gradients, losses = np.mean(passes, axis=0).tolist()
  return Cost(gradient_passes=gradients, loss_passes=losses)
