"""FedDPA: a global and a personal model, mixed where they are used.

Yang et al. 2024, "Dual-personalizing adapter for federated foundation models",
FedDPA-F. The adapters (A_g, B_g) of a frozen language model are trained by
FedAvg. Then each client trains adapters of its own, (A_l, B_l), on its
examples. For a matrix W and its input h,

  y = W h + (1 - lambda) s B_g A_g h + lambda s B_l A_l h

Readings: own adapters start as the global ones and are trained without them, so
that lambda = 1 is FedAvg + fine-tuning, and lambda = 0 is FedAvg, bit for bit.
In the paper lambda follows from how similar an instance is to those of the
training; here each lambda is a candidate, and validation chooses. Models
without adapters are mixed by their weights, (1 - lambda) w_g + lambda w_l, as
in WiSE-FT (Wortsman et al. 2022).
"""

from collections.abc import Mapping, Sequence
import dataclasses

import tensorflow as tf

from algorithms import candidates
from algorithms import client_work
from algorithms import example_uses
from algorithms import optimizers
from algorithms import personalizers
from algorithms import registry
from algorithms import trainers
from algorithms.privacy import private_steps
from base import aliases
from base import settings
from tasks.data import batches


@dataclasses.dataclass(frozen=True)
class FedDpaSettings(settings.Settings):
  """The settings of the personal model and of the mixture."""

  own_shares: tuple[aliases.Number, ...] = settings.field(
    (0.0, 0.25, 0.5, 0.75, 1.0),
    'lambda, the shares of the personal model; all are tried.',
    minimum=0,
    maximum=1,
  )
  own_epochs: int = settings.field(
    1, 'The epochs in which a personal model is trained.', minimum=1
  )
  own_learning_rate: aliases.Number = settings.field(
    0.001, 'The learning rate of the personal model.', minimum=0
  )
  own_optimizer: str = settings.field(
    'adam', 'The optimizer of the personal model.', choices=optimizers.NAMES
  )


@dataclasses.dataclass(frozen=True)
class FedDpa(personalizers.Personalizer):
  """Trains personal models, and mixes them with the global one."""

  settings: FedDpaSettings

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    return [
      candidates.Candidate(share, 'own share')
      for share in map(float, self.settings.own_shares)
    ]

  @property
  def baseline(self) -> int | None:
    shares = list(map(float, self.settings.own_shares))
    return shares.index(0.0) if 0.0 in shares else None

  def gradient_passes(self, size: int, batch_size: int) -> float:
    return self.settings.own_epochs

  def example_uses(self) -> example_uses.Uses:
    return example_uses.Uses((example_uses.Walk(self.settings.own_epochs),))

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    model = self.trainer.model
    optimizer = optimizers.Optimizer(
      self.settings.own_optimizer, self.settings.own_learning_rate
    )

    def epoch(
      i: tf.Tensor, learner: optimizers.Learner
    ) -> tuple[tf.Tensor, optimizers.Learner]:
      protected = private_steps.mark(model, part=i)
      return i + 1, client_work.train(
        protected, learner, client.data, optimizer
      )[0]

    _, learner = tf.while_loop(
      lambda i, _: i < self.settings.own_epochs,
      epoch,
      (0, optimizer.start(start.weights)),
    )
    metrics = []
    for share in self.settings.own_shares:
      mixed, weights = model.mix(start.weights, learner.weights, share)
      metrics.append(client_work.evaluate_sets(mixed, weights, evaluation))
    return client_work.stack(metrics)


registry.register_personalizer(
  'feddpa',
  FedDpa,
  title='FedDPA',
  paper='Yang et al. 2024',
  does=(
    'trains a copy of the model, and mixes the two: the changes by their'
    ' adapters, or else their weights; each share is a candidate'
  ),
  trainer='fedavg',
  small={'own_shares': (0.0, 0.5)},
)
