"""The split family: methods that share some parts of a model and keep others.

Here theta are the weights of the shared parts, h_k those of the parts that
client k keeps (`personal_parts`), and a model is (theta, h_k). The server keeps
theta, and the h that all clients start from. In a round,

  client k:    theta_k <- theta;  steps on (theta_k, h_k), see below
               sends theta_k - theta, and keeps h_k
  the server:  theta as the model in FedAvg

FedPer (Arivazhagan et al. 2019) keeps the head, and LG-FedAvg (Liang et al.
2020) the encoder; for each batch b both step on all weights at once,

  (theta_k, h_k) <- (theta_k, h_k) - eta grad F_k(theta_k, h_k; b)

FedRep (Collins et al. 2021, algorithm 1) keeps the head. It first takes some
epochs of steps on the head, and then steps on the encoder, each with the other
fixed:

  h_k <- h_k - eta grad_h F_k(theta, h_k; b)               for each b, tau times
  theta_k <- theta_k - eta grad_theta F_k(theta_k, h_k; b)          for each b

FedBABU (Oh et al. 2022, algorithm 1) trains the encoder below a head h that is
the same for all clients and stays as initialized; only fine-tuning trains h.

  theta_k <- theta_k - eta grad_theta F_k(theta_k, h; b)

FedRoD (Chen and Chao 2022) shares the whole model, theta and a generic head
psi, trained on a balanced risk. Each client keeps a personal head phi_k that is
added: the scores of features z are g(z; psi) + g(z; phi_k). For each batch b,
from the values before it,

  (theta_k, psi_k) <- (theta_k, psi_k) - eta grad BR_k(theta_k, psi_k; b)
  phi_k <- phi_k - eta grad_phi F_k(theta_k, psi_k + phi_k; b)

BR_k is the loss of the scores g(z; psi) + gamma log n_kc, where n_kc is the
client's number of examples of class c (balanced softmax). Without classes to
predict, BR_k is F_k. The weights of the heads are added, which adds their
scores as long as a head is one linear layer, as in the paper. phi_k starts at
zero, or as the psi of the client's first round, as in PFLlib and FL-bench; the
authors' code is not public.

Clients that were never trained on:

  FedPer, LG-FedAvg  start at the initial h, which the papers do not consider;
                     fine-tuning trains it
  FedRep             trains the head on the fixed encoder: `head_finetuning`
  FedBABU            fine-tunes as all clients do, by default all weights
  FedRoD             starts at the generic head, or at twice its weights;
                     `head_finetuning` trains phi
"""

import abc
import collections
from collections.abc import Collection, Sequence
import dataclasses

import tensorflow as tf

from algorithms import client_work
from algorithms import example_uses
from algorithms import fedavg
from algorithms import optimizers
from algorithms import personal_models
from algorithms import registry
from algorithms import trainers
from algorithms import vectors
from algorithms.privacy import private_steps
from base import aliases
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class SplitSettings(
  personal_models.UnaccountedNoiseSettings, fedavg.FedAvgSettings
):
  """The settings of FedAvg, for shared parts, and the parts clients keep."""

  personal_parts: tuple[str, ...] = settings.field(
    (models.HEAD,), 'The parts of the model that each client keeps.'
  )


@dataclasses.dataclass(frozen=True)
class Partition:
  """The weights of a model that clients share, and those that each keeps.

  Attributes:
    model: The model.
    personal_parts: The parts of the model that each client keeps.
    fixed_parts: The parts that clients share and nobody trains.
  """

  model: models.Model
  personal_parts: Sequence[str]
  fixed_parts: Sequence[str] = ()

  def check(self) -> None:
    """Raises a `UserError` unless there are weights of both kinds."""
    if not (self.personal_names and self.shared_names):
      having = [name for name, weights in self.model.parts.items() if weights]
      raise errors.UserError(
        'A split method needs weights that clients keep'
        f' (personal_parts = {", ".join(self.personal_parts)}) and'
        ' weights that they share, but the model of this task has weights only'
        f' in: {", ".join(having)}. Use a task whose model has an encoder and'
        ' a head, such as emnist, or for a table task.model=dense.'
      )

  @property
  def personal_names(self) -> tuple[str, ...]:
    """The names of the weights that clients keep."""
    return personal_models.names_of_parts(
      self.model, self.personal_parts, 'personal_parts'
    )

  def _names_without(self, *excluded: str) -> tuple[str, ...]:
    return tuple(
      name
      for part, names in self.model.parts.items()
      if part not in excluded
      for name in names
    )

  @property
  def shared_names(self) -> tuple[str, ...]:
    """The names of the weights that the server trains."""
    return self._names_without(*self.personal_parts, *self.fixed_parts)

  def select_personal(self, w: models.Weights) -> models.Weights:
    """Returns the weights that clients keep."""
    return client_work.select(w, self.personal_names)

  def select_shared(self, w: models.Weights) -> models.Weights:
    """Returns the weights that the server trains."""
    return client_work.select(w, self.shared_names)

  def used_share(self, w: models.Weights) -> tf.Tensor:
    """Returns the share of the weights of a message that a client uses."""
    used = client_work.select(w, self._names_without(*self.personal_parts))
    return tf.constant(vectors.count(used.values()) / vectors.count(w.values()))

  def initialize(
    self, seed: aliases.Seed, optimizer: optimizers.Optimizer
  ) -> fedavg.FedAvgState:
    """Makes the model, and the slots of an optimizer of its shared weights."""
    w = self.model.init(seed)
    return fedavg.FedAvgState(w, optimizer.slots(self.select_shared(w)))

  def step(
    self,
    server: fedavg.FedAvgState,
    delta: models.Weights,
    optimizer: optimizers.Optimizer,
  ) -> fedavg.FedAvgState:
    """Takes the server's step on the shared weights."""
    shared = self.select_shared(server.model)
    learner = optimizer.step(
      optimizers.Learner(shared, server.optimizer), self.select_shared(delta)
    )
    w = client_work.average_statistics(
      self.model,
      shared,
      delta,
      client_work.merge(server.model, learner.weights),
    )
    return fedavg.FedAvgState(w, learner.slots)


@dataclasses.dataclass(frozen=True)
class SharesParts(fedavg.FedAvg):
  """Trains the weights that clients share by FedAvg."""

  start_is_shared = False

  @property
  @abc.abstractmethod
  def partition(self) -> Partition:
    """The weights that clients share, and those that each keeps."""

  def initialize(self, seed: aliases.Seed) -> fedavg.FedAvgState:
    return self.partition.initialize(seed, self.settings.server_steps)

  def server(
    self,
    server: fedavg.FedAvgState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> fedavg.FedAvgState:
    del sums
    steps = self.settings.server_steps
    return self.partition.step(server, aggregate['model'], steps)


@dataclasses.dataclass(frozen=True)
class Partitioned(SharesParts):
  """Trains the parts of a model that its settings do not leave to clients."""

  settings: SplitSettings

  def __post_init__(self) -> None:
    self.partition.check()
    self.settings.refuse_kept_slots('split methods')

  @property
  def partition(self) -> Partition:
    return Partition(self.model, self.settings.personal_parts)


@dataclasses.dataclass(frozen=True)
class Split(Partitioned, personal_models.PersonalModels):
  """Trains the shared parts of a model, and each client's own parts."""

  start_name = 'own parts'
  shared_name = None

  @property
  def personal_names(self) -> tuple[str, ...]:
    return self.partition.personal_names

  @property
  def _keeps_statistics(self) -> bool:
    statistics = client_work.statistic_names(self.model)
    return bool(statistics) and set(statistics) <= set(self.personal_names)

  @property
  def why_not_private(self) -> str | None:
    return None if self._keeps_statistics else super().why_not_private

  @property
  def start_passes(self) -> trainers.Passes:
    return trainers.Passes(losses=float(self._keeps_statistics))

  def train_parts(
    self, w: models.Weights, data: batches.ClientData
  ) -> tuple[models.Weights, tf.Tensor]:
    """Takes a client's steps; returns the weights and the sum of the losses."""
    return self.train_only(w, tuple(w), data)

  def train_only(
    self,
    w: models.Weights,
    names: Collection[str],
    data: batches.ClientData,
    epochs: int = 1,
    part: int = 0,
  ) -> tuple[models.Weights, tf.Tensor]:
    """Takes steps on the weights with these names.

    Args:
      w: All weights.
      names: The names of the weights to step on.
      data: The batches of an epoch.
      epochs: The number of epochs.
      part: The number of the first epoch in the client's work of a round.

    Returns:
      All weights, and the sum of the examples' losses in the last epoch.
    """
    optimizer = self.settings.client_steps
    model, (data,) = client_work.represent_once(self.model, w, names, [data])

    def epoch(
      i: tf.Tensor, learner: optimizers.Learner, _: tf.Tensor
    ) -> tuple[tf.Tensor, optimizers.Learner, tf.Tensor]:
      protected = private_steps.mark(model, part=part + i)
      return i + 1, *client_work.train(
        protected, learner, data, optimizer, fixed=w
      )

    start = optimizer.start(client_work.select(w, names))
    _, learner, loss = tf.while_loop(
      lambda i, *_: i < epochs, epoch, (0, start, tf.constant(0.0))
    )
    return client_work.merge(w, learner.weights), loss

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    w = self.personal_model(message, client.state)
    after, loss = self.train_parts(w, client.data)
    parts = self.partition
    kept = self.settings.add_noise(
      parts.select_personal(w), parts.select_personal(after), client.seed
    )
    # FedBABU's clients keep nothing.
    state = client.state.advance(kept) if client.state else None
    result = self.result(
      parts.select_shared(w), parts.select_shared(after), loss, state, client
    )
    # The other parts of the message are only the start of new clients.
    return result._replace(measured={'share_received': parts.used_share(w)})

  def start(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.Start:
    w = self.personal_model(message, client.state)
    if self._keeps_statistics and client.state:
      # A client that was never trained on has none of its own.
      w = tf.cond(
        client.state.rounds > 0,
        lambda: w,
        lambda: client_work.recompute_statistics(self.model, w, client.data),
      )
    return trainers.Start(w)


@dataclasses.dataclass(frozen=True)
class FedRepSettings(SplitSettings):
  """The settings of the split, and how the head is trained."""

  head_epochs: int = settings.field(
    10, "tau, the head's passes over the examples of a round.", minimum=1
  )


@dataclasses.dataclass(frozen=True)
class FedRep(Split):
  """Trains the clients' heads first, and then the encoder below them."""

  settings: FedRepSettings

  def passes(self, rounds: int) -> trainers.Passes:
    return trainers.Passes(gradients=(self.settings.head_epochs + 1) * rounds)

  def train_parts(
    self, w: models.Weights, data: batches.ClientData
  ) -> tuple[models.Weights, tf.Tensor]:
    tau = self.settings.head_epochs
    w, _ = self.train_only(w, self.partition.personal_names, data, tau)
    return self.train_only(w, self.partition.shared_names, data, part=tau)


@dataclasses.dataclass(frozen=True)
class FedBabu(Split):
  """Trains the encoder below a head that stays as it was initialized."""

  start_name = 'encoder and initial head'
  start_is_shared = True

  def initialize_client(self, seed: aliases.Seed) -> aliases.ClientState:
    return trainers.Trainer.initialize_client(self, seed)

  def personal_model(
    self, w: models.Weights, state: aliases.ClientState
  ) -> models.Weights:
    return w

  def train_parts(
    self, w: models.Weights, data: batches.ClientData
  ) -> tuple[models.Weights, tf.Tensor]:
    return self.train_only(w, self.partition.shared_names, data)


@dataclasses.dataclass(frozen=True)
class FedRodSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and of the balanced risk."""

  balance: aliases.Number = settings.field(
    1.0,
    "gamma, how strongly the generic head's risk is balanced over the classes;"
    ' 0 for the loss itself.',
    minimum=0,
  )
  personal_head: str = settings.field(
    'zero',
    'Whether a personal head starts at zero, or as a copy of the generic head.',
    choices=('zero', 'copy'),
  )


@dataclasses.dataclass(frozen=True)
class BalancedRisk:
  """The mean loss of scores to which a prior is added.

  Attributes:
    model: The model.
    prior: The term that is added to the score of each class.
  """

  model: models.Model
  prior: tf.Tensor

  def mean_loss(
    self, weights: models.Weights, batch: models.Batch, mask: tf.Tensor
  ) -> tf.Tensor:
    scores = self.model.scores(weights, batch) + self.prior
    return models.mean(
      self.model.score_loss(scores, batch),
      mask * self.model.example_weight(batch),
    )


# (theta, psi), phi, the sum of the losses, and the number of the step.
_RodCarry = tuple[optimizers.Learner, optimizers.Learner, tf.Tensor, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class FedRod(personal_models.PersonalModels):
  """Trains a model with a generic head, and a personal head for each client."""

  settings: FedRodSettings
  start_name = 'both heads'
  shared_name = 'generic head'

  def __post_init__(self) -> None:
    if not self.personal_names:
      raise errors.UserError(
        'fedrod needs a model that has a head, such as that of emnist.'
      )
    self.settings.refuse_kept_slots('fedrod')

  @property
  def personal_names(self) -> tuple[str, ...]:
    return self.model.parts[models.HEAD]

  def _phi(
    self, w: models.Weights, state: personal_models.PersonalState
  ) -> models.Weights:
    if self.settings.personal_head == 'zero':
      return state.personal  # Zeros, for a new client.
    psi = client_work.select(w, self.personal_names)
    return client_work.choose(state.rounds > 0, state.personal, psi)

  def personal_model(
    self, w: models.Weights, state: personal_models.PersonalState
  ) -> models.Weights:
    return self.add_heads(w, self._phi(w, state))

  def add_heads(self, w: models.Weights, phi: models.Weights) -> models.Weights:
    """Returns the model whose head is the sum of the generic one and phi."""
    heads = collections.OrderedDict((name, w[name] + phi[name]) for name in phi)
    return client_work.merge(w, heads)

  def balanced_risk(
    self, w: models.Weights, data: batches.ClientData
  ) -> client_work.Objective:
    """Makes BR_k, with n_kc counted over the examples of the round.

    Protected examples are not balanced, as n_kc would reveal them.
    """
    is_protected = self.model.protection is not None
    if is_protected or not isinstance(self.model, models.Classifier):
      return self.model

    def count(examples: models.Batch, mask: tf.Tensor) -> tf.Tensor:
      # Only the shape of the scores is used.
      num_classes = self.model.scores(w, examples).shape[-1]
      classes = tf.one_hot(self.model.target(examples), num_classes)
      return tf.linalg.matvec(classes, mask, transpose_a=True)

    n = client_work.sum_over_batches(data, count)
    # A class without examples is all but left out; minus infinity would give
    # NaN at the padding of a batch.
    log_n = tf.math.log(tf.maximum(n, 1e-6))
    return BalancedRisk(self.model, self.settings.balance * log_n)

  def passes(self, rounds: int) -> trainers.Passes:
    return trainers.Passes(gradients=2 * rounds)

  def example_uses(self, rounds: int) -> example_uses.Uses:
    balances = float(self.settings.balance) > 0
    if balances and isinstance(self.model, models.Classifier):
      raise errors.UserError(
        'fedrod balances its risk by the number of examples of each class,'
        ' which the gradients would reveal. Set balance=0.'
      )
    return super().example_uses(rounds)

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    optimizer = self.settings.client_steps
    risk = self.balanced_risk(message, client.data)

    def step(
      carry: _RodCarry, examples: models.Batch, mask: tf.Tensor
    ) -> _RodCarry:
      w, phi, total, number = carry
      of_w, _ = client_work.gradient(
        private_steps.mark(risk, part=0, step=number), w.weights, examples, mask
      )
      of_phi, loss = client_work.gradient(
        private_steps.mark(self.model, part=1, step=number),
        self.add_heads(w.weights, phi.weights),
        examples,
        mask,
        only=self.personal_names,
      )
      return (
        client_work.take_step(optimizer, w, of_w, mask),
        client_work.take_step(optimizer, phi, of_phi, mask),
        total + loss * tf.reduce_sum(mask),
        number + 1,
      )

    w, phi, loss, _ = client_work.fold_batches(
      client.data,
      step,
      (
        optimizer.start(message),
        optimizer.start(self._phi(message, client.state)),
        tf.constant(0.0),
        0,
      ),
    )
    state = client.state.advance(phi.weights)
    return self.result(message, w.weights, loss, state, client)


registry.register_trainer(
  'fedper',
  Split,
  title='FedPer',
  paper='Arivazhagan et al. 2019',
  does=(
    'a shared encoder, and a head for each client; personal_parts names what'
    ' clients keep'
  ),
  sends='the update of the encoder',
  keeps='its head',
)
registry.register_trainer(
  'lg_fedavg',
  Split,
  title='LG-FedAvg',
  paper='Liang et al. 2020',
  does='a shared head, and an encoder for each client',
  sends='the update of the head',
  keeps='its encoder',
  defaults={'personal_parts': ('encoder',)},
)
registry.register_trainer(
  'fedrep',
  FedRep,
  title='FedRep',
  paper='Collins et al. 2021',
  does=(
    'the same as fedper, but in a round the head is trained first, then the'
    ' encoder'
  ),
  sends='the update of the encoder',
  keeps='its head',
  personalizer='head_finetuning',
  small={'head_epochs': 2},
)
registry.register_trainer(
  'fedbabu',
  FedBabu,
  title='FedBABU',
  paper='Oh et al. 2022',
  does='an encoder, below a head that stays as it was initialized',
  sends='the update of the encoder',
  personalizer='finetuning',
)
registry.register_trainer(
  'fedrod',
  FedRod,
  title='Fed-RoD',
  paper='Chen and Chao 2022',
  does=(
    'a model with a generic head, trained on a class-balanced risk, and a'
    ' personal head for each client that is added to it'
  ),
  sends='the update of the model with the generic head',
  keeps='its personal head',
)
