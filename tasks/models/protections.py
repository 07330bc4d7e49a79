"""The protection of a client's examples in the gradients of a model."""

import dataclasses

import tensorflow as tf

from base import aliases

# The fields that are in a client's attribute, in its order.
NUMBERS = ('clip', 'noise', 'batch_size', 'most_loss', 'choice_noise')


@dataclasses.dataclass(frozen=True)
class Protection:
  """Protects each example in the gradients of a model by clipping and noise.

  The fields are set for each client, and are None before.

  Attributes:
    clip: S, the largest norm of an example's gradient.
    noise: z_k, the deviation of the noise on a sum of gradients, over S.
    batch_size: B_k, the nominal number of examples of a batch, by which a sum
      of gradients is divided.
    most_loss: The largest loss of an example in a choice among models.
    choice_noise: The scale of the Gumbel noise on the sums of these losses.
    seed: Two int32, from which the noise follows.
    part: The part of the client's work that a gradient is for.
    step: The step in this part. Two gradients of a client with the same seed
      must differ in their part or step, or they would have the same noise.
  """

  clip: tf.Tensor | None = None
  noise: tf.Tensor | None = None
  batch_size: tf.Tensor | None = None
  most_loss: tf.Tensor | None = None
  choice_noise: tf.Tensor | None = None
  seed: aliases.Seed = None
  part: int | tf.Tensor = 0
  step: int | tf.Tensor = 0
