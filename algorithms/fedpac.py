"""FedPAC: representations are aligned by prototypes, and heads are combined.

Xu et al. 2023 ("Personalized federated learning with feature alignment and
classifier collaboration"), algorithm 1. The encoder f is shared. Each client i
has a head of its own, which the server makes of the heads of clients whose
representations of the classes are alike. In a round,

  client i:    mu_c, s_c <- mean of z and of ||z||^2 over its examples of class
                 c, with z = f(x), and p_c <- the share of the class
               H_ic <- p_c mu_c
               V_i <- (sum_c p_c s_c - p_c^2 ||mu_c||^2) / n_i
               steps on the head, with f fixed
               steps on f, with the head fixed, down the mean over a batch of
                 loss(x, y) + lambda mean_k (z_k - P_yk)^2
               C_ic <- mean of z over the class, with the new f
               sends f, its head, the C_ic and their counts, H_i and V_i
  the server:  f as the model in FedAvg
               P_c <- mean of the C_ic by their counts
               head_i <- sum_j a_ij head_j over the clients of the round, where
                 a_i = argmin_a a^T (diag V + D_i) a, a >= 0, sum_j a_j = 1,
                 D_ijk = sum_c <H_ic - H_jc, H_ic - H_kc>

This bounds the error of head_i by a variance, V, and a bias, D: clients that
are alike get the mean of their heads by 1 / V, and one that is far from all
others keeps its own. A share a_ij below .001 becomes 0, as in the authors'
code, and those that are left add up to 1 again. A class without a prototype
pulls nothing, where the authors' code pulls to the client's own mean. Without
the combination (`combine_heads=false`) and with lambda = 0, this is FedRep.

In the paper, a round has an epoch of steps on the head and five on the encoder.
A client that was never trained on starts at the initial head, and trains it on
the fixed encoder: `head_finetuning`.
"""

from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import fedavg
from algorithms import optimizers
from algorithms import prototypes
from algorithms import registry
from algorithms import split
from algorithms import trainers
from algorithms import vectors
from base import aliases
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import models

# The share below which a head is left out.
_LEAST_SHARE = 1e-3
# The combination has converged when no other shares can lower the objective by
# more than this part of it.
_GAP = 1e-10
_MOST_STEPS = 5_000


@dataclasses.dataclass(frozen=True)
class FedPacSettings(prototypes.PrototypeSettings, fedavg.FedAvgSettings):
  """The settings of FedAvg, for the encoder, of prototypes, and of heads."""

  client_learning_rate: aliases.Number = settings.redefine(
    fedavg.FedAvgSettings, 'client_learning_rate', 0.01
  )
  head_learning_rate: aliases.Number = settings.field(
    0.1, 'The learning rate of the steps on the head.', minimum=0
  )
  head_epochs: int = settings.field(
    1, "The head's passes over the examples of a round.", minimum=1
  )
  encoder_epochs: int = settings.field(
    5, "The encoder's passes over the examples of a round.", minimum=1
  )
  combine_heads: bool = settings.field(
    True, 'Whether heads are combined; if not, each client keeps its own.'
  )
  num_clients: int = settings.field(
    0,
    'The number of clients to train on; 0 for all that the task has.',
    minimum=0,
  )


class FedPacState(NamedTuple):
  """The server's state.

  Attributes:
    model: The encoder, and the head that new clients start from.
    optimizer: The slots of the server's optimizer of the encoder.
    prototypes: P.
    heads: The head of each client for its next round, `[m, d]`.
  """

  model: models.Weights
  optimizer: optimizers.Slots
  prototypes: prototypes.Prototypes
  heads: tf.Tensor


class FedPacMessage(NamedTuple):
  """The message to the clients, see `FedPacState`."""

  model: models.Weights
  prototypes: prototypes.Prototypes
  heads: tf.Tensor


class FedPacClientState(NamedTuple):
  """A client's state: the number of its row, and that of its rounds."""

  row: aliases.Scalar
  rounds: aliases.Scalar


class Rows(NamedTuple):
  """The rows of clients, which are zeros for all but its own, or their sum.

  Attributes:
    heads: The head, `[m, d]`.
    h: H, `[m, C K]`.
    v: V, `[m]`.
    present: 1 for a client of the round, `[m]`.
  """

  heads: tf.Tensor
  h: tf.Tensor
  v: tf.Tensor
  present: tf.Tensor


def _project(a: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
  """Returns the nearest shares of those present, in each row of a.

  Michelot 1986: what is above 1 is taken off all entries alike, and those that
  fall below 0 are left out, until none does.
  """

  def excess(kept: tf.Tensor) -> tf.Tensor:
    total = tf.reduce_sum(kept * a, axis=1, keepdims=True) - 1
    return total / tf.reduce_sum(kept, axis=1, keepdims=True)

  def leave_out(kept: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    fewer = kept * tf.cast(a > excess(kept), a.dtype)
    return fewer, tf.reduce_any(fewer < kept)

  every = tf.ones_like(a) * tf.cast(present, a.dtype)
  kept, _ = tf.while_loop(lambda _, goes_on: goes_on, leave_out, (every, True))
  return kept * tf.maximum(a - excess(kept), 0)


def combine(h: tf.Tensor, v: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
  """Finds the shares a of all clients, `[m, m]`, by accelerated gradients.

  Args:
    h: H, `[m, C K]`.
    v: V, `[m]`.
    present: Whether each client is in the round, `[m]`; others have no share.
  """
  h, v = (tf.cast(value, tf.float64) for value in (h, v))
  products = tf.matmul(h, h, transpose_b=True)
  own = tf.linalg.diag_part(products)
  # D_i of each client, only for a bound on the largest eigenvalue.
  bias = own[:, tf.newaxis, tf.newaxis] - products[:, :, tf.newaxis]
  bias = bias - products[:, tf.newaxis] + products
  bound = tf.reduce_max(
    tf.reduce_sum(tf.abs(bias + tf.linalg.diag(v)), axis=2), axis=1
  )[:, tf.newaxis]

  def slope(a: tf.Tensor) -> tf.Tensor:
    """Returns (diag V + D_i) a_i of all clients, as sum_j a_ij = 1."""
    of_own = own - tf.reduce_sum(products * a, axis=1)
    return of_own[:, tf.newaxis] - products + tf.matmul(a, products) + a * v

  def goes_on(i: tf.Tensor, a: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
    of_a = slope(a)
    value = tf.reduce_sum(a * of_a, axis=1)
    least = tf.reduce_min(tf.where(present, of_a, tf.float64.max), axis=1)
    wrong = present & (value - least > _GAP * value)
    return (i < _MOST_STEPS) & tf.reduce_any(wrong)

  def step(
    i: tf.Tensor, a: tf.Tensor, ahead: tf.Tensor, t: tf.Tensor
  ) -> tuple[tf.Tensor, ...]:
    of_ahead = slope(ahead)
    new = _project(ahead - tf.math.divide_no_nan(of_ahead, bound), present)
    # Momentum starts anew where it leads uphill.
    uphill = tf.reduce_sum(of_ahead * (new - a), axis=1, keepdims=True) > 0
    t = tf.where(uphill, tf.ones_like(t), t)
    after = (1 + tf.sqrt(1 + 4 * t**2)) / 2
    return i + 1, new, new + (t - 1) / after * (new - a), after

  shares = tf.ones_like(products) / tf.cast(tf.shape(v)[0], v.dtype)
  first = _project(shares, present)
  ones = tf.ones_like(shares[:, :1])
  _, a, _, _ = tf.while_loop(goes_on, step, (0, first, first, ones))
  a = tf.where(a < _LEAST_SHARE, tf.zeros_like(a), a)
  a = tf.math.divide_no_nan(a, tf.reduce_sum(a, axis=1, keepdims=True))
  return tf.cast(a, tf.float32)


def _repeat(data: batches.ClientData, epochs: int) -> batches.ClientData:
  return data._replace(
    indices=tf.tile(data.indices, [epochs, 1]),
    mask=tf.tile(data.mask, [epochs, 1]),
  )


@dataclasses.dataclass(frozen=True)
class FedPac(fedavg.FedAvg):
  """Trains an encoder, and for each client a head that others help to make."""

  settings: FedPacSettings
  start_name = 'own head'
  start_is_shared = False

  def __post_init__(self) -> None:
    prototypes.check(self.model, 'fedpac')
    self._partition.check()
    self.settings.refuse_kept_slots('fedpac')
    if not self.settings.num_clients:
      raise errors.UserError(
        'fedpac needs the number of clients to train on, num_clients.'
      )

  @property
  def _partition(self) -> split.Partition:
    return split.Partition(self.model, (models.HEAD,))

  @property
  def why_not_private(self) -> str | None:
    return (
      'the server compares what each client says of its classes, and mixes the'
      ' heads of single clients'
    )

  @property
  def why_examples_not_private(self) -> str | None:
    return 'the prototypes that its clients send are not private gradients'

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    total = aggregation.total()
    return {'model': None, 'prototypes': total, 'rows': total}

  def passes(self, rounds: int) -> trainers.Passes:
    gradients = self.settings.head_epochs + self.settings.encoder_epochs
    # H and V are found before these, C after them.
    return trainers.Passes(gradients * rounds, losses=2 * rounds)

  def initialize(self, seed: aliases.Seed) -> FedPacState:
    w, slots = self._partition.initialize(seed, self.settings.server_steps)
    size = vectors.count(self._partition.select_personal(w).values())
    return FedPacState(
      w,
      slots,
      prototypes.nothing(self.model),
      tf.zeros([self.settings.num_clients, size]),
    )

  def initialize_client(self, seed: aliases.Seed) -> FedPacClientState:
    return FedPacClientState(seed[1], 0)

  def message(self, server: FedPacState) -> FedPacMessage:
    return FedPacMessage(server.model, server.prototypes, server.heads)

  def _received(
    self, message: FedPacMessage, client: trainers.Client
  ) -> models.Weights:
    """Returns the encoder, with the head that the server made for a client."""
    first = self._partition.select_personal(message.model)
    # There is no row for clients that are never trained on.
    row = tf.minimum(client.state.row, self.settings.num_clients - 1)
    head = vectors.split_weights(tf.gather(message.heads, row), first)
    head = client_work.choose(client.state.rounds > 0, head, first)
    return client_work.merge(message.model, head)

  def _rows(
    self,
    w: models.Weights,
    head: models.Weights,
    client: trainers.Client,
  ) -> Rows:
    """Returns what a client says of its classes by w, and its head."""
    (mu, counts), s = prototypes.find(self.model, w, client.data)
    p = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))[:, tf.newaxis]
    h = p * mu
    v = tf.reduce_sum(p[:, 0] * s) - tf.reduce_sum(tf.square(h))
    v = tf.math.divide_no_nan(v, client_work.num_distinct_examples(client.data))
    own = tf.one_hot(client.state.row, self.settings.num_clients)
    return Rows(
      own[:, tf.newaxis] * vectors.join(head.values()),
      own[:, tf.newaxis] * tf.reshape(h, [-1]),
      own * v,
      own,
    )

  def client(
    self, message: FedPacMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    parts, given = self._partition, self.settings
    received = self._received(message, client)
    w, head_names = received, parts.personal_names
    model, (data,) = client_work.represent_once(
      self.model, w, head_names, [client.data]
    )
    optimizer = given.client_optimizer_at(given.head_learning_rate)
    learner, _ = client_work.train(
      model,
      optimizer.start(parts.select_personal(w)),
      _repeat(data, given.head_epochs),
      optimizer,
      fixed=w,
    )
    w = client_work.merge(w, learner.weights)
    learner, loss = client_work.train(
      self.model,
      given.client_steps.start(parts.select_shared(w)),
      _repeat(client.data, given.encoder_epochs),
      given.client_steps,
      fixed=w,
      added=prototypes.pull(
        self.model, message.prototypes, given.prototype_pull
      ),
    )
    w = client_work.merge(w, learner.weights)
    found, _ = prototypes.find(self.model, w, client.data)
    result = self.result(
      parts.select_shared(received),
      learner.weights,
      loss / given.encoder_epochs,
      client.state._replace(rounds=client.state.rounds + 1),
      client,
    )
    rows = self._rows(received, parts.select_personal(w), client)
    updates = {
      **result.updates,
      'prototypes': prototypes.sent(found, given.prototype_weighting),
      'rows': aggregation.Update(rows),
    }
    return result._replace(
      updates=updates, measured=self._shares(message, updates)
    )

  def _shares(
    self,
    message: FedPacMessage,
    updates: Mapping[str, aggregation.Update],
  ) -> Mapping[str, tf.Tensor]:
    """Returns the share of all rows, and of messages, that a client needs."""
    m = self.settings.num_clients

    def size(structure: aliases.Structure) -> int:
      return vectors.count(tf.nest.flatten(structure))

    rows = size(updates['rows'].value)
    encoder = self._partition.select_shared(message.model)
    # Of the model a client needs the encoder; its head is that of new clients.
    needed = size((encoder, message.prototypes)) + size(message.heads) / m
    others = size([part.value for part in updates.values()]) - rows
    return {
      'share_received': tf.constant(needed / size(message)),
      'share_sent': tf.constant((others + rows / m) / (others + rows)),
    }

  def server(
    self,
    server: FedPacState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> FedPacState:
    del sums
    w, slots = self._partition.step(
      fedavg.FedAvgState(server.model, server.optimizer),
      aggregate['model'],
      self.settings.server_steps,
    )
    rows = Rows(*aggregate['rows'])
    present = rows.present > 0
    heads = rows.heads
    if self.settings.combine_heads:
      heads = tf.matmul(combine(rows.h, rows.v, present), heads)
    return FedPacState(
      w,
      slots,
      prototypes.renew(
        server.prototypes, prototypes.Prototypes(*aggregate['prototypes'])
      ),
      tf.where(present[:, tf.newaxis], heads, server.heads),
    )

  def start(
    self, message: trainers.Message, client: trainers.Client
  ) -> trainers.Start:
    return trainers.Start(self._received(message, client))


registry.register_trainer(
  'fedpac',
  FedPac,
  title='FedPAC',
  paper='Xu et al. 2023',
  does=(
    'a shared encoder, whose representations of a class are pulled to the mean'
    ' of those of all clients, and a head for each client, which the server'
    ' combines of the heads of clients that are alike (classes only)'
  ),
  sends=(
    'the update of the encoder, its head, the mean representation of each of'
    ' its classes before and after its steps, their counts, and a variance'
  ),
  personalizer='head_finetuning',
  small={'encoder_epochs': 2},
)
