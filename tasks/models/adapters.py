"""Adapters of low rank on the matrices of a frozen language model (LoRA).

Hu et al. 2022. To the product of a matrix W and its input h, the adapter of the
matrix adds

  scale up(down(h)),    down: [inputs, rank], up: [rank, outputs]

where `up` starts at zero, so that the model starts as the frozen one. `down`
and `up` are B and A of the paper in reverse order, A and B, as an input is a
row here. The adapters of a matrix in all blocks are one weight with the block
as first axis.

The parts `down` and `up` make methods of the literature: FedIT (Zhang et al.
2024) shares both, FFA-LoRA (Sun et al. 2024) trains `up` alone, FedSA-LoRA (Guo
et al. 2025) keeps `up` on the client. FedDPA (Yang et al. 2024) has two
adapters, of which one is the client's own:

  W h + (1 - share) scale up(down(h)) + share scale own_up(own_down(h))
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math

import numpy as np
import tensorflow as tf

from base import aliases
from tasks.models import frozen_models
from tasks.models import language_models
from tasks.models import models

DOWN, UP = 'down', 'up'
_OWN = 'own_'


def draw_down(
  shape: Sequence[int], draw: Callable[[Sequence[int]], tf.Tensor]
) -> tf.Tensor:
  """Draws first factors, whose products with inputs keep the inputs' size."""
  return draw(shape) / math.sqrt(shape[1])


@dataclasses.dataclass(frozen=True)
class AdaptedModel(frozen_models.FrozenModel):
  """A frozen language model with adapters.

  Attributes:
    matrices: The matrices of each block that are adapted.
    rank: The rank of the adapters.
    scale: The factor of the changes.
    trains_down: Whether `down` is trained. Otherwise it is among the frozen
      weights, as `frozen_down` makes it.
    has_own: Whether there is a second adapter, in the part of weights that
      clients keep, which is added to the first one.
  """

  matrices: tuple[str, ...] = dataclasses.field(
    default=('q', 'v'), kw_only=True
  )
  rank: int = dataclasses.field(default=4, kw_only=True)
  scale: float = dataclasses.field(default=2.0, kw_only=True)
  trains_down: bool = dataclasses.field(default=True, kw_only=True)
  has_own: bool = dataclasses.field(default=False, kw_only=True)

  def _names(self, kind: str) -> tuple[str, ...]:
    return tuple(f'{matrix}_{kind}' for matrix in self.matrices)

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    own = (*self._names(_OWN + DOWN), *self._names(_OWN + UP))
    return {
      models.CLIENT: own if self.has_own else (),
      DOWN: self._names(DOWN) if self.trains_down else (),
      UP: self._names(UP),
      models.ENCODER: (),
      models.HEAD: (),
    }

  def _shape(self, name: str) -> tuple[int, int, int]:
    """Returns the shape of the factors of a matrix, in all blocks."""
    matrix, _, kind = name.partition('_')
    inputs, outputs = self.language_model.matrices[matrix]
    blocks = self.language_model.num_blocks
    if kind.endswith(DOWN):
      return blocks, inputs, self.rank
    return blocks, self.rank, outputs

  def frozen_down(self, rng: np.random.Generator) -> models.Weights:
    """Draws factors that are not trained, to be added to the frozen weights."""
    return collections.OrderedDict(
      (
        name,
        draw_down(self._shape(name), rng.standard_normal).astype(np.float32),
      )
      for name in self._names(DOWN)
    )

  def init(self, seed: tf.Tensor) -> models.Weights:
    names = [name for names in self.parts.values() for name in names]
    seeds = tf.random.experimental.stateless_split(seed, len(names))

    def draw(i: int, name: str) -> tf.Tensor:
      shape = self._shape(name)
      if name.endswith(UP):
        return tf.zeros(shape)
      return draw_down(
        shape, lambda shape: tf.random.stateless_normal(shape, seeds[i])
      )

    return collections.OrderedDict(
      (name, draw(i, name)) for i, name in enumerate(names)
    )

  def mix(
    self, first: models.Weights, second: models.Weights, share: aliases.Number
  ) -> tuple[models.Model, models.Weights]:
    """Mixes the changes by two adapters, of which the second becomes own."""
    if self.has_own:
      return super().mix(first, second, share)
    mixed = collections.OrderedDict()
    for name, weight in first.items():
      own = name.replace('_', f'_{_OWN}')
      is_up = name.endswith(UP)
      mixed[name] = (1 - share) * weight if is_up else weight
      mixed[own] = share * second[name] if is_up else second[name]
    return dataclasses.replace(self, has_own=True), mixed

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    adapters = self.make_adapters(weights)
    return self._encode_behind(self._prefix(batch), batch, adapters)

  def make_adapters(self, weights: models.Weights) -> language_models.Adapters:
    """Makes the adapters, of which two are one of twice the rank."""
    everything = {**self.frozen, **weights}

    def find(matrix: str, kind: str, axis: int) -> tf.Tensor:
      factor = everything[f'{matrix}_{kind}']
      if not self.has_own:
        return factor
      return tf.concat([factor, everything[f'{matrix}_{_OWN}{kind}']], axis)

    return {
      matrix: language_models.LowRank(
        find(matrix, DOWN, 2), self.scale * find(matrix, UP, 1)
      )
      for matrix in self.matrices
    }
