"""Canary clients in a training, to estimate the ε of that training.

Canaries are added to the clients to train on. They are sampled like all others,
and each sends only a random direction, longer than any clip. An ε is estimated
from how visible they are in the change of the global model, see `canaries`. It
holds for this one release of this seed, is biased upwards, and is no guarantee.
The canaries disturb the training, so that its model is of no use.
"""

import collections
from collections.abc import Sequence
import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf

from algorithms import fedavg
from algorithms import methods
from algorithms import trainers
from algorithms import vectors
from base import aliases
from base import errors
from personalization.privacy import canaries
from tasks import task as tasks
from tasks.data import populations
from tasks.models import models

# The attribute with the number of a canary, from 1 on; 0 for other clients.
_CANARY = 'canary'
# Longer than any clip.
_LENGTH = 1e6


def direction(like: models.Weights, canary: tf.Tensor) -> models.Weights:
  """Draws the unit vector of a canary, in the structure of `like`.

  Its entries differ only in their signs, as XLA draws the same integers as
  TensorFlow, but other normal numbers.
  """
  seed = tf.stack([tf.cast(canary, tf.int32), 0])
  entries = vectors.count(like.values())

  def signs(name: str, k: int) -> tf.Tensor:
    leaf_seed = tf.random.experimental.stateless_fold_in(seed, k)
    bits = tf.random.stateless_uniform(
      like[name].shape, leaf_seed, 0, 2, tf.int32
    )
    return tf.cast(2 * bits - 1, tf.float32) / math.sqrt(entries)

  return collections.OrderedDict(
    (name, signs(name, k)) for k, name in enumerate(sorted(like))
  )


class _Watched(fedavg.FedAvg):
  """Has canaries send their directions; a mixin for the class of a trainer."""

  @property
  def attributes(self) -> Sequence[str]:
    return (*super().attributes, _CANARY)

  def client(
    self, message: aliases.Structure, client: trainers.Client
  ) -> trainers.ClientResult:
    result = super().client(message, client)
    canary = client.attributes[_CANARY]
    update = result.updates['model']
    value = tf.nest.map_structure(
      lambda leaf, away: tf.where(canary > 0, _LENGTH * away, leaf),
      update.value,
      direction(update.value, canary),
    )
    return result._replace(updates={'model': update._replace(value=value)})


@functools.cache
def _watched(trainer_class: type[trainers.Trainer]) -> type[trainers.Trainer]:
  return type(f'Watched{trainer_class.__name__}', (_Watched, trainer_class), {})


def add_to_method(method: methods.Method) -> methods.Method:
  """Returns a method with canaries, without its personalization.

  Raises:
    UserError: If its clients do not send the update of one global model.
  """
  trainer: trainers.Trainer = method.trainer
  if dict(trainer.parts) != {'model': None} or trainer.model_places != (
    ('model',),
  ):
    raise errors.UserError(
      'Canaries can be seen only in one global model. Use a trainer that has'
      ' one, such as fedavg.'
    )
  fields = {
    field.name: getattr(trainer, field.name)
    for field in dataclasses.fields(trainer)
  }
  return method.replace_trainer(_watched(type(trainer))(**fields))


def add_to_task(task: tasks.Task, number: int) -> tasks.Task:
  """Returns a task with `number` canaries among the clients to train on.

  They have the examples of the first client, but do not use them.
  """
  first, *_ = clients = list(task.train.client_ids)
  added = [f'canary {k}' for k in range(1, number + 1)]

  def load(client_id: str, of_set: populations.Load) -> populations.Examples:
    return of_set(first if client_id in added else client_id)

  train = dataclasses.replace(
    task.train,
    client_ids=[*clients, *added],
    sets={
      name: functools.partial(load, of_set=of_set)
      for name, of_set in task.train.sets.items()
    },
    sizes={
      name: np.append(of_set, np.full(number, of_set[0]))
      for name, of_set in task.train.count_examples().items()
    },
  )
  attributes = {
    name: dataclasses.replace(
      known,
      values={
        **known.values,
        **dict.fromkeys(added, known.values.get(first, 0)),
      },
    )
    for name, known in task.attributes.items()
  }
  names = ['none', *added]
  numbers = {c: 0 for c in clients} | {c: k for k, c in enumerate(added, 1)}
  attributes[_CANARY] = tasks.Attribute(names, numbers)
  return dataclasses.replace(task, train=train, attributes=attributes)


def estimate(
  before: models.Weights, after: models.Weights, number: int, delta: float
) -> float:
  """Estimates ε from the global model before and after a training.

  Args:
    before: The model before the first round.
    after: The model after the last one.
    number: The number of canaries.
    delta: The δ.

  Returns:
    The estimate, which is not a guarantee.
  """

  def flat(weights: models.Weights) -> np.ndarray:
    return np.concatenate([np.ravel(weights[name]) for name in sorted(before)])

  like = tf.nest.map_structure(tf.convert_to_tensor, before)
  directions = np.array(
    [flat(direction(like, tf.constant(k))) for k in range(1, number + 1)]
  )
  # An update points against the change of the model.
  released = flat(before).astype(np.float64) - flat(after)
  found = canaries.cosines(directions, released)
  return canaries.empirical_epsilon(found, released.size, delta)
