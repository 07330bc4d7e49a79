"""Mocha: a model for each client, and how the clients' tasks are related.

Smith et al. 2017, in the primal, as in Motley (appendix C.4.1). With the models
as the rows of W, `[K, d]`, and the relationship Sigma of the K clients' tasks,

  min_(W, Sigma)  sum_k F_k(w_k) + lambda / 2 tr(W^T Sigma W)

is minimized over W and Sigma in turns. In a pass, which is a round here, all
clients step at once, each on its own row, with the other rows as they were
before the pass:

  client k:    for each batch b:
                 w_k <- w_k - eta (grad F_k(w_k; b)
                                   + lambda sum_j Sigma_kj w_j)
               sends its row
  the server:  after every `outer` passes,
                 Sigma <- (W W^T)^(1/2) / tr((W W^T)^(1/2))

from Sigma = I / K on. Eigenvalues of W W^T below 1e-8 are raised to it.

Where Motley has Sigma in the objective, Smith et al. have its inverse, Omega,
which draws related models together rather than apart. `relationship` chooses;
Motley's numbers come from Sigma.

There is no model for a client that was never trained on.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import client_work
from algorithms import jacobi
from algorithms import optimizers
from algorithms import registry
from algorithms import rows
from algorithms import trainers
from algorithms import vectors
from base import aliases
from base import settings
from tasks.models import models

_SMALLEST_EIGENVALUE = 1e-8


@dataclasses.dataclass(frozen=True)
class MochaSettings(optimizers.ClientOptimizerSettings):
  """The settings of Mocha; the defaults are Motley's."""

  client_learning_rate: aliases.Number = settings.field(
    0.01, "The learning rate of the clients' steps.", minimum=0
  )
  regularization: aliases.Number = settings.field(
    1e-3, 'lambda, how much the relationship counts.', minimum=0
  )
  outer: int = settings.field(
    1,
    'The rounds from one update of the relationship to the next.',
    minimum=1,
  )
  relationship: str = settings.field(
    'sigma',
    'The matrix in the objective: Sigma as in Motley, or its inverse as in the'
    ' paper.',
    choices=('sigma', 'inverse'),
  )
  num_clients: int = settings.field(
    0,
    'K, the number of clients to train on; 0 for all that the task has.',
    minimum=0,
  )


def relate(models: tf.Tensor, relationship: str) -> tf.Tensor:
  """Computes Sigma = (W W^T)^(1/2) / trace, or its inverse.

  Args:
    models: W, `[K, d]`.
    relationship: 'sigma', or 'inverse'.

  Returns:
    `[K, K]`.
  """
  num_clients = models.shape[0]
  # In float32, the eigenvalues that are zero would come out larger than 1e-8.
  vectors = jacobi.left_singular(tf.cast(models, tf.float64))
  # The limit for the roots of eigenvalues, which are the singular values of W.
  least = tf.constant(_SMALLEST_EIGENVALUE**0.5, tf.float64)
  roots = tf.maximum(tf.norm(vectors, axis=0), least)
  vectors /= roots
  trace = tf.reduce_sum(roots - least) + num_clients * least

  def compose(some: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Composes a matrix: `vectors` have eigenvalues `some`, others `others`."""
    return others * tf.eye(num_clients, dtype=tf.float64) + tf.matmul(
      vectors * (some - others), vectors, transpose_b=True
    )

  if relationship == 'sigma':
    result = compose(roots, least) / trace
  else:
    result = compose(1 / roots, 1 / least) * trace
  return tf.cast(result, tf.float32)


class MochaState(NamedTuple):
  """The server's state.

  Attributes:
    models: W, `[K, d]`.
    relationship: Sigma, or its inverse, `[K, K]`.
    round: The number of rounds done.
  """

  models: tf.Tensor
  relationship: tf.Tensor
  round: aliases.Scalar


class MochaMessage(NamedTuple):
  """The message to the clients.

  Attributes:
    models: W, `[K, d]`.
    sigma_kk: Sigma_kk of each client, `[K]`.
    others: The sum over j other than k of Sigma_kj w_j, `[K, d]`.
  """

  models: tf.Tensor
  sigma_kk: tf.Tensor
  others: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Mocha(rows.RowTrainer):
  """Trains a model for each client, and how they are related."""

  settings: MochaSettings
  name = 'mocha'

  @property
  def num_clients(self) -> int:
    return self.settings.num_clients

  def initialize(self, seed: aliases.Seed) -> MochaState:
    num_clients = self.num_clients
    is_sigma = self.settings.relationship == 'sigma'
    scale = 1 / num_clients if is_sigma else num_clients
    return MochaState(
      models=self.initial_rows(seed),
      relationship=scale * tf.eye(num_clients),
      round=0,
    )

  def message(self, server: MochaState) -> MochaMessage:
    diagonal = tf.linalg.diag_part(server.relationship)
    weighted = tf.matmul(server.relationship, server.models)
    return MochaMessage(
      server.models,
      diagonal,
      weighted - diagonal[:, tf.newaxis] * server.models,
    )

  def client(
    self, message: MochaMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    row = client.state['row']
    w_k = tf.gather(message.models, row)
    sigma_kk = tf.gather(message.sigma_kk, row)
    others = tf.gather(message.others, row)

    def regularizer(weights: models.Weights) -> tf.Tensor:
      """Computes the terms of lambda / 2 tr(W^T Sigma W) that depend on w_k."""
      w = vectors.join(weights.values())
      return self.settings.regularization * (
        sigma_kk * tf.nn.l2_loss(w) + tf.reduce_sum(others * w)
      )

    optimizer = self.settings.client_optimizer_at(
      self.settings.client_learning_rate
    )
    learner, loss = client_work.train(
      self.model,
      optimizer.start(self.weights(w_k)),
      client.data,
      optimizer,
      regularizer,
    )
    update = w_k - vectors.join(learner.weights.values())
    # A client needs only its own row of what it receives and sends.
    share = tf.constant(1 / self.num_clients)
    return trainers.ClientResult(
      updates={'models': self.put_row(row, update)},
      loss=loss,
      measured={'share_received': share, 'share_sent': share},
    )

  def server(
    self,
    server: MochaState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> MochaState:
    stepped = self.step_rows(server.models, aggregate['models'], sums)
    round_num = server.round + 1
    relationship = tf.cond(
      tf.equal(round_num % self.settings.outer, 0),
      lambda: relate(stepped, self.settings.relationship),
      lambda: server.relationship,
    )
    return MochaState(stepped, relationship, round_num)

  def start(
    self, message: MochaMessage, client: trainers.Client
  ) -> trainers.Start:
    w_k = tf.gather(message.models, client.state['row'])
    return trainers.Start(self.weights(w_k))


registry.register_trainer(
  'mocha',
  Mocha,
  title='MOCHA',
  paper='Smith et al. 2017',
  does=(
    'a model for each client, and how the clients are related (multi-task'
    ' learning in its primal form; cross-silo only)'
  ),
  sends='the update of its own model',
)
