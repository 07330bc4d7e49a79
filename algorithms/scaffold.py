"""SCAFFOLD: FedAvg with control variates against the drift of clients.

Karimireddy et al. 2020, algorithm 1, with option II for the new c_i. The server
has x and c, client i keeps c_i, all controls start at zero, and in a round with
clients S of N

  client i:    y_i <- x;  for each of K batches:
                 y_i <- y_i - eta_l (g_i(y_i) - c_i + c)
               c_i+ <- c_i - c + (x - y_i) / (K eta_l)
               sends y_i - x and c_i+ - c_i, and keeps c_i+
  the server:  x <- x + eta_g mean_S (y_i - x)
               c <- c + |S| / N mean_S (c_i+ - c_i),  which is mean_N c_i

eta_g is FedAvg's `server_learning_rate`; its other server optimizers can be
used, too.

In the paper all clients count the same. Where they count by their examples, as
by default in FedAvg, c is sum_i n_i c_i / sum_i n_i, like the mean gradient;
for clients that were in no round yet, n_i is assumed to be the mean of the
others. An aggregator that does not weight needs `client_weighting=uniform`, and
so does privacy: then |S| is the number of clients that a round is expected to
have, and c has the noise of all rounds so far.

In the first round, this is FedAvg. A client whose K eta_l is zero keeps its
c_i.
"""

from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import fedavg
from algorithms import optimizers
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import errors
from base import settings
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class ScaffoldSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and the number of clients."""

  num_clients: int = settings.field(
    0,
    'N, the number of clients to train on; 0 for all that the task has.',
    minimum=0,
  )


class ScaffoldState(NamedTuple):
  """The server's state.

  Attributes:
    model: The global model, x.
    optimizer: The slots of the server's optimizer.
    controls: The sum of n_i c_i.
    known: The number of clients that were in a round; N if all count the same.
    known_weight: The sum of their n_i.
  """

  model: models.Weights
  optimizer: optimizers.Slots
  controls: models.Weights
  known: aliases.Scalar
  known_weight: aliases.Scalar


class ScaffoldMessage(NamedTuple):
  """The message to the clients: x and c."""

  model: models.Weights
  control: models.Weights


class ScaffoldClientState(NamedTuple):
  """A client's state.

  Attributes:
    control: c_i.
    rounds: The number of rounds that it took part in.
  """

  control: models.Weights
  rounds: aliases.Scalar


@dataclasses.dataclass(frozen=True)
class Scaffold(fedavg.FedAvg):
  """Trains one global model by steps that are corrected for client drift."""

  settings: ScaffoldSettings

  def __post_init__(self) -> None:
    if not self.settings.num_clients:
      raise errors.UserError(
        'scaffold needs the number of clients to train on, num_clients.'
      )
    if self.settings.client_optimizer != 'sgd':
      raise errors.UserError(
        'scaffold: client_optimizer must be sgd, as the controls are the mean'
        ' gradients of steps of SGD.'
      )
    self.settings.refuse_kept_slots('scaffold')

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    return {'model': None, 'control': None}

  @property
  def _is_uniform(self) -> bool:
    return self.settings.client_weighting == 'uniform'

  def initialize(self, seed: aliases.Seed) -> ScaffoldState:
    x, slots = super().initialize(seed)
    zeros = tf.nest.map_structure(tf.zeros_like, x)
    known = float(self.settings.num_clients) if self._is_uniform else 0.0
    return ScaffoldState(x, slots, zeros, known, known)

  def initialize_client(self, seed: aliases.Seed) -> ScaffoldClientState:
    zeros = tf.nest.map_structure(tf.zeros_like, self.model.init(seed))
    return ScaffoldClientState(zeros, 0)

  def message(self, server: ScaffoldState) -> ScaffoldMessage:
    # 1 / sum_i n_i over all N clients.
    scale = tf.math.divide_no_nan(
      server.known, self.settings.num_clients * server.known_weight
    )
    c = client_work.scale(server.controls, scale)
    return ScaffoldMessage(server.model, c)

  def client(
    self, message: ScaffoldMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    x, c = message
    c_i, rounds = client.state
    correction = client_work.difference(c, c_i)
    # If gradients are protected, the controls are made of noised ones and need
    # no clipping.
    y_i, loss, _ = self.descend(
      x, client._replace(state=None), correction=correction
    )
    has_examples = tf.reduce_any(client.data.mask > 0, 1)
    k = tf.reduce_sum(tf.cast(has_examples, tf.float32))
    divisor = k * self.settings.client_learning_rate
    # Option II, whose first two terms are the negated correction.
    after = tf.nest.map_structure(
      lambda c_less_c_i, x, y: (x - y) / divisor - c_less_c_i,
      correction,
      x,
      y_i,
    )
    after = client_work.choose(divisor > 0, after, c_i)
    result = self.result(
      x, y_i, loss, ScaffoldClientState(after, rounds + 1), client
    )
    weight = result.updates['model'].weight
    is_new = tf.cast(tf.equal(rounds, 0), tf.float32)
    return result._replace(
      updates={
        **result.updates,
        'control': aggregation.Update(
          client_work.difference(after, c_i), weight
        ),
      },
      measured={
        'weight': weight,
        'new_clients': is_new,
        'new_weight': is_new * weight,
      },
    )

  def server(
    self,
    server: ScaffoldState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> ScaffoldState:
    x, slots = super().server(server, aggregate, sums)
    known, known_weight = server.known, server.known_weight
    if self._is_uniform:
      weight = sums.num_clients
    else:
      weight = sums.measured['weight']
      known += sums.measured['new_clients']
      known_weight += sums.measured['new_weight']
    controls = tf.nest.map_structure(
      lambda total, mean: total + weight * mean,
      server.controls,
      aggregate['control'],
    )
    return ScaffoldState(x, slots, controls, known, known_weight)

  def start(
    self, message: ScaffoldMessage, client: trainers.Client
  ) -> trainers.Start:
    del client
    return trainers.Start(message.model)


registry.register_trainer(
  'scaffold',
  Scaffold,
  title='SCAFFOLD',
  paper='Karimireddy et al. 2020',
  does=(
    "one global model; control variates correct the drift of the clients'"
    ' steps (SGD only)'
  ),
  sends=(
    'the update of the model, and the change of its control variate; with'
    ' privacy, the server uses the expected number of clients in a round'
  ),
  keeps='its control variate',
)
