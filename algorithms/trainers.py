"""The contract of trainers: the half of a method that learns in rounds.

A trainer is a few pure functions of tensors: how the server starts, what a
client does in a round, what the server does with the aggregate of the clients'
updates, and from which weights a client starts to personalize. `process` adds
all that is the same for every trainer: placement, aggregation, dropping clients
whose update is not finite, and sums of what is measured.
"""

import abc
import collections
from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

from algorithms import aggregation
from algorithms import example_uses
from algorithms import runtime_inputs
from base import aliases
from base import settings
from tasks import task
from tasks.data import batches
from tasks.models import models
from tasks.models import protections

_T = TypeVar('_T', bound='Trainer')
# What the server keeps from round to round, as its trainer defines it.
ServerState: TypeAlias = aliases.Structure
# What the server sends to the clients, as its trainer defines it.
Message: TypeAlias = aliases.Structure
# Why a client's statistics of batches are not hidden.
STATISTICS_NOT_PRIVATE = (
  'clients would send the statistics of their batches, which no norm bounds as'
  ' it bounds steps; keep them at the clients by fedbn, or set'
  ' task.statistics=recomputed or task.norm=group'
)
# The aggregate of each part of the clients' updates.
Aggregate = Mapping[str, aliases.Structure]


class Client(NamedTuple):
  """A client in a round, or when it is personalized.

  Attributes:
    data: Its examples, in batches; the personalization set when it is
      personalized.
    state: The state that it keeps from round to round.
    seed: Two int32, for all that is random.
    attributes: Its attributes that the trainer needs, such as its group, by
      name.
  """

  data: batches.ClientData
  state: aliases.ClientState
  seed: aliases.Seed
  attributes: Mapping[str, tf.Tensor]


class ClientResult(NamedTuple):
  """The result of a client's work in a round.

  Attributes:
    updates: The parts of its update, which it sends.
    loss: The sum of its examples' losses in training.
    state: The state that it keeps for its next round; None for its old state.
    measured: Other measured scalars, by name. The server is given their sums
      over the clients; their means are among the training metrics.
  """

  updates: Mapping[str, aggregation.Update]
  loss: tf.Tensor
  state: aliases.ClientState | None = None
  measured: Mapping[str, tf.Tensor] = collections.OrderedDict()


class Passes(NamedTuple):
  """How often a client passes over its examples.

  Attributes:
    gradients: The passes that compute gradients. Those of several losses of one
      model are one pass, and those of several models are several.
    losses: The passes that only compute losses, or what takes as long.
  """

  gradients: float = 0
  losses: float = 0


class RoundSums(NamedTuple):
  """Sums over the clients of a round.

  Attributes:
    loss: The losses of all examples.
    num_examples: The examples.
    measured: The other scalars that the clients measured.
    num_clients: The clients whose updates were aggregated.
    dropped_clients: The clients whose updates were not finite.
  """

  loss: tf.Tensor
  num_examples: tf.Tensor
  measured: Mapping[str, tf.Tensor]
  num_clients: tf.Tensor
  dropped_clients: tf.Tensor


class Start(NamedTuple):
  """The weights from which a client starts to personalize.

  Attributes:
    weights: The weights it starts from.
    shared: The model that all clients share, if the trainer has a
      `shared_name`.
    measured: Scalars that describe the start, by name, such as the number of
      the client's cluster; they are reported with the client's metrics.
    message: Other values, for a personalizer that is only for this trainer.
  """

  weights: models.Weights
  shared: models.Weights = collections.OrderedDict()
  measured: Mapping[str, tf.Tensor] = collections.OrderedDict()
  message: Message = ()


@dataclasses.dataclass(frozen=True)
class Trainer(abc.ABC):
  """Trains models; S is the server's state, C a client's state.

  Two trainers that are equal train the same. When the functions are called, the
  floats of the settings are tensors.

  Attributes:
    model: The model.
    settings: The trainer's settings; a subclass names their class.
    needs: The clients' attributes that it needs with any settings.
    trains: Whether it has rounds.
    start_is_shared: Whether it is the same model for all clients.
    personalizes_new_clients: Whether clients that were never trained on can be
      personalized.
    cohort_attribute: The attribute whose value all clients of a cohort share;
      None if cohorts are drawn from all clients.
  """

  model: models.Model
  settings: settings.Settings

  needs: ClassVar[Sequence[str]] = ()
  trains: ClassVar[bool] = True
  start_is_shared: ClassVar[bool] = True
  personalizes_new_clients: ClassVar[bool] = True
  cohort_attribute: ClassVar[str | None] = None

  @property
  def start_name(self) -> str:
    """The name of the model that clients start to personalize from."""
    return 'global'

  @property
  def shared_name(self) -> str | None:
    """The name of the model that all clients share.

    `start` returns it beside the model to start from; None if it does not.
    """
    return None

  @property
  def predecessor(self) -> 'Trainer | None':
    """The trainer of the model from which all models of this one start.

    It is trained before, once for all trainers that start from it; with None,
    the models start as `initialize` makes them.
    """
    return None

  @property
  def why_not_private(self) -> str | None:
    """The reason why noise on aggregates cannot hide a client; None if it can.

    If it can, the server must not use the exact sums that it is given.
    """
    if self.model.parts.get(models.STATISTICS):
      return STATISTICS_NOT_PRIVATE
    return None

  @property
  def why_no_statistics(self) -> str | None:
    """The reason why its models cannot have statistics of batches.

    None if its clients' steps keep them and its server averages them, see
    `tasks.models.normalization`.
    """
    return 'its server does not average the statistics of batches'

  @property
  def why_examples_not_private(self) -> str | None:
    """The reason why noise within clients cannot hide an example.

    None if it can.
    """
    return None

  @property
  def attributes(self) -> Sequence[str]:
    """The clients' attributes that it needs."""
    if self.model.protection is None:
      return self.needs
    return (*self.needs, task.PROTECTION)

  @property
  def found_attributes(self) -> Sequence[str]:
    """The attributes that are found in training, as the task lacks them."""
    return ()

  @property
  def num_epochs(self) -> int | None:
    """The number of passes over the clients; None for the length of the run."""
    return None

  def passes(self, rounds: int) -> Passes:
    """Counts the passes over the examples of a client's first rounds.

    If they depend on what clients find, a trainer measures 'passes', the
    multiple of these that it takes.
    """
    return Passes(gradients=rounds)

  @property
  def start_passes(self) -> Passes:
    """The passes of `start` over the personalization set."""
    return Passes()

  def example_uses(self, rounds: int) -> example_uses.Uses:
    """Counts how its rounds use the examples of a client that protects them.

    By default, each round takes the gradients that `passes` counts, all of them
    by `client_work.gradient`, and uses the examples for nothing else.

    Raises:
      UserError: If its clients cannot protect their examples with these
        settings.
    """
    gradients = math.ceil(self.passes(rounds=1).gradients)
    walk = example_uses.Walk(rounds, gradients=gradients)
    return example_uses.Uses((walk,) if gradients else ())

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    """The aggregator of each part of an update; None for the caller's."""
    return {'model': None}

  @property
  def model_places(self) -> Sequence[tuple[str | int, ...]]:
    """The places in S of the models that a training can start from."""
    return (('model',),)

  @abc.abstractmethod
  def initialize(self, seed: aliases.Seed) -> ServerState:
    """Makes S."""

  def initialize_client(self, seed: aliases.Seed) -> aliases.ClientState:
    """Makes C; by default a client keeps nothing.

    Args:
      seed: The seed of the run and the number of the client.
    """
    del seed
    return collections.OrderedDict()

  def message(self, server: ServerState) -> Message:
    """Returns the part of S that is sent to the clients."""
    return server.model

  @abc.abstractmethod
  def client(self, message: Message, client: Client) -> ClientResult:
    """Does a client's work of a round."""

  @abc.abstractmethod
  def server(
    self, server: ServerState, aggregate: Aggregate, sums: RoundSums
  ) -> ServerState:
    """Makes the next S from the aggregate of each part of the updates."""

  def start(self, message: Message, client: Client) -> Start:
    """Returns the weights from which a client starts to personalize."""
    del client
    return Start(message)

  def bind(
    self: _T,
    numbers: Mapping[str, tf.Tensor],
    frozen: models.Weights | None = None,
  ) -> _T:
    """Returns the trainer with tensors for its floats and frozen weights."""
    model = self.model
    if frozen is not None:
      model = dataclasses.replace(model, frozen=frozen)
    bound = runtime_inputs.bind(self.settings, numbers)
    return dataclasses.replace(self, model=model, settings=bound)

  def protect(self: _T, client: Client) -> _T:
    """Returns the trainer that protects a client's examples, if asked for."""
    if self.model.protection is None:
      return self
    numbers = tf.unstack(client.attributes[task.PROTECTION])
    protection = protections.Protection(
      **dict(zip(protections.NUMBERS, numbers)), seed=client.seed
    )
    model = dataclasses.replace(self.model, protection=protection)
    return dataclasses.replace(self, model=model)
