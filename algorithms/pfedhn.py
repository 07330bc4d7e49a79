"""pFedHN: a hypernetwork makes each client's model of a vector of its own.

Shamsian et al. 2021 ("Personalized federated learning using hypernetworks"),
algorithm 1. A network G with weights phi makes the model of client i of its
vector, theta_i = G(v_i; phi). In a round,

  client i:    theta_i <- G(v_i; phi);  theta~ <- theta_i;  for each batch b:
                 theta~ <- theta~ - eta grad F_i(theta~; b)
               delta <- theta_i - theta~
               g_phi, g_v <- gradients of <G(v_i; phi), delta> by phi and v_i
               v_i <- v_i - alpha (g_v + decay v_i)
               sends g_phi, and keeps v_i
  the server:  phi <- ServerOptimizer(phi, mean of the g_phi + decay phi)

In the paper the server has all v_i, and computes both products from the delta
of one client a round. A client that has phi can compute them itself, and is
sent phi in the place of theta_i. So its vector stays with it, there may be
several clients in a round, and their sum can be private. This costs more, and
counts: phi is as large as about `hidden_size` models.

G has hidden layers of ReLUs, and a linear output for each tensor, here as one
matrix; the authors' code has one more linear layer before the outputs. The two
gradients are clipped together to a norm, as in that code. Its momentum is that
of the server; v_i has none here.

If G is phi, without layers and with v_i = 0, this is FedAvg. A client that was
never trained on has a random v_i, and fits it to its personalization set in the
same way, while phi stays fixed.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import candidates
from algorithms import client_work
from algorithms import example_uses
from algorithms import fedavg
from algorithms import optimizers
from algorithms import personalizers
from algorithms import registry
from algorithms import trainers
from algorithms import vectors
from algorithms.privacy import private_steps
from base import aliases
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import layers
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class PFedHnSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, whose model is G, and of G and the vectors."""

  hidden_layers: int = settings.field(
    3, 'The number of hidden layers of G.', minimum=0
  )
  hidden_size: int = settings.field(
    100, 'The size of the hidden layers of G.', minimum=1
  )
  vector_size: int = settings.field(
    0,
    'The size of v_i; 0 for 1 + a quarter of the clients to train on.',
    minimum=0,
  )
  vector_rate: aliases.Number = settings.field(
    0.01, 'alpha, the learning rate of v_i.', minimum=0
  )
  generator_decay: aliases.Number = settings.field(
    1e-3, 'The decay of phi and v_i.', minimum=0
  )
  generator_clip: aliases.Number = settings.field(
    50.0, 'The norm to which g_phi and g_v are clipped together.', above=0
  )
  num_clients: int = settings.field(
    0,
    'The number of clients to train on; 0 for all that the task has.',
    minimum=0,
  )


class PFedHnClientState(NamedTuple):
  """A client's state: v_i."""

  v: tf.Tensor


class Generator(NamedTuple):
  """G, whose weights are phi.

  Attributes:
    hidden: The names of the hidden layers, in order.
    sizes: The shapes of the kernels of all layers, by their names.
  """

  hidden: Sequence[str]
  sizes: Mapping[str, Sequence[int]]

  @classmethod
  def create(cls, vector: int, hidden: Sequence[int], made: int) -> 'Generator':
    """Returns G of a vector, hidden layers and a model of these sizes."""
    names = [f'hidden{k}' for k in range(1, len(hidden) + 1)]
    sizes = vector, *hidden, made
    shapes = zip((*names, 'output'), zip(sizes[:-1], sizes[1:]))
    return cls(names, collections.OrderedDict(shapes))

  def initialize(self, seed: aliases.Seed) -> models.Weights:
    """Makes phi as PyTorch does."""
    seeds = tf.random.experimental.stateless_split(seed, 2 * len(self.sizes))
    return layers.fan_in_layers(seeds, self.sizes)

  def features(self, phi: models.Weights, v: tf.Tensor) -> list[tf.Tensor]:
    """Returns v, and what each hidden layer makes of it."""
    made = [v]
    for layer in self.hidden:
      x = layers.dense(phi, layer, made[-1][tf.newaxis])
      made.append(tf.nn.relu(x)[0])
    return made

  def make(self, phi: models.Weights, v: tf.Tensor) -> tf.Tensor:
    """Returns G(v; phi), as one vector."""
    last = self.features(phi, v)[-1]
    return layers.dense(phi, 'output', last[tf.newaxis])[0]

  def product(
    self, phi: models.Weights, v: tf.Tensor, delta: tf.Tensor
  ) -> tuple[models.Weights, tf.Tensor]:
    """Differentiates <G(v; phi), delta> by phi and v, by the chain rule."""
    features, of_phi, g = self.features(phi, v), {}, delta
    for k, layer in reversed(list(enumerate(self.sizes))):
      of_phi[f'{layer}_kernel'] = tf.tensordot(features[k], g, 0)
      of_phi[f'{layer}_bias'] = g
      g = tf.linalg.matvec(phi[f'{layer}_kernel'], g)
      if k:  # Of a ReLU.
        g = tf.where(features[k] > 0, g, 0.0)
    return collections.OrderedDict((name, of_phi[name]) for name in phi), g


@dataclasses.dataclass(frozen=True)
class PFedHn(fedavg.FedAvg):
  """Trains a hypernetwork, and a vector for each client."""

  settings: PFedHnSettings
  start_name = 'own model'
  start_is_shared = False

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('pfedhn')
    if not (self.settings.vector_size or self.settings.num_clients):
      raise errors.UserError(
        'pfedhn needs the vector_size, or the number of clients to train on,'
        ' num_clients.'
      )

  @property
  def why_no_statistics(self) -> str | None:
    return 'its server has no model whose statistics it could average'

  @property
  def model_places(self) -> Sequence[tuple[str | int, ...]]:
    return ()  # Its weights are those of no other method.

  @property
  def _like(self) -> models.Weights:
    # Only the shapes of these weights are used.
    return self.model.init(tf.constant([0, 0]))

  @property
  def _vector_size(self) -> int:
    return self.settings.vector_size or 1 + self.settings.num_clients // 4

  @property
  def generator(self) -> Generator:
    """G."""
    hidden = [self.settings.hidden_size] * self.settings.hidden_layers
    return Generator.create(
      self._vector_size, hidden, vectors.count(self._like.values())
    )

  def initialize(self, seed: aliases.Seed) -> fedavg.FedAvgState:
    phi = self.generator.initialize(seed)
    return fedavg.FedAvgState(phi, self.settings.server_steps.slots(phi))

  def initialize_client(self, seed: aliases.Seed) -> PFedHnClientState:
    return PFedHnClientState(
      tf.random.stateless_normal([self._vector_size], seed)
    )

  def model_of(self, phi: models.Weights, v: tf.Tensor) -> models.Weights:
    """Returns theta_i."""
    return vectors.split_weights(self.generator.make(phi, v), self._like)

  def products(
    self,
    phi: models.Weights,
    v: tf.Tensor,
    data: batches.ClientData,
    part: int | tf.Tensor = 0,
  ) -> tuple[models.Weights, tf.Tensor, tf.Tensor]:
    """Returns g_phi, g_v, and the sum of the examples' losses.

    Args:
      phi: The weights of G.
      v: The client's vector.
      data: Its batches.
      part: The part of its work, for the noise that protects examples.
    """
    theta, optimizer = self.model_of(phi, v), self.settings.client_steps
    learner, loss = client_work.train(
      private_steps.mark(self.model, part=part),
      optimizer.start(theta),
      data,
      optimizer,
    )
    delta = client_work.difference(theta, learner.weights)
    of_phi, of_v = self.generator.product(phi, v, vectors.join(delta.values()))
    norm = tf.linalg.global_norm([*of_phi.values(), of_v])
    most = self.settings.generator_clip
    # 1, to the last bit, where nothing is clipped.
    scale = tf.where(norm > most, most / norm, 1.0)
    return client_work.scale(of_phi, scale), scale * of_v, loss

  def step_vector(self, v: tf.Tensor, of_v: tf.Tensor) -> tf.Tensor:
    """Returns v_i after its step."""
    of_v += self.settings.generator_decay * v
    return v - self.settings.vector_rate * of_v

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    v = client.state.v
    of_phi, of_v, loss = self.products(message, v, client.data)
    weight = self.settings.client_weight(client)
    return trainers.ClientResult(
      updates={'model': aggregation.Update(of_phi, weight)},
      loss=loss,
      state=PFedHnClientState(self.step_vector(v, of_v)),
    )

  def server(
    self,
    server: fedavg.FedAvgState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> fedavg.FedAvgState:
    phi = server.model
    slopes = tf.nest.map_structure(
      lambda slope, w: slope + self.settings.generator_decay * w,
      aggregate['model'],
      phi,
    )
    learner = self.settings.server_steps.step(
      optimizers.Learner(phi, server.optimizer), slopes
    )
    after = fedavg.FedAvgState(learner.weights, learner.slots)
    # Where no update arrived phi does not decay either.
    return client_work.choose(sums.num_clients > 0, after, server)

  def start(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.Start:
    theta = self.model_of(message, client.state.v)
    return trainers.Start(theta, message=message)


@dataclasses.dataclass(frozen=True)
class PFedHnPersonalizerSettings(settings.Settings):
  """The settings of how clients fit their vector."""

  vector_epochs: int = settings.field(
    0,
    'The largest number of epochs on the personalization set, with a step of'
    ' the vector after each; 0 to this are tried. Only held-out clients need'
    ' any.',
    minimum=0,
    maximum=10_000,
  )


@dataclasses.dataclass(frozen=True)
class PFedHnPersonalizer(personalizers.Personalizer):
  """Fits the vector of a client, while phi stays fixed."""

  trainer: PFedHn
  settings: PFedHnPersonalizerSettings

  def __post_init__(self) -> None:
    if not isinstance(self.trainer, PFedHn):
      raise errors.UserError('pfedhn personalizes only what pfedhn trained.')

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    return candidates.list_epochs(
      self.trainer.start_name, self.settings.vector_epochs, None
    )

  @property
  def baseline(self) -> int | None:
    return None

  def gradient_passes(self, size: int, batch_size: int) -> float:
    return self.settings.vector_epochs

  def example_uses(self) -> example_uses.Uses:
    return example_uses.Uses((example_uses.Walk(self.settings.vector_epochs),))

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    trainer, phi = self.trainer, start.message

    def epoch(i: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
      _, of_v, _ = trainer.products(phi, v, client.data, part=i)
      return trainer.step_vector(v, of_v)

    return client_work.evaluate_epochs(
      lambda v: client_work.evaluate_sets(
        trainer.model, trainer.model_of(phi, v), evaluation
      ),
      client.state.v,
      epoch,
      self.settings.vector_epochs,
    )


registry.register_trainer(
  'pfedhn',
  PFedHn,
  title='pFedHN',
  paper='Shamsian et al. 2021',
  does=(
    'a hypernetwork, which makes the model of each client of a vector that the'
    ' client learns; it is as large as hidden_size models'
  ),
  sends='the update of the hypernetwork',
  keeps='its vector',
  personalizer='pfedhn',
  defaults={
    'client_learning_rate': 0.005,
    'client_optimizer': 'momentum',
    'client_weighting': 'uniform',
    'server_learning_rate': 0.01,
    'server_optimizer': 'momentum',
  },
  small={'hidden_layers': 2, 'hidden_size': 5},
)
registry.register_personalizer(
  'pfedhn',
  PFedHnPersonalizer,
  title='pFedHN',
  paper='Shamsian et al. 2021',
  does=(
    'fits the vector of a client to its examples; 0 to vector_epochs are'
    ' candidates'
  ),
  small={'vector_epochs': 2},
)
