"""FedPC: personal and context embeddings before a frozen model.

Silva, Tambwekar and Gombolay 2022, algorithm 1. Client d keeps psi_d, and phi
has a row for each context. The prompt before an example of context c is
e = psi_d * phi_c (`tasks.models.prompted`). theta, the model, is frozen and
never sent. In a round of N clients,

  client d:    phi_d <- phi
               K times: a step on (phi_d, psi_d) down the gradient of
                 L(phi_d, psi_d; B_d) + mu / 2 ||phi_d - phi||^2
               sends phi - phi_d, and keeps psi_d
  the server:  phi <- ServerOptimizer(phi, mean_d (phi - phi_d))

Readings: as printed, clients ascend and the server moves away from them; here
both descend. The steps are Adam's, with new slots in each round. Adam moves all
of phi_d, as it does if an embedding is one weight: after a batch that has a
context, the momentum moves this context in later batches, too. For a context
that a client does not have, it sends zeros. The pull with mu = 1 is in appendix
B, and not in algorithm 1.

A client that was never trained on starts at the mean of all psi_d, with noise.
For this, clients also send psi_d, and the server keeps the mean of the last
round. With `average_personal=false` no psi_d is sent, and such a client starts
at random, as all clients did.

The paper's split learning is the same with other weights: each client keeps a
head, and the heads of the contexts are shared.
"""

import collections
import dataclasses

import tensorflow as tf

from algorithms import client_work
from algorithms import fedavg
from algorithms import fedprox
from algorithms import personal_models
from algorithms import registry
from algorithms import split
from algorithms import trainers
from algorithms import vectors
from base import aliases
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class PromptSettings(split.SplitSettings, fedprox.FedProxSettings):
  """The settings of FedProx, for shared weights, and the parts clients keep.

  The clients' optimizer is that of the paper, whose server averages.
  """

  client_optimizer: str = settings.redefine(
    fedavg.FedAvgSettings, 'client_optimizer', 'adam'
  )
  client_learning_rate: aliases.Number = settings.redefine(
    fedavg.FedAvgSettings, 'client_learning_rate', 0.001
  )
  client_epsilon: aliases.Number = settings.redefine(
    fedavg.FedAvgSettings, 'client_epsilon', 1e-08
  )
  client_weighting: str = settings.redefine(
    fedavg.FedAvgSettings, 'client_weighting', 'uniform'
  )
  personal_parts: tuple[str, ...] = settings.field(
    (models.CLIENT,), 'The parts of the model that each client keeps.'
  )
  proximal: aliases.Number = settings.field(
    1.0,
    'mu, how strongly shared weights are pulled to those that a client'
    ' received.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True)
class Prompts(split.Partitioned):
  """Trains shared weights; the parts that clients keep start at random."""

  settings: PromptSettings
  start_name = 'own and shared embeddings'

  def initialize_client(
    self, seed: aliases.Seed
  ) -> personal_models.PersonalState:
    psi = self.partition.select_personal(self.model.init(seed))
    return personal_models.PersonalState(psi, 0, collections.OrderedDict())


@dataclasses.dataclass(frozen=True)
class FedPcSettings(PromptSettings):
  """The settings of prompts, and how new clients start."""

  average_personal: bool = settings.field(
    True,
    'Whether the weights that clients keep are averaged as well, so that'
    ' clients that were never trained on can start at the mean.',
  )
  new_client_noise: aliases.Number = settings.field(
    0.02,
    'The deviation of the noise that is added to this mean.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True)
class FedPc(Prompts):
  """Trains shared weights; the parts that clients keep start at random.

  In the server's model, their mean is in the place of these parts.
  """

  settings: FedPcSettings

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    parts = self.partition
    phi = parts.select_shared(message)
    before = client_work.merge(message, client.state.personal)
    contexts = client_work.OwnContexts.find(self.model, before, client.data)
    start = contexts.take(before)
    learner, loss = client_work.train(
      self.model,
      self.settings.client_steps.start(start),
      contexts.data,
      self.settings.client_steps,
      client_work.pull(parts.select_shared(start), self.settings.proximal),
    )
    after = contexts.put(before, learner.weights)
    state = client.state.advance(parts.select_personal(after))
    sent = message if self.settings.average_personal else phi
    result = self.result(sent, after, loss, state, client)
    # Clients in training do not use the mean, which is for new clients.
    measured = {'share_received': parts.used_share(message)}
    if self.model.context_names:
      measured['share_sent'] = self._share_of_contexts(sent, client.data)
    return result._replace(measured=measured)

  def _share_of_contexts(
    self, sent: models.Weights, data: batches.ClientData
  ) -> tf.Tensor:
    """Returns the share of the sent weights that is not of others' contexts."""
    of_contexts = client_work.select(sent, self.model.context_names)
    num_contexts = next(iter(of_contexts.values())).shape[0]
    has = client_work.has_contexts(data, num_contexts)
    own_share = tf.reduce_mean(tf.cast(has, tf.float32))
    share = vectors.count(of_contexts.values()) / vectors.count(sent.values())
    return 1 - share * (1 - own_share)

  def server(
    self,
    server: fedavg.FedAvgState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> fedavg.FedAvgState:
    after = super().server(server, aggregate, sums)
    if not self.settings.average_personal:
      return after
    mean = self.partition.select_personal(server.model)
    mean = client_work.difference(mean, aggregate['model'])
    return after._replace(model=client_work.merge(after.model, mean))

  def start(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.Start:
    psi = client.state.personal
    if self.settings.average_personal:
      seeds = tf.random.experimental.stateless_split(client.seed, len(psi))
      new = collections.OrderedDict(
        (
          name,
          message[name]
          + tf.random.stateless_normal(weight.shape, seeds[i])
          * self.settings.new_client_noise,
        )
        for i, (name, weight) in enumerate(psi.items())
      )
      psi = client_work.choose(client.state.rounds > 0, psi, new)
    return trainers.Start(client_work.merge(message, psi))


registry.register_trainer(
  'fedpc',
  FedPc,
  title='FedPC',
  paper='Silva et al. 2022',
  does=(
    'shared vectors of contexts, and a vector for each client, trained'
    ' together in a round; they make the prompts of a frozen GPT-2. With any'
    ' other model: the shared weights, and the parts that clients keep, which'
    ' start at random'
  ),
  sends=(
    'the update of the vectors of contexts; with average_personal also its own'
    ' vector, for the mean that new clients start at'
  ),
  keeps='its vector',
  personalizer='adaptation',
)
