"""FedAMP: the server mixes models that are near, for each client.

Huang et al. 2021 ("Personalized cross-silo federated learning on non-IID
data"), algorithm 1, for m clients with models w_i. In a round, with the models
of the round before,

  the server:  xi_ij <- alpha A'(||w_i - w_j||^2) for j other than i,
               where A(x) = 1 - e^(-x / sigma), so that
               xi_ij = (alpha / sigma) e^(-||w_i - w_j||^2 / sigma)
               u_i <- (1 - sum_j xi_ij) w_i + sum_j xi_ij w_j               (5)
  client i:    w_i <- argmin_w F_i(w) + lambda / (2 alpha) ||w - u_i||^2    (7)

with a step for each batch in the place of the argmin. So models that are near
draw each other nearer. The server sees the models; a client sees only its u_i.
With sigma far above all distances and alpha / sigma = 1 / m, u_i is the mean of
all models, and this is FedProx, or MR-MTL if the steps start at w_i.

The paper leaves open where the steps start. Here they start at u_i; PFLlib's
start at w_i (`steps_from=own`). The paper lowers alpha while it trains. PFLlib
has the norm in (7) instead of its square, and by default alpha = sigma = 1, so
that e^(-||w_i - w_j||^2) is about zero: then it is local training.

There is no model for a client that was never trained on.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import client_work
from algorithms import optimizers
from algorithms import registry
from algorithms import rows
from algorithms import trainers
from algorithms import vectors
from base import aliases
from base import settings


@dataclasses.dataclass(frozen=True)
class FedAmpSettings(optimizers.ClientOptimizerSettings):
  """The settings of FedAMP; the defaults are those of the paper's start."""

  attraction: aliases.Number = settings.field(
    1e4,
    'alpha; models that are equal attract each other by alpha / sigma.',
    above=0,
  )
  attraction_width: aliases.Number = settings.field(
    1e6,
    'sigma, the squared distance at which the attraction of two models has'
    ' fallen to 1/e.',
    above=0,
  )
  regularization: aliases.Number = settings.field(
    1.0,
    "lambda; a client's model is pulled to its mixture by lambda / alpha.",
    minimum=0,
  )
  steps_from: str = settings.field(
    'mixture',
    "Whether a client's steps start at its mixture, or at its own model, as in"
    ' PFLlib.',
    choices=('mixture', 'own'),
  )
  num_clients: int = settings.field(
    0,
    'm, the number of clients to train on; 0 for all that the task has.',
    minimum=0,
  )


class FedAmpState(NamedTuple):
  """The server's state: the models w_i, `[m, d]`."""

  models: tf.Tensor


class FedAmpMessage(NamedTuple):
  """The message to the clients.

  Attributes:
    models: w, `[m, d]`.
    mixtures: u, `[m, d]`.
  """

  models: tf.Tensor
  mixtures: tf.Tensor


def mix(
  w: tf.Tensor, alpha: aliases.Number, sigma: aliases.Number
) -> tf.Tensor:
  """Returns u, given the models, `[m, d]`."""
  # The square of a difference loses digits where models are near.
  doubles = tf.cast(w, tf.float64)
  products = tf.matmul(doubles, doubles, transpose_b=True)
  squares = tf.linalg.diag_part(products)
  away = squares[:, tf.newaxis] + squares - 2 * products
  away = tf.cast(tf.maximum(away, 0), tf.float32)
  xi = alpha / sigma * tf.exp(-away / sigma)
  xi = tf.linalg.set_diag(xi, tf.zeros(w.shape[:1]))
  own = 1 - tf.reduce_sum(xi, axis=1, keepdims=True)
  return own * w + tf.matmul(xi, w)


@dataclasses.dataclass(frozen=True)
class FedAmp(rows.RowTrainer):
  """Trains a model for each client, pulled to a mixture of those alike."""

  settings: FedAmpSettings
  name = 'fedamp'

  @property
  def num_clients(self) -> int:
    return self.settings.num_clients

  def initialize(self, seed: aliases.Seed) -> FedAmpState:
    return FedAmpState(self.initial_rows(seed))

  def message(self, server: FedAmpState) -> FedAmpMessage:
    u = mix(
      server.models, self.settings.attraction, self.settings.attraction_width
    )
    return FedAmpMessage(server.models, u)

  def client(
    self, message: FedAmpMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    row = client.state['row']
    w_i, u_i = (tf.gather(of_all, row) for of_all in message)
    from_mixture = self.settings.steps_from == 'mixture'
    optimizer = self.settings.client_optimizer_at(
      self.settings.client_learning_rate
    )
    learner, loss = client_work.train(
      self.model,
      optimizer.start(self.weights(u_i if from_mixture else w_i)),
      client.data,
      optimizer,
      client_work.pull(
        self.weights(u_i),
        self.settings.regularization / self.settings.attraction,
      ),
    )
    # It has w_i, and receives only its u_i.
    m = self.num_clients
    return trainers.ClientResult(
      updates={
        'models': self.put_row(
          row, w_i - vectors.join(learner.weights.values())
        )
      },
      loss=loss,
      measured={
        'share_received': tf.constant(1 / (2 * m)),
        'share_sent': tf.constant(1 / m),
      },
    )

  def server(
    self,
    server: FedAmpState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> FedAmpState:
    return FedAmpState(self.step_rows(server.models, aggregate['models'], sums))

  def start(
    self, message: FedAmpMessage, client: trainers.Client
  ) -> trainers.Start:
    w_i = tf.gather(message.models, client.state['row'])
    return trainers.Start(self.weights(w_i))


registry.register_trainer(
  'fedamp',
  FedAmp,
  title='FedAMP',
  paper='Huang et al. 2021',
  does=(
    'a model for each client, pulled to a mixture of the models that are near'
    ' it (cross-silo only)'
  ),
  sends='the update of its own model',
  keeps='its model',
)
