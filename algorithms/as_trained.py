"""No personalization: each client uses the model that it would start from."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from algorithms import candidates
from algorithms import personalizers
from algorithms import trainers
from base import settings
from tasks.data import batches


@dataclasses.dataclass(frozen=True)
class AsTrainedSettings(settings.Settings):
  """No settings."""


@dataclasses.dataclass(frozen=True)
class AsTrained(personalizers.Personalizer):
  """Evaluates the model that a client starts from; it is the only candidate."""

  settings: AsTrainedSettings
  takes_steps = False

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    return (candidates.Candidate(text=self.trainer.start_name),)

  @property
  def baseline(self) -> int | None:
    return 0 if self.trainer.start_is_shared else None

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> Any:
    del client
    model = self.trainer.model
    return personalizers.evaluate_start(model, start.weights, evaluation)
