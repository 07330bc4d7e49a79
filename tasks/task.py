"""Tasks: federated data, a model, and the metric to judge it by."""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from tasks.data import populations
from tasks.models import models

# The attribute by which metrics are reported group by group.
GROUP = 'group'
# The number of examples that a client trains on, which every task tells.
SIZE = 'size'
# The numbers by which a client protects its examples, of which a method knows,
# see `tasks.models.protections`.
PROTECTION = 'protection'


@dataclasses.dataclass(frozen=True)
class Attribute:
  """An integer that each client knows about itself: a group, type or context.

  Attributes:
    names: The names of the values 0, 1, ….
    values: The value of each client, of all populations.
  """

  names: Sequence[str]
  values: Mapping[str, int]

  def name(self, client_id: str) -> str:
    """The name of a client's value."""
    return self.names[self.values[client_id]]

  def of(self, client_ids: Sequence[str]) -> np.ndarray:
    """The values of these clients, `[clients]` int32."""
    return np.array([self.values[c] for c in client_ids], np.int32)


@dataclasses.dataclass(frozen=True)
class Task:
  """A federated learning task.

  There are two ways to hold something out (Motley, section 3.2):
  - cross-device: the clients are split. `validation` and `test` are clients
    that are never trained on, each with a 'personalization' set to adapt to
    and an 'evaluation' set to be judged by.
  - cross-silo: every client is in training, and its examples are split.
    `validation` and `test` are then the clients of `train`. Their
    'personalization' set is what they train on, their 'evaluation' set is their
    own validation or test examples.

  Attributes:
    name: The name of the task.
    model: The model that is learned.
    metric: The name of the metric, among the model's statistics.
    higher_is_better: Whether a larger metric is better.
    train: The clients to train on, with the set 'train'.
    validation: The clients to choose by.
    test: The clients to report.
    cross_silo: Whether examples are held out rather than clients.
    batch_size: The number of examples in a batch, unless the user sets another.
    padded: Whether the clients of a cohort are padded to the same number of
      examples, so that the cohort runtime can stack them. This pays if the
      model is small.
    attributes: What each client knows about itself, by name; for instance
      'group', the language of its talk.
    vocabulary: The words of a language task, those of the numbers 1, 2, ….
    contexts: The names of the contexts that examples are under, those of the
      numbers 0, 1, … in the feature 'context'.
    notes: What the user should see of the data before training, as text of 80
      columns.
  """

  name: str
  model: models.Model
  metric: str
  higher_is_better: bool
  train: populations.Population
  validation: populations.Population
  test: populations.Population
  cross_silo: bool
  batch_size: int
  padded: bool
  attributes: Mapping[str, Attribute] = dataclasses.field(default_factory=dict)
  vocabulary: Sequence[str] = ()
  contexts: Sequence[str] = ()
  notes: str = ''
