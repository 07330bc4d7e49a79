"""The examples of a silo, for tests."""

import numpy as np

from tasks import task as tasks
from tasks.data import populations


def of_client(task: tasks.Task, client_id: str) -> populations.Examples:
  """Returns all examples of a client: to train on, to choose by, to report."""
  parts = [
    task.train.sets['train'](client_id),
    task.validation.sets['evaluation'](client_id),
    task.test.sets['evaluation'](client_id),
  ]
  return {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}
