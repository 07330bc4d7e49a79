r"""A method of one's own: FedExP, beside FedAvg and fine-tuning.

Jhunjhunwala, Wang and Joshi 2023, "FedExP: Speeding up federated averaging via
extrapolation". The more the updates of clients differ in direction, the shorter
is their mean, and the farther the server steps along it, their equation (3):

  client k:    Delta_k <- w - w_k, after a step for each batch from w on
  the server:  eta <- max(1, sum_k ||Delta_k||^2
                             / (2 M (||Delta||^2 + epsilon)))
               w <- w - eta Delta

for the mean Delta of the updates of the M clients of a round. If all updates
are equal, this is FedAvg.

  ./bazelw run //experiments:run -- --set modules=examples.fedexp \
      --algorithm=fedavg,finetuning,fedexp
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import optimizers
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import settings
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class FedExpSettings(optimizers.ClientOptimizerSettings):
  """The settings of FedExP."""

  epsilon: aliases.Number = settings.field(
    1e-3, 'epsilon, which bounds the step where updates cancel.', minimum=0
  )


class FedExpState(NamedTuple):
  """The server's state.

  Attributes:
    model: The global model, w.
  """

  model: models.Weights


@dataclasses.dataclass(frozen=True)
class FedExp(trainers.Trainer):
  """Trains one global model."""

  settings: FedExpSettings

  @property
  def why_not_private(self) -> str | None:
    return "its step depends on the norms of clients' updates"

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('fedexp')

  def initialize(self, seed: aliases.Seed) -> FedExpState:
    return FedExpState(self.model.init(seed))

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    optimizer = self.settings.client_optimizer_at(
      self.settings.client_learning_rate
    )
    learner, loss = client_work.train(
      self.model, optimizer.start(message), client.data, optimizer
    )
    delta = client_work.difference(message, learner.weights)
    return trainers.ClientResult(
      updates={'model': aggregation.Update(delta)},
      loss=loss,
      # The server is given the sum, and the metrics have the mean.
      measured={'half_square': client_work.half_square(delta)},
    )

  def server(
    self,
    server: FedExpState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> FedExpState:
    delta = aggregate['model']
    square = 2 * client_work.half_square(delta)
    eta = tf.math.divide_no_nan(
      sums.measured['half_square'],
      sums.num_clients * (square + self.settings.epsilon),
    )
    step = client_work.scale(delta, tf.maximum(eta, 1.0))
    return FedExpState(client_work.difference(server.model, step))


registry.register_trainer(
  'fedexp',
  FedExp,
  title='FedExP',
  paper='Jhunjhunwala et al. 2023',
  does='one global model; the server steps farther where updates differ',
  sends='the update of the model, and its norm',
)
