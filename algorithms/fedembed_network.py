"""The network of FedEmbed: an encoder, and heads beside each other.

Silva et al. 2022, figure 2 and section 3.1, see `fedembed`. Its weights are
those of the encoder theta; of the heads phi_1 … phi_K, stacked; of nu, the head
for all users; and of gamma, which predicts types. e is not among them.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses

import tensorflow as tf

from algorithms import client_work
from base import aliases
from tasks.models import layers
from tasks.models import models

_PHI, _NU = 'phi_', 'nu_'
_GAMMA = ('gamma_kernel', 'gamma_bias')


def _add_prefix(prefix: str, weights: models.Weights) -> models.Weights:
  return collections.OrderedDict(
    (f'{prefix}{name}', weight) for name, weight in weights.items()
  )


@dataclasses.dataclass(frozen=True)
class Network:
  """The network, and the derivatives of its losses.

  Attributes:
    model: The model, whose part `models.CLIENT` is e.
    num_heads: K, the number of heads, of which a user has one.
    has_own_head: Whether phi is one head, which the user keeps.
    type_loss: Whether types are learned, if examples have any.
    global_loss: Whether there is nu.
    embedding_loss: The losses that train e: all, global or own.
  """

  model: models.Model
  num_heads: int
  has_own_head: bool
  type_loss: bool
  global_loss: bool
  embedding_loss: str

  @property
  def e_name(self) -> str:
    """The name of the embedding among the model's weights."""
    (name,) = self.model.parts[models.CLIENT]
    return name

  @property
  def _head_names(self) -> Sequence[str]:
    return self.model.parts[models.HEAD]

  @property
  def stacked_names(self) -> list[str]:
    """The names of phi, the stacked weights of all heads."""
    return [f'{_PHI}{name}' for name in self._head_names]

  def initialize(
    self,
    theta_seed: aliases.Seed,
    phi_seeds: aliases.Seed,
    gamma_seed: aliases.Seed,
    nu_seed: aliases.Seed,
  ) -> models.Weights:
    """Draws the weights that users share."""
    first = self.model.init(theta_seed)
    w = collections.OrderedDict(
      (name, weight)
      for name, weight in first.items()
      if name != self.e_name and name not in self._head_names
    )
    if not self.has_own_head:
      w |= self.stack_heads([phi_seeds[k] for k in range(self.num_heads)])
    if self.type_loss and self.model.num_types:
      features = self.model.encode(first, self.model.blank_example())
      size = int(features.shape[1])
      for i, shape in enumerate(([size], [])):
        w[_GAMMA[i]] = layers.fan_in_uniform(
          tf.random.experimental.stateless_fold_in(gamma_seed, i),
          [*shape, self.model.num_types],
          size,
        )
    if self.global_loss:
      w |= _add_prefix(_NU, self._new_head(nu_seed))
    return w

  def _new_head(self, seed: aliases.Seed) -> models.Weights:
    return client_work.select(self.model.init(seed), self._head_names)

  def stack_heads(self, seeds: Sequence[aliases.Seed]) -> models.Weights:
    """Draws heads, as phi."""
    return _add_prefix(_PHI, client_work.stack(map(self._new_head, seeds)))

  def new_embedding(self, seed: aliases.Seed) -> models.Weights:
    """Draws an embedding."""
    return client_work.select(self.model.init(seed), [self.e_name])

  def draw_points(self, seed: aliases.Seed) -> tf.Tensor:
    """Draws K points in the space of embeddings, `[K, D]`."""
    seeds = tf.random.experimental.stateless_split(seed, self.num_heads)
    drawn = [self.new_embedding(seeds[k]) for k in range(self.num_heads)]
    return tf.stack([e[self.e_name] for e in drawn])

  def e_weights(self, e: tf.Tensor) -> models.Weights:
    """Returns an embedding as weights of the model."""
    return collections.OrderedDict([(self.e_name, e)])

  def _theta(self, w: models.Weights) -> models.Weights:
    heads = _PHI, _NU
    names = [n for n in w if n not in _GAMMA and not n.startswith(heads)]
    return client_work.select(w, names)

  def _phi_j(self, w: models.Weights, j: tf.Tensor) -> models.Weights:
    """Returns phi_j, as weights of the model."""
    return collections.OrderedDict(
      (name, tf.gather(w[f'{_PHI}{name}'], j)) for name in self._head_names
    )

  def _nu(self, w: models.Weights) -> models.Weights:
    """Returns nu, as weights of the model; nothing if there is none."""
    return collections.OrderedDict(
      (name, w[f'{_NU}{name}']) for name in self._head_names if self.global_loss
    )

  def slopes(
    self,
    w: models.Weights,
    e: models.Weights,
    j: tf.Tensor,
    examples: models.Batch,
    mask: tf.Tensor,
  ) -> tuple[models.Weights, models.Weights, tf.Tensor]:
    """Differentiates the losses of a batch.

    Args:
      w: All weights but e.
      e: The embedding.
      j: The user's head.
      examples: The batch.
      mask: 0 for padding.

    Returns:
      The gradient for w, the gradient for e, and a.
    """
    theta, phi_j, nu = self._theta(w), self._phi_j(w, j), self._nu(w)
    gamma = client_work.select(w, _GAMMA)
    with tf.GradientTape(persistent=True) as tape:
      tape.watch((theta, phi_j, nu, gamma, e))
      # Encoders that share weights with the head read those as well.
      features = self.model.encode(client_work.merge(theta, phi_j, e), examples)
      a = self._preference_loss(phi_j, features, examples, mask)
      b = self._type_loss(gamma, features, examples, mask)
      c = self._preference_loss(nu, features, examples, mask)
    of_phi_j = client_work.slopes(tape, a, phi_j)
    slopes = {
      **client_work.slopes(tape, [a, b], theta),
      **self._heads_gradient(j, of_phi_j),
      **client_work.slopes(tape, b, gamma),
      **_add_prefix(_NU, client_work.slopes(tape, c, nu)),
    }
    trains_e = {'all': [a, b, c], 'global': c, 'own': a}
    of_e = client_work.slopes(tape, trains_e[self.embedding_loss], e)
    return collections.OrderedDict((n, slopes[n]) for n in w), of_e, a

  def _heads_gradient(
    self, j: tf.Tensor, of_phi_j: models.Weights
  ) -> models.Weights:
    """Returns the gradient for phi, which is zero except for head j."""
    is_j = tf.one_hot(j, 1 if self.has_own_head else self.num_heads)
    return collections.OrderedDict(
      (
        f'{_PHI}{name}',
        tf.reshape(is_j, [-1] + [1] * slope.shape.rank) * slope,
      )
      for name, slope in of_phi_j.items()
    )

  def _preference_loss(
    self,
    head: models.Weights,
    features: tf.Tensor,
    examples: models.Batch,
    mask: tf.Tensor,
  ) -> tf.Tensor:
    """Returns L_C, the task's own loss; 0 if there is no such head."""
    if not head:
      return tf.constant(0.0)
    loss = self.model.score_loss(self.model.decide(head, features), examples)
    return models.mean(loss, mask * self.model.example_weight(examples))

  def _type_loss(
    self,
    gamma: models.Weights,
    features: tf.Tensor,
    examples: models.Batch,
    mask: tf.Tensor,
  ) -> tf.Tensor:
    """Returns L_M; 0 if there is no gamma."""
    if not gamma:
      return tf.constant(0.0)
    scores = layers.dense(gamma, 'gamma', features)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
      examples['type'], scores
    )
    return models.mean(loss, mask)

  def user_models(
    self, w: models.Weights, e: models.Weights, j: tf.Tensor
  ) -> tuple[models.Weights, models.Weights]:
    """Returns a user's model with phi_j, and with nu; empty without nu."""
    theta, nu = self._theta(w), self._nu(w)
    shared = self._order({**theta, **e, **nu}) if nu else nu
    return self._order({**theta, **e, **self._phi_j(w, j)}), shared

  def _order(self, weights: Mapping[str, tf.Tensor]) -> models.Weights:
    """Puts weights into the order of the model's parts."""
    names = [name for part in self.model.parts.values() for name in part]
    return collections.OrderedDict((name, weights[name]) for name in names)
