"""Tasks: federated data, a model, and a metric."""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from base import aliases
from tasks.data import populations
from tasks.models import models

# The attribute by which metrics are reported group by group.
GROUP = 'group'
# The number of examples that a client trains on, which every task has.
SIZE = 'size'
# The numbers by which a client protects its examples, which a method adds, see
# `tasks.models.protections`.
PROTECTION = 'protection'


@dataclasses.dataclass(frozen=True)
class Attribute:
  """An integer attribute of each client: a group, type or context.

  Attributes:
    names: The names of the values 0, 1, ….
    values: The value of each client, in all populations.
  """

  names: Sequence[str]
  values: Mapping[str, int]

  def name(self, client_id: str) -> str:
    """Returns the name of a client's value."""
    return self.names[self.values[client_id]]

  def gather(self, client_ids: Sequence[str]) -> np.ndarray:
    """Returns the values of these clients, `[clients]` int32."""
    return np.array([self.values[c] for c in client_ids], np.int32)


@dataclasses.dataclass(frozen=True)
class Task:
  """A federated learning task.

  A task holds out either clients or examples (Motley, section 3.2):
  - cross-device: the clients are split. `validation` and `test` are clients
    that are never trained on, each with a 'personalization' set to adapt to
    and an 'evaluation' set to be evaluated on.
  - cross-silo: every client is in training, and its examples are split.
    `validation` and `test` are then the clients of `train`. Their
    'personalization' sets are the examples that they train on, and their
    'evaluation' sets are their validation or test examples.

  Attributes:
    name: The name of the task.
    model: The model that is learned.
    metric: The name of the metric, among the model's statistics.
    higher_is_better: Whether a larger metric is better.
    train: The clients to train on, with the set 'train'.
    validation: The clients by which choices are made.
    test: The clients that are reported.
    cross_silo: Whether examples are held out rather than clients.
    batch_size: The number of examples in a batch, unless the user sets another.
    padded: Whether the clients of a cohort are padded to the same number of
      examples, so that the cohort runtime can stack them. This pays if the
      model is small.
    attributes: The attributes of each client, by name; for instance 'group',
      the language of its talk.
    vocabulary: The words of a language task, which have the numbers 1, 2, ….
    contexts: The names of the contexts of examples, which have the numbers 0,
      1, … in the feature 'context'.
    classes: The names of the classes 0, 1, …, where the data have such names.
    notes: A description of the data that is shown before training, as text of
      80 columns.
    encoding: How data became examples, for JSON, where that follows from the
      data: names of inputs and classes, means and deviations.
    settings: The seed and the settings that it was loaded with.
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
  classes: Sequence[str] = ()
  notes: str = ''
  encoding: Mapping[str, aliases.Json] = dataclasses.field(default_factory=dict)
  settings: object = None
