"""A frozen language model with a prompt or a head that is trained (FedPC).

Silva, Tambwekar and Gombolay 2022, "FedPC: federated learning for language
generation with personal and context preference embeddings".
"""

import collections
from collections.abc import Mapping
import dataclasses

import tensorflow as tf

from tasks.models import frozen_models
from tasks.models import layers
from tasks.models import models
from tasks.models import next_word


def draw_vectors(
  seed: tf.Tensor, num_contexts: int, width: int
) -> models.Weights:
  """Draws psi, uniform in [0, 1), and all phi, normal with a deviation of 1."""
  seeds = tf.random.experimental.stateless_split(seed, 2)
  return collections.OrderedDict(
    psi=tf.random.stateless_uniform([width], seeds[0]),
    phi=tf.random.stateless_normal([num_contexts, width], seeds[1]),
  )


@dataclasses.dataclass(frozen=True)
class PromptedModel(frozen_models.FrozenModel):
  """A frozen GPT-2 with one vector before the words, e = psi * phi_c (FedPC).

  psi is the client's vector, and phi_c the vector of a context.

  Attributes:
    first_prompt: What e starts as, such as the embedding of a word; None for
      the paper's start, which is random. It is a field of its own, and not read
      from the frozen weights, as models of other frozen weights are equal.
  """

  first_prompt: tuple[float, ...] | None = dataclasses.field(
    default=None, kw_only=True
  )

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {models.CLIENT: ('psi',), models.ENCODER: ('phi',), models.HEAD: ()}

  @property
  def context_names(self) -> tuple[str, ...]:
    return ('phi',)

  def init(self, seed: tf.Tensor) -> models.Weights:
    width = self.language_model.width
    if self.first_prompt is None:
      return draw_vectors(seed, self.num_contexts, width)
    phi = tf.tile([self.first_prompt], [self.num_contexts, 1])
    return collections.OrderedDict(psi=tf.ones([width]), phi=phi)

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    phi = layers.look_up(weights['phi'], batch['context'])
    e = weights['psi'] * phi
    return self._encode_behind(e[:, tf.newaxis], batch)


@dataclasses.dataclass(frozen=True)
class ModelWithHead(frozen_models.FrozenModel):
  """A frozen GPT-2 with a last layer that is trained (FedPC's meta-learning).

  The last layer starts as that of the language model. The weight 'head' is its
  difference from that layer, and thus starts at zero: steps on
  the difference are steps on the layer.
  """

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {models.ENCODER: (), models.HEAD: ('head',)}

  def init(self, seed: tf.Tensor) -> models.Weights:
    shape = [self.language_model.vocabulary_size, self.language_model.width]
    return collections.OrderedDict(head=tf.zeros(shape))

  def decide(
    self, weights: models.Weights, features: tf.Tensor
  ) -> next_word.LastLayer:
    kernel = self.frozen[self.language_model.head] + weights['head']
    return self._last_layer(features, kernel)


@dataclasses.dataclass(frozen=True)
class ModelWithTwoHeads(frozen_models.FrozenModel):
  """A frozen GPT-2 with a head of the client and one of each context.

  This is FedPC's split learning. The scores are the mean of the scores of the
  two heads, or their sum; the paper does not say which. As in `ModelWithHead`,
  both weights are differences from the matrix of word embeddings.

  Attributes:
    sums_heads: Whether the scores are the sum.
  """

  sums_heads: bool = dataclasses.field(default=False, kw_only=True)

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      models.CLIENT: ('own_head',),
      models.ENCODER: (),
      models.HEAD: ('context_heads',),
    }

  @property
  def context_names(self) -> tuple[str, ...]:
    return ('context_heads',)

  def init(self, seed: tf.Tensor) -> models.Weights:
    shape = [self.language_model.vocabulary_size, self.language_model.width]
    return collections.OrderedDict(
      own_head=tf.zeros(shape),
      context_heads=tf.zeros([self.num_contexts, *shape]),
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    """Represents words, with the number of the context as the last feature."""
    features = super().encode(weights, batch)
    context = tf.repeat(batch['context'], self.sequence_length)
    context = tf.cast(context, features.dtype)[:, tf.newaxis]
    return tf.concat([features, context], axis=1)

  def decide(
    self, weights: models.Weights, features: tf.Tensor
  ) -> frozen_models.HeadOfEach:
    contexts, head_numbers = tf.unique(tf.cast(features[:, -1], tf.int32))
    heads = layers.look_up(weights['context_heads'], contexts)
    first = self.frozen[self.language_model.head]
    heads += 2 * first + weights['own_head']
    if not self.sums_heads:
      heads /= 2
    return frozen_models.HeadOfEach(features[:, :-1], heads, head_numbers)
