"""GPT-2 (Radford et al. 2019) as pure functions of its weights.

For the words w_1, …, w_T of a sentence, with blocks i = 0, 1, …,

  x = wte[w] + wpe[position]
  x = x + attention(ln_1(x))
  x = x + mlp(ln_2(x)),    mlp(x) = gelu(x kernel + bias) kernel + bias

and the scores of the next word are ln_f(x) wte^T. A prefix consists of vectors
that come before the embeddings of the words: its positions are 0, 1, …, and the
positions of the words follow.

There is no dropout, as the loss of a model is a pure function of its weights.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math

import tensorflow as tf

from tasks.models import language_models
from tasks.models import layers
from tasks.models import models

_EPSILON = 1e-5
_HEAD_WIDTH = 64


@dataclasses.dataclass(frozen=True)
class Gpt2(language_models.LanguageModel):
  """A GPT-2 of some sizes, as functions of its weights.

  Weights are named after the published ones: h.0.attn.c_attn.weight and .bias
  are 'h0_attn_c_attn_kernel' and '…_bias', the weights of the layer
  normalization h.0.ln_1 are 'h0_ln_1_scale' and '…_offset', wte.weight is
  'wte'.
  """

  @classmethod
  def create(
    cls, vocabulary_size: int, num_positions: int, width: int, num_blocks: int
  ) -> 'Gpt2':
    """Returns a GPT-2 whose heads are as wide as in all published ones."""
    num_heads = max(1, width // _HEAD_WIDTH)
    return cls(vocabulary_size, num_positions, width, num_blocks, num_heads)

  @property
  def embedding(self) -> str:
    return 'wte'

  @property
  def matrices(self) -> Mapping[str, tuple[int, int]]:
    width = self.width
    # q, k and v are parts of one matrix, c_attn; the others are c_proj, c_fc
    # and the network's c_proj.
    return {
      **dict.fromkeys('qkvo', (width, width)),
      'up': (width, 4 * width),
      'down': (4 * width, width),
    }

  @property
  def shapes(self) -> Mapping[str, tuple[int, ...]]:
    """The shape of each weight; kernels are `[inputs, outputs]`."""
    width = self.width
    shapes: dict[str, tuple[int, ...]] = collections.OrderedDict(
      wte=(self.vocabulary_size, width), wpe=(self.num_positions, width)
    )

    def add_norm(layer: str) -> None:
      shapes[f'{layer}_scale'] = shapes[f'{layer}_offset'] = (width,)

    def add_dense(layer: str, inputs: int, outputs: int) -> None:
      shapes[f'{layer}_kernel'] = (inputs, outputs)
      shapes[f'{layer}_bias'] = (outputs,)

    for i in range(self.num_blocks):
      add_norm(f'h{i}_ln_1')
      add_dense(f'h{i}_attn_c_attn', width, 3 * width)
      add_dense(f'h{i}_attn_c_proj', width, width)
      add_norm(f'h{i}_ln_2')
      add_dense(f'h{i}_mlp_c_fc', width, 4 * width)
      add_dense(f'h{i}_mlp_c_proj', 4 * width, width)
    add_norm('ln_f')
    return shapes

  def init(self, seed: tf.Tensor) -> models.Weights:
    """Draws initial weights, which are a function of the seed, two int32.

    They are normal with a deviation of .02, divided by sqrt(2 blocks) where a
    layer's output is added to x, as in Hugging Face's code.

    Args:
      seed: The seed.
    """
    seeds = tf.random.experimental.stateless_split(seed, len(self.shapes))
    weights = collections.OrderedDict()
    for i, (name, shape) in enumerate(self.shapes.items()):
      if name.endswith('_scale'):
        weights[name] = tf.ones(shape)
      elif name.endswith(('_offset', '_bias')):
        weights[name] = tf.zeros(shape)
      else:
        is_added = name.endswith('_c_proj_kernel')
        stddev = 0.02 / (math.sqrt(2 * self.num_blocks) if is_added else 1)
        weights[name] = tf.random.stateless_normal(
          shape, seeds[i], stddev=stddev
        )
    return weights

  def add_positions(self, weights: models.Weights, x: tf.Tensor) -> tf.Tensor:
    return x + weights['wpe'][: x.shape[1]]

  def run_blocks(
    self,
    weights: models.Weights,
    x: tf.Tensor,
    adapters: Sequence[language_models.Adapters],
    places: language_models.Places,
    time: int,
  ) -> tf.Tensor:
    for i, of_block in enumerate(adapters):
      adapt = functools.partial(_adapt, of_block)
      h = layers.layer_norm(weights, f'h{i}_ln_1', x, _EPSILON)
      y = adapt('qkv', layers.dense(weights, f'h{i}_attn_c_attn', h), h)
      h = places.gather(self._attend(places.scatter(y), time))
      x += adapt('o', layers.dense(weights, f'h{i}_attn_c_proj', h), h)
      h = layers.layer_norm(weights, f'h{i}_ln_2', x, _EPSILON)
      y = adapt(['up'], layers.dense(weights, f'h{i}_mlp_c_fc', h), h)
      h = tf.nn.gelu(y, approximate=True)
      x += adapt(['down'], layers.dense(weights, f'h{i}_mlp_c_proj', h), h)
    return layers.layer_norm(weights, 'ln_f', x, _EPSILON)

  def _attend(self, x: tf.Tensor, time: int) -> tf.Tensor:
    """Mixes the values of each word and those before it.

    Args:
      x: The queries, keys and values side by side, one row a word.
      time: The number of rows of a sentence.

    Returns:
      The mixtures of all heads side by side, one row a word.
    """
    by_head = [-1, time, 3, self.num_heads, self.width // self.num_heads]
    # To `[3, batch, heads, time, width of a head]`.
    x = tf.transpose(tf.reshape(x, by_head), [2, 0, 3, 1, 4])
    y = language_models.attend(*tf.unstack(x))
    return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, self.width])


def _adapt(
  adapters: language_models.Adapters,
  matrices: Sequence[str],
  y: tf.Tensor,
  x: tf.Tensor,
) -> tf.Tensor:
  """Adds adapters' changes to y, the products of matrices side by side."""
  if not adapters:
    return y
  parts = tf.split(y, len(matrices), axis=1)
  return tf.concat(
    [
      language_models.add_change(part, adapters, matrix, x)
      for part, matrix in zip(parts, matrices)
    ],
    axis=1,
  )


DISTILGPT2 = Gpt2.create(50_257, 1024, 768, 6)
SMALL = Gpt2.create(8_192, 128, 128, 4)
