"""Costs of a method for a client, as Liu et al. 2022 count them (table 4).

Communication is the number of models that a client receives: one in each round
of its group, whether or not it is sampled. Computation is the number of its
passes over its own examples: in the rounds for which it is sampled, on average,
and in fine-tuning. Other work of a trainer is not counted.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from algorithms import methods
from personalization import schedules


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of a method for each client of a group.

  Attributes:
    rounds: The rounds of its group, in all trainings.
    local_epochs: Its passes over its examples.
  """

  rounds: int = 0
  local_epochs: float = 0.0

  def __add__(self, other: 'Cost') -> 'Cost':
    return Cost(
      self.rounds + other.rounds, self.local_epochs + other.local_epochs
    )


def of_training(
  method: methods.Method,
  schedule: schedules.Schedule,
  how: schedules.TrainingSettings,
) -> Mapping[int, Cost]:
  """Counts the cost of a training for a client of each group.

  Args:
    method: The method that is trained.
    schedule: Its rounds.
    how: How it is trained.

  Returns:
    The cost by the number of the group, which is 0 if there are no groups.
  """
  if not method.trains:
    return {0: Cost()}
  rounds = schedule.num_rounds(how, method.trainer.num_epochs)
  rounds_per_epoch = schedule.rounds_per_epoch
  num_clients = len(schedule.clients)
  epochs: float | None = method.trainer.num_epochs
  if epochs is None:
    drawn = how.clients_per_round or num_clients
    epochs = how.total_epochs or rounds * drawn / num_clients
  passes: float = how.client_epochs
  if how.client_steps:
    taken = how.client_steps * schedule.batch_size
    passes = float(np.mean(taken / schedule.clients.sizes['train']))
  return {
    group: Cost(
      rounds * of_group // sum(rounds_per_epoch.values()), epochs * passes
    )
    for group, of_group in rounds_per_epoch.items()
  }


def of_personalization(method: methods.Method) -> Cost:
  """Counts the cost of personalization, with all epochs that are tried."""
  epochs = [c.value or 0.0 for c in method.candidates if c.unit == 'epochs']
  return Cost(local_epochs=float(max(epochs, default=0.0)))
