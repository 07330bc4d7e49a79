"""A frozen GPT-2 with prompts that two networks generate from words (FedPC).

Silva et al. 2022, section 3.2.1 and appendix A: personalization without
backpropagation. From the words w_1, …, w_T of an utterance in context c, one
decoder block (Gamma) generates psi_t and another one (nu) phi_t, starting from
psi_1 = psi, which the client keeps, and phi_1 = phi_c. For each of the two,

  a = LN_1(e_(t-1))
  b = LN_3(LN_2(attention(a; w_<t)) + a)
  e_t = LN_4(FFN(b) + a)

where a is the query and the embeddings of the words are the keys and the
values. GPT-2 predicts w_t behind the prefix psi_t * phi_t, which is generated
from earlier words only. As each word has another prefix, an utterance becomes
as many sequences as it has words to predict. In the cheaper form it is one
sequence behind one prefix, generated from its first words.

psi_T is the client's vector after the utterance. No gradient passes to psi and
phi. A block has as many heads as GPT-2 and, like GPT-2's blocks, a hidden
layer of four times the width: 7,090,944 weights at the width of 768.
"""

import collections
from collections.abc import Mapping
import dataclasses
import math

import tensorflow as tf

from tasks.models import frozen_models
from tasks.models import layers
from tasks.models import models
from tasks.models import prompted

_EPSILON = 1e-5
_OF_DENSE, _OF_NORM = ('kernel', 'bias'), ('scale', 'offset')


@dataclasses.dataclass(frozen=True)
class Generator:
  """A decoder block that generates a vector from words, one after another.

  Attributes:
    name: The prefix of the names of its weights.
    width: The width of the vector and of the words.
    num_heads: The number of heads of the attention.
  """

  name: str
  width: int
  num_heads: int

  @property
  def _denses(self) -> Mapping[str, tuple[int, int]]:
    """The inputs and outputs of each dense layer."""
    width, hidden = self.width, 4 * self.width
    attention = {
      f'{self.name}_{part}': (width, width)
      for part in ('query', 'key', 'value', 'output')
    }
    return attention | {
      f'{self.name}_hidden': (width, hidden),
      f'{self.name}_projection': (hidden, width),
    }

  @property
  def _norms(self) -> list[str]:
    return [f'{self.name}_norm_{i}' for i in range(1, 5)]

  @property
  def weight_names(self) -> tuple[str, ...]:
    """The names of the weights."""
    return (
      *(f'{layer}_{kind}' for layer in self._denses for kind in _OF_DENSE),
      *(f'{layer}_{kind}' for layer in self._norms for kind in _OF_NORM),
    )

  def init(self, seed: tf.Tensor) -> models.Weights:
    """Draws initial weights, which are a function of the seed, two int32."""
    seeds = tf.random.experimental.stateless_split(seed, len(self._denses))
    weights = collections.OrderedDict()
    for i, (layer, shape) in enumerate(self._denses.items()):
      weights[f'{layer}_kernel'] = layers.glorot_uniform(seeds[i], shape)
      weights[f'{layer}_bias'] = tf.zeros(shape[1:])
    for layer in self._norms:
      weights[f'{layer}_scale'] = tf.ones([self.width])
      weights[f'{layer}_offset'] = tf.zeros([self.width])
    return weights

  def generate(
    self,
    weights: models.Weights,
    start: tf.Tensor,
    words: tf.Tensor,
    is_word: tf.Tensor,
  ) -> tf.Tensor:
    """Generates the vector after each word.

    Args:
      weights: The weights.
      start: The vector before the first word, `[batch, width]`.
      words: The embeddings of the words, `[batch, time, width]`.
      is_word: False for padding, `[batch, time]`. Padding comes last and does
        not change the vector.

    Returns:
      The vectors, `[batch, time, width]`.
    """
    time = words.shape[1]
    rows = tf.reshape(words, [-1, self.width])
    keys, values = (
      self._split_heads(
        layers.dense(weights, f'{self.name}_{part}', rows), time
      )
      for part in ('key', 'value')
    )

    def step(t: tf.Tensor, e: tf.Tensor, made: tf.TensorArray) -> tuple:
      seen = is_word & (tf.range(time) <= t)
      after = self._step(weights, e, keys, values, seen)
      e = tf.where(tf.gather(is_word, t, axis=1)[:, tf.newaxis], after, e)
      return t + 1, e, made.write(t, e)

    made = tf.TensorArray(tf.float32, time, element_shape=start.shape)
    *_, made = tf.while_loop(
      lambda t, *_: t < time,
      step,
      (0, start, made),
      maximum_iterations=time,
    )
    return tf.transpose(made.stack(), [1, 0, 2])

  def _split_heads(self, rows: tf.Tensor, time: int) -> tf.Tensor:
    """Reshapes rows of words to `[batch, heads, time, width of a head]`."""
    by_head = [-1, time, self.num_heads, self.width // self.num_heads]
    return tf.transpose(tf.reshape(rows, by_head), [0, 2, 1, 3])

  def _step(
    self,
    weights: models.Weights,
    e: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    seen: tf.Tensor,
  ) -> tf.Tensor:
    """Computes e_t from e_(t-1) and the words in `seen`, `[batch, time]`."""

    def norm(i: int, x: tf.Tensor) -> tf.Tensor:
      return layers.layer_norm(weights, self._norms[i - 1], x, _EPSILON)

    def dense(part: str, x: tf.Tensor) -> tf.Tensor:
      return layers.dense(weights, f'{self.name}_{part}', x)

    a = norm(1, e)
    query = self._split_heads(dense('query', a), 1)
    scores = tf.matmul(query, keys, transpose_b=True)
    scores *= math.sqrt(self.num_heads / self.width)
    unseen = tf.cast(~seen, tf.float32)[:, tf.newaxis, tf.newaxis]
    mixed = tf.matmul(tf.nn.softmax(scores - 1e9 * unseen), values)
    attended = dense('output', tf.reshape(mixed, [-1, self.width]))
    b = norm(3, norm(2, attended) + a)
    hidden = tf.nn.gelu(dense('hidden', b), approximate=True)
    return norm(4, dense('projection', hidden) + a)


@dataclasses.dataclass(frozen=True)
class ModelWithGeneratedPrompts(
  frozen_models.FrozenModel, models.GeneratingModel
):
  """A frozen GPT-2 behind psi_t * phi_t, generated from the words before.

  Attributes:
    once: Whether an utterance has one prefix, generated from the first
      `prompt_length` words, and predicts only the words after these.
  """

  once: bool = dataclasses.field(default=False, kw_only=True)

  @property
  def _generators(self) -> tuple[Generator, Generator]:
    """Returns the generators of psi and of phi."""
    sizes = self.language_model.width, self.language_model.num_heads
    return Generator('psi', *sizes), Generator('phi', *sizes)

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    of_psi, of_phi = self._generators
    return {
      models.CLIENT: ('psi',),
      models.FIXED: ('phi',),
      models.ENCODER: (*of_psi.weight_names, *of_phi.weight_names),
      models.HEAD: (),
    }

  def init(self, seed: tf.Tensor) -> models.Weights:
    seeds = tf.random.experimental.stateless_split(seed, 3)
    of_psi, of_phi = self._generators
    return collections.OrderedDict(
      **prompted.draw_vectors(
        seeds[0], self.num_contexts, self.language_model.width
      ),
      **of_psi.init(seeds[1]),
      **of_phi.init(seeds[2]),
    )

  def generate(
    self, weights: models.Weights, batch: models.Batch
  ) -> models.Weights:
    # psi_T is generated from the words before the last one.
    made = self._make_psi(weights, batch, batch['y'] > 0)
    return collections.OrderedDict(psi=made[:, -1])

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    is_word = batch['x'] > 0
    _, of_phi = self._generators
    phi = layers.look_up(weights['phi'], batch['context'])
    prefixes = self._make_psi(weights, batch, is_word) * self._make(
      of_phi, weights, phi, batch, is_word
    )
    if self.once:
      return self._encode_behind(prefixes[:, -1:], batch)
    # Each word has its own sequence, in which only that word is predicted.
    time, width = self.sequence_length, self.language_model.width
    features = self.language_model.encode(
      self.frozen,
      tf.repeat(self._words(batch), time, axis=0),
      tf.reshape(prefixes, [-1, 1, width]),
    )
    features = tf.reshape(features, [-1, time * time, width])[:, :: time + 1]
    return tf.reshape(features, [-1, width])

  def entry_mask(self, batch: models.Batch) -> tf.Tensor:
    # Words from which the prefix was generated must not be predicted.
    return self._is_evaluated(batch) if self.once else super().entry_mask(batch)

  def _make_psi(
    self, weights: models.Weights, batch: models.Batch, is_word: tf.Tensor
  ) -> tf.Tensor:
    """Generates psi_2, psi_3, …, `[batch, time, width]`."""
    of_psi, _ = self._generators
    size = tf.shape(batch['x'])[0]
    psi = tf.broadcast_to(weights['psi'], [size, self.language_model.width])
    return self._make(of_psi, weights, psi, batch, is_word)

  def _make(
    self,
    generator: Generator,
    weights: models.Weights,
    start: tf.Tensor,
    batch: models.Batch,
    is_word: tf.Tensor,
  ) -> tf.Tensor:
    """Generates the vectors after the words that make prefixes."""
    time = self.prompt_length if self.once else self.sequence_length
    words = layers.look_up(
      self.frozen[self.language_model.embedding], self._words(batch)[:, :time]
    )
    return generator.generate(
      weights, tf.stop_gradient(start), words, is_word[:, :time]
    )
