"""PFedKM: heads of clusters, which k-means finds in the clients' updates.

Tang et al. 2021, in the form with which FedEmbed (Silva et al. 2022) is
compared: the encoder theta is shared, and each of K clusters has a head phi_k.
With client u's updates of theta and of its head as one vector d_u,

  client u:    (theta_u, h_u) <- steps from (theta, phi_j), j its cluster
               j <- argmin_k ||d_u - c_k||
  the server:  theta as the model in FedAvg
               phi_k <- ServerOptimizer_k(phi_k, mean of members' phi_k - h_u)
               c_k <- mean of members' d_u

which is a step of Lloyd's k-means a round. With one cluster it is FedAvg.

Where the paper leaves it open: all heads start equal. In the first round
clients are in random clusters, whose means are the first centers. A client that
has no cluster yet steps from the mean of all heads; a client that was never
trained on does so, too, to find its cluster. A cluster without members stays as
it is.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import clusters
from algorithms import fedavg
from algorithms import optimizers
from algorithms import personal_models
from algorithms import registry
from algorithms import trainers
from algorithms import vectors
from base import aliases
from base import settings
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class PFedKmSettings(
  personal_models.UnaccountedNoiseSettings, fedavg.FedAvgSettings
):
  """The settings of FedAvg, and of the clusters."""

  client_weighting: str = settings.redefine(
    fedavg.FedAvgSettings, 'client_weighting', 'uniform'
  )
  num_groups: int = settings.field(
    0,
    "K, the number of clusters; 0 for the number of the task's groups.",
    minimum=0,
    maximum=1000,
  )


class PFedKmState(NamedTuple):
  """The server's state.

  Attributes:
    theta: The encoder, and the slots of its optimizer.
    heads: The head of each cluster, and the slots of its optimizer.
    centers: c, `[K, d]`.
    round: The number of rounds that clients took part in.
  """

  theta: optimizers.Learner
  heads: tuple[optimizers.Learner, ...]
  centers: tf.Tensor
  round: aliases.Scalar


class PFedKmMessage(NamedTuple):
  """The message to the clients: the weights, heads stacked, and the centers."""

  theta: models.Weights
  heads: models.Weights
  centers: tf.Tensor
  round: aliases.Scalar


class PFedKmClientState(NamedTuple):
  """A client's state: its cluster, and how many rounds it took part in."""

  cluster: aliases.Scalar
  rounds: aliases.Scalar


class _Work(NamedTuple):
  """The work of a client: its weights, d_u, its cluster, and its loss."""

  w: models.Weights
  update: tf.Tensor
  cluster: tf.Tensor
  loss: tf.Tensor


@dataclasses.dataclass(frozen=True)
class PFedKm(fedavg.FedAvg):
  """Trains an encoder, and a head for each cluster of updates."""

  settings: PFedKmSettings
  start_name = 'head of the cluster'
  start_is_shared = False

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('pfedkm')
    if not self.settings.num_groups:
      raise settings.SettingError(
        'num_groups, the number of clusters, must be set where a task knows no'
        ' groups.',
        'num_groups',
      )

  @property
  def why_not_private(self) -> str | None:
    return 'its clients are clustered by their exact updates'

  @property
  def why_examples_not_private(self) -> str | None:
    return (
      'the steps by which pfedkm finds the cluster of an evaluated silo are not'
      ' counted'
    )

  @property
  def _clusters(self) -> range:
    return range(self.settings.num_groups)

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    members = {f'cluster_{k}': aggregation.mean() for k in self._clusters}
    return {'theta': None, **members, 'counts': aggregation.total()}

  @property
  def start_passes(self) -> trainers.Passes:
    return trainers.Passes(gradients=1)

  @property
  def model_places(self) -> Sequence[tuple[str | int, ...]]:
    return ()  # The encoder and the heads are in separate places.

  @property
  def _head_names(self) -> tuple[str, ...]:
    return self.model.parts[models.HEAD]

  def initialize(self, seed: aliases.Seed) -> PFedKmState:
    w = self.model.init(seed)
    theta, head = self._split(w)
    start = self.settings.server_steps.start
    return PFedKmState(
      start(theta),
      tuple(start(head) for _ in self._clusters),
      tf.zeros([self.settings.num_groups, vectors.count(w.values())]),
      0,
    )

  def _split(self, w: models.Weights) -> tuple[models.Weights, models.Weights]:
    theta = [name for name in w if name not in self._head_names]
    return client_work.select(w, theta), client_work.select(w, self._head_names)

  def initialize_client(self, seed: aliases.Seed) -> PFedKmClientState:
    del seed
    return PFedKmClientState(0, 0)

  def message(self, server: PFedKmState) -> PFedKmMessage:
    heads = client_work.stack(head.weights for head in server.heads)
    return PFedKmMessage(
      server.theta.weights, heads, server.centers, server.round
    )

  def _head(
    self, message: PFedKmMessage, client: trainers.Client
  ) -> models.Weights:
    """Returns the head that a client starts from."""
    mean = tf.nest.map_structure(
      lambda leaf: tf.reduce_mean(leaf, 0), message.heads
    )
    head = clusters.pick(message.heads, client.state.cluster)
    return client_work.choose(client.state.rounds > 0, head, mean)

  def _work(self, message: PFedKmMessage, client: trainers.Client) -> _Work:
    w = client_work.merge(message.theta, self._head(message, client))
    optimizer = self.settings.client_steps
    learner, loss = client_work.train(
      self.model, optimizer.start(w), client.data, optimizer
    )
    after = self.settings.add_noise(w, learner.weights, client.seed)
    moved = client_work.difference(w, after)
    update = vectors.join(moved.values())
    away = tf.reduce_sum(tf.square(message.centers - update), axis=1)
    anyone = tf.random.stateless_uniform(
      [], client.seed, maxval=self.settings.num_groups, dtype=tf.int32
    )
    cluster = tf.where(
      message.round > 0, tf.argmin(away, output_type=tf.int32), anyone
    )
    return _Work(after, update, cluster, loss)

  def client(
    self, message: PFedKmMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    work = self._work(message, client)
    theta, head = self._split(work.w)
    weight = self.settings.client_weight(client)
    is_own = tf.one_hot(work.cluster, self.settings.num_groups)
    updates = {
      'theta': aggregation.Update(
        client_work.difference(message.theta, theta), weight
      ),
      'counts': aggregation.Update(tf.cast(is_own, tf.int32)),
    }
    for k in self._clusters:
      phi_k = clusters.pick(message.heads, k)
      value = client_work.difference(phi_k, head), work.update
      updates[f'cluster_{k}'] = aggregation.Update(value, weight * is_own[k])
    return trainers.ClientResult(
      {part: updates[part] for part in self.parts},
      work.loss,
      PFedKmClientState(work.cluster, client.state.rounds + 1),
    )

  def server(
    self,
    server: PFedKmState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> PFedKmState:
    del sums
    step, heads, centers = self.settings.server_steps.step, [], []
    for k, head in enumerate(server.heads):
      of_head, center = aggregate[f'cluster_{k}']
      new = step(head, of_head), center
      has_members = aggregate['counts'][k] > 0
      kept = client_work.choose(has_members, new, (head, server.centers[k]))
      heads.append(kept[0])
      centers.append(kept[1])
    return PFedKmState(
      step(server.theta, aggregate['theta']),
      tuple(heads),
      tf.stack(centers),
      server.round + tf.cast(tf.reduce_any(aggregate['counts'] > 0), tf.int32),
    )

  def start(
    self, message: PFedKmMessage, client: trainers.Client
  ) -> trainers.Start:
    found = self._work(message, client).cluster
    k = tf.where(client.state.rounds > 0, client.state.cluster, found)
    w = client_work.merge(message.theta, clusters.pick(message.heads, k))
    names = [name for part in self.model.parts.values() for name in part]
    return trainers.Start(
      type(w)((name, w[name]) for name in names), measured={'cluster': k}
    )


registry.register_trainer(
  'pfedkm',
  PFedKm,
  title='pFedKM',
  paper='Tang et al. 2021',
  does=(
    'an encoder, and a head for each cluster that k-means finds in the'
    " clients' updates"
  ),
  sends="the update of the encoder and of its cluster's head",
  keeps='its cluster',
)
