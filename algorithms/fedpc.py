"""FedPC: personal and context embeddings before a frozen model.

Silva, Tambwekar and Gombolay 2022, algorithm 1. psi_d, which client d keeps,
and phi, which has a row for each context, make what comes before an example of
context c: e = psi_d * phi_c (`tasks.models.prompted`). Of theta, which is
frozen, nothing is sent. In a round of N,

  client d:    phi_d <- phi
               K times: a step on (phi_d, psi_d) down the gradient of
                 L(phi_d, psi_d; B_d) + mu / 2 ||phi_d - phi||^2
               sends phi - phi_d, and keeps psi_d
  the server:  phi <- ServerOptimizer(phi, mean_d (phi - phi_d))

Readings: as printed, clients ascend and the server moves away from them; here
both descend. The steps are Adam's, which begins anew in each round and moves
all of phi_d, as it does where an embedding is one weight: a context goes on
moving in the batches behind one that had it. A client without a context sends
zeros for it. The pull with mu = 1 is in appendix B, and not in algorithm 1.

A client that was never trained starts at the noisy mean of all psi_d. For this,
psi_d joins what is sent, and the server keeps the mean of the last round; with
`average_personal=false` nothing of psi_d is sent, and such a client starts as
any other did.

Its split learning is the same with other weights: each client keeps a head of
its own, and those of the contexts are shared.
"""

import collections
from collections.abc import Mapping
import dataclasses
from typing import Any

import tensorflow as tf

from algorithms import client_work
from algorithms import fedavg
from algorithms import fedprox
from algorithms import personal_models
from algorithms import split
from algorithms import trainers
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class PromptSettings(split.SplitSettings, fedprox.FedProxSettings):
  """The settings of FedProx for what is shared, and what clients keep."""

  personal_parts: tuple[str, ...] = settings.field(
    (models.CLIENT,), 'The parts of the model that each client keeps.'
  )
  proximal: float = settings.field(
    1.0,
    'mu, how strongly what a client shares is pulled to what it received.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True)
class Prompts(split.Split):
  """Trains what is shared, beside clients' own parts, which start at random."""

  settings: PromptSettings
  start_name = 'own and shared embeddings'

  def initialize_client(self, seed: tf.Tensor) -> Any:
    psi = client_work.select(self.model.init(seed), self.personal_names)
    return personal_models.PersonalState(psi, 0, collections.OrderedDict())

  def personal(self, w: models.Weights, state: Any) -> models.Weights:
    return client_work.merge(w, state.personal)


@dataclasses.dataclass(frozen=True)
class FedPcSettings(PromptSettings):
  """The settings of prompts, and how new clients begin."""

  average_personal: bool = settings.field(
    True,
    'Whether what clients keep is averaged as well, so that those that were'
    ' never trained can start at the mean.',
  )
  new_client_noise: float = settings.field(
    0.02,
    'The deviation of the noise that is added to this mean.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True)
class FedPc(Prompts):
  """Trains what is shared, and each client's own, which starts at random.

  What a client keeps has in the server's model the place of the mean.
  """

  settings: FedPcSettings

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    own, phi = self.settings, self._shared(message)
    before = self.personal(message, client.state)
    contexts = client_work.OwnContexts.of(self.model, before, client.data)
    start = contexts.take(before)
    learner, loss = client_work.train(
      self.model,
      own.client_steps.start(start),
      contexts.data,
      own.client_steps,
      client_work.pull(self._shared(start), own.proximal),
    )
    after = contexts.put(before, learner.weights)
    state = client.state.after(client_work.select(after, self.personal_names))
    sent = message if own.average_personal else phi
    result = self.result(sent, after, loss, state, client)
    # The mean is for clients that were never trained.
    measured = {'share_received': self._share(message)}
    if self.model.context_names:
      measured['share_sent'] = self._share_of_contexts(sent, client.data)
    return result._replace(measured=measured)

  def _share_of_contexts(
    self, sent: models.Weights, data: batches.ClientData
  ) -> tf.Tensor:
    """The part of what a client sends that is not of others' contexts."""
    of_contexts = client_work.select(sent, self.model.context_names)
    num_contexts = next(iter(of_contexts.values())).shape[0]
    has = client_work.has_contexts(data, num_contexts)
    own = tf.reduce_mean(tf.cast(has, tf.float32))
    share = split.count(of_contexts) / split.count(sent)
    return 1 - share * (1 - own)

  def server(
    self,
    server: fedavg.FedAvgState,
    aggregate: Mapping[str, Any],
    sums: trainers.RoundSums,
  ) -> fedavg.FedAvgState:
    delta = aggregate['model']
    after = super().server(server, {'model': self._shared(delta)}, sums)
    if not self.settings.average_personal:
      return after
    mean = client_work.select(server.model, self.personal_names)
    mean = client_work.difference(mean, delta)
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
