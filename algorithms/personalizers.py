"""The contract of personalizers: the half of a method that adapts to a client.

A personalizer takes the weights from which a client starts, the client's
personalization set and its evaluation sets, and returns metrics of several
candidates: epochs, coefficients, layers, …. Validation later chooses the
candidate to use.
"""

import abc
from collections.abc import Mapping, Sequence
import dataclasses
from typing import ClassVar

import tensorflow as tf

from algorithms import candidates
from algorithms import client_work
from algorithms import example_uses
from algorithms import runtime_inputs
from algorithms import trainers
from base import errors
from base import settings
from tasks.data import batches


@dataclasses.dataclass(frozen=True)
class Personalizer(abc.ABC):
  """Personalizes the models of a trainer.

  Attributes:
    trainer: The trainer.
    settings: The personalizer's settings; a subclass names their class.
    needs: The clients' attributes that it needs beside those of the trainer.
    takes_steps: Whether it takes a step for each batch of the personalization
      set. If not, it is given all examples, even if training drops batches that
      are not full.
    makes_models: Whether each candidate is a model with weights. If not, it
      personalizes predictions.
    candidates_compete: Whether one of the candidates is chosen. If not, all are
      reported, and the last one is compared with other methods.
  """

  trainer: trainers.Trainer
  settings: settings.Settings

  needs: ClassVar[Sequence[str]] = ()
  takes_steps: ClassVar[bool] = True
  makes_models: ClassVar[bool] = True
  candidates_compete: ClassVar[bool] = True

  @property
  @abc.abstractmethod
  def candidates(self) -> Sequence[candidates.Candidate]:
    """The candidates, in the order of the metrics."""

  @property
  def baseline(self) -> int | None:
    """The place of the candidate without personalization, if there is one."""
    return 0

  @property
  def shuffled_epochs(self) -> int:
    """The number of epochs, each in a new order, that it needs in the data.

    With 0 the personalization set is given once, in its original order.
    """
    return 0

  def gradient_passes(self, size: int, batch_size: int) -> float:
    """Counts its own passes over the personalization set, by default none.

    Args:
      size: The number of a client's examples.
      batch_size: The number of examples in a batch.
    """
    del size, batch_size
    return 0.0

  @property
  def why_examples_not_private(self) -> str | None:
    """The reason why noise within clients cannot hide an example.

    None if it can.
    """
    return None

  def example_uses(self) -> example_uses.Uses:
    """Counts how it uses the examples of a client that protects them.

    By default, it uses them only by the trainer's `start`.

    Raises:
      UserError: If they cannot be protected.
    """
    if self.gradient_passes(1, 1):
      raise errors.UserError(
        f'How often {type(self).__name__} uses the examples of a silo is not'
        ' known, so that they cannot be protected.'
      )
    return example_uses.Uses()

  def passes(self, size: int, batch_size: int) -> trainers.Passes:
    """Counts the passes of `gradient_passes` and of the trainer's `start`."""
    # `start` is given all epochs of the data, too.
    epochs = self.shuffled_epochs or 1
    gradients, losses = (epochs * n for n in self.trainer.start_passes)
    losses += epochs * self.trainer.model.recomputes_statistics
    own = self.gradient_passes(size, batch_size)
    return trainers.Passes(gradients + own, losses)

  @abc.abstractmethod
  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    """Personalizes a client and evaluates every candidate.

    Args:
      start: The weights that the client starts from.
      client: The client, with its personalization set.
      evaluation: Its evaluation sets, by name.

    Returns:
      {set: {metric: statistics}}, summed over the examples, each with a first
      axis of candidates.
    """

  def bind(
    self, trainer: trainers.Trainer, numbers: Mapping[str, tf.Tensor]
  ) -> 'Personalizer':
    """Returns it with a bound trainer, and with tensors for its floats."""
    bound = runtime_inputs.bind(self.settings, numbers)
    return dataclasses.replace(self, trainer=trainer, settings=bound)
