"""Canary clients in a training, by which its ε is audited.

Canaries are added to the clients to train on. They are sampled like all others,
and each sends only a direction, longer than any clip, or nothing if it is left
out: its place in the training is then that of a client whose update is zero.
The directions are orthogonal, so that canaries do not hide each other. Nor do
the other clients hide them, who send nothing: a guarantee holds for any data,
and this one shows most. The change of the global model shows who was there: an
ε is estimated as in `canaries`, or bounded as in `one_run`. It holds for this
one release of this seed, whose model is of no use.
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
from algorithms.privacy import distributed_noise
from algorithms.privacy import keys
from base import aliases
from base import errors
from personalization.privacy import canaries
from tasks import task as tasks
from tasks.data import populations
from tasks.models import models

# The attribute of a client: 0 if it is no canary; for the canary of direction
# k, 2k + 1 if it is left out, and 2k + 2 if it sends its direction.
_CANARY = 'canary'
# Longer than any clip.
LENGTH = 1e6
# The most weights on which directions are not zero.
_MOST = 2**14
# The key of the signs that all directions share.
_SIGNS = 0xCA7A


def most(num_weights: int) -> int:
  """Returns how many canaries a model of so many weights can have."""
  return min(1 << (num_weights.bit_length() - 1), _MOST)


def _signs(size: int) -> tf.Tensor:
  bits = keys.draw_bits(tf.constant([0, _SIGNS]), (0, 0), size, tf.int32)
  return tf.where(bits < 0, -1.0, 1.0)


def direction(like: models.Weights, k: int | tf.Tensor) -> models.Weights:
  """Returns the unit vector of a canary, in the structure of `like`.

  It is a row of the Hadamard matrix with random signs, on every n-th weight; it
  is zero on the others.

  Args:
    like: Weights.
    k: The number of the direction, from 0 on, below `most`.
  """
  names = sorted(like)
  entries = vectors.count(like.values())
  size = most(entries)
  # Whether the bits that two numbers have in common are odd in number.
  common = tf.bitwise.bitwise_and(tf.range(size), tf.cast(k, tf.int32))
  for shift in (16, 8, 4, 2, 1):
    shifted = tf.bitwise.right_shift(common, shift)
    common = tf.bitwise.bitwise_xor(common, shifted)
  is_odd = tf.equal(tf.bitwise.bitwise_and(common, 1), 1)
  signs = tf.where(is_odd, -_signs(size), _signs(size))
  step = entries // size
  spread = tf.pad(
    signs[:, tf.newaxis] / math.sqrt(size), [[0, 0], [0, step - 1]]
  )
  vector = tf.pad(tf.reshape(spread, [-1]), [[0, entries - size * step]])
  parts = vectors.split(vector, [like[name] for name in names])
  return collections.OrderedDict(zip(names, parts))


class _Watched(fedavg.FedAvg):
  """Has only canaries send anything; a mixin for the class of a trainer."""

  @property
  def attributes(self) -> Sequence[str]:
    return (*super().attributes, _CANARY)

  def client(
    self, message: aliases.Structure, client: trainers.Client
  ) -> trainers.ClientResult:
    result = super().client(message, client)
    canary = client.attributes[_CANARY]
    update = result.updates['model']
    away = direction(update.value, (canary - 1) // 2)
    is_in = (canary > 0) & tf.equal(canary % 2, 0)
    length = tf.where(is_in, LENGTH, 0.0)
    value = collections.OrderedDict(
      (name, length * away[name]) for name in update.value
    )
    return result._replace(updates={'model': update._replace(value=value)})


@functools.cache
def _watched(trainer_class: type[trainers.Trainer]) -> type[trainers.Trainer]:
  return type(f'Watched{trainer_class.__name__}', (_Watched, trainer_class), {})


def check(method: methods.Method) -> None:
  """Checks that the canaries of a method can be seen in its global model.

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


def add_to_method(method: methods.Method) -> methods.Method:
  """Returns a method with canaries, without its personalization.

  Raises:
    UserError: If its clients do not send the update of one global model.
  """
  check(method)
  trainer: trainers.Trainer = method.trainer
  fields = {
    field.name: getattr(trainer, field.name)
    for field in dataclasses.fields(trainer)
  }
  return method.replace_trainer(_watched(type(trainer))(**fields))


def add_to_task(task: tasks.Task, is_in: Sequence[bool]) -> tasks.Task:
  """Returns a task with canaries among the clients to train on.

  All clients have one example, which is not used, and canaries that of another
  client.

  Args:
    task: The task.
    is_in: For each canary, whether it sends its direction.
  """
  clients = list(task.train.client_ids)
  sizes = task.train.count_examples()
  # Clients without examples take no part.
  has_some = int(np.argmax(sizes['train'] > 0))
  first = clients[has_some]
  added = [f'canary {k}' for k in range(len(is_in))]
  are_canaries = frozenset(added)

  def load(client_id: str, of_set: populations.Load) -> populations.Examples:
    examples = of_set(first if client_id in are_canaries else client_id)
    return populations.take(examples, slice(1))

  train = dataclasses.replace(
    task.train,
    client_ids=[*clients, *added],
    sets={
      name: functools.partial(load, of_set=of_set)
      for name, of_set in task.train.sets.items()
    },
    sizes={
      name: np.minimum(
        np.append(of_set, np.full(len(added), of_set[has_some])), 1
      )
      for name, of_set in sizes.items()
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
  numbers = dict.fromkeys(clients, 0) | {
    c: 2 * k + 1 + bool(sends) for k, (c, sends) in enumerate(zip(added, is_in))
  }
  names = ['none', *(f'{c}, {w}' for c in added for w in ('out', 'in'))]
  attributes[_CANARY] = tasks.Attribute(names, numbers)
  return dataclasses.replace(task, train=train, attributes=attributes)


def scores(
  before: models.Weights, after: models.Weights, number: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns how visible canaries are in a training.

  Args:
    before: The global model before the first round.
    after: The model after the last one.
    number: The number of canaries.

  Returns:
    The length of the change of the model in the direction of each canary,
    against which its update points; and the change of the weights on which
    directions are not zero.
  """

  def flat(weights: models.Weights) -> np.ndarray:
    return np.concatenate([np.ravel(weights[name]) for name in sorted(before)])

  # An update points against the change of the model.
  change = flat(before).astype(np.float64) - flat(after)
  size = most(change.size)
  step = change.size // size
  released = change[: size * step : step]
  turned = distributed_noise.hadamard(
    tf.cast(_signs(released.size) * np.float32(released), tf.float32)
  )
  return turned.numpy()[:number].astype(np.float64), released


def estimate(
  before: models.Weights, after: models.Weights, number: int, delta: float
) -> float:
  """Estimates ε from the global model before and after a training.

  Args:
    before: The model before the first round.
    after: The model after the last one.
    number: The number of canaries, which were all in the training.
    delta: The δ.

  Returns:
    The estimate, which is not a guarantee.
  """
  found, released = scores(before, after, number)
  return canaries.empirical_epsilon(
    found / np.linalg.norm(released), released.size, delta
  )
