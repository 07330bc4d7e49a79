"""Fine-tuning: each client trains the global model on, on its own examples.

Motley, section 3.1 (FedAvg + fine-tuning): train a global model by FedAvg, then
let each client take SGD steps from it on its personalization set, and evaluate
after every epoch. How many epochs are best is chosen afterwards, among all of
them and none.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from algorithms import algorithm
from algorithms import client_work
from algorithms import fedavg
from algorithms import process
from algorithms.candidates import Candidate
from base import settings
from tasks.models import model as model_lib


@dataclasses.dataclass(frozen=True)
class FinetuningHyperparameters(settings.Settings):
  """How a client trains on: all combinations are tried."""

  finetuning_learning_rates: tuple[float, ...] = settings.field(
    (0.1,), 'Learning rates of the fine-tuning.', minimum=0
  )
  finetuning_layers: tuple[str, ...] = settings.field(
    ('all',), 'Layers that are fine-tuned.', choices=('all', 'last')
  )
  finetuning_epochs: int = settings.field(
    20, 'The most epochs of fine-tuning; 0 to this are tried.', minimum=1
  )
  finetuning_shuffle: bool = settings.field(
    False, 'Whether each epoch of fine-tuning is in a new order.'
  )

  @property
  def shuffled_epochs(self) -> int:
    return self.finetuning_epochs if self.finetuning_shuffle else 0


@dataclasses.dataclass(frozen=True)
class Hyperparameters(FinetuningHyperparameters, fedavg.Hyperparameters):
  """Those of FedAvg and of the fine-tuning."""


def finetune(
  model: model_lib.Model,
  weights: model_lib.Weights,
  personalization: Any,
  evaluation: Mapping[str, Any],
  learning_rates: tf.Tensor,
  hyperparameters: FinetuningHyperparameters,
) -> Any:
  """The metrics of each candidate, in the order of `candidates`."""
  metrics = []
  for layers in hyperparameters.finetuning_layers:
    only = model.head if layers == 'last' else None
    for i in range(len(hyperparameters.finetuning_learning_rates)):
      step = client_work.sgd(learning_rates[i], only)

      def epoch(i: tf.Tensor, weights: model_lib.Weights) -> model_lib.Weights:
        data = client_work.epoch_of(
          personalization, i, hyperparameters.shuffled_epochs
        )
        return client_work.train(model, weights, data, step)[0]  # noqa: B023

      metrics.append(
        client_work.evaluate_epochs(
          model,
          weights,
          evaluation,
          epoch,
          hyperparameters.finetuning_epochs,
        )
      )
  # All begin with the model as it was, which counts once.
  return tf.nest.map_structure(
    lambda first, *others: tf.concat(
      [first, *(other[1:] for other in others)], 0
    ),
    *metrics,
  )


def candidates(
  hyperparameters: FinetuningHyperparameters,
) -> tuple[Candidate, ...]:
  """What the entries of the metrics stand for; first the model as it was."""
  found = [Candidate(0, 'epochs')]
  for layers in hyperparameters.finetuning_layers:
    for rate in hyperparameters.finetuning_learning_rates:
      settings = []
      if len(hyperparameters.finetuning_layers) > 1:
        settings.append(f'{layers} layers' if layers == 'all' else 'last layer')
      if len(hyperparameters.finetuning_learning_rates) > 1:
        settings.append(f'rate {rate:g}')
      for epoch in range(1, hyperparameters.finetuning_epochs + 1):
        found.append(Candidate(epoch, 'epochs', ', '.join(settings)))
  return tuple(found)


def build(
  model: model_lib.Model,
  hyperparameters: Hyperparameters,
  aggregator: tff.aggregators.AggregationFactory,
  evaluation_sets: Sequence[str],
) -> algorithm.Algorithm:
  """Builds FedAvg with fine-tuning."""

  def personalize(weights, numbers, state, personalization, evaluation, seed):
    del state, seed
    return finetune(
      model,
      weights,
      personalization,
      evaluation,
      numbers['finetuning_learning_rates'],
      hyperparameters,
    )

  return process.build(
    process.Method(
      **fedavg.training_functions(model, hyperparameters),
      personalize=personalize,
    ),
    model=model,
    hyperparameters=hyperparameters,
    aggregator=aggregator,
    evaluation_sets=evaluation_sets,
    candidates=candidates(hyperparameters),
    baseline=0,
    training=fedavg.training_description(hyperparameters),
    shuffled_epochs=hyperparameters.shuffled_epochs,
  )
