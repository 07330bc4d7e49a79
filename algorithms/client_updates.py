"""Computes the update that a client would send, by which groups are inferred.

This is not a method of personalization: its metric is the update that a client
of FedAvg would send after a pass over its examples.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import tensorflow as tf

from algorithms import candidates
from algorithms import client_work
from algorithms import fedavg
from algorithms import personalizers
from algorithms import trainers
from algorithms import vectors
from base import settings
from tasks.data import batches

UPDATE = 'update'


@dataclasses.dataclass(frozen=True)
class ClientUpdatesSettings(settings.Settings):
  """No settings."""


@dataclasses.dataclass(frozen=True)
class ClientUpdates(personalizers.Personalizer):
  """Returns w - w_k of each client k as one vector, the metric `UPDATE`."""

  trainer: fedavg.FedAvg
  settings: ClientUpdatesSettings

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    return (candidates.Candidate(text=UPDATE),)

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    w, optimizer = start.weights, self.trainer.settings.client_steps
    learner, _ = client_work.train(
      self.trainer.model, optimizer.start(w), client.data, optimizer
    )
    delta = client_work.difference(w, learner.weights)
    vector = vectors.join(delta.values())
    return {name: {UPDATE: vector[tf.newaxis]} for name in evaluation}
