"""Optimizers of TFF, for the server and for the steps of a client."""

import collections
from collections.abc import Callable, Sequence
import dataclasses
from typing import NamedTuple, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

from base import aliases
from base import errors
from base import settings
from tasks.models import models

# What an optimizer keeps from step to step, as TFF makes it.
Slots: TypeAlias = aliases.Structure


class Learner(NamedTuple):
  """Weights in training, and the slots of the optimizer that trains them."""

  weights: models.Weights
  slots: Slots


@dataclasses.dataclass(frozen=True)
class _Kind:
  """An optimizer of TFF.

  Attributes:
    build: Makes it, with hyperparameters that are replaced later.
    numbers: The names of its hyperparameters in TFF.
    has_slots: Whether a step depends on the steps before it.
  """

  build: Callable[[], tff.learning.optimizers.Optimizer]
  numbers: Sequence[str]
  has_slots: bool = True


_ADAM = ('learning_rate', 'beta_1', 'beta_2', 'epsilon')
_KINDS = {
  'sgd': _Kind(
    lambda: tff.learning.optimizers.build_sgdm(0.1),
    ('learning_rate',),
    has_slots=False,
  ),
  'momentum': _Kind(
    lambda: tff.learning.optimizers.build_sgdm(0.1, 0.9),
    ('learning_rate', 'momentum'),
  ),
  'damped_momentum': _Kind(
    lambda: tff.learning.optimizers.build_sgdm(0.1, 0.9),
    ('learning_rate', 'momentum'),
  ),
  'adam': _Kind(lambda: tff.learning.optimizers.build_adam(0.1), _ADAM),
  'yogi': _Kind(lambda: tff.learning.optimizers.build_yogi(0.1), _ADAM),
}
NAMES = tuple(_KINDS)
ADAM_FORMS = ('tff', 'pytorch')


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """An optimizer with its numbers, which may be tensors.

  Attributes:
    name: One of `NAMES`. The steps of 'damped_momentum' are (1 - momentum)
      times those of 'momentum', as in Motley: m <- .9 m + .1 gradient.
    learning_rate: The learning rate.
    momentum: The decay of the momentum.
    beta_1: The decay of the first moment, in Adam and Yogi.
    beta_2: The decay of the second moment.
    epsilon: The term that is added to the root of the second moment.
    adam_form: One of `ADAM_FORMS`. TFF's Adam adds epsilon before it corrects
      the bias of the second moment, so that it counts 1 / sqrt(1 - beta_2^t)
      times as much in step t; PyTorch's adds it after, as in algorithm 1 of
      Kingma and Ba 2015.
  """

  name: str
  learning_rate: aliases.Number
  momentum: aliases.Number = 0.9
  beta_1: aliases.Number = 0.9
  beta_2: aliases.Number = 0.999
  epsilon: aliases.Number = 1e-7
  adam_form: str = 'tff'

  @property
  def has_slots(self) -> bool:
    """Whether a step depends on the steps before it."""
    return _KINDS[self.name].has_slots

  def slots(self, weights: models.Weights) -> Slots:
    """Makes the slots for weights like these."""
    specs = tf.nest.map_structure(
      lambda weight: tf.TensorSpec(weight.shape, weight.dtype), weights
    )
    return self.set_numbers(_KINDS[self.name].build().initialize(specs))

  def set_numbers(self, slots: Slots) -> Slots:
    """Returns the slots with our hyperparameters, which TFF keeps in them."""
    values = collections.OrderedDict(
      (name, getattr(self, name)) for name in _KINDS[self.name].numbers
    )
    if self.name == 'damped_momentum':
      values['learning_rate'] = (1.0 - self.momentum) * self.learning_rate
    return _KINDS[self.name].build().set_hparams(slots, values)

  def start(self, weights: models.Weights) -> Learner:
    """Returns weights with new slots."""
    return Learner(weights, self.slots(weights))

  def step(self, learner: Learner, gradient: models.Weights) -> Learner:
    """Takes a step down the gradient, or down a mean update of clients."""
    optimizer, slots = _KINDS[self.name].build(), learner.slots
    if self.name == 'adam' and self.adam_form == 'pytorch':
      t = tf.cast(slots['step'] + 1, tf.float32)
      epsilon = self.epsilon * tf.sqrt(1.0 - self.beta_2**t)
      slots = optimizer.set_hparams(slots, {'epsilon': epsilon})
    slots, weights = optimizer.next(slots, learner.weights, gradient)
    return Learner(weights, slots)


@dataclasses.dataclass(frozen=True)
class ClientOptimizerSettings(settings.Settings):
  """The settings of the optimizer that takes a client's steps."""

  client_learning_rate: aliases.Number = settings.field(
    0.1, "The learning rate of the clients' steps.", minimum=0
  )
  client_optimizer: str = settings.field(
    'sgd', "The optimizer of the clients' steps.", choices=NAMES
  )
  client_momentum: aliases.Number = settings.field(
    0.9, "The momentum of the clients' optimizer.", minimum=0, maximum=1
  )
  client_beta_1: aliases.Number = settings.field(
    0.9, "The decay of the clients' first moment.", minimum=0, maximum=1
  )
  client_beta_2: aliases.Number = settings.field(
    0.999, "The decay of the clients' second moment.", minimum=0, maximum=1
  )
  client_epsilon: aliases.Number = settings.field(
    1e-7,
    "The term that the clients' Adam or Yogi adds to the root of the second"
    ' moment.',
    above=0,
  )
  adam_form: str = settings.field(
    'tff',
    "Whether Adam adds its epsilon before it corrects the second moment's bias"
    ' (tff) or after (pytorch); for the clients and the server.',
    choices=ADAM_FORMS,
  )
  client_slots: str = settings.field(
    'new',
    "Whether the slots of the clients' optimizer, such as its momentum, are new"
    ' in each round, or kept by the client for its next round.',
    choices=('new', 'kept'),
  )

  def refuse_kept_slots(self, name: str) -> None:
    """Raises a `UserError` if the clients are to keep slots between rounds."""
    if self.client_slots == 'kept':
      raise errors.UserError(f'{name}: client_slots must be new.')

  def client_optimizer_at(self, learning_rate: aliases.Number) -> Optimizer:
    """Makes the clients' optimizer, with another learning rate."""
    return Optimizer(
      self.client_optimizer,
      learning_rate,
      self.client_momentum,
      self.client_beta_1,
      self.client_beta_2,
      self.client_epsilon,
      self.adam_form,
    )
