"""HypCluster, also IFCA: a model for each of k clusters of clients.

Mansour et al. 2020, algorithm 1 (HypCluster), and Ghosh et al. 2020, algorithm
1 with model averaging (IFCA); Motley, sections 3.1 and 4.2. In a round,

  client i:    j <- argmin_j F_i(w_j), over its own training batches
               trains w_j as in FedAvg and sends its update
  the server:  for each cluster j that a client picked:
                 w_j <- ServerOptimizer_j(w_j, mean of these clients' updates)

A cluster that nobody picked stays as it is, and so does its optimizer: else it
would drift on its momentum. A client adapts by picking the cluster of lowest
loss on its personalization set.

All k models start at random, or they would be one. Often all clients still end
up in one cluster ("mode collapse"), so Motley starts warm: for some rounds each
model is trained by itself by FedAvg, on all clients, and the optimizers start
anew after that. Warm for all rounds this is an ensemble of k FedAvg models, of
which each client uses its best. The k models can be saved ones as well.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import fedavg
from algorithms import optimizers
from algorithms import trainers
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class HypClusterSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and of the clusters."""

  num_clusters: int = settings.field(2, 'The number of clusters, k.', minimum=1)
  # A float, so that programs are compiled for any number of rounds.
  warmstart_rounds: float = settings.field(
    0.0,
    'The rounds in which FedAvg trains each cluster by itself on all clients,'
    ' before clients pick one.',
    minimum=0,
  )


class HypClusterState(NamedTuple):
  """The server's state.

  Attributes:
    models: The model of each cluster.
    optimizers: The slots of the server's optimizer for each cluster.
    round: The number of rounds done.
  """

  models: Sequence[models.Weights]
  optimizers: Sequence[Any]
  round: Any


class HypClusterMessage(NamedTuple):
  """The message to the clients: the stacked models, and the rounds done."""

  models: models.Weights
  round: Any


def at(stacked: Any, j: int | tf.Tensor) -> Any:
  """Returns one of several structures that are stacked."""
  # Not leaf[j]: XLA would compile the program anew for each j.
  return tf.nest.map_structure(lambda leaf: tf.gather(leaf, j), stacked)


@dataclasses.dataclass(frozen=True)
class HypCluster(fedavg.FedAvg):
  """Trains a model for each cluster; a client picks the one of lowest loss."""

  settings: HypClusterSettings
  start_name = 'picked cluster'
  start_is_shared = False

  def __post_init__(self) -> None:
    if self.settings.client_slots == 'kept':
      raise errors.UserError(
        'hypcluster: client_slots must be new, as a client may pick another'
        ' cluster in each round.'
      )

  @property
  def clusters(self) -> range:
    return range(self.settings.num_clusters)

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    # An aggregator that does not weight counts a client in all clusters.
    return {f'cluster_{j}': None for j in self.clusters}

  @property
  def model_places(self) -> Sequence[tuple[str | int, ...]]:
    return tuple(('models', j) for j in self.clusters)

  def initialize(self, seed: tf.Tensor) -> HypClusterState:
    seeds = tf.random.experimental.stateless_split(seed, len(self.clusters))
    w = tuple(self.model.random_init(seeds[j]) for j in self.clusters)
    return HypClusterState(w, tuple(map(self._new_slots, w)), 0)

  def _new_slots(self, w: models.Weights) -> Any:
    return self.settings.server_steps.slots(w)

  def message(self, server: HypClusterState) -> HypClusterMessage:
    stacked = tf.nest.map_structure(
      lambda *leaves: tf.stack(leaves), *server.models
    )
    return HypClusterMessage(stacked, server.round)

  def _is_warmstart(self, round_num: tf.Tensor) -> tf.Tensor:
    return tf.cast(round_num, tf.float32) < self.settings.warmstart_rounds

  def pick(self, w: models.Weights, data: batches.ClientData) -> tf.Tensor:
    """Returns argmin_j F(w_j) on a client's data; the first on a tie."""

    def measure(examples: models.Batch, mask: tf.Tensor) -> tf.Tensor:
      # What they would be divided by is the same for all clusters.
      return tf.stack(
        [
          client_work.total_loss(self.model, at(w, j), examples, mask)[0]
          for j in self.clusters
        ]
      )

    losses = client_work.sum_over_batches(data, measure)
    # What has diverged is nobody's best.
    losses = tf.where(tf.math.is_finite(losses), losses, losses.dtype.max)
    return tf.argmin(losses, output_type=tf.int32)

  def client(
    self, message: HypClusterMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    w, data, k = message.models, client.data, len(self.clusters)
    picked = self.pick(w, data)
    is_picked = tf.equal(tf.range(k), picked)
    warmstart = self._is_warmstart(message.round)
    optimizer = self.settings.client_steps

    def train(turn: tf.Tensor, updates: Any, total: tf.Tensor) -> Any:
      j = tf.where(warmstart, turn, picked)
      w_j = at(w, j)
      learner, loss = client_work.train(
        self.model, optimizer.start(w_j), data, optimizer
      )

      def put(update: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
        here = tf.equal(tf.range(k), j)
        shape = [-1] + [1] * update.shape.rank
        return tf.where(tf.reshape(here, shape), update, updates)

      update = client_work.difference(w_j, learner.weights)
      updates = tf.nest.map_structure(put, update, updates)
      return turn + 1, updates, total + loss

    # Each in turn in the warm start, the picked one alone after it.
    turns = tf.where(warmstart, k, 1)
    _, updates, loss = tf.while_loop(
      lambda turn, *_: turn < turns,
      train,
      (0, tf.nest.map_structure(tf.zeros_like, w), tf.constant(0.0)),
    )
    weight = tf.where(
      tf.logical_or(warmstart, is_picked),
      self.settings.client_weight(data),
      0.0,
    )
    measured = {
      f'cluster_{j}': tf.cast(is_picked[j], tf.float32) for j in self.clusters
    }
    measured['share_sent'] = tf.cast(turns, tf.float32) / k
    return trainers.ClientResult(
      updates={
        f'cluster_{j}': aggregation.Update(at(updates, j), weight[j])
        for j in self.clusters
      },
      loss=loss / tf.cast(turns, tf.float32),
      measured=measured,
    )

  def server(
    self,
    server: HypClusterState,
    aggregate: Mapping[str, Any],
    sums: trainers.RoundSums,
  ) -> HypClusterState:
    warmstart = self._is_warmstart(server.round)
    goes_on = self._is_warmstart(server.round + 1)
    ends = tf.logical_and(warmstart, tf.logical_not(goes_on))
    after = []
    for j in self.clusters:
      old = optimizers.Learner(server.models[j], server.optimizers[j])
      new = self.settings.server_steps.step(old, aggregate[f'cluster_{j}'])
      is_picked = sums.measured[f'cluster_{j}'] > 0
      changes = tf.logical_or(warmstart, is_picked)
      new = client_work.choose(changes, new, old)
      slots = client_work.choose(ends, self._new_slots(new.weights), new.slots)
      after.append((new.weights, slots))
    w, slots = zip(*after)
    return HypClusterState(w, slots, server.round + 1)

  def start(
    self, message: HypClusterMessage, client: trainers.Client
  ) -> trainers.Start:
    picked = self.pick(message.models, client.data)
    return trainers.Start(
      at(message.models, picked), measured={'cluster': picked}
    )
