"""Ditto: personal models that are pulled towards the global one.

Li et al. 2021, algorithm 1. The global model w is trained as by FedAvg, as if
there were no personal ones. Beside it, client k solves, its equation (Ditto),

  min_v  h_k(v; w) = F_k(v) + lambda / 2 ||v - w||^2

by steps of its own learning rate on its own model v_k, which it keeps:

  client k:  w_k <- w;  for each batch b: w_k <- w_k - eta_g grad F_k(w_k; b)
             for each batch b:
               v_k <- v_k - eta_l (grad F_k(v_k; b) + lambda (v_k - w))
             sends w_k - w
  server:    as in FedAvg

v_k is pulled to the w that the client received, as in the paper's algorithm. To
be pulled to the new w, the client would have to wait for the server.

v_k starts as the w of the client's first round. A client that was never trained
on starts at the last w and takes the same steps on its personalization set, for
some epochs.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import tensorflow as tf

from algorithms import candidates
from algorithms import client_work
from algorithms import example_uses
from algorithms import fedavg
from algorithms import personal_models
from algorithms import personalizers
from algorithms import registry
from algorithms import trainers
from algorithms.privacy import private_steps
from base import aliases
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class DittoSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, for the global model, and of personal models."""

  personal_learning_rate: aliases.Number = settings.field(
    0.1, 'The learning rate of the personal models.', minimum=0
  )
  regularization: aliases.Number = settings.field(
    0.1,
    'lambda, how strongly personal models are pulled to the global one.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True)
class Ditto(personal_models.PersonalModels):
  """Trains a global model, and a personal one for each client."""

  settings: DittoSettings

  def passes(self, rounds: int) -> trainers.Passes:
    return trainers.Passes(gradients=2 * rounds)

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    state = client.state
    v = self.personal_model(message, state)
    v = self.train_personal(v, message, client.data, part=1)
    result = super().client(message, client._replace(state=state.shared))
    return result._replace(state=state.advance(v, result.state))

  def train_personal(
    self,
    v: models.Weights,
    w: models.Weights,
    data: batches.ClientData,
    part: int | tf.Tensor,
  ) -> models.Weights:
    """Descends h_k(v; w), one step a batch, as a part of the client's work."""
    optimizer = self.settings.client_optimizer_at(
      self.settings.personal_learning_rate
    )
    learner, _ = client_work.train(
      private_steps.mark(self.model, part=part),
      optimizer.start(v),
      data,
      optimizer,
      client_work.pull(w, self.settings.regularization),
    )
    return learner.weights


@dataclasses.dataclass(frozen=True)
class DittoPersonalizerSettings(settings.Settings):
  """The settings of how clients adapt their personal model."""

  personal_epochs: int = settings.field(
    0,
    'The largest number of epochs on the personalization set before the'
    ' evaluation; 0 to this are tried. Only held-out clients need any.',
    minimum=0,
    maximum=10_000,
  )


@dataclasses.dataclass(frozen=True)
class DittoPersonalizer(personalizers.Personalizer):
  """Takes Ditto's steps; the baseline is the global model."""

  trainer: Ditto
  settings: DittoPersonalizerSettings

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    return candidates.list_epochs(
      self.trainer.start_name,
      self.settings.personal_epochs,
      self.trainer.shared_name,
    )

  def gradient_passes(self, size: int, batch_size: int) -> float:
    return self.settings.personal_epochs

  def example_uses(self) -> example_uses.Uses:
    walk = example_uses.Walk(self.settings.personal_epochs)
    return example_uses.Uses((walk,))

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    model, w = self.trainer.model, start.shared
    of_global = client_work.evaluate_sets(model, w, evaluation)
    of_personal = client_work.evaluate_epochs(
      lambda v: client_work.evaluate_sets(model, v, evaluation),
      start.weights,
      lambda epoch, v: self.trainer.train_personal(v, w, client.data, epoch),
      self.settings.personal_epochs,
    )
    return client_work.put_first(of_global, of_personal)


registry.register_trainer(
  'ditto',
  Ditto,
  title='Ditto',
  paper='Li et al. 2021',
  does=(
    'a global model, and a personal one for each client that is pulled to it'
  ),
  sends='the update of the global model',
  keeps='its personal model',
  personalizer='ditto',
)
registry.register_personalizer(
  'ditto',
  DittoPersonalizer,
  title='Ditto',
  paper='Li et al. 2021',
  does=(
    "takes Ditto's own steps on the personal model; the global model is the"
    ' baseline'
  ),
  small={'personal_epochs': 2},
)
