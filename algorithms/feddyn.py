"""FedDyn: clients are regularized such that their minima are the common one.

Acar et al. 2021 ("Federated learning based on dynamic regularization"),
algorithm 1. Local minima are not those of all clients together. So client k is
given a linear term, whose g_k it keeps, such that at the common minimum theta
it stays there:

  client k:    theta_k <- argmin_theta F_k(theta) - <g_k, theta>
                            + alpha / 2 ||theta - theta^(t-1)||^2
               g_k <- g_k - alpha (theta_k - theta^(t-1))
  the server:  h <- h - alpha / m sum_k (theta_k - theta^(t-1))
               theta^t <- mean of the theta_k - h / alpha

for m clients in all, with a step for each batch in the place of the argmin. All
clients count the same. Once it has converged, g_k is the gradient of F_k at
theta, and h is zero.

In the authors' code alpha is larger for clients with fewer examples, gradients
are clipped to 10, weights decay, and the mean of the last models of all clients
is judged as well.
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
from base import errors
from base import settings
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class FedDynSettings(optimizers.ClientOptimizerSettings):
  """The settings of FedDyn."""

  alpha: aliases.Number = settings.field(
    0.01,
    'alpha, how strongly clients are regularized; in the paper .01 to .1.',
    above=0,
  )
  num_clients: int = settings.field(
    0,
    "m, the number of clients to train on; 0 for that of the task's.",
    minimum=0,
  )


class FedDynState(NamedTuple):
  """The server's state.

  Attributes:
    model: The global model, theta.
    h: The mean of what the clients' gradients at theta add up to.
  """

  model: models.Weights
  h: models.Weights


@dataclasses.dataclass(frozen=True)
class FedDyn(trainers.Trainer):
  """Trains one global model."""

  settings: FedDynSettings

  def __post_init__(self) -> None:
    if not self.settings.num_clients:
      raise errors.UserError(
        'feddyn needs the number of clients to train on, num_clients.'
      )
    self.settings.refuse_kept_slots('feddyn')

  def initialize(self, seed: aliases.Seed) -> FedDynState:
    theta = self.model.init(seed)
    return FedDynState(theta, tf.nest.map_structure(tf.zeros_like, theta))

  def initialize_client(self, seed: aliases.Seed) -> models.Weights:
    return tf.nest.map_structure(tf.zeros_like, self.model.init(seed))

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    g_k = client.state

    def regularizer(theta: models.Weights) -> tf.Tensor:
      linear = sum(tf.reduce_sum(g_k[name] * theta[name]) for name in theta)
      distance = client_work.difference(theta, message)
      return self.settings.alpha * client_work.half_square(distance) - linear

    optimizer = self.settings.client_optimizer_at(
      self.settings.client_learning_rate
    )
    learner, loss = client_work.train(
      self.model, optimizer.start(message), client.data, optimizer, regularizer
    )
    delta = client_work.difference(message, learner.weights)
    return trainers.ClientResult(
      updates={'model': aggregation.Update(delta)},
      loss=loss,
      state=tf.nest.map_structure(
        lambda g, d: g + self.settings.alpha * d, g_k, delta
      ),
    )

  def server(
    self,
    server: FedDynState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> FedDynState:
    delta, alpha = aggregate['model'], self.settings.alpha
    share = sums.num_clients / self.settings.num_clients
    h = tf.nest.map_structure(
      lambda old, d: old + alpha * share * d, server.h, delta
    )
    theta = tf.nest.map_structure(
      lambda old, d, h: old - d - h / alpha, server.model, delta, h
    )
    # Where no update arrived there is no mean to start from.
    return client_work.choose(
      sums.num_clients > 0, FedDynState(theta, h), server
    )


registry.register_trainer(
  'feddyn',
  FedDyn,
  title='FedDyn',
  paper='Acar et al. 2021',
  does='one global model; a client keeps a term that aligns its minimum',
  sends='the update of the model',
  keeps='the gradient of its last model, g_k',
)
