"""FedEmbed with prototypes: a user has the head of the nearest prototype.

Section 3.3.2 of Silva et al. 2022. The prototype p_k of each type is the
embedding of a prototypical user. All other users begin each local step with a
step of their embedding down the triplet loss, equation (1), for p_k of the own
type and p_n of a random other one,

  max(0, ||e - p_k||^2 - ||e - p_n||^2 + 1)                                  (1)

Where the paper is silent, or contradicts itself:

- Equation (1) lacks the max, which the loss that it cites has; without it, e
  would move forever.
- k is the type of the user's own examples (line 9), so that users find the
  heads of their types by construction.
- The triplet steps have separate Adam slots, kept with e. There is one for each
  local step, as with one a round few users would find their heads.
- The first K users are prototypical if user k likes type k. They start at p_k,
  which is drawn from U[0, 1), take no triplet steps, and send their embeddings
  without noise. A prototype stays in a round in which its user takes no part.
  With `moving_prototypes` off all prototypes stay, so that training can be
  private.
"""

from collections.abc import Mapping
import dataclasses

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import fedembed
from algorithms import optimizers
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import settings
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class PrototypeSettings(fedembed.FedEmbedSettings):
  """The settings of FedEmbed, and of the prototypes."""

  moving_prototypes: bool = settings.field(
    True,
    'Whether prototypes follow the embeddings of users in training, or stay as'
    ' they were drawn.',
  )


@dataclasses.dataclass(frozen=True)
class PrototypeFedEmbed(fedembed.FedEmbed):
  """Gives each user the head of the prototype that is nearest to it."""

  settings: PrototypeSettings
  needs_type = True

  @property
  def why_not_private(self) -> str | None:
    if not self.settings.moving_prototypes:
      return None
    return (
      'prototypical users send their embeddings as they are; set'
      ' moving_prototypes=false'
    )

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    if not self.settings.moving_prototypes:
      return super().parts
    return {**super().parts, 'prototypes': aggregation.total()}

  def initialize_clusters(self, seed: aliases.Seed) -> tf.Tensor:
    """Draws the prototypes, `[K, D]`."""
    return self.network.draw_points(seed)

  def initialize_triplet(self, e: models.Weights) -> optimizers.Slots:
    return self.embedding_steps.slots(e)

  def head_of(
    self, clusters: tf.Tensor, e: tf.Tensor, k: tf.Tensor
  ) -> tf.Tensor:
    del k
    return fedembed.nearest(e, clusters)

  def _is_prototypical(
    self, client: trainers.Client, k: tf.Tensor
  ) -> tf.Tensor:
    return tf.equal(client.state.number, k)

  def begin(
    self, message: fedembed.FedEmbedMessage, client: trainers.Client
  ) -> fedembed.LocalWork:
    local = super().begin(message, client)
    k = self.type_of(client)
    # Not `rounds == 0`, which in a graph of TFF compares objects.
    is_new = tf.equal(client.state.rounds, 0)
    is_first = self._is_prototypical(client, k) & is_new
    e = tf.where(
      is_first,
      tf.gather(message.clusters, k),
      local.e.weights[self.network.e_name],
    )
    slots = self.embedding_steps.set_numbers(local.triplet_slots)
    return local._replace(
      e=local.e._replace(weights=self.network.e_weights(e)), triplet_slots=slots
    )

  def approach(
    self,
    clusters: tf.Tensor,
    local: fedembed.LocalWork,
    client: trainers.Client,
    k: tf.Tensor,
    mask: tf.Tensor,
  ) -> fedembed.LocalWork:
    if self.num_heads == 1:
      return local  # There is no other prototype.
    seed = tf.random.experimental.stateless_fold_in(client.seed, local.steps)
    n = tf.random.stateless_uniform(
      [], seed, maxval=self.num_heads - 1, dtype=tf.int32
    )
    n += tf.cast(n >= k, tf.int32)
    p_k, p_n = tf.gather(clusters, k), tf.gather(clusters, n)
    e = local.e.weights[self.network.e_name]
    to_k, to_n = tf.unstack(fedembed.squared_distances(e, tf.stack([p_k, p_n])))
    # The gradient of (1).
    slope = tf.where(to_k - to_n + 1 > 0, 2 * (p_n - p_k), 0)
    before = optimizers.Learner(local.e.weights, local.triplet_slots)
    after = client_work.take_step(
      self.embedding_steps, before, self.network.e_weights(slope), mask
    )
    after = client_work.choose(self._is_prototypical(client, k), before, after)
    return local._replace(
      e=local.e._replace(weights=after.weights), triplet_slots=after.slots
    )

  def cluster_updates(
    self, clusters: tf.Tensor, client: trainers.Client, e: models.Weights
  ) -> Mapping[str, aggregation.Update]:
    del clusters
    if not self.settings.moving_prototypes:
      return {}
    k = self.type_of(client)
    sent = tf.cast(self._is_prototypical(client, k), tf.float32)
    present = sent * tf.one_hot(k, self.num_heads)
    rows = present[:, tf.newaxis] * e[self.network.e_name]
    return {'prototypes': aggregation.Update((rows, present))}

  def server(
    self,
    server: fedembed.FedEmbedState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> fedembed.FedEmbedState:
    after = super().server(server, aggregate, sums)
    if not self.settings.moving_prototypes:
      return after
    rows, present = aggregate['prototypes']
    clusters = tf.where(present[:, tf.newaxis] > 0, rows, server.clusters)
    return after._replace(clusters=clusters)


registry.register_trainer(
  'fedembed_prototype',
  PrototypeFedEmbed,
  title='FedEmbed (Prototype)',
  paper='Silva et al. 2022',
  does=(
    'as fedembed_type, with the head of the prototype nearest to the'
    " client's embedding"
  ),
  sends=(
    'the update of the encoder and of all heads, with zeros for the heads that'
    ' it does not use. Its prototypical users send their embeddings, unless'
    ' moving_prototypes is false'
  ),
  keeps='its embedding',
)
