"""APFL: each client mixes a model of its own with the global one.

Deng et al. 2020 ("Adaptive personalized federated learning"), algorithm 1. A
client uses v_bar = alpha v + (1 - alpha) w. In a round,

  client i:    w_i <- w;  for each batch b:
                 w_i <- w_i - eta grad f_i(w_i; b)
                 v_i <- v_i - eta alpha_i grad f_i(v_bar_i; b)
                 alpha_i <- alpha_i
                            - eta_alpha <v_i - w_i, grad f_i(v_bar_i; b)>
               sends w_i - w, and keeps v_i
  the server:  as in FedAvg

where v_bar_i = alpha_i v_i + (1 - alpha_i) w_i, and all three steps start from
the values before the batch. The second step descends the derivative of
f_i(v_bar_i) by v_i, hence its factor alpha_i; the third descends the derivative
by alpha_i, which is clipped to [0, 1]. In the paper eta_alpha is eta; with
zero, the default, alpha is the same for all clients and rounds. In the authors'
code (FedTorch) alpha_i steps at the first batch of a round only, by

  alpha_i <- alpha_i
             - eta_alpha (<v_i - w_i, grad f_i(v_bar_i; b)> + .02 alpha_i)

With alpha = 0 this is FedAvg, and with alpha = 1 local training. v_i starts as
the w of the client's first round. A client that was never trained on has the
global model for both, and thus as its mixture.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import client_work
from algorithms import fedavg
from algorithms import optimizers
from algorithms import personal_models
from algorithms import registry
from algorithms import trainers
from algorithms.privacy import private_steps
from base import aliases
from base import settings
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class ApflSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and of the mixture."""

  mixture: aliases.Number = settings.field(
    0.5,
    'alpha, the share of the personal model in the mixture, at the start.',
    minimum=0,
    maximum=1,
  )
  mixture_learning_rate: aliases.Number = settings.field(
    0.0, 'The rate at which each client adapts its alpha.', minimum=0
  )
  mixture_batches: str = settings.field(
    'all',
    'The batches of a round at which alpha is adapted: all, or the first, as in'
    " the authors' code.",
    choices=('all', 'first'),
  )
  mixture_decay: aliases.Number = settings.field(
    0.0,
    "What is added to the derivative by alpha, over alpha; the authors' code"
    ' has 0.02.',
    minimum=0,
  )


class ApflClientState(NamedTuple):
  """A client's state.

  Attributes:
    personal: Its personal model, v_i.
    rounds: The number of rounds that it took part in.
    alpha: Its alpha_i.
  """

  personal: models.Weights
  rounds: aliases.Scalar
  alpha: aliases.Scalar


# w, v, alpha, the sum of the losses, and the number of the step.
_Carry = tuple[
  optimizers.Learner, optimizers.Learner, tf.Tensor, tf.Tensor, tf.Tensor
]


def mix(
  alpha: tf.Tensor, v: models.Weights, w: models.Weights
) -> models.Weights:
  """Returns alpha v + (1 - alpha) w."""
  return tf.nest.map_structure(
    lambda personal, shared: alpha * personal + (1 - alpha) * shared, v, w
  )


@dataclasses.dataclass(frozen=True)
class Apfl(personal_models.PersonalModels):
  """Trains a global model, and for each client one to mix it with."""

  settings: ApflSettings
  start_name = 'mixed model'

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('apfl')

  def initialize_client(self, seed: aliases.Seed) -> ApflClientState:
    state = super().initialize_client(seed)
    return ApflClientState(state.personal, state.rounds, 0.0)

  def _alpha(self, state: ApflClientState) -> tf.Tensor:
    return tf.where(state.rounds > 0, state.alpha, self.settings.mixture)

  def passes(self, rounds: int) -> trainers.Passes:
    return trainers.Passes(gradients=2 * rounds)

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    state, optimizer = client.state, self.settings.client_steps
    first = client_work.places_of_batches(client.data)[0][0]

    def step(carry: _Carry, examples: models.Batch, mask: tf.Tensor) -> _Carry:
      w, v, alpha, total, number = carry
      model, model_of_mixed = (
        private_steps.mark(self.model, part=part, step=number)
        for part in range(2)
      )
      of_w, loss = client_work.gradient(model, w.weights, examples, mask)
      mixed = mix(alpha, v.weights, w.weights)
      of_mixed, _ = client_work.gradient(model_of_mixed, mixed, examples, mask)
      of_v = client_work.scale(of_mixed, alpha)
      away = client_work.difference(v.weights, w.weights)
      of_alpha = tf.add_n(
        [tf.reduce_sum(away[name] * of_mixed[name]) for name in away]
      )
      adapts = tf.reduce_any(mask > 0)
      if self.settings.mixture_batches == 'first':
        adapts &= tf.equal(number, first)
      rate = self.settings.mixture_learning_rate * tf.cast(adapts, tf.float32)
      of_alpha += self.settings.mixture_decay * alpha
      return (
        client_work.take_step(optimizer, w, of_w, mask),
        client_work.take_step(optimizer, v, of_v, mask),
        tf.clip_by_value(alpha - rate * of_alpha, 0.0, 1.0),
        total + loss * tf.reduce_sum(mask),
        number + 1,
      )

    w, v, alpha, loss, _ = client_work.fold_batches(
      client.data,
      step,
      (
        optimizer.start(message),
        optimizer.start(self.personal_model(message, state)),
        self._alpha(state),
        tf.constant(0.0),
        0,
      ),
    )
    state = ApflClientState(v.weights, state.rounds + 1, alpha)
    return self.result(message, w.weights, loss, state, client)

  def start(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.Start:
    alpha = self._alpha(client.state)
    mixed = mix(alpha, self.personal_model(message, client.state), message)
    return trainers.Start(mixed, shared=message, measured={'alpha': alpha})


registry.register_trainer(
  'apfl',
  Apfl,
  title='APFL',
  paper='Deng et al. 2020',
  does=(
    'a global model, and a personal one for each client that is mixed with it;'
    " the personal model's share, mixture, is fixed, or adapted by each client"
  ),
  sends='the update of the global model',
  keeps='its personal model, and the share of it',
  small={'mixture_learning_rate': 0.1},
)
