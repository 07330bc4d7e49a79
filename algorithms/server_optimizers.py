"""What the server does with the clients' average update.

TFF's own optimizers, whose learning rates and so on are part of their state.
"""

import collections
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

# The hyperparameters of the server's optimizer, by the name a user knows.
Hyperparameters = Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class ServerOptimizer:
  """An optimizer of TFF, and its hyperparameters from the user's."""

  optimizer: tff.learning.optimizers.Optimizer
  to_hparams: Callable[[Hyperparameters], dict[str, tf.Tensor]]

  def initialize(self, weights: Any, hyperparameters: Hyperparameters) -> Any:
    """The optimizer's state for weights like `weights`."""
    specs = tf.nest.map_structure(
      lambda weight: tf.TensorSpec(weight.shape, weight.dtype), weights
    )
    state = self.optimizer.initialize(specs)
    return self.optimizer.set_hparams(
      state, collections.OrderedDict(self.to_hparams(hyperparameters))
    )

  def next(self, state: Any, weights: Any, update: Any) -> tuple[Any, Any]:
    """The next state and weights; `update` takes the place of a gradient."""
    return self.optimizer.next(state, weights, update)


def _sgd(h: Hyperparameters) -> dict[str, tf.Tensor]:
  return dict(learning_rate=h['server_learning_rate'])


def _momentum(h: Hyperparameters) -> dict[str, tf.Tensor]:
  return dict(
    learning_rate=h['server_learning_rate'], momentum=h['server_momentum']
  )


def _damped_momentum(h: Hyperparameters) -> dict[str, tf.Tensor]:
  # Motley's m <- .9 m + .1 update is .1 times TFF's m <- .9 m + update.
  damping = 1.0 - h['server_momentum']
  return dict(
    learning_rate=damping * h['server_learning_rate'],
    momentum=h['server_momentum'],
  )


def _adam(h: Hyperparameters) -> dict[str, tf.Tensor]:
  return dict(
    learning_rate=h['server_learning_rate'],
    beta_1=h['server_beta_1'],
    beta_2=h['server_beta_2'],
    epsilon=h['server_epsilon'],
  )


# The values given here are replaced by those in the server's state.
_OPTIMIZERS = {
  'sgd': (lambda: tff.learning.optimizers.build_sgdm(0.1), _sgd),
  'momentum': (
    lambda: tff.learning.optimizers.build_sgdm(0.1, 0.9),
    _momentum,
  ),
  'damped_momentum': (
    lambda: tff.learning.optimizers.build_sgdm(0.1, 0.9),
    _damped_momentum,
  ),
  'adam': (lambda: tff.learning.optimizers.build_adam(0.1), _adam),
}
NAMES = tuple(_OPTIMIZERS)


def build(name: str) -> ServerOptimizer:
  make, to_hparams = _OPTIMIZERS[name]
  return ServerOptimizer(make(), to_hparams)
