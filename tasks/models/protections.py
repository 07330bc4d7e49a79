"""The protection of a client's examples in the gradients of a model."""

import dataclasses
from typing import Any

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

  clip: Any = None
  noise: Any = None
  batch_size: Any = None
  most_loss: Any = None
  choice_noise: Any = None
  seed: Any = None
  part: Any = 0
  step: Any = 0
