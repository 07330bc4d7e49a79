"""The base class of trainers whose server has a row for each client.

The rows are the clients' models, `[K, d]`. A client sends its own row among
zeros, so that the mean over clients has all rows, and is sent all rows of what
the server makes of them, of which it needs one. Only what it needs counts as a
cost: `share_received`, `share_sent`.

There is no row for a client that was never trained on.
"""

import abc
import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import ClassVar

import tensorflow as tf

from algorithms import aggregation
from algorithms import optimizers
from algorithms import trainers
from algorithms import vectors
from base import aliases
from base import errors
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class RowTrainer(trainers.Trainer):
  """Trains a model for each client, with what the server makes of all models.

  Attributes:
    name: Its name.
  """

  settings: optimizers.ClientOptimizerSettings
  name: ClassVar[str]
  start_name = 'own model'
  start_is_shared = False
  personalizes_new_clients = False

  def __post_init__(self) -> None:
    if not self.num_clients:
      raise errors.UserError(
        f'{self.name} needs the number of clients to train on, num_clients.'
      )
    self.settings.refuse_kept_slots(self.name)

  @property
  @abc.abstractmethod
  def num_clients(self) -> int:
    """K, the number of clients to train on; 0 if it is not known."""

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    return {'models': None}

  @property
  def why_not_private(self) -> str | None:
    return 'each row that its clients send is one client'

  @property
  def model_places(self) -> Sequence[tuple[str | int, ...]]:
    return ()  # There is no model for all clients.

  def initial_rows(self, seed: aliases.Seed) -> tf.Tensor:
    """Makes the rows of models that start alike."""
    one_for_all = vectors.join(self.model.init(seed).values())
    return tf.tile(one_for_all[tf.newaxis], [self.num_clients, 1])

  def initialize_client(self, seed: aliases.Seed) -> aliases.ClientState:
    return collections.OrderedDict(row=seed[1])

  def weights(self, vector: tf.Tensor) -> models.Weights:
    """Returns the weights of a model in a row."""
    # Only the shapes of these weights are used.
    return vectors.split_weights(vector, self.model.init(tf.constant([0, 0])))

  def put_row(self, row: tf.Tensor, value: tf.Tensor) -> aggregation.Update:
    """Returns the update of a client's row: its own among zeros."""
    is_row = tf.one_hot(row, self.num_clients)[:, tf.newaxis]
    return aggregation.Update(is_row * value)

  def step_rows(
    self, rows: tf.Tensor, updates: tf.Tensor, sums: trainers.RoundSums
  ) -> tf.Tensor:
    """Returns the rows after a round, given the mean of the updates."""
    # The mean divides each row by all clients, though only one of them has it.
    return rows - sums.num_clients * updates
