"""BLUP: linear effects of all clients, and those of each client (mixed model).

Henderson 1975; Laird and Ware 1982. With the features x of an example and a
constant, and those of them, z, whose effects differ from client to client,

  y = x^T beta + z^T b_i + e,    b_i ~ N(0, D),    e ~ N(0, sigma^2)

Where this is true, nobody predicts better from these features than with the
best linear unbiased predictor of b_i (b_i_hat below): it is the optimum that
other personalized linear models can be held against. beta, D and sigma^2 are
found by restricted maximum likelihood (REML), in steps of its EM algorithm.
Client i has the examples (X, y), Z are the columns of z, and r = y - X beta:

  client i:    M = (Z^T Z / sigma^2 + D^-1)^-1,    K = M Z^T X / sigma^2
               b_i_hat = M Z^T r / sigma^2
               sends X^T V^-1 X and X^T V^-1 r, V = sigma^2 I + Z D Z^T,
               and the expectations of b_i b_i^T and of ||y - X beta - Z b_i||^2
  the server:  Phi <- (sum_i X^T V^-1 X)^-1
               beta <- beta + Phi sum_i X^T V^-1 r
               D <- mean_i E[b_i b_i^T]
               sigma^2 <- sum_i E||y - X beta - Z b_i||^2 / sum_i n_i

  E[b_i b_i^T] = b_i_hat b_i_hat^T + M + K Phi K^T
  E||y - X beta - Z b_i||^2 = ||r - Z b_i_hat||^2 + tr(Z^T Z M)
               + tr((X - Z K)^T (X - Z K) Phi)

Without the terms of Phi it would be maximum likelihood, which takes beta for
known. A client predicts with beta and its b_i_hat, also if it was never trained
on. Each round needs all clients: with some of them it does not settle.
"""

import collections
from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import linear
from tasks.models import models
from tasks.models import networks


@dataclasses.dataclass(frozen=True)
class BlupSettings(settings.Settings):
  """The settings of the effects that differ."""

  own_slopes: tuple[int, ...] = settings.field(
    (),
    'The numbers of the features, from 0 on, whose effects differ from client'
    ' to client. The constant always does.',
    minimum=0,
  )


class BlupState(NamedTuple):
  """The server's state, and its message.

  Attributes:
    model: beta, as the weights of the model.
    covariance: D.
    noise: sigma^2.
    uncertainty: Phi, the covariance of beta.
  """

  model: models.Weights
  covariance: tf.Tensor
  noise: tf.Tensor
  uncertainty: tf.Tensor


class Sums(NamedTuple):
  """The sums over a client's examples that it sends to the server.

  Attributes:
    precision: X^T V^-1 X.
    slope: X^T V^-1 r.
    covariance: E[b_i b_i^T].
    residual: E||y - X beta - Z b_i||^2.
    num_examples: n_i.
  """

  precision: tf.Tensor
  slope: tf.Tensor
  covariance: tf.Tensor
  residual: tf.Tensor
  num_examples: tf.Tensor


class Effects(NamedTuple):
  """The effects of a client, as found from its examples.

  Attributes:
    x: X, zero for what is no example. The last column is the constant, and thus
      the mask of the examples.
    z: Z.
    r: r, zero for what is no example.
    covariance: M, their covariance given beta.
    mean: b_i_hat.
  """

  x: tf.Tensor
  z: tf.Tensor
  r: tf.Tensor
  covariance: tf.Tensor
  mean: tf.Tensor


def _gram(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Returns x^T y of two matrices."""
  return tf.matmul(x, y, transpose_a=True)


def _add(model: models.Weights, change: tf.Tensor) -> models.Weights:
  """Adds the changes of the effects, the constant's as last, to a model."""
  kernel, bias = model.items()
  changes = {kernel[0]: change[:-1], bias[0]: change[-1:]}
  return collections.OrderedDict(
    (name, weight + tf.reshape(changes[name], weight.shape))
    for name, weight in model.items()
  )


def _solve(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
  """Returns a^-1 b; NaN, which drops a client, if a is not finite."""
  is_finite = tf.reduce_all(tf.math.is_finite(a))
  x = tf.linalg.solve(tf.where(is_finite, a, tf.eye(a.shape[0])), b)
  return tf.where(is_finite, x, np.nan)


@dataclasses.dataclass(frozen=True)
class Blup(trainers.Trainer):
  """Finds the effects of all clients, and how much those of clients differ."""

  settings: BlupSettings
  start_is_shared = False
  start_name = 'own effects'
  shared_name = 'effects of all'

  def __post_init__(self) -> None:
    kinds = linear.LinearRegression, networks.NetworkRegressor
    parts = [part for part, names in self.model.parts.items() if names]
    if not isinstance(self.model, kinds) or parts != [models.HEAD]:
      raise errors.UserError(
        'blup needs a linear regression. For a table set task.target=number'
        ' and task.model=linear.'
      )
    for number in self.settings.own_slopes:
      if number >= self._num_features:
        raise settings.SettingError(
          f'blup: own_slopes has {number}, but the {self._num_features}'
          ' features are numbered from 0 on.',
          'own_slopes',
        )

  @property
  def _num_features(self) -> int:
    return self.model.example_spec['x'].shape[0]

  @property
  def why_not_private(self) -> str | None:
    return 'blup needs the exact sums of what clients send'

  @property
  def why_examples_not_private(self) -> str | None:
    return 'clients of blup send products of their examples'

  @property
  def _random(self) -> Sequence[int]:
    """The columns of X that are columns of Z, the constant as the last."""
    return [*self.settings.own_slopes, self._num_features]

  @property
  def parts(self) -> dict[str, aggregation.Factory | None]:
    return {'sums': aggregation.mean()}

  def passes(self, rounds: int) -> trainers.Passes:
    return trainers.Passes(losses=rounds)

  @property
  def start_passes(self) -> trainers.Passes:
    return trainers.Passes(losses=1)

  def initialize(self, seed: aliases.Seed) -> BlupState:
    model = self.model.init(seed)
    size = self._num_features + 1
    return BlupState(
      model, tf.eye(len(self._random)), tf.constant(1.0), tf.zeros([size, size])
    )

  def message(self, server: BlupState) -> BlupState:
    return server

  def find_effects(
    self, message: BlupState, data: batches.ClientData
  ) -> Effects:
    """Finds the effects of a client from its examples."""
    examples, weight = data.examples, client_work.example_mask(data)
    features = tf.pad(examples['x'], [[0, 0], [0, 1]], constant_values=1.0)
    x = weight[:, tf.newaxis] * features
    z = tf.gather(x, self._random, axis=1)
    r = weight * (examples['y'] - self.model.scores(message.model, examples))
    # (I + D Z^T Z / sigma^2)^-1 D, as D may have no inverse.
    of_noise = tf.matmul(message.covariance, _gram(z, z)) / message.noise
    eye = tf.eye(len(self._random))
    m = _solve(eye + of_noise, message.covariance)
    mean = tf.linalg.matvec(m, tf.linalg.matvec(z, r, transpose_a=True))
    return Effects(x, z, r, m, mean / message.noise)

  def client(
    self, message: BlupState, client: trainers.Client
  ) -> trainers.ClientResult:
    x, z, r, m, b = self.find_effects(message, client.data)
    is_example = x[:, -1]
    noise, phi = message.noise, message.uncertainty
    k = tf.matmul(m, _gram(z, x)) / noise
    # V^-1 X = (X - Z K) / sigma^2.
    left = x - tf.matmul(z, k)
    uncertain = tf.matmul(k, tf.matmul(phi, k, transpose_b=True))
    residual = tf.reduce_sum(tf.square(r - tf.linalg.matvec(z, b)))
    residual += tf.linalg.trace(tf.matmul(_gram(z, z), m))
    residual += tf.linalg.trace(tf.matmul(_gram(left, left), phi))
    update = Sums(
      precision=_gram(left, x) / noise,
      slope=tf.linalg.matvec(left, r, transpose_a=True) / noise,
      covariance=b[:, tf.newaxis] * b + m + uncertain,
      residual=residual,
      num_examples=tf.reduce_sum(is_example),
    )
    losses = self.model.loss(message.model, client.data.examples)
    return trainers.ClientResult(
      updates={'sums': aggregation.Update(update)},
      loss=tf.tensordot(is_example, losses, 1),
    )

  def server(
    self,
    server: BlupState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> BlupState:
    means: Sums = aggregate['sums']
    # The means over the clients, whose number divides both sides. Features may
    # depend on each other, as those of all values of a column do.
    precision = tf.cast(means.precision, tf.float64)
    inverse = tf.cast(tf.linalg.pinv(precision, rcond=1e-6), tf.float32)
    change = tf.linalg.matvec(inverse, means.slope)
    after = BlupState(
      _add(server.model, change),
      means.covariance,
      tf.math.divide_no_nan(means.residual, means.num_examples),
      tf.math.divide_no_nan(inverse, sums.num_clients),
    )
    return client_work.choose(sums.num_clients > 0, after, server)

  def start(
    self, message: BlupState, client: trainers.Client
  ) -> trainers.Start:
    b = self.find_effects(message, client.data).mean
    size = self._num_features + 1
    own = tf.scatter_nd([[i] for i in self._random], b, [size])
    return trainers.Start(_add(message.model, own), shared=message.model)


registry.register_trainer(
  'blup',
  Blup,
  title='BLUP',
  paper='Henderson 1975',
  does=(
    'a linear regression whose effects differ from client to client by a normal'
    ' distribution that is found as well (a mixed model): no linear method'
    ' predicts better where this is true'
  ),
  sends='sums of products of its examples',
  small={'own_slopes': (1,)},
)
