"""Federated problems in NumPy's float64, for references of the trainers.

A model is a vector of weights and a function of the loss of a batch. Its
gradients are found by complex steps (Squire and Trapp 1998), exact to rounding,
so that a reference has nothing in common with what it is compared with.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, TypeAlias

import numpy as np

Vector: TypeAlias = np.ndarray
Vectors: TypeAlias = dict[str, np.ndarray]
Weights: TypeAlias = Mapping[str, Any]
Batch: TypeAlias = Mapping[str, np.ndarray]
_STEP = 1e-30


def gradient(function: Callable[[Vector], Any], at: Vector) -> np.ndarray:
  """Differentiates one or several functions, computed without conjugates."""
  rows = 1j * _STEP * np.eye(len(at))
  return np.array([function(at + row) for row in rows]).imag / _STEP


def gradients(function: Callable[[Vectors], Any], at: Vectors) -> Vectors:
  """Differentiates one or several functions of several vectors."""
  ends = np.cumsum([len(vector) for vector in at.values()])[:-1]

  def split(whole: Vector) -> Vectors:
    return dict(zip(at, np.split(whole, ends)))

  whole = np.concatenate(list(at.values()))
  return split(gradient(lambda v: function(split(v)), whole))


def cross_entropy(scores: np.ndarray, labels: np.ndarray) -> complex:
  """Returns the mean cross-entropy of a softmax."""
  log_sums = np.log(np.exp(scores).sum(axis=1))
  return np.mean(log_sums - scores[np.arange(len(labels)), labels])


@dataclasses.dataclass(frozen=True)
class Model:
  """A model of weights in one vector.

  Attributes:
    shapes: The shape of each weight, in order.
    parts: The names of the weights of each part.
    mean_loss: The mean loss of a batch, from weights by name and the batch.
  """

  shapes: Mapping[str, Sequence[int]]
  parts: Mapping[str, Sequence[str]]
  mean_loss: Callable[[Mapping[str, np.ndarray], Batch], complex]

  def unpack(self, w: Vector) -> dict[str, np.ndarray]:
    """Returns weights by name."""
    ends = np.cumsum([int(np.prod(s)) for s in self.shapes.values()])
    pieces = np.split(w, ends[:-1])
    return {
      name: piece.reshape(shape)
      for piece, (name, shape) in zip(pieces, self.shapes.items())
    }

  def pack(self, weights: Weights) -> Vector:
    """Returns weights as one vector."""
    return np.concatenate(
      [np.ravel(np.asarray(weights[n], np.float64)) for n in self.shapes]
    )

  def has(self, *parts: str) -> np.ndarray:
    """Tells which entries of the vector belong to some parts."""
    return np.concatenate(
      [
        np.full(
          int(np.prod(shape)), any(name in self.parts[part] for part in parts)
        )
        for name, shape in self.shapes.items()
      ]
    )

  def loss(self, w: Vector, batch: Batch) -> complex:
    """Computes the mean loss of a batch."""
    return self.mean_loss(self.unpack(w), batch)

  def gradient(self, w: Vector, batch: Batch) -> Vector:
    """Differentiates the mean loss of a batch."""
    return gradient(lambda v: self.loss(v, batch), w)


@dataclasses.dataclass(frozen=True)
class Client:
  """A client: its examples, and their batches in a round.

  Attributes:
    examples: All of its examples.
    batches: The batches of all epochs.
    group: Its group.
    state: The state that it starts with.
    draws: The random numbers that it draws in a round, one for each batch.
  """

  examples: Batch
  batches: Sequence[Batch]
  group: int
  state: Any
  draws: Sequence[int] = ()

  @property
  def num_examples(self) -> int:
    """The number of examples in all batches."""
    return sum(len(batch['y']) for batch in self.batches)


@dataclasses.dataclass(frozen=True)
class Problem:
  """Clients, the rounds in which they take part, and how these begin.

  Attributes:
    model: The model.
    clients: The clients. The last one takes part in no round.
    cohorts: The clients of each round.
    w: The weights that the model starts with.
    first: The server's first state, by name.
    s: The settings of the trainer.
    kept: The optimizers that clients keep, if they keep them.
  """

  model: Model
  clients: Sequence[Client]
  cohorts: Sequence[Sequence[int]]
  w: Vector
  first: Any
  s: Any
  kept: dict[int, 'Optimizer'] = dataclasses.field(default_factory=dict)

  @property
  def num_trained(self) -> int:
    """The number of clients to train on."""
    return len(self.clients) - 1

  def gradient(self, w: Vector, batch: Batch) -> Vector:
    """Differentiates the mean loss of a batch."""
    return self.model.gradient(w, batch)

  def weight(self, k: int) -> float:
    """Returns how much a client counts, n_k or 1."""
    client = self.clients[k]
    return 1 if self.s.client_weighting == 'uniform' else client.num_examples

  def mean(self, of_each: Mapping[int, Vector]) -> Vector:
    """Returns the weighted mean of the vectors of clients."""
    weights = [self.weight(k) for k in of_each]
    return np.average(list(of_each.values()), axis=0, weights=weights)

  def descend(
    self,
    k: int,
    w: Vector,
    pull: Callable[[Vector], Vector] = lambda w: 0.0,
    only: np.ndarray | float = 1.0,
    rate: float | None = None,
  ) -> Vector:
    """Takes the steps of a client in a round, one for each batch.

    Args:
      k: The client.
      w: The weights to step from.
      pull: What to add to the gradient of a batch.
      only: The entries to step on.
      rate: The learning rate, if it is not that of the clients.
    """
    steps = client_steps(self.s, rate)
    if self.s.client_slots == 'kept' and rate is None:
      steps = self.kept.setdefault(k, steps)
    for batch in self.clients[k].batches:
      w = steps(w, only * (self.gradient(w, batch) + pull(w)))
    return w


@dataclasses.dataclass(frozen=True)
class Trained:
  """The result of a training.

  Attributes:
    start: Returns the model that a client starts to personalize from.
    shared: The model that all clients share, if there is one beside it.
  """

  start: Callable[[int], Vector]
  shared: Vector | None = None


class Optimizer:
  """Takes steps as TFF's optimizers do, from new slots on."""

  def __init__(
    self,
    name: str,
    rate: float,
    momentum: float,
    betas: tuple[float, float],
    epsilon: float,
    adam_form: str,
  ):
    self._name, self._rate, self._momentum = name, rate, momentum
    self._betas, self._epsilon, self._adam_form = betas, epsilon, adam_form
    self._m: Any = 0.0
    self._v: Any = 0.0
    self._t = 0

  def __call__(self, w: Vector, slope: Vector) -> Vector:
    """Returns the weights after a step down a slope."""
    if self._name == 'sgd':
      return w - self._rate * slope
    if self._name.endswith('momentum'):
      damping = 1 - self._momentum if self._name.startswith('damped') else 1
      self._m = self._momentum * self._m + damping * slope
      return w - self._rate * self._m
    (beta_1, beta_2), self._t = self._betas, self._t + 1
    self._m = beta_1 * self._m + (1 - beta_1) * slope
    self._v = beta_2 * self._v + (1 - beta_2) * slope**2
    root = np.sqrt(1 - beta_2**self._t)
    epsilon = self._epsilon
    if self._adam_form == 'tff':  # Added before the bias is corrected.
      epsilon /= root
    m = self._m / (1 - beta_1**self._t)
    return w - self._rate * m / (np.sqrt(self._v) / root + epsilon)


def _optimizer(s: Any, side: str, rate: float | None) -> Optimizer:
  name, own_rate, momentum, *betas, epsilon = (
    getattr(s, f'{side}_{of}')
    for of in (
      'optimizer',
      'learning_rate',
      'momentum',
      'beta_1',
      'beta_2',
      'epsilon',
    )
  )
  rate = own_rate if rate is None else rate
  return Optimizer(name, rate, momentum, tuple(betas), epsilon, s.adam_form)


def client_steps(s: Any, rate: float | None = None) -> Optimizer:
  """Makes the optimizer of the clients' steps, maybe with another rate."""
  return _optimizer(s, 'client', rate)


def server_steps(s: Any, rate: float | None = None) -> Optimizer:
  """Makes the server's optimizer, maybe with another rate."""
  return _optimizer(s, 'server', rate)
