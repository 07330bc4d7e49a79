"""Models of clusters of clients, of which each client trains one.

The server has a stack of models and of its optimizer's slots. In a round each
client trains the model of its cluster as in FedAvg, and

  the server:  for each cluster j that a client trained:
                 w_j <- ServerOptimizer_j(w_j, mean of these clients' updates)

A cluster that nobody trained stays as it is, and so does its optimizer, as its
momentum would move it otherwise. A subclass says which cluster a client is in.
"""

import abc
from collections.abc import Mapping, Sequence
import dataclasses
from typing import ClassVar, NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import fedavg
from algorithms import optimizers
from algorithms import trainers
from algorithms.privacy import private_steps
from base import aliases
from base import errors
from tasks.models import models


class ClustersState(NamedTuple):
  """The server's state.

  Attributes:
    models: The model of each cluster.
    optimizers: The slots of the server's optimizer for each cluster.
    round: The number of rounds done.
  """

  models: Sequence[models.Weights]
  optimizers: Sequence[optimizers.Slots]
  round: aliases.Scalar


class ClustersMessage(NamedTuple):
  """The message to the clients: the stacked models, and the rounds done."""

  models: models.Weights
  round: aliases.Scalar


def pick(stacked: models.Weights, j: int | tf.Tensor) -> models.Weights:
  """Picks one of several models, or parts of models, that are stacked."""
  # Not leaf[j]: XLA would compile the program anew for each j.
  return tf.nest.map_structure(lambda leaf: tf.gather(leaf, j), stacked)


@dataclasses.dataclass(frozen=True)
class ClusterTrainer(fedavg.FedAvg):
  """Trains a model for each cluster of clients.

  Attributes:
    cluster_name: What a cluster is called in the training metrics.
  """

  start_is_shared = False
  cluster_name: ClassVar[str] = 'cluster'

  def __post_init__(self) -> None:
    if self.settings.client_slots == 'kept':
      raise errors.UserError(
        f'client_slots must be new, not kept, where there is a model for each'
        f' {self.cluster_name}.'
      )

  @property
  @abc.abstractmethod
  def num_models(self) -> int:
    """The number of clusters, k."""

  @property
  def why_no_statistics(self) -> str | None:
    return None

  @abc.abstractmethod
  def cluster_of(self, w: models.Weights, client: trainers.Client) -> tf.Tensor:
    """Returns the number of a client's cluster, given the stacked models."""

  def trains_all(self, round_num: tf.Tensor) -> tf.Tensor:
    """Tells whether clients train the models of all clusters in a round."""
    del round_num
    return tf.constant(False)

  @property
  def server_steps(self) -> optimizers.Optimizer:
    """The optimizer of the server, for each cluster."""
    return self.settings.server_steps

  @property
  def clusters(self) -> range:
    return range(self.num_models)

  def _part(self, j: int) -> str:
    return f'{self.cluster_name}_{j}'

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    # An aggregator that does not weight counts a client in all clusters.
    names = [self._part(j) for j in self.clusters]
    return {
      **dict.fromkeys(names),
      'senders': aggregation.Senders(),
    }

  @property
  def model_places(self) -> Sequence[tuple[str | int, ...]]:
    return tuple(('models', j) for j in self.clusters)

  def _begin(self, w: Sequence[models.Weights]) -> ClustersState:
    """Makes the state of models that have not been trained yet."""
    return ClustersState(tuple(w), tuple(map(self._new_slots, w)), 0)

  def _new_slots(self, w: models.Weights) -> optimizers.Slots:
    return self.server_steps.slots(w)

  def message(self, server: ClustersState) -> ClustersMessage:
    return ClustersMessage(client_work.stack(server.models), server.round)

  def client(
    self, message: ClustersMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    w, data, k = message.models, client.data, self.num_models
    cluster = self.cluster_of(w, client)
    is_own = tf.equal(tf.range(k), cluster)
    trains_all = self.trains_all(message.round)
    optimizer = self.settings.client_steps

    def train(
      turn: tf.Tensor, updates: models.Weights, total: tf.Tensor
    ) -> tuple[tf.Tensor, models.Weights, tf.Tensor]:
      j = tf.where(trains_all, turn, cluster)
      w_j = pick(w, j)
      model = private_steps.mark(self.model, part=turn)
      learner, loss = client_work.train(
        model, optimizer.start(w_j), data, optimizer
      )

      def put(update: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
        here = tf.equal(tf.range(k), j)
        shape = [-1] + [1] * update.shape.rank
        return tf.where(tf.reshape(here, shape), update, updates)

      update = client_work.difference(w_j, learner.weights)
      updates = tf.nest.map_structure(put, update, updates)
      return turn + 1, updates, total + loss

    # All models in turn, or the model of the client's cluster.
    turns = tf.where(trains_all, k, 1)
    _, updates, loss = tf.while_loop(
      lambda turn, *_: turn < turns,
      train,
      (0, tf.nest.map_structure(tf.zeros_like, w), tf.constant(0.0)),
    )
    weight = tf.where(
      tf.logical_or(trains_all, is_own),
      self.settings.client_weight(client),
      0.0,
    )
    measured = {
      self._part(j): tf.cast(is_own[j], tf.float32) for j in self.clusters
    }
    measured['share_sent'] = tf.cast(turns, tf.float32) / k
    return trainers.ClientResult(
      updates={
        **{
          self._part(j): aggregation.Update(pick(updates, j), weight[j])
          for j in self.clusters
        },
        'senders': aggregation.Update(tf.cast(is_own, tf.int32)),
      },
      loss=loss / tf.cast(turns, tf.float32),
      measured=measured,
    )

  def server(
    self,
    server: ClustersState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> ClustersState:
    del sums
    trains_all = self.trains_all(server.round)
    goes_on = self.trains_all(server.round + 1)
    ends = tf.logical_and(trains_all, tf.logical_not(goes_on))
    after = []
    for j in self.clusters:
      old = optimizers.Learner(server.models[j], server.optimizers[j])
      # Makes the mean over all clients one over those that trained the cluster.
      scale = tf.where(trains_all, 1.0, aggregate['senders'][j])
      mean = client_work.scale(aggregate[self._part(j)], scale)
      new = self.server_steps.step(old, mean)
      new = new._replace(
        weights=client_work.average_statistics(
          self.model, old.weights, mean, new.weights
        )
      )
      new = client_work.choose(scale > 0, new, old)
      slots = client_work.choose(ends, self._new_slots(new.weights), new.slots)
      after.append((new.weights, slots))
    w, slots = zip(*after)
    return ClustersState(w, slots, server.round + 1)

  def start(
    self, message: ClustersMessage, client: trainers.Client
  ) -> trainers.Start:
    cluster = self.cluster_of(message.models, client)
    return trainers.Start(
      pick(message.models, cluster), measured={'cluster': cluster}
    )
