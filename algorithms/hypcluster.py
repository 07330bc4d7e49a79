"""HypCluster, also IFCA: a model for each of k clusters of clients.

Mansour et al. 2020, algorithm 1 (HypCluster), and Ghosh et al. 2020, algorithm
1 with model averaging (IFCA); Motley, sections 3.1 and 4.2. In a round,

  client i:    j <- argmin_j F_i(w_j), over its own training batches
               trains w_j as in FedAvg and sends its update

and the server steps on each model that a client picked, see `clusters`. A
client adapts by picking the cluster of lowest loss on its personalization set.

All k models start at random, as they would stay equal otherwise. Often all
clients still end up in one cluster ("mode collapse"), so Motley has a warm
start: for some rounds FedAvg trains each model separately on all clients; after
that, the optimizers get new slots. With a warm start for all rounds this is an
ensemble of k FedAvg models, of which each client uses its best. The k models
can be saved ones as well.
"""

import dataclasses
import math

import tensorflow as tf

from algorithms import client_work
from algorithms import clusters
from algorithms import example_uses
from algorithms import fedavg
from algorithms import registry
from algorithms import trainers
from algorithms.privacy import private_steps
from base import aliases
from base import settings
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class HypClusterSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and of the clusters."""

  num_clusters: int = settings.field(
    2, 'The number of clusters, k.', minimum=1, maximum=1000
  )
  # A float, so that programs are compiled for any number of rounds.
  warmstart_rounds: aliases.Number = settings.field(
    0.0,
    'The rounds in which FedAvg trains each cluster by itself on all clients,'
    ' before clients pick one.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True)
class HypCluster(clusters.ClusterTrainer):
  """Trains a model for each cluster; a client picks the one of lowest loss."""

  settings: HypClusterSettings
  start_name = 'picked cluster'

  @property
  def num_models(self) -> int:
    return self.settings.num_clusters

  def initialize(self, seed: aliases.Seed) -> clusters.ClustersState:
    seeds = tf.random.experimental.stateless_split(seed, self.num_models)
    return self._begin(
      [self.model.random_init(seeds[j]) for j in self.clusters]
    )

  def trains_all(self, round_num: tf.Tensor) -> tf.Tensor:
    """Tells whether a round is one of the warm start."""
    return tf.cast(round_num, tf.float32) < self.settings.warmstart_rounds

  def passes(self, rounds: int) -> trainers.Passes:
    k = self.num_models
    warm = min(rounds, math.ceil(self.settings.warmstart_rounds))
    return trainers.Passes(rounds + (k - 1) * warm, losses=k * rounds)

  @property
  def start_passes(self) -> trainers.Passes:
    return trainers.Passes(losses=self.num_models)

  def example_uses(self, rounds: int) -> example_uses.Uses:
    warm = int(min(rounds, math.ceil(self.settings.warmstart_rounds)))
    walks = (
      example_uses.Walk(warm, gradients=self.num_models),
      example_uses.Walk(rounds - warm),
    )
    # The choices of the warm start are sent, though they make no difference.
    # After the last round, each client chooses the model that it keeps.
    return example_uses.Uses(walks, choices=rounds + 1)

  def cluster_of(self, w: models.Weights, client: trainers.Client) -> tf.Tensor:
    """Returns argmin_j F(w_j) on a client's data; the first on a tie."""

    def total_loss(
      j: int, examples: models.Batch, mask: tf.Tensor
    ) -> tf.Tensor:
      # The divisor of the mean is the same for all clusters.
      w_j = clusters.pick(w, j)
      if self.model.protection is not None:
        return private_steps.total_loss(self.model, w_j, examples, mask)
      losses = self.model.loss(w_j, examples)
      return client_work.total_loss(self.model, losses, examples, mask)[0]

    losses = client_work.sum_over_batches(
      client.data,
      lambda *batch: tf.stack([total_loss(j, *batch) for j in self.clusters]),
    )
    # A model that diverged is nobody's best.
    losses = tf.where(tf.math.is_finite(losses), losses, losses.dtype.max)
    losses = private_steps.add_choice_noise(self.model, losses)
    return tf.argmin(losses, output_type=tf.int32)


registry.register_trainer(
  'hypcluster',
  HypCluster,
  title='HypCluster',
  paper='Mansour et al. 2020, Ghosh et al. 2020',
  does=(
    'a model for each cluster, of which each client picks the one with the'
    ' lowest loss; also known as IFCA'
  ),
  sends=(
    'the update of one of k models, with zeros for the others, and which one'
    ' it is; in a warm start, the updates of all k. With privacy, a cluster'
    ' stays as it is if it seems to have fewer clients than two deviations of'
    ' the noise on their number'
  ),
  small={'warmstart_rounds': 1.0},
)
registry.register_trainer(
  'ensemble',
  HypCluster,
  title='Ensemble',
  paper='Motley',
  does='the models of HypCluster, each of them by FedAvg in all rounds',
  sends='the updates of all k models, and a choice that is not used',
  defaults={'warmstart_rounds': 1000000000.0},
)
