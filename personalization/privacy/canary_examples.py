"""Canary examples in a silo, by which its ε is audited.

All examples of the silo are canaries. The gradient of each is a direction of
its own, longer than any clip, or zero if it is left out: neighbors are a silo
with an example and one where its gradient is zero. What comes after that is the
training itself: batches, clipping, noise and steps. The silo is alone, as the
noise of others would hide its canaries, and each silo has its own guarantee.
Directions and scores are those of `canary_clients`.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Literal

import numpy as np
import tensorflow as tf

from algorithms import methods
from personalization.privacy import canary_clients
from tasks import task as tasks
from tasks.data import populations
from tasks.models import models

# The only feature of an example: the number of its direction, or -1 if it is
# left out.
_CANARY = 'canary'
_SILO = 'canaries'


class _Watched(models.Model):
  """Has canaries as examples; a mixin for the class of a model."""

  @property
  def example_gradients(self) -> Literal['in turns']:
    return 'in turns'

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict({_CANARY: tf.TensorSpec([], tf.int32)})

  @property
  def num_values(self) -> Mapping[str, int]:
    return {}

  def example_weight(self, batch: models.Batch) -> tf.Tensor:
    return tf.ones(tf.shape(batch[_CANARY]))

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    """Returns a number for each canary, with its direction as the gradient."""

    def measure(k: tf.Tensor) -> tf.Tensor:
      away = canary_clients.direction(weights, tf.maximum(k, 0))
      length = tf.where(k >= 0, canary_clients.LENGTH, 0.0)
      return length * tf.add_n(
        [tf.reduce_sum(away[name] * weights[name]) for name in away]
      )

    found = tf.map_fn(measure, batch[_CANARY], fn_output_signature=tf.float32)
    return found[:, tf.newaxis]

  def decide(
    self, weights: models.Weights, features: tf.Tensor
  ) -> models.Scores:
    del weights
    return features

  def score_loss(self, scores: models.Scores, batch: models.Batch) -> tf.Tensor:
    del batch
    return scores[:, 0]

  def statistics(
    self, weights: models.Weights, batch: models.Batch
  ) -> models.Statistics:
    """Returns none, as the model is of no use."""
    del weights, batch
    return collections.OrderedDict()

  def judge_scores(
    self, scores: models.Scores, batch: models.Batch
  ) -> models.Statistics:
    del scores, batch
    return collections.OrderedDict()


@functools.cache
def _watched(model_class: type[models.Model]) -> type[models.Model]:
  return type(f'Watched{model_class.__name__}', (_Watched, model_class), {})


def add_to_method(method: methods.Method) -> methods.Method:
  """Returns a method with canaries, without its personalization.

  Raises:
    UserError: If its clients do not send the update of one global model.
  """
  canary_clients.check(method)
  model: models.Model = method.trainer.model
  fields = {
    field.name: getattr(model, field.name)
    for field in dataclasses.fields(model)
  }
  watched = _watched(type(model))(**fields)
  return method.replace_trainer(
    dataclasses.replace(method.trainer, model=watched)
  )


def make_task(task: tasks.Task, is_in: Sequence[bool]) -> tasks.Task:
  """Returns a task with one silo, all of whose examples are canaries.

  Args:
    task: The task.
    is_in: For each canary, whether its gradient is its direction.
  """
  numbers = np.where(is_in, np.arange(len(is_in)), -1).astype(np.int32)
  silo = populations.Population(
    [_SILO], {'train': lambda _: {_CANARY: numbers}}
  )
  attributes = {
    name: dataclasses.replace(known, values={_SILO: 0})
    for name, known in task.attributes.items()
  }
  return dataclasses.replace(task, train=silo, attributes=attributes)
