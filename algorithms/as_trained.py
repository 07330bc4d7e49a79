"""No further personalization: clients use the model that training gave them."""

from collections.abc import Mapping, Sequence
import dataclasses

from algorithms import candidates
from algorithms import client_work
from algorithms import personalizers
from algorithms import registry
from algorithms import trainers
from base import settings
from tasks.data import batches


@dataclasses.dataclass(frozen=True)
class AsTrainedSettings(settings.Settings):
  """No settings."""


@dataclasses.dataclass(frozen=True)
class AsTrained(personalizers.Personalizer):
  """Evaluates the model that a client starts from.

  If the trainer also has a model that all clients share, that is the baseline.
  """

  settings: AsTrainedSettings
  takes_steps = False

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    names = (self.trainer.shared_name, self.trainer.start_name)
    return tuple(candidates.Candidate(text=name) for name in names if name)

  @property
  def baseline(self) -> int | None:
    has_shared = self.trainer.start_is_shared or self.trainer.shared_name
    return 0 if has_shared else None

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    del client
    metrics = [
      client_work.evaluate_sets(self.trainer.model, weights, evaluation)
      for weights in (start.shared, start.weights)
      if weights
    ]
    return client_work.stack(metrics)


registry.register_personalizer(
  'as_trained',
  AsTrained,
  title='as trained',
  does='nothing; the client uses the model that training gave it',
)
