"""Models with normalization layers: of groups, or of batches with statistics.

Group normalization (Wu and He 2018) is a function of one example. Batch
normalization (Ioffe and Szegedy 2015) is another function in training than in
evaluation. With the mean m and the variance v of a channel over the examples of
a batch, padding left out, and n values of it in the batch,

  in training    y = (x - m) / sqrt(v + eps) * scale + offset
                 mean <- .9 mean + .1 m;  variance <- .9 variance + .1 v'
  in evaluation  y = (x - mean) / sqrt(variance + eps) * scale + offset

where v' = v n / (n - 1), as in PyTorch. The running statistics are weights that
no gradient trains, in a part of their own, `STATISTICS`; scales and offsets are
the part `NORM`. A server that averages weights averages statistics, too. What
the average of clients' variances is, depends on what a model keeps:

  averaged    the variance. Its average leaves out that clients' means differ.
  pooled      the mean square, which follows v' + m^2. The variance, mean square
              - mean^2, is then that of the values of all clients together.
  recomputed  nothing. Each client computes the statistics from its
              personalization set before it is evaluated.
"""

import abc
import collections
from collections.abc import Callable, Mapping
import dataclasses
from typing import TypeAlias

import tensorflow as tf

from base import errors
from tasks.models import layers
from tasks.models import models

GROUP, BATCH = 'group', 'batch'
AVERAGED, POOLED, RECOMPUTED = 'averaged', 'pooled', 'recomputed'
# Maps the name of a layer and its input to what is normalized.
Normalize: TypeAlias = Callable[[str, tf.Tensor], tf.Tensor]
# PyTorch's numbers.
_EPSILON = 1e-5
_RATE = 0.1


@dataclasses.dataclass(frozen=True)
class NormalizedModel(models.Model):
  """A model with normalization layers.

  Attributes:
    norm: `GROUP` or `BATCH`.
    running: What is kept of the statistics of batches: `AVERAGED`, `POOLED` or
      `RECOMPUTED`.
    num_groups: The number of groups of channels that are normalized together.
  """

  norm: str = dataclasses.field(default=GROUP, kw_only=True)
  running: str = dataclasses.field(default=AVERAGED, kw_only=True)
  num_groups: int = dataclasses.field(default=8, kw_only=True)

  @property
  @abc.abstractmethod
  def norm_channels(self) -> Mapping[str, int]:
    """The number of channels of each normalization layer."""

  @abc.abstractmethod
  def represent(
    self, weights: models.Weights, batch: models.Batch, normalize: Normalize
  ) -> tf.Tensor:
    """Represents the entries of a batch, given what its layers do."""

  @property
  def mixes_examples(self) -> bool:
    return self.norm == BATCH

  @property
  def recomputes_statistics(self) -> bool:
    return self.norm == BATCH and self.running == RECOMPUTED

  @property
  def _second(self) -> str:
    return 'square' if self.running == POOLED else 'variance'

  def norm_parts(self) -> dict[str, tuple[str, ...]]:
    """Returns the parts of the normalization layers, for `parts`."""
    layers_ = tuple(self.norm_channels)
    parts = {
      models.NORM: tuple(
        f'{layer}_{name}' for layer in layers_ for name in ('scale', 'offset')
      )
    }
    if self.norm == BATCH and self.running != RECOMPUTED:
      parts[models.STATISTICS] = tuple(
        f'{layer}_{name}'
        for layer in layers_
        for name in ('mean', self._second)
      )
    return parts

  def init_norm(self) -> models.Weights:
    """Makes the weights of the layers, which at first change nothing."""
    zero_or_one = {
      'scale': tf.ones,
      'offset': tf.zeros,
      'mean': tf.zeros,
      'variance': tf.ones,
      'square': tf.ones,
    }
    weights = collections.OrderedDict()
    for layer, channels in self.norm_channels.items():
      for names in self.norm_parts().values():
        for name, make in zero_or_one.items():
          if f'{layer}_{name}' in names:
            weights[f'{layer}_{name}'] = make([channels])
    return weights

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    def normalize(layer: str, x: tf.Tensor) -> tf.Tensor:
      if self.norm == GROUP:
        return layers.group_norm(weights, layer, x, self.num_groups, _EPSILON)
      if f'{layer}_mean' not in weights:
        raise errors.UserError(
          'This method evaluates models while it trains, before the statistics'
          ' of batch normalization are recomputed. Set task.statistics=averaged'
          ' or pooled, or task.norm=group.'
        )
      mean, second = (
        weights[f'{layer}_mean'],
        weights[f'{layer}_{self._second}'],
      )
      if self.running == POOLED:
        second = tf.maximum(second - tf.square(mean), 0.0)
      scale = weights[f'{layer}_scale'] * tf.math.rsqrt(second + _EPSILON)
      return x * scale + (weights[f'{layer}_offset'] - mean * scale)

    return self.represent(weights, batch, normalize)

  def _train(
    self, weights: models.Weights, batch: models.Batch, mask: tf.Tensor
  ) -> tuple[tf.Tensor, Mapping[str, layers.Moments]]:
    """Returns the mean loss in training, and the batch's moments."""
    moments = collections.OrderedDict()

    def normalize(layer: str, x: tf.Tensor) -> tf.Tensor:
      y, moments[layer] = layers.batch_norm(weights, layer, x, _EPSILON)
      return y

    # Of a batch without examples the padding is normalized, as there must be
    # finite numbers for the mask to leave out.
    counts = tf.logical_or(mask > 0, tf.reduce_all(mask <= 0))
    rows = tf.where(counts)[:, 0]
    batch = {name: tf.gather(leaf, rows) for name, leaf in batch.items()}
    features = self.represent(weights, batch, normalize)
    losses = self.score_loss(self.decide(weights, features), batch)
    weight = tf.gather(mask, rows) * self.example_weight(batch)
    return models.mean(losses, weight), moments

  def train_loss(
    self, weights: models.Weights, batch: models.Batch, mask: tf.Tensor
  ) -> tuple[tf.Tensor, models.Weights]:
    if self.norm == GROUP:
      return super().train_loss(weights, batch, mask)
    loss, moments = self._train(weights, batch, mask)
    rate = _RATE * tf.cast(tf.reduce_any(mask > 0), tf.float32)
    after = collections.OrderedDict()
    for layer, (mean, variance, _) in moments.items():
      values = {
        'mean': mean,
        'variance': variance,
        'square': variance + tf.square(mean),
      }
      for name, value in values.items():
        if (old := weights.get(f'{layer}_{name}')) is not None:
          after[f'{layer}_{name}'] = old + rate * (value - old)
    return loss, after

  def mean_loss(
    self, weights: models.Weights, batch: models.Batch, mask: tf.Tensor
  ) -> tf.Tensor:
    if self.norm == GROUP:
      return super().mean_loss(weights, batch, mask)
    return self.train_loss(weights, batch, mask)[0]

  def sum_moments(
    self, weights: models.Weights, batch: models.Batch, mask: tf.Tensor
  ) -> models.Weights:
    """Sums, over a batch, what `statistics_of` makes statistics of."""
    _, moments = self._train(weights, batch, mask)
    sums = collections.OrderedDict()
    for layer, (mean, variance, number) in moments.items():
      sums[f'{layer}_mean'] = number * mean
      squares = (number - 1) * variance + number * tf.square(mean)
      sums[f'{layer}_square'] = squares
      sums[f'{layer}_number'] = number
    any_examples = tf.cast(tf.reduce_any(mask > 0), tf.float32)
    return tf.nest.map_structure(lambda leaf: any_examples * leaf, sums)

  def statistics_of(self, sums: models.Weights) -> models.Weights:
    """Makes the statistics of the batches that were summed.

    Without examples they are those that a model starts with.
    """
    made = collections.OrderedDict()
    for layer in self.norm_channels:
      number = sums[f'{layer}_number']
      mean = tf.math.divide_no_nan(sums[f'{layer}_mean'], number)
      square = tf.math.divide_no_nan(sums[f'{layer}_square'], number)
      variance = tf.maximum(square - tf.square(mean), 0.0)
      variance *= number / tf.maximum(number - 1, 1)
      variance = tf.where(number > 0, variance, 1.0)
      made[f'{layer}_mean'] = mean
      made[f'{layer}_{self._second}'] = (
        variance + tf.square(mean) if self.running == POOLED else variance
      )
    return made
