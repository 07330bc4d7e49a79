"""Fine-tuning: each client goes on training the model on its own examples.

Motley, section 3.1 (FedAvg + fine-tuning): train a global model by FedAvg, then
let each client take SGD steps from it on its personalization set, and evaluate
after every epoch. How many epochs are best is chosen afterwards, among all of
them and none.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools

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
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import models

# The layers that can be fine-tuned, and what they are called.
_LABELS = {'all': 'all layers', 'last': 'last layer', models.SHIFT: 'shift'}


@dataclasses.dataclass(frozen=True)
class FinetuningSettings(settings.Settings):
  """The settings of fine-tuning, of which all combinations are candidates."""

  finetuning_learning_rates: tuple[aliases.Number, ...] = settings.field(
    (0.1,), 'The learning rates of the fine-tuning.', minimum=0
  )
  finetuning_layers: tuple[str, ...] = settings.field(
    ('all',),
    'The layers that are fine-tuned: all, the last one, or what is added to'
    ' representations (shift, as in dbe).',
    choices=tuple(_LABELS),
  )
  finetuning_epochs: int = settings.field(
    20,
    'The largest number of epochs of fine-tuning; 0 to this are tried.',
    minimum=1,
    maximum=10_000,
  )
  finetuning_epochs_per_candidate: int = settings.field(
    1,
    'The number of epochs from one candidate to the next; it must divide'
    ' finetuning_epochs.',
    minimum=1,
  )
  finetuning_shuffle: bool = settings.field(
    False, 'Whether each epoch of fine-tuning is in a new order.'
  )
  finetuning_optimizer: str = settings.field(
    'sgd', 'The optimizer of the fine-tuning.', choices=optimizers.NAMES
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.finetuning_epochs % self.finetuning_epochs_per_candidate:
      raise settings.SettingError(
        'finetuning_epochs_per_candidate must divide the finetuning_epochs,'
        f' {self.finetuning_epochs}.',
        'finetuning_epochs_per_candidate',
      )


@dataclasses.dataclass(frozen=True)
class Finetuning(personalizers.Personalizer):
  """Fine-tunes all layers or the last one, at every learning rate.

  The first candidate is the model before fine-tuning.
  """

  settings: FinetuningSettings

  def __post_init__(self) -> None:
    shifted = models.SHIFT in self.trainer.model.parts
    if models.SHIFT in self.settings.finetuning_layers and not shifted:
      raise errors.UserError(
        'finetuning_layers=shift needs a trainer that adds a vector to'
        ' representations, such as dbe.'
      )

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    every = self.settings.finetuning_epochs_per_candidate
    epochs = range(every, self.settings.finetuning_epochs + 1, every)
    return (
      candidates.Candidate(0, 'epochs'),
      *(
        candidates.Candidate(epoch, 'epochs', self._label(layers, rate))
        for layers in self.settings.finetuning_layers
        for rate in map(float, self.settings.finetuning_learning_rates)
        for epoch in epochs
      ),
    )

  def _label(self, layers: str, rate: float) -> str:
    parts = []
    if len(self.settings.finetuning_layers) > 1:
      parts.append(_LABELS[layers])
    if len(self.settings.finetuning_learning_rates) > 1:
      parts.append(f'rate {rate:g}')
    return ', '.join(parts)

  @property
  def baseline(self) -> int | None:
    # Nobody would use a model that was never trained.
    return 0 if self.trainer.trains else None

  @property
  def shuffled_epochs(self) -> int:
    if not self.settings.finetuning_shuffle:
      return 0
    return self.settings.finetuning_epochs

  @property
  def _num_curves(self) -> int:
    return len(self.settings.finetuning_layers) * len(
      self.settings.finetuning_learning_rates
    )

  def gradient_passes(self, size: int, batch_size: int) -> float:
    return self._num_curves * self.settings.finetuning_epochs

  def example_uses(self) -> example_uses.Uses:
    epochs = self.settings.finetuning_epochs
    walk = example_uses.Walk(epochs, gradients=self._num_curves)
    return example_uses.Uses((walk,))

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    curves = itertools.product(
      self.settings.finetuning_layers, self.settings.finetuning_learning_rates
    )
    metrics = [
      self._finetune(i, start.weights, client.data, evaluation, layers, rate)
      for i, (layers, rate) in enumerate(curves)
    ]
    # All curves begin with the model before fine-tuning, which counts once.
    return tf.nest.map_structure(
      lambda first, *others: tf.concat(
        [first, *(other[1:] for other in others)], 0
      ),
      *metrics,
    )

  def _finetune(
    self,
    curve: int,
    weights: models.Weights,
    data: batches.ClientData,
    evaluation: Mapping[str, batches.ClientData],
    layers: str,
    rate: aliases.Number,
  ) -> client_work.Metrics:
    """Evaluates after 0, 1, … epochs with one learning rate."""
    num_epochs = self.settings.finetuning_epochs
    every = self.settings.finetuning_epochs_per_candidate
    optimizer = optimizers.Optimizer(self.settings.finetuning_optimizer, rate)
    model = self.trainer.model
    only = {
      'all': tuple(weights),
      'last': model.parts[models.HEAD],
      models.SHIFT: model.parts.get(models.SHIFT, ()),
    }[layers]
    model, (data, *sets) = client_work.represent_once(
      model, weights, only, [data, *evaluation.values()]
    )
    evaluation = dict(zip(evaluation, sets))

    def epoch(i: tf.Tensor, learner: optimizers.Learner) -> optimizers.Learner:
      epoch_data = client_work.epoch_of(data, i, self.shuffled_epochs)
      protected = private_steps.mark(model, part=curve * num_epochs + i)
      return client_work.train(
        protected, learner, epoch_data, optimizer, fixed=weights
      )[0]

    def epochs(i: tf.Tensor, learner: optimizers.Learner) -> optimizers.Learner:
      if every == 1:
        return epoch(i, learner)
      _, learner = tf.while_loop(
        lambda j, _: j < every,
        lambda j, learner: (j + 1, epoch(i * every + j, learner)),
        (0, learner),
      )
      return learner

    return client_work.evaluate_epochs(
      lambda learner: client_work.evaluate_sets(
        model, client_work.merge(weights, learner.weights), evaluation
      ),
      optimizer.start(client_work.select(weights, only)),
      epochs,
      num_epochs // every,
    )


registry.register_personalizer(
  'finetuning',
  Finetuning,
  title='fine-tuning',
  paper='Motley',
  does=(
    'takes steps from the trained model: all combinations of learning rates,'
    ' layers (all, last) and epochs are candidates'
  ),
  trainer='fedavg',
  small={'finetuning_epochs': 2},
)
registry.register_personalizer(
  'head_finetuning',
  Finetuning,
  title='fine-tuned head',
  does='the same as finetuning, of the head alone',
  defaults={'finetuning_layers': ('last',)},
  small={'finetuning_epochs': 2},
)
registry.register_personalizer(
  'shift_finetuning',
  Finetuning,
  title='fine-tuned shift',
  does=(
    'the same as finetuning, of the vector alone that dbe adds to'
    ' representations'
  ),
  defaults={'finetuning_layers': ('shift',)},
  small={'finetuning_epochs': 2},
)
