"""FedProto: clients share the mean representations of classes, and no weights.

Tan et al. 2022 ("FedProto: Federated prototype learning across heterogeneous
clients"), algorithm 1. Client i keeps its own model, f_i and a head. Its
representations of class j, z = f_i(x), are pulled to the prototype Cbar^(j) of
all clients; D_ij are its examples of the class:

  client i:    for each batch b: steps down the mean over b of
                 loss(x, y) + lambda mean_k (z_k - Cbar_k^(y))^2
               C_i^(j) <- mean of z over D_ij                              (3)
               sends its C_i^(j)
  the server:  Cbar^(j) <- sum_i |D_ij| / N_j C_i^(j),                     (6)
               N_j = sum_i |D_ij|

A class without a prototype pulls nothing; one that no client of a round has
keeps its prototype. An example is predicted to be of the class of the nearest
prototype,

  argmin_j ||f_i(x) - Cbar^(j)||                                           (8)

or by the client's head: these are two candidates. All models start alike. With
lambda = 0 this is local training.

In the paper, (6) is divided by the number of clients that have the class once
more, which would make the prototypes too short. In the authors' code,

- the clients that have a class count alike (`prototype_weighting=uniform`);
- C_i^(j) is the mean of the z of all batches, each before its step;
- a client predicts only classes that it has.

A client that was never trained on has no model.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import candidates
from algorithms import client_work
from algorithms import optimizers
from algorithms import personal_models
from algorithms import personalizers
from algorithms import prototypes
from algorithms import registry
from algorithms import trainers
from algorithms import vectors
from base import aliases
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class FedProtoSettings(
  prototypes.PrototypeSettings, optimizers.ClientOptimizerSettings
):
  """The settings of the clients' steps, and of the prototypes."""


class FedProtoState(NamedTuple):
  """The server's state, and its message.

  Attributes:
    model: The model that all clients start from, which nobody trains.
    prototypes: Cbar, and the weight of each in the last round that had it.
  """

  model: models.Weights
  prototypes: prototypes.Prototypes


@dataclasses.dataclass(frozen=True)
class FedProto(trainers.Trainer):
  """Trains a model for each client; the clients share prototypes."""

  settings: FedProtoSettings
  start_name = 'own head'
  start_is_shared = False
  personalizes_new_clients = False

  def __post_init__(self) -> None:
    prototypes.check(self.model, 'fedproto')
    self.settings.refuse_kept_slots('fedproto')

  @property
  def why_not_private(self) -> str | None:
    return (
      'which classes its clients have is in the clear, and the prototype of a'
      ' class with one example is the representation of this example'
    )

  @property
  def why_examples_not_private(self) -> str | None:
    return 'the prototypes that its clients send are not private gradients'

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    return {'prototypes': aggregation.total()}

  def passes(self, rounds: int) -> trainers.Passes:
    # C_i is found after the steps.
    return trainers.Passes(gradients=rounds, losses=rounds)

  def initialize(self, seed: aliases.Seed) -> FedProtoState:
    return FedProtoState(self.model.init(seed), prototypes.nothing(self.model))

  def initialize_client(
    self, seed: aliases.Seed
  ) -> personal_models.PersonalState:
    # Only the shapes matter, before the client's first round.
    zeros = tf.nest.map_structure(tf.zeros_like, self.model.init(seed))
    return personal_models.PersonalState(zeros, 0, ())

  def message(self, server: FedProtoState) -> FedProtoState:
    return server

  def _own_model(
    self, message: FedProtoState, client: trainers.Client
  ) -> models.Weights:
    state = client.state
    return client_work.choose(state.rounds > 0, state.personal, message.model)

  def client(
    self, message: FedProtoState, client: trainers.Client
  ) -> trainers.ClientResult:
    cbar = message.prototypes
    optimizer = self.settings.client_optimizer_at(
      self.settings.client_learning_rate
    )
    learner, loss = client_work.train(
      self.model,
      optimizer.start(self._own_model(message, client)),
      client.data,
      optimizer,
      added=prototypes.pull(self.model, cbar, self.settings.prototype_pull),
    )
    c_i, _ = prototypes.find(self.model, learner.weights, client.data)
    # As all models start alike, none is sent.
    received = vectors.count(cbar)
    everything = received + vectors.count(message.model.values())
    return trainers.ClientResult(
      updates={
        'prototypes': prototypes.sent(c_i, self.settings.prototype_weighting)
      },
      loss=loss,
      state=client.state.advance(learner.weights),
      measured={'share_received': tf.constant(received / everything)},
    )

  def server(
    self,
    server: FedProtoState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> FedProtoState:
    del sums
    total = prototypes.Prototypes(*aggregate['prototypes'])
    return server._replace(
      prototypes=prototypes.renew(server.prototypes, total)
    )

  def start(
    self, message: FedProtoState, client: trainers.Client
  ) -> trainers.Start:
    w = self._own_model(message, client)
    return trainers.Start(w, message=message.prototypes)


@dataclasses.dataclass(frozen=True)
class FedProtoPersonalizerSettings(settings.Settings):
  """No settings."""


@dataclasses.dataclass(frozen=True)
class FedProtoPersonalizer(personalizers.Personalizer):
  """Evaluates both predictions, that of the head and that by prototypes."""

  trainer: FedProto
  settings: FedProtoPersonalizerSettings
  takes_steps = False
  makes_models = False

  def __post_init__(self) -> None:
    if not isinstance(self.trainer, FedProto):
      raise errors.UserError(
        'fedproto personalizes only what fedproto trained.'
      )

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    names = self.trainer.start_name, 'nearest prototype'
    return tuple(candidates.Candidate(text=name) for name in names)

  @property
  def baseline(self) -> int | None:
    return None

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    del client
    nearest = prototypes.Nearest(self.trainer.model)
    pairs = (
      (self.trainer.model, start.weights),
      (nearest, nearest.place(start.weights, start.message)),
    )
    return client_work.stack(
      client_work.evaluate_sets(model, weights, evaluation)
      for model, weights in pairs
    )


registry.register_trainer(
  'fedproto',
  FedProto,
  title='FedProto',
  paper='Tan et al. 2022',
  does=(
    'a model for each client, whose representations of a class are pulled to'
    ' the mean of those of all clients (classes only, and no new clients)'
  ),
  sends='the mean representation of each of its classes, and their counts',
  keeps='its model',
  personalizer='fedproto',
)
registry.register_personalizer(
  'fedproto',
  FedProtoPersonalizer,
  title='FedProto',
  paper='Tan et al. 2022',
  does='predicts by the head, or the class of the nearest prototype',
)
