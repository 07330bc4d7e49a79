"""DBE: each client keeps what is its own of the mean of its representations.

Zhang et al. 2023b ("Eliminating domain bias for federated learning in
representation space"). What clients of different data learn to represent is
biased to their own domain. So client i adds a vector v_i of its own to each
representation z = f(x), for the head h to decide from, and the mean of its z,
a_i, is pulled to that of all clients, zbar:

  the server:  zbar <- sum_i n_i a_i / sum_i n_i, once
  client i:    w_i <- w, a_i <- 0;  for each batch b:
                 a_i <- (1 - mu) a_i + mu (mean of z over b)
                 L <- mean of loss(h(z + v_i)) over b
                        + kappa mean_k 1/2 (a_ik - zbar_k)^2
                 w_i <- w_i - eta grad_w L,  v_i <- v_i - eta grad_v L
               sends w_i - w, and keeps v_i
  the server:  w as in FedAvg

v_i starts at zero, and a_i is a constant in the next step. In the first round,
clients train w without v_i and without zbar, and send only a_i; these models
are discarded. In the paper all clients take part in it; here, those of the
first round that anybody finishes. With kappa = 0 and where v_i stays zero, the
rounds after the first are those of FedAvg.

A client that was never trained on starts at v_i = 0, and can fit it to its
personalization set: `shift_finetuning`.

The authors' code chooses kappa and mu for each data set; PFLlib's defaults
kappa = 0, mu = 0.1 switch the regularization off.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import fedavg
from algorithms import optimizers
from algorithms import personal_models
from algorithms import registry
from algorithms import split
from algorithms import trainers
from algorithms import vectors
from base import aliases
from base import settings
from tasks.models import models

# w_i, v_i, a_i, and the sum of the losses.
_Carry = tuple[optimizers.Learner, models.Weights, tf.Tensor, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class DbeSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and of both memories."""

  mean_regularization: aliases.Number = settings.field(
    50.0,
    'kappa, how strongly the mean representation of a client is pulled to that'
    ' of all clients.',
    minimum=0,
  )
  mean_momentum: aliases.Number = settings.field(
    1.0,
    'mu, how much the mean representation of a batch counts in the running mean'
    ' of a client.',
    above=0,
    maximum=1,
  )
  shift_rate: aliases.Number = settings.field(
    1.0,
    'The learning rate of v_i, which is plain SGD, as a multiple of'
    ' client_learning_rate.',
    minimum=0,
  )


class DbeState(NamedTuple):
  """The server's state.

  Attributes:
    model: The global model, w, with the v_i that all clients start from.
    optimizer: The slots of the server's optimizer of w.
    mean: zbar.
    has_mean: 1 if it is known, else 0.
  """

  model: models.Weights
  optimizer: optimizers.Slots
  mean: tf.Tensor
  has_mean: aliases.Scalar


class DbeMessage(NamedTuple):
  """The message to the clients, see `DbeState`."""

  model: models.Weights
  mean: tf.Tensor
  has_mean: aliases.Scalar


@dataclasses.dataclass(frozen=True)
class Dbe(personal_models.PersonalModels):
  """Trains a model to whose representations each client adds a vector."""

  settings: DbeSettings
  start_name = 'own shift'

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('dbe')
    if models.SHIFT not in self.model.parts:
      object.__setattr__(self, 'model', models.Shifted(self.model))

  @property
  def why_examples_not_private(self) -> str | None:
    return (
      'the pull on the mean representation of a batch depends on all of its'
      ' examples, so that it cannot be clipped by example'
    )

  @property
  def _partition(self) -> split.Partition:
    return split.Partition(self.model, (models.SHIFT,))

  @property
  def personal_names(self) -> tuple[str, ...]:
    return self._partition.personal_names

  @property
  def parts(self) -> dict[str, aggregation.Factory | None]:
    return {'model': None, 'mean': None}

  def initialize(self, seed: aliases.Seed) -> DbeState:
    w, slots = self._partition.initialize(seed, self.settings.server_steps)
    return DbeState(w, slots, tf.zeros_like(w[models.SHIFT]), 0)

  def message(self, server: DbeState) -> DbeMessage:
    return DbeMessage(server.model, server.mean, server.has_mean)

  def client(
    self, message: DbeMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    parts, optimizer = self._partition, self.settings.client_steps
    has_mean = tf.greater(message.has_mean, 0)
    mu, zbar = self.settings.mean_momentum, message.mean
    kappa, rate = (
      tf.where(has_mean, number, 0.0)
      for number in (
        self.settings.mean_regularization,
        self.settings.shift_rate * self.settings.client_learning_rate,
      )
    )

    def step(carry: _Carry, examples: models.Batch, mask: tf.Tensor) -> _Carry:
      learner, v, a, total = carry
      w = client_work.merge(v, learner.weights)
      entries = mask[:, tf.newaxis] * self.model.entry_mask(examples)
      any_examples = tf.reduce_any(mask > 0)
      # Both terms have one representation, which thus is differentiated once.
      with tf.GradientTape() as tape:
        tape.watch(w)
        z = self.model.encode(w, examples)
        loss = models.mean(
          models.loss_given(self.model, w, examples, z),
          mask * self.model.example_weight(examples),
        )
        mean = tf.linalg.matvec(z, tf.reshape(entries, [-1]), transpose_a=True)
        mean = tf.math.divide_no_nan(mean, tf.reduce_sum(entries))
        a = tf.where(any_examples, (1 - mu) * a + mu * mean, a)
        pull = 0.5 * tf.reduce_mean(tf.square(a - zbar))
        objective = loss + tf.where(any_examples, kappa, 0.0) * pull
      slopes = client_work.slopes(tape, objective, w)
      of_w, of_v = parts.select_shared(slopes), parts.select_personal(slopes)
      return (
        client_work.take_step(optimizer, learner, of_w, mask),
        client_work.difference(v, client_work.scale(of_v, rate)),
        a,
        total + loss * tf.reduce_sum(mask),
      )

    before = self.personal_model(message.model, client.state)
    w, v = parts.select_shared(before), parts.select_personal(before)
    learner, v_i, a, loss = client_work.fold_batches(
      client.data,
      step,
      (optimizer.start(w), v, tf.zeros_like(zbar), tf.constant(0.0)),
    )
    delta = client_work.difference(w, learner.weights)
    nothing = client_work.scale(delta, 0.0)
    weight = self.settings.client_weight(client)
    # The models of the first round are discarded, later means are not sent.
    sent = client_work.choose(has_mean, delta, nothing)
    mean = tf.where(has_mean, tf.zeros_like(a), a)
    size, width = map(float, (vectors.count(w.values()), vectors.count([a])))
    return trainers.ClientResult(
      updates={
        'model': aggregation.Update(sent, weight),
        'mean': aggregation.Update(mean, weight),
      },
      loss=loss,
      state=client_work.choose(
        has_mean, client.state.advance(v_i), client.state
      ),
      measured={
        'share_sent': tf.where(has_mean, size, width) / (size + width),
        'share_received': tf.where(has_mean, size + width, size)
        / (size + 2 * width),
      },
    )

  def server(
    self,
    server: DbeState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> DbeState:
    has_mean = tf.greater(server.has_mean, 0)
    before = fedavg.FedAvgState(server.model, server.optimizer)
    steps = self.settings.server_steps
    after = self._partition.step(before, aggregate['model'], steps)
    w, slots = client_work.choose(has_mean, after, before)
    mean = tf.where(has_mean, server.mean, aggregate['mean'])
    finished = has_mean | (sums.num_clients > 0)
    return DbeState(w, slots, mean, tf.cast(finished, tf.int32))

  def start(
    self, message: trainers.Message, client: trainers.Client
  ) -> trainers.Start:
    return super().start(message.model, client)


registry.register_trainer(
  'dbe',
  Dbe,
  title='DBE',
  paper='Zhang et al. 2023b',
  does=(
    'a global model, and for each client a vector that is added to its'
    ' representations, whose mean is pulled to that of all clients; the first'
    ' round only finds this mean'
  ),
  sends=(
    'the mean of its representations in the first round, and later the update'
    ' of the model'
  ),
  keeps='its vector',
  personalizer='shift_finetuning',
)
