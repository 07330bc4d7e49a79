"""FedEM: each client has a mixture of its own of models that all clients train.

Marfoq et al. 2021 ("Federated multi-task learning under a mixture of
distributions"), algorithm 1. The data of client t are a mixture of M
distributions, each with a model h_m; only the shares pi_t differ. In a round
of expectation and maximization, with the loss l as minus a log-likelihood,

  client t:    q_im <- pi_tm exp(-l(h_m(x_i), y_i)), over sum_m q_im      (E)
               pi_tm <- mean over i of q_im                               (M)
               for each m:  h_tm <- h_m;  for each batch b:
                 h_tm <- h_tm - eta grad mean over b of q_im l(h_tm(x_i), y_i)
               sends h_tm - h_m for all m, and keeps pi_t
  the server:  each h_m as the model in FedAvg

The mean over b is divided by its examples, not by sum q_im. A client predicts
by sum_m pi_tm h_m(x), where h_m(x) are probabilities, or numbers in a
regression. With M = 1 this is FedAvg.

The models start at random, as q would stay pi if they were equal; pi starts
alike for all m. A client that was never trained on only finds its pi: it takes
some (E) and (M) steps of pi, for which it computes the losses once.

In the authors' code, the server averages the models of all clients, also those
of clients that were not drawn.
"""

import collections
from collections.abc import Mapping
import dataclasses
from typing import Any

import tensorflow as tf

from algorithms import client_work
from algorithms import clusters
from algorithms import fedavg
from algorithms import personal_models
from algorithms import registry
from algorithms import split
from algorithms import trainers
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import linear
from tasks.models import models

# The part, and the weight, that is pi.
_MIXTURE = 'mixture'
# The feature of examples that is q.
_Q = 'q'


@dataclasses.dataclass(frozen=True)
class FedEmSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, for each model, and of the mixture."""

  num_models: int = settings.field(
    3, 'M, the number of models.', minimum=1, maximum=1000
  )
  mixture_steps: int = settings.field(
    10,
    'The steps by which a client that was never trained on finds its mixture.',
    minimum=1,
  )


@dataclasses.dataclass(frozen=True)
class Mixture(models.Extended):
  """A mixture of several models of one kind.

  Its weights are those of the models, stacked, and the shares of the mixture,
  which have no gradient. Its representation is that of each model, side by
  side.

  Attributes:
    size: The number of models.
  """

  size: int

  def of_model(self, weights: models.Weights, m: int) -> models.Weights:
    """Returns the weights of one of the models."""
    stacked = client_work.select(weights, set(weights) - {_MIXTURE})
    return clusters.pick(stacked, m)

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {**self.model.parts, _MIXTURE: (_MIXTURE,)}

  @property
  def encodes_by_head(self) -> bool:
    return self.model.encodes_by_head

  def init(self, seed: tf.Tensor) -> models.Weights:
    """Makes models that differ; one alone starts as it does elsewhere."""
    if self.size == 1:
      of_models = [self.inner.init(seed)]
    else:
      seeds = tf.random.experimental.stateless_split(seed, self.size)
      of_models = [self.inner.random_init(seeds[m]) for m in range(self.size)]
    shares = tf.fill([self.size], 1 / self.size)
    return client_work.merge(
      client_work.stack(of_models), collections.OrderedDict(mixture=shares)
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return tf.concat(
      [
        self.inner.encode(self.of_model(weights, m), batch)
        for m in range(self.size)
      ],
      axis=1,
    )

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    """Returns the logarithms of mixed probabilities, or mixed numbers."""
    of_models = tf.stack(
      [
        self.inner.decide(self.of_model(weights, m), encoded)
        for m, encoded in enumerate(tf.split(features, self.size, axis=1))
      ]
    )
    shares = tf.stop_gradient(weights[_MIXTURE])
    if isinstance(self.model, models.Classifier):
      shares = tf.reshape(shares, [-1, 1, 1])
      return tf.reduce_logsumexp(
        tf.math.log(shares) + tf.nn.log_softmax(of_models), axis=0
      )
    return tf.linalg.matvec(of_models, shares, transpose_a=True)


class _Weighted:
  """Has each example of a model count by its q."""

  def loss(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    model: Any = super()
    loss: tf.Tensor = model.loss(weights, batch)
    return batch[_Q] * loss


@dataclasses.dataclass(frozen=True)
class FedEm(split.SharesParts, personal_models.PersonalModels):
  """Trains several models, which each client mixes by shares of its own."""

  settings: FedEmSettings
  start_name = 'own mixture'
  shared_name = 'equal mixture'

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('fedem')
    if not isinstance(self.model, Mixture):
      mixture = Mixture(self.model, self.settings.num_models)
      object.__setattr__(self, 'model', mixture)
    mixed = models.Classifier, models.Regressor, linear.LinearModel
    if not isinstance(self.mixture.model, mixed):
      raise errors.UserError(
        'fedem needs a model of classes or of numbers, whose predictions can be'
        ' mixed.'
      )

  @property
  def mixture(self) -> Mixture:
    """The model, of several."""
    assert isinstance(self.model, Mixture)
    return self.model

  @property
  def partition(self) -> split.Partition:
    return split.Partition(self.model, (_MIXTURE,))

  @property
  def personal_names(self) -> tuple[str, ...]:
    return self.partition.personal_names

  @property
  def why_examples_not_private(self) -> str | None:
    return (
      'the mixture that a client keeps is the mean of what its examples say'
    )

  def passes(self, rounds: int) -> trainers.Passes:
    m = self.settings.num_models
    return trainers.Passes(gradients=m * rounds, losses=m * rounds)

  @property
  def start_passes(self) -> trainers.Passes:
    return trainers.Passes(losses=self.settings.num_models)

  def _losses(self, w: models.Weights, data: batches.ClientData) -> tf.Tensor:
    """Returns l(h_m(x_i), y_i) of all examples and models, `[n, M]`."""
    mixture = self.mixture

    def compute(examples: models.Batch) -> tf.Tensor:
      return tf.stack(
        [
          mixture.inner.loss(mixture.of_model(w, m), examples)
          for m in range(mixture.size)
        ],
        axis=1,
      )

    return client_work.compute_for_examples(data, compute, [mixture.size])

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    parts, mixture = self.partition, self.mixture
    w = self.personal_model(message, client.state)
    q = expect(self._losses(w, client.data), w[_MIXTURE])
    optimizer = self.settings.client_steps
    after, loss = [], tf.constant(0.0)
    for m in range(mixture.size):
      data = client.data._replace(
        examples=collections.OrderedDict(client.data.examples, **{_Q: q[:, m]})
      )
      learner, of_model = client_work.train(
        models.mix_in(_Weighted, mixture.inner),
        optimizer.start(mixture.of_model(w, m)),
        data,
        optimizer,
      )
      after.append(learner.weights)
      loss += of_model
    kept = collections.OrderedDict(mixture=mean_of(q, client.data, w[_MIXTURE]))
    shared = parts.select_shared(w)
    result = self.result(
      shared, client_work.stack(after), loss, client.state.advance(kept), client
    )
    # The mixture of the message is only that of new clients.
    return result._replace(measured={'share_received': parts.used_share(w)})

  def start(
    self, message: trainers.Message, client: trainers.Client
  ) -> trainers.Start:
    losses = self._losses(message, client.data)

    def step(i: tf.Tensor, pi: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      return i + 1, mean_of(expect(losses, pi), client.data, pi)

    _, found = tf.while_loop(
      lambda i, _: i < self.settings.mixture_steps, step, (0, message[_MIXTURE])
    )
    kept = client.state.personal[_MIXTURE]
    pi = tf.where(client.state.rounds > 0, kept, found)
    of_client = client_work.merge(message, collections.OrderedDict(mixture=pi))
    return trainers.Start(of_client, shared=message)


def expect(losses: tf.Tensor, pi: tf.Tensor) -> tf.Tensor:
  """Returns q, the shares of the models in each example, `[n, M]`."""
  return tf.nn.softmax(tf.math.log(pi) - losses, axis=1)


def mean_of(
  q: tf.Tensor, data: batches.ClientData, otherwise: tf.Tensor
) -> tf.Tensor:
  """Returns the mean of q over the examples in batches, if there are any."""
  of_batches = tf.gather(q, tf.reshape(data.indices, [-1]))
  mask = tf.reshape(data.mask, [-1])
  size = tf.reduce_sum(mask)
  mean = tf.linalg.matvec(of_batches, mask, transpose_a=True)
  return tf.where(size > 0, tf.math.divide_no_nan(mean, size), otherwise)


registry.register_trainer(
  'fedem',
  FedEm,
  title='FedEM',
  paper='Marfoq et al. 2021',
  does=(
    'several models, which each client mixes by shares of its own; a new client'
    ' finds its shares'
  ),
  sends='the updates of all M models',
  keeps='its shares',
  small={'num_models': 2},
)
