"""FedEmbed: personal embeddings in a model that all users share.

Silva et al. 2022. User u keeps an embedding e_u on the device. It is an input
of the encoder theta and, beside the encoder's output, of each head: the heads
phi_1 … phi_K of K sub-populations; nu, a head for all users; and gamma, which
predicts the type of an example for all users. With the mean losses of a batch

  a = L_C(phi_j)    b = L_M(gamma)    c = L_C(nu)

  user u:  for each batch:
             (1) Prototype: steps e_u towards that of its type, k
             (2) j <- its head
             (3) theta  <- theta - Adam(grad(a + b))
                 phi_j  <- phi_j - Adam(grad a)
                 gamma  <- gamma - Adam(grad b)
                 nu     <- nu - Adam(grad c)
                 e_u    <- e_u - Adam(grad(a + b + c)), also through theta
           sends the changes of theta, gamma, nu and all phi
  server:  Adam, on the mean of what was sent

c moves no weight but nu and e: it makes all embeddings lie in one space. For
heads that a user does not use it sends zeros, so that the server does not learn
j; the mean of a head's updates is thus scaled by the share of its users.

Where the paper is silent, or contradicts itself:

- Algorithm 1 lacks nu and gamma, which figure 2 and section 3.1 have, and
  ascends where it must descend (lines 10, 20, 27 and 28).
- Losses have the weight 1. All of them train e ("all FedEmbed steps"); with
  `embedding_loss` only c does ("one latent space"), or only a (line 20).
- Embeddings start at U[0, 1). Their slots are kept with them, as line 18 alone
  would be one step with a summed gradient; the slots of other weights are new
  in each round. A head that a user leaves within a round has gradients of zero.
- The type k that a user likes is the most frequent one among the examples that
  it likes, or among all examples if it likes none. Where examples have no types
  k is the user's group, and there is no gamma.

There is a trainer for each way to assign heads to users. This module has those
that learn nothing for the assignment: in `TypeFedEmbed` a user has the head of
its type, in `PersonalFedEmbed` it keeps its own head on the device, and in
`OneHeadFedEmbed` all have the same head. The last, trained by a alone, is
FedAvg with embeddings ("Global+").
"""

import abc
import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import ClassVar, NamedTuple, TypeAlias

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import fedavg
from algorithms import fedembed_network
from algorithms import optimizers
from algorithms import personal_models
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import errors
from base import settings
from tasks import task
from tasks.models import models

# The data by which a trainer assigns heads to users, as it defines them.
Clusters: TypeAlias = aliases.Structure


@dataclasses.dataclass(frozen=True)
class FedEmbedSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg for the shared weights, and of the embeddings.

  The optimizers are those of the paper.
  """

  client_learning_rate: aliases.Number = settings.redefine(
    fedavg.FedAvgSettings, 'client_learning_rate', 0.001
  )
  client_optimizer: str = settings.redefine(
    fedavg.FedAvgSettings, 'client_optimizer', 'adam'
  )
  client_epsilon: aliases.Number = settings.redefine(
    fedavg.FedAvgSettings, 'client_epsilon', 1e-08
  )
  server_optimizer: str = settings.redefine(
    fedavg.FedAvgSettings, 'server_optimizer', 'adam'
  )
  server_beta_2: aliases.Number = settings.redefine(
    fedavg.FedAvgSettings, 'server_beta_2', 0.999
  )
  server_epsilon: aliases.Number = settings.redefine(
    fedavg.FedAvgSettings, 'server_epsilon', 1e-08
  )
  client_weighting: str = settings.redefine(
    fedavg.FedAvgSettings, 'client_weighting', 'uniform'
  )
  num_groups: int = settings.field(
    0,
    "K, the number of heads; 0 for the number of the task's groups.",
    minimum=0,
    maximum=1000,
  )
  embedding_size: int = settings.field(
    0, 'The size of e; 0 for the size that the model sets.', minimum=0
  )
  embedding_learning_rate: aliases.Number = settings.field(
    0.001, 'The learning rate of the steps on e.', minimum=0
  )
  embedding_loss: str = settings.field(
    'all',
    'The losses that train e: all of them, only the loss of the global head'
    " (c), or only the loss of the user's own head (a).",
    choices=('all', 'global', 'own'),
  )
  type_loss: bool = settings.field(
    True, 'Whether types are learned, by gamma and the loss b.'
  )
  global_loss: bool = settings.field(
    True, 'Whether there is a global head, nu, and its loss c.'
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.embedding_loss == 'global' and not self.global_loss:
      raise settings.SettingError(
        'embedding_loss must be all or own if global_loss is false.',
        'embedding_loss',
      )


class FedEmbedState(NamedTuple):
  """The server's state.

  Attributes:
    model: theta, phi, gamma and nu.
    optimizer: The slots of the server's optimizer.
    clusters: The data by which a trainer assigns heads to users.
  """

  model: models.Weights
  optimizer: optimizers.Slots
  clusters: Clusters


class FedEmbedMessage(NamedTuple):
  """The message to the clients, see `FedEmbedState`."""

  model: models.Weights
  clusters: Clusters


class FedEmbedClientState(NamedTuple):
  """A client's state, which it sends to nobody.

  Attributes:
    e: The embedding.
    slots: The slots of its optimizer.
    triplet_slots: The slots of the steps towards a prototype, if there are any.
    head: The user's own head, if there is one on the device.
    rounds: The number of rounds that the user took part in.
    number: The user's number.
  """

  e: models.Weights
  slots: optimizers.Slots
  triplet_slots: optimizers.Slots
  head: models.Weights
  rounds: aliases.Scalar
  number: aliases.Scalar


class LocalWork(NamedTuple):
  """The work of a client so far.

  Attributes:
    w: All weights but e, and their slots.
    e: The embedding, and its slots.
    triplet_slots: As in `FedEmbedClientState`.
    loss: The sum of the examples' losses a.
    steps: The number of steps.
  """

  w: optimizers.Learner
  e: optimizers.Learner
  triplet_slots: optimizers.Slots
  loss: tf.Tensor
  steps: aliases.Scalar


def nearest(e: tf.Tensor, points: tf.Tensor) -> tf.Tensor:
  """Returns which of several points, `[K, D]`, is the nearest to e."""
  return tf.argmin(squared_distances(e, points), output_type=tf.int32)


def squared_distances(e: tf.Tensor, points: tf.Tensor) -> tf.Tensor:
  """Returns the squared distances of e from several points, `[K]`."""
  return tf.reduce_sum(tf.square(e - points), axis=1)


@dataclasses.dataclass(frozen=True)
class FedEmbed(fedavg.FedAvg):
  """Trains an encoder and several heads; each user keeps an embedding.

  Attributes:
    has_own_head: Whether each user keeps a head of its own.
    needs_type: Whether users must know the type that they like.
  """

  settings: FedEmbedSettings
  start_name = 'own head'
  start_is_shared = False
  has_own_head: ClassVar[bool] = False
  needs_type: ClassVar[bool] = False

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('fedembed')
    if not self.num_heads and not self.has_own_head:
      raise settings.SettingError(
        'num_groups, the number of heads, must be set where a task knows no'
        ' groups.',
        'num_groups',
      )
    if models.CLIENT not in self.model.parts:
      model = self.model.add_vector(self.settings.embedding_size)
      object.__setattr__(self, 'model', model)
    known = self.model.num_types
    if self.needs_type and known and self.num_heads != known:
      raise errors.UserError(
        f'num_groups is {self.num_heads}, but there are {known} types, each of'
        f' which has a head. Set num_groups={known}.'
      )

  @property
  def why_examples_not_private(self) -> str | None:
    return 'the gradients of the losses of fedembed are not clipped by example'

  @property
  def shared_name(self) -> str | None:
    return 'global head' if self.settings.global_loss else None

  @property
  def attributes(self) -> Sequence[str]:
    has_types = self.model.num_types or not self.needs_type
    return (*super().attributes, *(() if has_types else (task.GROUP,)))

  @property
  def num_heads(self) -> int:
    """K, the number of heads, of which a user has one."""
    return self.settings.num_groups

  @property
  def network(self) -> fedembed_network.Network:
    """The network whose weights are trained."""
    return fedembed_network.Network(
      self.model,
      self.num_heads,
      self.has_own_head,
      self.settings.type_loss,
      self.settings.global_loss,
      self.settings.embedding_loss,
    )

  @property
  def model_places(self) -> Sequence[tuple[str | int, ...]]:
    return ()  # Its weights are those of no other method.

  def initialize(self, seed: aliases.Seed) -> FedEmbedState:
    seeds = tf.random.experimental.stateless_split(seed, self.num_heads + 4)
    model = self.network.initialize(seeds[0], seeds[4:], seeds[1], seeds[2])
    return FedEmbedState(
      model,
      self.settings.server_steps.slots(model),
      self.initialize_clusters(seeds[3]),
    )

  def initialize_clusters(self, seed: aliases.Seed) -> Clusters:
    """Makes the data that assign heads to users; by default none."""
    del seed
    return collections.OrderedDict()

  def initialize_client(self, seed: aliases.Seed) -> FedEmbedClientState:
    e = self.network.new_embedding(seed)
    head = collections.OrderedDict()
    if self.has_own_head:
      own_seed = tf.random.experimental.stateless_fold_in(seed, 1)
      head = self.network.stack_heads([own_seed])
    return FedEmbedClientState(
      e=e,
      slots=self.embedding_steps.slots(e),
      triplet_slots=self.initialize_triplet(e),
      head=head,
      rounds=0,
      number=seed[1],
    )

  def initialize_triplet(self, e: models.Weights) -> optimizers.Slots:
    """Makes the slots of steps towards a prototype, if there are any."""
    del e
    return collections.OrderedDict()

  @property
  def embedding_steps(self) -> optimizers.Optimizer:
    """The optimizer of e."""
    return self.settings.client_optimizer_at(
      self.settings.embedding_learning_rate
    )

  def message(self, server: FedEmbedState) -> FedEmbedMessage:
    return FedEmbedMessage(server.model, server.clusters)

  def begin(
    self, message: FedEmbedMessage, client: trainers.Client
  ) -> LocalWork:
    """Returns the work of a client before its first step."""
    state = client.state
    w = client_work.merge(message.model, state.head)
    slots = self.embedding_steps.set_numbers(state.slots)
    return LocalWork(
      self.settings.client_steps.start(w),
      optimizers.Learner(state.e, slots),
      state.triplet_slots,
      tf.constant(0.0),
      0,
    )

  def type_of(self, client: trainers.Client) -> tf.Tensor:
    """Returns k, the type that a user likes; 0 if nothing depends on it."""
    if not self.needs_type:
      return tf.constant(0)
    if not self.model.num_types:
      return client.attributes[task.GROUP]

    def count(examples: models.Batch, mask: tf.Tensor) -> tf.Tensor:
      types = tf.one_hot(examples['type'], self.model.num_types)
      liked = tf.cast(tf.equal(self.model.target(examples), 1), tf.float32)
      masks = tf.stack([mask * liked, mask])
      return tf.matmul(masks, types)

    liked, of_all = tf.unstack(client_work.sum_over_batches(client.data, count))
    has_liked = tf.reduce_any(liked > 0)
    return tf.argmax(tf.where(has_liked, liked, of_all), output_type=tf.int32)

  @abc.abstractmethod
  def head_of(
    self, clusters: Clusters, e: tf.Tensor, k: tf.Tensor
  ) -> tf.Tensor:
    """Returns j, the user's head: (2)."""

  def approach(
    self,
    clusters: Clusters,
    local: LocalWork,
    client: trainers.Client,
    k: tf.Tensor,
    mask: tf.Tensor,
  ) -> LocalWork:
    """Steps e towards a prototype: (1). By default there is none."""
    del clusters, client, k, mask
    return local

  def step(
    self,
    message: FedEmbedMessage,
    client: trainers.Client,
    k: tf.Tensor,
    local: LocalWork,
    examples: models.Batch,
    mask: tf.Tensor,
  ) -> LocalWork:
    """Takes the step of a batch: (1), (2), (3)."""
    local = self.approach(message.clusters, local, client, k, mask)
    j = self.head_of(message.clusters, local.e.weights[self.network.e_name], k)
    of_w, of_e, a = self.network.slopes(
      local.w.weights, local.e.weights, j, examples, mask
    )
    optimizer = self.settings.client_steps
    return local._replace(
      w=client_work.take_step(optimizer, local.w, of_w, mask),
      e=client_work.take_step(self.embedding_steps, local.e, of_e, mask),
      loss=local.loss + a * tf.reduce_sum(mask),
      steps=local.steps + 1,
    )

  def train(
    self, message: FedEmbedMessage, client: trainers.Client, local: LocalWork
  ) -> LocalWork:
    """Takes a step for each batch."""
    k = self.type_of(client)

    def step(
      local: LocalWork, examples: models.Batch, mask: tf.Tensor
    ) -> LocalWork:
      return self.step(message, client, k, local, examples, mask)

    return client_work.fold_batches(client.data, step, local)

  def client(
    self, message: FedEmbedMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    local = self.train(message, client, self.begin(message, client))
    w, e = local.w.weights, local.e.weights
    sent = self.add_noise(message.model, w, client)
    result = self.result(message.model, sent, local.loss, None, client)
    head = self.keep_head(
      client.state.head, client_work.select(w, client.state.head), client
    )
    state = client.state._replace(
      e=e,
      slots=local.e.slots,
      triplet_slots=local.triplet_slots,
      head=head,
      rounds=client.state.rounds + 1,
    )
    updates = {
      **result.updates,
      **self.cluster_updates(message.clusters, client, e),
    }
    return result._replace(updates=updates, state=state)

  def add_noise(
    self, before: models.Weights, after: models.Weights, client: trainers.Client
  ) -> models.Weights:
    """Returns the weights whose changes a user sends; by default `after`."""
    del before, client
    return after

  def keep_head(
    self, before: models.Weights, after: models.Weights, client: trainers.Client
  ) -> models.Weights:
    """Returns the head that a user keeps after a round; by default `after`."""
    del before, client
    return after

  def cluster_updates(
    self, clusters: Clusters, client: trainers.Client, e: models.Weights
  ) -> Mapping[str, aggregation.Update]:
    """Returns the updates by which heads are assigned; by default none.

    Args:
      clusters: The data that the user received.
      client: The user before the round.
      e: Its embedding after the round.
    """
    del clusters, client, e
    return {}

  def server(
    self,
    server: FedEmbedState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> FedEmbedState:
    after = super().server(server, aggregate, sums)
    return FedEmbedState(after.model, after.optimizer, server.clusters)

  def start(
    self, message: FedEmbedMessage, client: trainers.Client
  ) -> trainers.Start:
    return self.models_of(message, client, self.begin(message, client))

  def models_of(
    self, message: FedEmbedMessage, client: trainers.Client, local: LocalWork
  ) -> trainers.Start:
    """Returns a user's models with its own head and with the global head."""
    w, e = local.w.weights, local.e.weights
    k = self.type_of(client)
    j = self.head_of(message.clusters, e[self.network.e_name], k)
    own, shared = self.network.user_models(w, e, j)
    measured = {} if self.has_own_head else {'cluster': j}
    return trainers.Start(own, shared, measured, message)


@dataclasses.dataclass(frozen=True)
class TypeFedEmbed(FedEmbed):
  """Gives each user the head of the type that it likes."""

  needs_type = True

  def head_of(
    self, clusters: Clusters, e: tf.Tensor, k: tf.Tensor
  ) -> tf.Tensor:
    del clusters, e
    return k


@dataclasses.dataclass(frozen=True)
class PersonalFedEmbedSettings(
  personal_models.UnaccountedNoiseSettings, FedEmbedSettings
):
  """The settings of FedEmbed, and of noise on the heads that users keep."""


@dataclasses.dataclass(frozen=True)
class PersonalFedEmbed(FedEmbed):
  """Has each user keep a head of its own."""

  settings: PersonalFedEmbedSettings
  has_own_head = True

  def keep_head(
    self, before: models.Weights, after: models.Weights, client: trainers.Client
  ) -> models.Weights:
    return self.settings.add_noise(before, after, client.seed)

  def head_of(
    self, clusters: Clusters, e: tf.Tensor, k: tf.Tensor
  ) -> tf.Tensor:
    del clusters, e, k
    return tf.constant(0)


@dataclasses.dataclass(frozen=True)
class OneHeadFedEmbed(FedEmbed):
  """Has one head for all users; with a alone it is FedAvg with embeddings."""

  @property
  def num_heads(self) -> int:
    return 1

  def head_of(
    self, clusters: Clusters, e: tf.Tensor, k: tf.Tensor
  ) -> tf.Tensor:
    del clusters, e, k
    return tf.constant(0)


registry.register_trainer(
  'fedembed_type',
  TypeFedEmbed,
  title='FedEmbed (Type)',
  paper='Silva et al. 2022',
  does=(
    'an encoder with several heads, and an embedding for each client, whose'
    ' head is that of the type that it likes'
  ),
  sends=(
    'the update of the encoder and of all heads, with zeros for the heads that'
    ' it does not use'
  ),
  keeps='its embedding',
)
registry.register_trainer(
  'fedembed_personal',
  PersonalFedEmbed,
  title='FedEmbed (Personal)',
  paper='Silva et al. 2022',
  does='as fedembed_type, with a head of its own for each client',
  sends='the update of the encoder and the shared heads',
  keeps='its embedding and head',
)
registry.register_trainer(
  'global_plus',
  OneHeadFedEmbed,
  title='Global+',
  paper='Silva et al. 2022',
  does='one global model by FedAvg, and an embedding for each client',
  sends='the update of the encoder and of the head',
  keeps='its embedding',
  defaults={
    'embedding_loss': 'own',
    'type_loss': False,
    'global_loss': False,
  },
)
