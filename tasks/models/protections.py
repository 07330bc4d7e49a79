"""The protection of a client's examples in the gradients of a model."""

import dataclasses
from typing import Any

# The fields that are a client's numbers, in the order of its attribute.
NUMBERS = ('clip', 'noise', 'batch_size', 'most_loss', 'choice_noise')


@dataclasses.dataclass(frozen=True)
class Protection:
  """Protects each example in the gradients of a model by clipping and noise.

  The numbers are a client's own, and None before a client has the model.

  Attributes:
    clip: S, the largest norm of an example's gradient.
    noise: z_k, the deviation of the noise on a sum of gradients, over S.
    batch_size: B_k, the number of examples that a batch has, or is expected to
      have; a sum of gradients is divided by it.
    most_loss: The largest loss of an example in a choice among models.
    choice_noise: The scale of the Gumbel noise on the sums of these losses.
    seed: Two int32 that the noise follows from.
    part: The part of the client's work that a gradient is for.
    step: The step in this part. No two gradients of a client with the same seed
      have the same part and step, or they would have the same noise.
  """

  clip: Any = None
  noise: Any = None
  batch_size: Any = None
  most_loss: Any = None
  choice_noise: Any = None
  seed: Any = None
  part: Any = 0
  step: Any = 0
