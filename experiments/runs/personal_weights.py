"""Weights of the personal models of a run's clients.

Runs do not keep the models of clients that adapt to their examples. So each
client adapts again, as it did in the evaluation, and the evaluation returns the
weights of each candidate in place of its metric.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from algorithms import registry
from base import errors
from experiments.runs import finished_methods
from experiments.runs import sources
from personalization.judgement import evaluation
from personalization.privacy import ways
from tasks import task as tasks
from tasks.data import populations
from tasks.models import models

_WEIGHTS = 'weights'


class _WithWeightStatistics:
  """Has a model include its weights in the statistics of an example."""

  @property
  def pretrained_models(self) -> Mapping[str, models.Model]:
    return {}  # They have no weights to reveal.

  def evaluate(
    self, weights: models.Weights, batch: models.Batch
  ) -> tuple[tf.Tensor, models.Statistics]:
    model: Any = super()
    losses: tf.Tensor
    found: models.Statistics
    losses, found = model.evaluate(weights, batch)
    found[_WEIGHTS] = tf.nest.map_structure(
      lambda weight: tf.convert_to_tensor(weight)[tf.newaxis], weights
    )
    return losses, found


def _find_clients(
  task: tasks.Task, clients: Sequence[str]
) -> dict[str, populations.Load]:
  """Finds the examples that clients adapt to, in any population of a task."""
  found = {}
  for population in (task.train, task.validation, task.test):
    load = population.sets.get('personalization') or population.sets['train']
    known = set(population.client_ids)
    found.update({client: load for client in clients if client in known})
  for client in clients:
    if client not in found:
      raise errors.unknown('client', client, task.test.client_ids)
  return found


@dataclasses.dataclass(frozen=True)
class PersonalModel:
  """The model of a client.

  Attributes:
    model: The model, which may have more weights than the task's model.
    weights: Its weights.
    candidate: The name of the candidate that has these weights.
  """

  model: models.Model
  weights: models.Weights
  candidate: str


def check(source: sources.Source, name: str) -> None:
  """Raises a `UserError` if a method's clients have no models to be found."""
  if ways.ENTRIES[source.config.privacy].of_examples:
    raise errors.UserError(
      f'{source.run.path} protects examples. Another personalization would be'
      ' one more use of them, which its guarantee does not cover. Leave out the'
      ' client.'
    )
  if not registry.personalizer_class(name).makes_models:
    raise errors.UserError(
      f'{name} personalizes predictions rather than weights, so that its'
      ' clients have no models of their own. Leave out the client.'
    )


def personalize(
  source: sources.Source,
  task: tasks.Task,
  name: str,
  candidates: Mapping[str, str],
) -> dict[str, PersonalModel]:
  """Personalizes the model of a finished run again, if `check` allows it.

  Raises:
    UserError: If a client cannot be personalized.
  """
  loads = _find_clients(task, list(candidates))
  finished = finished_methods.restore(source, task, [name])[name]
  model = finished.method.trainer.model
  trainer = dataclasses.replace(
    finished.method.trainer,
    model=models.mix_in(_WithWeightStatistics, model),
  )
  method = dataclasses.replace(
    finished.method,
    personalizer=dataclasses.replace(
      finished.method.personalizer, trainer=trainer
    ),
  )
  names = [str(candidate) for candidate in method.candidates]
  for client, candidate in candidates.items():
    if candidate not in names:
      raise errors.UserError(
        f'The candidate {candidate!r} of {client} has no trained weights. Name'
        f' another --candidate: {", ".join(names)}.'
      )
  blank = {
    feature: np.zeros([1, *spec.shape], spec.dtype.as_numpy_dtype)
    for feature, spec in model.example_spec.items()
  }
  sizes = [
    populations.num_examples(load(client)) for client, load in loads.items()
  ]
  found = {}
  # One client after another, as the weights of all its candidates are in
  # memory.
  for client, load in loads.items():
    client_ids, measured = evaluation.measure(
      method,
      finished.training.ended,
      populations.Population(
        (client,),
        {'personalization': load, _WEIGHTS: lambda _: blank},
        # With equal shapes, the program is compiled only once.
        pad_to={'personalization': max(sizes)},
      ),
      finished.training.stage.task,
      source.config.training,
      measured_on=_WEIGHTS,
    )
    if not client_ids:
      raise errors.UserError(
        f'{client} has no examples to personalize a model on.'
      )
    candidate = candidates[client]
    take = functools.partial(_take, place=names.index(candidate))
    weights = tf.nest.map_structure(take, measured[_WEIGHTS])
    found[client] = PersonalModel(model, weights, candidate)
  return found


def _take(leaf: np.ndarray, place: int) -> np.ndarray:
  """Returns a weight of a candidate of the only client."""
  return np.asarray(leaf)[0, place]
