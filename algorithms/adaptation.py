"""Adaptation by a few updates on a few examples (FedPC, section 4).

Silva et al. 2022: a client takes n steps of Adam, by default 15, on k of its
examples, for k = 1, 5, 15 and all of them. A batch has the size of training, or
k examples if they are fewer. After the last batch comes the first again; where
all examples are used, each pass is in a new order.

The first candidates take no step: the pretrained models without anything that
was trained, if there are any, and the weights that training gave. Then comes a
candidate for each k. The candidates do not compete: they show how many examples
a client must have before it is known. None is chosen, and none is a baseline.
"""

import abc
import collections
from collections.abc import Mapping, Sequence
import dataclasses
import math

import tensorflow as tf

from algorithms import candidates
from algorithms import client_work
from algorithms import optimizers
from algorithms import personalizers
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import settings
from base import words
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class FewExamplesSettings(settings.Settings):
  """The settings of the numbers of examples that a client adapts to."""

  adaptation_examples: tuple[int, ...] = settings.field(
    (1, 5, 15, 0),
    'The numbers of examples to adapt to, each a candidate; 0 for all.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True)
class AdaptationSettings(FewExamplesSettings):
  """The settings of the adaptation."""

  adaptation_updates: int = settings.field(
    15, 'The number of updates.', minimum=1
  )
  adaptation_learning_rate: aliases.Number = settings.field(
    0.001, 'The learning rate of the updates.', minimum=0
  )
  adaptation_optimizer: str = settings.field(
    'adam', 'The optimizer of the updates.', choices=optimizers.NAMES
  )
  adaptation_adam_form: str = settings.field(
    'tff', 'The adam_form of the updates.', choices=optimizers.ADAM_FORMS
  )


def first_examples(
  data: batches.ClientData, number: tf.Tensor
) -> batches.ClientData:
  """Masks all examples in the batches but the first ones."""
  places = tf.reshape(tf.cast(data.mask > 0, tf.int32), [-1])
  is_first = tf.reshape(tf.cumsum(places) <= number, tf.shape(data.mask))
  return data._replace(mask=data.mask * tf.cast(is_first, data.mask.dtype))


@dataclasses.dataclass(frozen=True)
class FewExamples(personalizers.Personalizer):
  """Adapts to a client's first k examples, for several numbers k.

  The first candidates are the pretrained models without anything that was
  trained, if there are any.
  """

  settings: FewExamplesSettings
  candidates_compete = False

  @property
  def baseline(self) -> int | None:
    return None

  @property
  def unadapted(self) -> Sequence[candidates.Candidate]:
    """The candidates that are the weights a client starts from, if any."""
    return ()

  @property
  def adaptation_text(self) -> str:
    """The beginning of the names of adapted candidates."""
    return ''

  @abc.abstractmethod
  def adapt(
    self, weights: models.Weights, data: batches.ClientData
  ) -> models.Weights:
    """Returns all weights, adapted to the examples."""

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    return (
      *(
        candidates.Candidate(text=name)
        for name in self.trainer.model.pretrained_models
      ),
      *self.unadapted,
      *(
        candidates.Candidate(
          k or None,
          'examples',
          text=self.adaptation_text
          + (words.count(k, 'examples') if k else 'all examples'),
        )
        for k in self.settings.adaptation_examples
      ),
    )

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    model = self.trainer.model
    nothing: models.Weights = collections.OrderedDict()
    metrics = [
      client_work.evaluate_sets(pretrained, nothing, evaluation)
      for pretrained in model.pretrained_models.values()
    ]
    adapted = (
      self.adapt(
        start.weights,
        first_examples(client.data, tf.constant(k)) if k else client.data,
      )
      for k in self.settings.adaptation_examples
    )
    for weights in (*(start.weights for _ in self.unadapted), *adapted):
      metrics.append(client_work.evaluate_sets(model, weights, evaluation))
    return client_work.stack(metrics)


@dataclasses.dataclass(frozen=True)
class Adaptation(FewExamples):
  """Takes a fixed number of steps on all weights, on some examples."""

  settings: AdaptationSettings

  @property
  def unadapted(self) -> Sequence[candidates.Candidate]:
    return [candidates.Candidate(0, 'examples', text='0 updates')]

  @property
  def adaptation_text(self) -> str:
    return f'{words.count(self.settings.adaptation_updates, "updates")}, '

  @property
  def shuffled_epochs(self) -> int:
    # Where the examples are one batch, each update is an epoch.
    return self.settings.adaptation_updates

  def gradient_passes(self, size: int, batch_size: int) -> float:
    of_updates = 0.0
    for k in self.settings.adaptation_examples:
      used = min(k or size, size)
      of_updates += used / size / math.ceil(used / batch_size)
    return self.settings.adaptation_updates * of_updates

  def adapt(
    self, weights: models.Weights, data: batches.ClientData
  ) -> models.Weights:
    optimizer = optimizers.Optimizer(
      self.settings.adaptation_optimizer,
      self.settings.adaptation_learning_rate,
      epsilon=1e-8,
      adam_form=self.settings.adaptation_adam_form,
    )
    contexts = client_work.OwnContexts.find(self.trainer.model, weights, data)
    learner, _ = client_work.train(
      self.trainer.model,
      optimizer.start(contexts.take(weights)),
      contexts.data,
      optimizer,
      steps=tf.constant(self.settings.adaptation_updates),
    )
    return contexts.put(weights, learner.weights)


registry.register_personalizer(
  'adaptation',
  Adaptation,
  title='adaptation',
  paper='Silva et al. 2022',
  does=(
    'takes adaptation_updates steps on the first adaptation_examples examples;'
    ' each of these numbers is a candidate, and so are no step, and the'
    ' pretrained model without what was trained'
  ),
  small={'adaptation_updates': 3, 'adaptation_examples': (1, 0)},
)
