"""Fine-tuning of a FedEmbed user's embedding, with all shared weights fixed.

A user that was never trained on has a random embedding e. It takes the local
steps of FedEmbed on e alone, including those towards its prototype, and on its
own head, if it keeps one on the device.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import tensorflow as tf

from algorithms import candidates
from algorithms import client_work
from algorithms import fedembed
from algorithms import personalizers
from algorithms import registry
from algorithms import trainers
from base import errors
from base import settings
from tasks.data import batches


@dataclasses.dataclass(frozen=True)
class EmbeddingFinetuningSettings(settings.Settings):
  """The settings of the fine-tuning."""

  embedding_epochs: int = settings.field(
    10,
    'The largest number of epochs on the personalization set; 0 to this are'
    ' tried.',
    minimum=0,
    maximum=10_000,
  )


@dataclasses.dataclass(frozen=True)
class EmbeddingFinetuning(personalizers.Personalizer):
  """Goes on training the embedding; the baseline is the global head, if any."""

  trainer: fedembed.FedEmbed
  settings: EmbeddingFinetuningSettings

  def __post_init__(self) -> None:
    if not isinstance(self.trainer, fedembed.FedEmbed):
      raise errors.UserError(
        'embedding_finetuning personalizes only what fedembed or global_plus'
        ' trained.'
      )

  @property
  def _has_baseline(self) -> bool:
    return self.trainer.shared_name is not None

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    return candidates.list_epochs(
      self.trainer.start_name,
      self.settings.embedding_epochs,
      self.trainer.shared_name,
    )

  @property
  def baseline(self) -> int | None:
    return 0 if self._has_baseline else None

  def gradient_passes(self, size: int, batch_size: int) -> float:
    return self.settings.embedding_epochs

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    trainer, message = self.trainer, start.message

    def evaluate(local: fedembed.LocalWork) -> client_work.Metrics:
      of_client = trainer.models_of(message, client, local)
      return client_work.evaluate_sets(
        trainer.model, of_client.weights, evaluation
      )

    def epoch(i: tf.Tensor, local: fedembed.LocalWork) -> fedembed.LocalWork:
      del i
      after = trainer.train(message, client, local)
      # Weights that all users share stay fixed.
      w = client_work.merge(after.w.weights, message.model)
      return after._replace(w=after.w._replace(weights=w))

    metrics = client_work.evaluate_epochs(
      evaluate,
      trainer.begin(message, client),
      epoch,
      self.settings.embedding_epochs,
    )
    if not self._has_baseline:
      return metrics
    of_global = client_work.evaluate_sets(
      trainer.model, start.shared, evaluation
    )
    return client_work.put_first(of_global, metrics)


registry.register_personalizer(
  'embedding_finetuning',
  EmbeddingFinetuning,
  title='fine-tuned embedding',
  paper='Silva et al. 2022',
  does=(
    "takes steps of FedEmbed on the client's embedding alone, and on its own"
    ' head if it keeps one; 0 to embedding_epochs are candidates, and the'
    ' global head is the baseline'
  ),
  small={'embedding_epochs': 2},
)
