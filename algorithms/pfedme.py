"""pFedMe: personal models that are minima near the global one.

Dinh et al. 2020, algorithm 1. The personal model of client i is the minimum of
its loss, pulled to its local model w_i (their equation 3):

  theta_i(w_i) = argmin_theta F_i(theta) + lambda / 2 ||theta - w_i||^2

  client i:    w_i <- w;  for each batch:
                 theta <- K steps down F_i(theta) + lambda / 2 ||theta - w_i||^2
                 w_i <- w_i - eta lambda (w_i - theta)
  the server:  w <- (1 - beta) w + beta sum_i w_i / S

A client is judged by theta after a pass over its personalization set from w on,
and by w as the baseline. beta is FedAvg's `server_learning_rate`, and the rate
of the K steps its `client_learning_rate`. All clients count the same, unless
`client_weighting` says otherwise. theta begins the K steps where those on the
batch before ended, as in the authors' code.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import fedavg
from algorithms import private_steps
from algorithms import trainers
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class PFedMeSettings(fedavg.FedAvgSettings):
  """The settings of pFedMe; the defaults are the authors' for MNIST."""

  proximal: float = settings.field(
    15.0, 'lambda, how strongly theta is pulled to w_i.', minimum=0
  )
  proximal_steps: int = settings.field(
    5, 'K, the steps down for each batch.', minimum=1
  )
  local_rate: float = settings.field(
    0.005, 'eta, the rate at which w_i follows theta.', minimum=0
  )


@dataclasses.dataclass(frozen=True)
class PFedMe(fedavg.FedAvg):
  """Trains a global model of which personal ones are minima nearby."""

  settings: PFedMeSettings
  start_name = 'theta'
  start_is_shared = False
  shared_name = 'global model'

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('pfedme')

  def _follow(
    self, w: models.Weights, data: batches.ClientData, part: int = 0
  ) -> Any:
    """Returns w_i, theta, and the sum of the examples' losses at theta."""
    own = self.settings

    def step(carry: Any, examples: models.Batch, mask: tf.Tensor) -> Any:
      w_i, theta, total, number = carry
      pull = client_work.pull(w_i, own.proximal)
      learner = own.client_steps.start(theta)
      for k in range(own.proximal_steps):
        gradient, loss = client_work.gradient(
          private_steps.at(self.model, part=part, step=number + k),
          learner.weights,
          examples,
          mask,
          pull,
        )
        learner = own.client_steps.step(learner, gradient)
      rate = own.local_rate * own.proximal * tf.sign(tf.reduce_sum(mask))
      w_i = tf.nest.map_structure(
        lambda w, theta: w - rate * (w - theta), w_i, learner.weights
      )
      total += loss * tf.reduce_sum(mask)
      return w_i, learner.weights, total, number + own.proximal_steps

    start = (w, w, tf.constant(0.0), 0)
    w_i, theta, total, _ = client_work.fold_batches(data, step, start)
    return w_i, theta, total

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    w_i, _, loss = self._follow(message, client.data)
    update = aggregation.Update(
      client_work.difference(message, w_i),
      self.settings.client_weight(client),
    )
    return trainers.ClientResult({'model': update}, loss)

  def start(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.Start:
    _, theta, _ = self._follow(message, client.data, private_steps.START)
    return trainers.Start(theta, shared=message)
