"""Self-FL that aggregates over clusters of clients.

Chen et al. 2022, appendix G.4, the cluster-level variant of `self_fl`. The
clusters are the task's groups of clients, such as types of devices. The server
keeps the latest model of each cluster, theta_c, and its uncertainty, sigma_c^2:

  the server:  theta_c <- the mean of the theta_m of this round, and sigma_c^2
                 <- the mean of the sigma_m^2, for each cluster in this round
               sigma_0^2 <- the variance of all theta_c
               theta <- sum_c w_c theta_c / sum_c w_c

over all clusters that have a model yet, whether they are in the round or not.
Where a client leaves itself out of a sum in `self_fl`, it leaves out its
cluster here. `client_weighting` holds within a cluster; without
`precision_weights` clusters count the same. The paper leaves open how several
clients of a cluster are combined; here they are averaged.
"""

import collections
from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import optimizers
from algorithms import registry
from algorithms import self_fl
from algorithms import trainers
from base import aliases
from base import errors
from base import settings
from tasks import task
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class ClusterSelfFlSettings(self_fl.SelfFlSettings):
  """The settings of Self-FL, and the number of clusters."""

  num_groups: int = settings.field(
    0,
    "The number of clusters; 0 for the number of the task's groups.",
    minimum=0,
    maximum=1000,
  )


class Clusters(NamedTuple):
  """All clusters, in tensors with a first axis of clusters.

  Attributes:
    models: theta_c.
    variances: sigma_c^2; 0 if it is undefined.
    seen: 1 for a cluster that has a model; else 0.
  """

  models: models.Weights
  variances: tf.Tensor
  seen: tf.Tensor


class ClusterState(NamedTuple):
  """The server's state: that of Self-FL, and the clusters."""

  model: models.Weights
  optimizer: optimizers.Slots
  uncertainty: self_fl.Uncertainty
  round: aliases.Scalar
  clusters: Clusters


class ClusterMessage(NamedTuple):
  """The message to the clients: that of Self-FL, and w_c (0 if undefined)."""

  model: models.Weights
  uncertainty: self_fl.Uncertainty
  round: aliases.Scalar
  weights: tf.Tensor


def _reshape_like(numbers: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
  """Reshapes numbers of clusters to the rank of `like`."""
  return tf.reshape(numbers, [-1] + [1] * (like.shape.rank - 1))


@dataclasses.dataclass(frozen=True)
class ClusterSelfFl(self_fl.SelfFl):
  """Trains a global model over clusters, and a personal one for each client."""

  settings: ClusterSelfFlSettings
  needs = (task.GROUP,)

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.settings.num_groups:
      raise errors.UserError(
        'self_fl_clusters needs the number of clusters, num_groups.'
      )
    if self.settings.one_pass:
      raise errors.UserError(
        'self_fl_clusters: one_pass must be false, as its server needs only'
        ' sums already.'
      )
    if self.settings.all_others:
      raise errors.UserError(
        'self_fl_clusters: all_others must be false, as its sums are over all'
        ' clusters already.'
      )

  @property
  def why_no_statistics(self) -> str | None:
    return 'its clusters are of all weights of a model'

  @property
  def why_not_private(self) -> str | None:
    return 'its clients send their variances in the clear'

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    return {'clusters': aggregation.total()}

  def initialize(self, seed: aliases.Seed) -> ClusterState:
    k = self.settings.num_groups
    state = super().initialize(seed)
    rows = tf.nest.map_structure(
      lambda leaf: tf.zeros([k, *leaf.shape]), state.model
    )
    clusters = Clusters(rows, tf.zeros([k]), tf.zeros([k]))
    return ClusterState(**state._asdict(), clusters=clusters)

  def _weights(
    self, uncertainty: self_fl.Uncertainty, clusters: Clusters
  ) -> tf.Tensor:
    return clusters.seen * self_fl.precision(
      uncertainty.inter_variance,
      clusters.variances,
      uncertainty.mean_variance,
    )

  def message(self, server: ClusterState) -> ClusterMessage:
    weights = self._weights(server.uncertainty, server.clusters)
    return ClusterMessage(
      server.model, server.uncertainty, server.round, weights
    )

  def _own_weight(
    self, message: ClusterMessage, client: trainers.Client
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns whether the client's cluster has a model, and its w_c if so."""
    weight = tf.gather(message.weights, client.attributes[task.GROUP])
    return weight > 0, weight

  def client(
    self, message: ClusterMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    result = super().client(message, client)
    sent, weight = result.updates['model']
    # The client's numbers are in the row of its cluster, the others are zero.
    row = tf.one_hot(client.attributes[task.GROUP], self.settings.num_groups)
    of_cluster = collections.OrderedDict(
      model=tf.nest.map_structure(
        lambda leaf: (
          _reshape_like(weight * row, leaf[tf.newaxis]) * leaf[tf.newaxis]
        ),
        sent['model'],
      ),
      weight=weight * row,
      variance=sent['variance'] * row,
      num_defined=tf.cast(sent['variance'] > 0, tf.float32) * row,
    )
    measured = {**result.measured}
    measured['share_sent'] = tf.constant(1 / self.settings.num_groups)
    return result._replace(
      updates={'clusters': aggregation.Update(of_cluster)}, measured=measured
    )

  def server(
    self,
    server: ClusterState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> ClusterState:
    theta, old, of_round = server.model, server.clusters, aggregate['clusters']
    is_new = of_round['weight'] > 0

    def latest(row: tf.Tensor, g: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
      count = _reshape_like(of_round['weight'], total)
      return tf.where(count > 0, g - tf.math.divide_no_nan(total, count), row)

    clusters = Clusters(
      tf.nest.map_structure(latest, old.models, theta, of_round['model']),
      tf.where(
        is_new,
        tf.math.divide_no_nan(of_round['variance'], of_round['num_defined']),
        old.variances,
      ),
      tf.where(is_new, 1.0, old.seen),
    )
    number = tf.reduce_sum(clusters.seen)

    def mean(of_each: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
      total = tf.reduce_sum(_reshape_like(share, of_each) * of_each, 0)
      return tf.math.divide_no_nan(total, tf.reduce_sum(share))

    inter_variance = tf.zeros([])
    if not self._is_known:  # (14)
      inter_variance = sum(
        tf.reduce_sum(
          mean(tf.square(row - mean(row, clusters.seen)), clusters.seen)
        )
        for row in clusters.models.values()
      )
    uncertainty = self_fl.Uncertainty(
      inter_variance,
      mean(clusters.variances, tf.cast(clusters.variances > 0, tf.float32)),
      weight=tf.zeros([]),
      number=number,
    )
    weights = self._weights(uncertainty, clusters)
    is_defined = tf.logical_or(self._is_known, number >= 2)
    uncertainty = uncertainty._replace(
      weight=tf.where(is_defined, tf.reduce_sum(weights), 0.0)
    )
    share = weights if self.settings.precision_weights else clusters.seen
    delta = tf.nest.map_structure(
      lambda g, row: g - mean(row, share), theta, clusters.models
    )
    learner = self.step(server, delta, sums)
    after = ClusterState(
      learner.weights, learner.slots, uncertainty, server.round + 1, clusters
    )
    return client_work.choose(sums.num_clients > 0, after, server)


registry.register_trainer(
  'self_fl_clusters',
  ClusterSelfFl,
  title='Self-FL (clusters)',
  paper='Chen et al. 2022',
  does="as self_fl, aggregated over the clients' groups",
  sends='its model and its variance, in the row of its group',
  keeps='its personal model, and its variance',
)
