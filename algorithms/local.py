"""Local training: each client trains its own model from the initial weights.

Motley, section 3.1 and appendix C.2.1: there are no rounds, and clients
fine-tune the model as it was initialized.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import settings
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class LocalSettings(settings.Settings):
  """No settings."""


class LocalState(NamedTuple):
  """The server's state: the model that every client starts from."""

  model: models.Weights


@dataclasses.dataclass(frozen=True)
class Local(trainers.Trainer):
  """Leaves the model as it was initialized."""

  settings: LocalSettings
  trains = False

  @property
  def why_no_statistics(self) -> str | None:
    return None

  def initialize(self, seed: aliases.Seed) -> LocalState:
    return LocalState(self.model.init(seed))

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    nothing = tf.nest.map_structure(tf.zeros_like, message)
    return trainers.ClientResult(
      updates={'model': aggregation.Update(nothing)},
      loss=tf.constant(0.0),
    )

  def server(
    self,
    server: LocalState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> LocalState:
    del aggregate, sums
    return server


registry.register_trainer(
  'local',
  Local,
  title='Local',
  does='nothing: there are no rounds',
  sends='nothing',
  keeps='its model',
  personalizer='finetuning',
)
