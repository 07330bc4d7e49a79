"""FedAvg and its generalization to any server optimizer (Reddi et al. 2021).

McMahan et al. 2017, algorithm 1, with the clients' mean update given to the
server's optimizer as if it were a gradient:

  client k:    w_k <- w;  for each batch b: w_k <- w_k - eta grad loss(w_k; b)
               Delta_k <- w - w_k
  the server:  w <- ServerOptimizer(w, sum_k n_k Delta_k / sum_k n_k)

With SGD at the server this is FedAvg, with momentum FedAvgM, with Adam FedAdam.
The clients may use another optimizer than SGD as well.
"""

import collections
from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import optimizers
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import settings
from tasks import task
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class FedAvgSettings(optimizers.ClientOptimizerSettings):
  """The settings of FedAvg."""

  server_optimizer: str = settings.field(
    'sgd',
    "The server's optimizer, which steps along the clients' mean update.",
    choices=optimizers.NAMES,
  )
  server_learning_rate: aliases.Number = settings.field(
    1.0, 'The learning rate of the server.', minimum=0
  )
  server_momentum: aliases.Number = settings.field(
    0.9, "The server's momentum.", minimum=0, maximum=1
  )
  server_beta_1: aliases.Number = settings.field(
    0.9, "Adam's decay of the first moment.", minimum=0, maximum=1
  )
  server_beta_2: aliases.Number = settings.field(
    0.99, "Adam's decay of the second moment.", minimum=0, maximum=1
  )
  server_epsilon: aliases.Number = settings.field(
    1e-3, 'What Adam adds to the root of the second moment.', above=0
  )
  client_weighting: str = settings.field(
    'examples',
    'Whether a client counts by the number of examples in its batches'
    ' (examples), like all others (uniform), or by the number of examples that'
    ' it has (size). With client_steps, all clients that fill a batch have the'
    ' same number in their batches.',
    choices=('examples', 'uniform', 'size'),
  )

  @property
  def client_steps(self) -> optimizers.Optimizer:
    """The optimizer of the clients' steps on the global model."""
    return self.client_optimizer_at(self.client_learning_rate)

  @property
  def server_steps(self) -> optimizers.Optimizer:
    """The optimizer of the server."""
    return optimizers.Optimizer(
      self.server_optimizer,
      self.server_learning_rate,
      self.server_momentum,
      self.server_beta_1,
      self.server_beta_2,
      self.server_epsilon,
      self.adam_form,
    )

  def client_weight(self, client: trainers.Client) -> tf.Tensor:
    """Returns n_k, or 1 if all clients count the same."""
    if self.client_weighting == 'uniform':
      return tf.constant(1.0)
    if self.client_weighting == 'size':
      return tf.cast(client.attributes[task.SIZE], tf.float32)
    return client_work.num_examples(client.data)


class FedAvgState(NamedTuple):
  """The server's state.

  Attributes:
    model: The global model, w.
    optimizer: The slots of the server's optimizer.
  """

  model: models.Weights
  optimizer: optimizers.Slots


@dataclasses.dataclass(frozen=True)
class FedAvg(trainers.Trainer):
  """Trains one global model."""

  settings: FedAvgSettings

  @property
  def why_no_statistics(self) -> str | None:
    return None

  @property
  def attributes(self) -> Sequence[str]:
    if self.settings.client_weighting == 'size':
      return (*super().attributes, task.SIZE)
    return super().attributes

  def initialize(self, seed: aliases.Seed) -> trainers.ServerState:
    w = self.model.init(seed)
    return FedAvgState(w, self.settings.server_steps.slots(w))

  def initialize_client(self, seed: aliases.Seed) -> aliases.ClientState:
    """Makes the slots of the client's optimizer, if the client keeps them."""
    if self.settings.client_slots == 'new':
      return collections.OrderedDict()
    w = self.model.init(seed)
    return collections.OrderedDict(slots=self.settings.client_steps.slots(w))

  def client(
    self, message: trainers.Message, client: trainers.Client
  ) -> trainers.ClientResult:
    return self.result(message, *self.descend(message, client), client)

  def descend(
    self,
    start: models.Weights,
    client: trainers.Client,
    regularizer: client_work.Regularizer | None = None,
    correction: models.Weights | None = None,
    added: client_work.AddedLoss | None = None,
  ) -> tuple[models.Weights, tf.Tensor, aliases.ClientState | None]:
    """Takes the client's steps, one for each batch.

    Args:
      start: The weights to step from.
      client: The client, with the state that FedAvg keeps.
      regularizer: The term that is added to the loss of a batch.
      correction: The term that is added to the gradient of a batch.
      added: The terms that are added to the losses of examples.

    Returns:
      The weights after the steps, the sum of the examples' losses, and the
      client's state, or None if it keeps nothing.
    """
    optimizer = self.settings.client_steps
    learner = optimizer.start(start)
    if client.state:
      slots = optimizer.set_numbers(client.state['slots'])
      learner = learner._replace(slots=slots)
    learner, loss = client_work.train(
      self.model,
      learner,
      client.data,
      optimizer,
      regularizer,
      correction=correction,
      added=added,
    )
    state = None
    if client.state:
      state = collections.OrderedDict(slots=learner.slots)
    return learner.weights, loss, state

  def result(
    self,
    before: models.Weights,
    after: models.Weights,
    loss: tf.Tensor,
    state: aliases.ClientState | None,
    client: trainers.Client,
  ) -> trainers.ClientResult:
    """Returns the result of a client that trained from `before` to `after`."""
    delta = client_work.difference(before, after)
    weight = self.settings.client_weight(client)
    return trainers.ClientResult(
      updates={'model': aggregation.Update(delta, weight)},
      loss=loss,
      state=state,
    )

  def server(
    self,
    server: trainers.ServerState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> trainers.ServerState:
    del sums
    learner = self.settings.server_steps.step(
      optimizers.Learner(server.model, server.optimizer), aggregate['model']
    )
    w = client_work.average_statistics(
      self.model, server.model, aggregate['model'], learner.weights
    )
    return FedAvgState(w, learner.slots)


registry.register_trainer(
  'fedavg',
  FedAvg,
  title='FedAvg',
  paper='McMahan et al. 2017',
  does='one global model',
  sends='the update of the model',
)
registry.register_trainer(
  'fedavgm',
  FedAvg,
  title='FedAvgM',
  paper='Hsu et al. 2019',
  does=(
    'one global model; the server has momentum. Steps are 1 / (1 - momentum)'
    ' times those of FedAvg, as in TFF; server_optimizer=damped_momentum is'
    " Motley's, whose steps are a tenth of these"
  ),
  sends='the update of the model',
  defaults={'server_optimizer': 'momentum', 'server_learning_rate': 0.1},
)
registry.register_trainer(
  'fedadam',
  FedAvg,
  title='FedAdam',
  paper='Reddi et al. 2021',
  does='one global model; the server steps by Adam',
  sends='the update of the model',
  defaults={'server_optimizer': 'adam', 'server_learning_rate': 0.03},
)
