"""Private steps: gradients in which each example of a client is protected.

Abadi et al. 2016, algorithm 1 (DP-SGD), within each silo k as in Liu et al.
2022. For a batch of examples x_i, with a regularizer R,

  g_i  <- grad loss(w; x_i) + grad R(w)
  g_i  <- g_i min(1, S / ||g_i||)
  grad <- (sum_i g_i + N(0, z_k^2 S^2)) / B_k

The norm is over all weights that are trained, together. B_k is the nominal size
of batches, as the real size of a random batch is not known outside the silo.
The regularizer is clipped with the loss, as in the code of Liu et al.; adding
it after the clipping would be as private.

An example whose gradient, or its square, is not finite counts as zero.
"""

import collections
from collections.abc import Callable, Iterator
import contextlib
import contextvars
import dataclasses
import math
from typing import TypeVar, cast

import tensorflow as tf

from algorithms import vectors
from algorithms.privacy import keys
from tasks.models import layers
from tasks.models import models
from tasks.models import protections

# Maps weights, a batch and its mask to the mean loss of the batch.
Loss = Callable[[models.Weights, models.Batch, tf.Tensor], tf.Tensor]
_Objective = TypeVar('_Objective')
# The part of the steps in a trainer's `start`.
START = -2
# The part of the noise of choices.
_CHOICE = -1
# The parts and steps of private gradients, while they are counted.
_NOTED: contextvars.ContextVar[list[tuple[int, int]] | None] = (
  contextvars.ContextVar('noted', default=None)
)


def mark(
  model: _Objective,
  *,
  part: int | tf.Tensor | None = None,
  step: int | tf.Tensor | None = None,
) -> _Objective:
  """Marks a model with a part of a client's work, or with a step of the part.

  The noise of its gradients is that of this part and step.

  Args:
    model: The model, or another that has a mean loss. If it is not protected,
      it is returned as it is.
    part: The number of the part, below 2^31; None keeps the present one.
    step: The number of the step, likewise.
  """
  if not isinstance(model, models.Model) or model.protection is None:
    return model
  given = {'part': part, 'step': step}
  protection = dataclasses.replace(
    model.protection,
    **{n: value for n, value in given.items() if value is not None},
  )
  replaced = dataclasses.replace(model, protection=protection)
  return cast(_Objective, replaced)


def batch_size(model: models.Model, mask: tf.Tensor) -> tf.Tensor:
  """Returns the number that the gradient of a batch is divided by."""
  if model.protection is None:
    return tf.reduce_sum(mask)
  return model.protection.batch_size


def _uniform(
  protection: protections.Protection, part: int | tf.Tensor, size: int
) -> tf.Tensor:
  """Draws numbers between 0 and 1, which differ for each part and step.

  They are computed here from the bits of Philox, because TensorFlow computes
  other numbers from these bits under XLA.
  """
  bits = keys.draw_bits(protection.seed, (part, protection.step), size)
  # Numbers that round to 1 are put below it, as their logarithm must not be 0.
  uniform = (tf.cast(bits, tf.float32) + 1.0) * 2.0**-32
  return tf.minimum(uniform, 1.0 - 2.0**-24)


def _normal(
  protection: protections.Protection, like: models.Weights
) -> models.Weights:
  """Draws N(0, 1) in the shapes of weights, by the Box-Muller transform."""
  size = vectors.count(like.values())
  half = -(-size // 2)
  first, second = tf.split(_uniform(protection, protection.part, 2 * half), 2)
  radius, angle = tf.sqrt(-2.0 * tf.math.log(first)), 2 * math.pi * second
  drawn = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], 0)
  return vectors.split_weights(drawn[:size], like)


def total_loss(
  model: models.Model,
  weights: models.Weights,
  examples: models.Batch,
  mask: tf.Tensor,
) -> tf.Tensor:
  """Sums the examples' losses for a choice, each clipped to `most_loss`."""
  assert model.protection is not None
  most = model.protection.most_loss
  losses = model.loss(weights, examples)
  # NaN counts as the largest loss, too.
  losses = tf.where(losses < most, tf.maximum(losses, 0.0), most)
  return tf.reduce_sum(tf.where(mask > 0, mask * losses, 0.0))


def add_choice_noise(model: models.Model, losses: tf.Tensor) -> tf.Tensor:
  """Adds Gumbel noise, which makes argmin the exponential mechanism.

  Args:
    model: The model. If it is not protected, the losses stay as they are.
    losses: The sums of losses to choose among, as `total_loss` gives them.
  """
  protection = model.protection
  if protection is None:
    return losses
  uniform = _uniform(protection, _CHOICE, losses.shape.num_elements())
  gumbel = -tf.math.log(-tf.math.log(uniform))
  return losses - protection.choice_noise * gumbel


def _differentiate(
  loss: Callable[[models.Weights], tf.Tensor], weights: models.Weights
) -> tuple[models.Weights, tf.Tensor]:
  with tf.GradientTape() as tape:
    tape.watch(weights)
    value = loss(weights)
  slopes = tape.gradient(
    value, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  return tf.nest.map_structure(tf.convert_to_tensor, slopes), value


def _share(
  slopes: models.Weights, clip: tf.Tensor, axes_in_front: int
) -> tf.Tensor:
  """Returns min(1, S / ||g||); 0 for a norm that is not finite."""
  square = tf.add_n(
    [
      tf.reduce_sum(
        tf.square(leaf), list(range(axes_in_front, leaf.shape.rank))
      )
      for leaf in slopes.values()
    ]
  )
  return _share_of_square(square, clip)


def _share_of_square(square: tf.Tensor, clip: tf.Tensor) -> tf.Tensor:
  """Returns min(1, S / ||g||), given ||g||^2."""
  share = tf.minimum(1.0, clip * tf.math.rsqrt(square))
  return tf.where(tf.math.is_finite(square), share, 0.0)


def _finite_entries(leaf: tf.Tensor) -> tf.Tensor:
  return tf.where(tf.math.is_finite(leaf), leaf, 0.0)


def _clip_by_norms(
  loss: Loss,
  clip: tf.Tensor,
  weights: models.Weights,
  examples: models.Batch,
  mask: tf.Tensor,
) -> tuple[models.Weights, tf.Tensor]:
  """Finds all norms first, and then differentiates a weighted sum of losses."""
  exists = tf.sign(mask)
  probes = {layers.probe(name): tf.zeros_like(mask) for name in weights}
  with tf.GradientTape() as tape:
    tape.watch(probes)
    probed = collections.OrderedDict(weights, **probes)
    mean_loss = loss(probed, examples, exists)
    total = mean_loss * tf.reduce_sum(exists)
  squares = tape.gradient(total, probes)
  for name, square in squares.items():
    if square is None:
      raise ValueError(f'No layer computes the gradient norms of {name}.')
  shares = mask * _share_of_square(tf.add_n(list(squares.values())), clip)
  # Values that are not finite must not be there, even with a share of zero.
  counts = shares > 0
  examples = {
    name: tf.where(
      tf.reshape(counts, [-1] + [1] * (leaf.shape.rank - 1)),
      leaf,
      tf.zeros_like(leaf),
    )
    for name, leaf in examples.items()
  }
  slopes, _ = _differentiate(
    lambda w: loss(w, examples, shares) * tf.reduce_sum(shares), weights
  )
  return slopes, mean_loss * tf.reduce_sum(mask)


def clipped_sum(
  loss: Loss,
  clip: tf.Tensor,
  weights: models.Weights,
  examples: models.Batch,
  mask: tf.Tensor,
  pull: models.Weights | None = None,
  way: str = 'in turns',
) -> tuple[models.Weights, tf.Tensor]:
  """Sums the clipped gradients of the examples of a batch.

  Args:
    loss: The mean loss of a batch, which is called with single examples.
    clip: S.
    weights: The weights to differentiate by.
    examples: The batch.
    mask: 0 for padding.
    pull: The gradient of the regularizer, which is added to each example's.
    way: The way to compute it, see the model's `example_gradients`. With a
      regularizer, 'by norms' becomes 'in turns'.

  Returns:
    The sum, and the examples' sum of losses.
  """
  if way == 'by norms' and pull is None:
    return _clip_by_norms(loss, clip, weights, examples, mask)

  def differentiate(example: models.Batch) -> tuple[models.Weights, tf.Tensor]:
    alone = {name: leaf[tf.newaxis] for name, leaf in example.items()}
    slopes, value = _differentiate(
      lambda w: loss(w, alone, tf.ones([1])), weights
    )
    if pull is not None:
      slopes = tf.nest.map_structure(tf.add, slopes, pull)
    return slopes, value

  if way == 'at once':
    slopes, losses = tf.vectorized_map(
      differentiate, dict(examples), fallback_to_while_loop=False
    )
    shares = mask * _share(slopes, clip, 1)
    total = tf.nest.map_structure(
      lambda leaf: tf.tensordot(shares, _finite_entries(leaf), 1), slopes
    )
    return total, tf.tensordot(mask, losses, 1)

  def add(
    i: tf.Tensor, total: models.Weights, sum_of_losses: tf.Tensor
  ) -> tuple[tf.Tensor, models.Weights, tf.Tensor]:
    slopes, value = differentiate(
      {name: tf.gather(leaf, i) for name, leaf in examples.items()}
    )
    mask_of_example = tf.gather(mask, i)
    share = mask_of_example * _share(slopes, clip, 0)
    total = tf.nest.map_structure(
      lambda leaf, slope: leaf + share * _finite_entries(slope), total, slopes
    )
    return i + 1, total, sum_of_losses + mask_of_example * value

  _, total, sum_of_losses = tf.while_loop(
    lambda i, *_: i < tf.shape(mask)[0],
    add,
    (0, tf.nest.map_structure(tf.zeros_like, weights), tf.constant(0.0)),
  )
  return total, sum_of_losses


@contextlib.contextmanager
def count_gradients() -> Iterator[list[tuple[int, int]]]:
  """Notes the part and the step of each private gradient, in eager mode."""
  noted: list[tuple[int, int]] = []
  token = _NOTED.set(noted)
  try:
    yield noted
  finally:
    _NOTED.reset(token)


def gradient(
  protection: protections.Protection,
  loss: Loss,
  weights: models.Weights,
  examples: models.Batch,
  mask: tf.Tensor,
  regularizer: Callable[[models.Weights], tf.Tensor] | None = None,
  way: str = 'in turns',
) -> tuple[models.Weights, tf.Tensor]:
  """Returns a private gradient, and the mean loss, which is not private.

  Args:
    protection: The client's protection.
    loss: As in `clipped_sum`.
    weights: The weights to differentiate by.
    examples: The batch.
    mask: 0 for padding. Without examples the gradient is zero.
    regularizer: R.
    way: As in `clipped_sum`.
  """
  if (noted := _NOTED.get()) is not None:
    noted.append((int(protection.part), int(protection.step)))
    # In eager mode each call would be vectorized anew, which takes longer.
    way = 'in turns' if way == 'at once' else way
  pull = None
  if regularizer is not None:
    pull, _ = _differentiate(regularizer, weights)
  total, sum_of_losses = clipped_sum(
    loss, protection.clip, weights, examples, mask, pull, way
  )
  any_examples = tf.cast(tf.reduce_any(mask > 0), tf.float32)
  # The clipping norm may be infinite where there is no noise.
  deviation = any_examples * tf.math.multiply_no_nan(
    protection.clip, protection.noise
  )
  noised = tf.nest.map_structure(
    lambda leaf, noise: (leaf + deviation * noise) / protection.batch_size,
    total,
    _normal(protection, total),
  )
  return noised, tf.math.divide_no_nan(sum_of_losses, tf.reduce_sum(mask))
