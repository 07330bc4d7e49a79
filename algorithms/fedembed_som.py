"""FedEmbed with a self-organizing map: a user has the head of the nearest node.

Section 3.3.1 of Silva et al. 2022. The map is a line of K nodes w_i in the
space of embeddings. A user with the embedding e, to which node j is nearest,
moves it by (Kohonen 1990)

  Delta_i = eta_t exp(-(i - j)^2 / (2 sigma_t^2)) (e - w_i)

and with the new map, each head moves to the node that has most of its users.

Where the paper is silent, or contradicts itself:

- eta is .5 and sigma 1 at first; in round t both are divided by 1 + 2 t / T, as
  in MiniSom.
- "The update from the best-scoring client is applied to each node": with
  `som_winner` node, a node takes the Delta_i of the client that is nearest to
  it; with all, all nodes take the Delta_i of one client, the one that is
  nearest to its own node; with mean, w_i <- w_i + eta_t sum(h (e - w_i)) /
  sum(h) over all clients, where h is the exponential.
- The map, the overlaps and the heads follow one from another, but there is only
  one aggregation a round. So a round has two maps: the map in use, and the next
  map, for which clients send Delta. Clients also send their nearest node in
  both maps. By these overlaps the server renumbers the heads, one to one, when
  the next map comes into use at the end of the round.
- A single Delta_i reveals e, which the paper says is "never sent". So the noise
  of `own_noise` guarantees nothing.
"""

from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import tensorflow as tf
import tree

from algorithms import aggregation
from algorithms import fedembed
from algorithms import personal_models
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import settings
from tasks.models import models

# Replaces the variance of a radius of zero, which is a divisor.
_SMALLEST_VARIANCE = 1e-12


@dataclasses.dataclass(frozen=True)
class SomSettings(
  personal_models.UnaccountedNoiseSettings, fedembed.FedEmbedSettings
):
  """The settings of FedEmbed, and of the map."""

  som_rate: aliases.Number = settings.field(
    0.5, 'eta, how far nodes move in the first round.', minimum=0, maximum=1
  )
  som_radius: aliases.Number = settings.field(
    1.0, 'sigma, how far from a node others move with it.', minimum=0
  )
  som_rounds: aliases.Number = settings.field(
    55.0, 'T, the rounds after which eta and sigma are a third.', above=0
  )
  som_winner: str = settings.field(
    'node',
    'Whether each node takes the update of the client nearest to it (node), all'
    ' nodes take the update of one client (all), or the mean of all clients'
    ' (mean).',
    choices=('node', 'all', 'mean'),
  )


class Maps(NamedTuple):
  """The map, which assigns heads to users.

  Attributes:
    w: The nodes in use, `[K, D]`.
    next_w: The nodes of the next round.
    round: The number of rounds done.
  """

  w: tf.Tensor
  next_w: tf.Tensor
  round: aliases.Scalar


def match(overlaps: tf.Tensor) -> tf.Tensor:
  """Matches rows and columns one to one, with the largest sum of overlaps.

  Among equal sums, it prefers matchings in which more rows keep their number.

  Args:
    overlaps: Whole numbers, `[K, K]`.

  Returns:
    The row of each column, `[K]`.
  """
  size = overlaps.shape[0]
  # By an auction (Bertsekas 1988): rows bid for columns. With whole numbers it
  # ends at the largest sum if bids are raised by less than 1 / K.
  worth = (
    tf.cast(overlaps, tf.int64) * (size + 1) + tf.eye(size, dtype=tf.int64)
  ) * (size + 1)
  nobody = tf.constant(-1)

  def bid(owner: tf.Tensor, price: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    rows = tf.range(size)[:, tf.newaxis]
    has_none = tf.reduce_all(tf.not_equal(owner[tf.newaxis], rows), axis=1)
    row = tf.argmax(has_none, output_type=tf.int32)
    gain = tf.gather(worth, row) - price
    column = tf.argmax(gain, output_type=tf.int32)
    is_column = tf.equal(tf.range(size), column)
    best = tf.reduce_max(gain)
    second = tf.reduce_max(tf.where(is_column, gain.dtype.min, gain))
    raised = best - (second if size > 1 else best) + 1
    return (
      tf.where(is_column, row, owner),
      tf.where(is_column, price + raised, price),
    )

  owner, _ = tf.while_loop(
    lambda owner, _: tf.reduce_any(tf.equal(owner, nobody)),
    bid,
    (tf.fill([size], nobody), tf.zeros([size], tf.int64)),
  )
  return owner


@dataclasses.dataclass(frozen=True)
class SomFedEmbed(fedembed.FedEmbed):
  """Gives each user the head of the node that is nearest to it."""

  settings: SomSettings

  @property
  def why_not_private(self) -> str | None:
    return 'what a client sends to its map reveals its embedding'

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    nodes = {
      'node': {self._node(i): aggregation.best() for i in self._nodes},
      'all': {'map': aggregation.best()},
      'mean': {'map': aggregation.total()},
    }
    return {
      **super().parts,
      **nodes[self.settings.som_winner],
      'overlaps': aggregation.total(),
    }

  @property
  def _nodes(self) -> range:
    return range(self.num_heads)

  def _node(self, i: int) -> str:
    return f'node_{i}'

  def add_noise(
    self, before: models.Weights, after: models.Weights, client: trainers.Client
  ) -> models.Weights:
    return self.settings.add_noise(before, after, client.seed)

  def initialize_clusters(self, seed: aliases.Seed) -> Maps:
    w = self.network.draw_points(seed)
    return Maps(w, w, 0)

  def head_of(self, clusters: Maps, e: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    del k
    return fedembed.nearest(e, clusters.w)

  def _decay(self, maps: Maps) -> tf.Tensor:
    t = tf.cast(maps.round, tf.float32)
    return 1 + 2 * t / self.settings.som_rounds

  def cluster_updates(
    self, clusters: Maps, client: trainers.Client, e: models.Weights
  ) -> Mapping[str, aggregation.Update]:
    del client
    (vector,) = e.values()
    decay = self._decay(clusters)
    distances = tf.sqrt(fedembed.squared_distances(vector, clusters.next_w))
    j = tf.argmin(distances, output_type=tf.int32)
    away = tf.cast(tf.range(self.num_heads) - j, tf.float32)
    variance = tf.square(self.settings.som_radius / decay)
    h = tf.exp(
      -tf.square(away) / (2 * tf.maximum(variance, _SMALLEST_VARIANCE))
    )
    towards = h[:, tf.newaxis] * (vector - clusters.next_w)
    delta = self.settings.som_rate / decay * towards
    score = 1 / (1 + distances)
    if self.settings.som_winner == 'node':
      sent = {
        self._node(i): aggregation.Update(delta[i], score[i])
        for i in self._nodes
      }
    elif self.settings.som_winner == 'all':
      sent = {'map': aggregation.Update(delta, tf.reduce_max(score))}
    else:
      sent = {'map': aggregation.Update((towards, h))}
    before = fedembed.nearest(vector, clusters.w)
    overlap = tf.one_hot(before, self.num_heads)[:, tf.newaxis] * tf.one_hot(
      j, self.num_heads
    )
    return {**sent, 'overlaps': aggregation.Update(tf.cast(overlap, tf.int32))}

  def next_map(self, maps: Maps, aggregate: trainers.Aggregate) -> tf.Tensor:
    """Returns the next map, moved by what the clients sent."""
    if self.settings.som_winner == 'node':
      delta = tf.stack([aggregate[self._node(i)] for i in self._nodes])
    elif self.settings.som_winner == 'all':
      delta = aggregate['map']
    else:
      towards, h = aggregate['map']
      mean = tf.math.divide_no_nan(towards, h[:, tf.newaxis])
      delta = self.settings.som_rate / self._decay(maps) * mean
    return maps.next_w + delta

  def server(
    self,
    server: fedembed.FedEmbedState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> fedembed.FedEmbedState:
    after = super().server(server, aggregate, sums)
    maps = server.clusters
    order = match(aggregate['overlaps'])

    def renumber(path: tuple[str | int, ...], leaf: tf.Tensor) -> tf.Tensor:
      # Each head takes along the slots of its optimizer.
      is_head = path and path[-1] in self.network.stacked_names
      return tf.gather(leaf, order) if is_head else leaf

    return fedembed.FedEmbedState(
      tree.map_structure_with_path(renumber, after.model),
      tree.map_structure_with_path(renumber, after.optimizer),
      Maps(maps.next_w, self.next_map(maps, aggregate), maps.round + 1),
    )


registry.register_trainer(
  'fedembed_som',
  SomFedEmbed,
  title='FedEmbed (SOM)',
  paper='Silva et al. 2022',
  does=(
    'as fedembed_type, with the head of the nearest node of a self-organizing'
    ' map'
  ),
  sends=(
    'the update of the encoder and of all heads, with zeros for the heads that'
    ' it does not use, and what moves the map'
  ),
  keeps='its embedding',
)
