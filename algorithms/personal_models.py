"""The base class of trainers whose clients keep personal models.

Beside the global model, client k keeps a personal one, v_k, or a part of one.
It starts as the global model of the client's first round. A client that was
never trained on starts at the last global model.
"""

import collections
from collections.abc import Sequence
import dataclasses
from typing import ClassVar, NamedTuple

import tensorflow as tf

from algorithms import client_work
from algorithms import fedavg
from algorithms import trainers
from algorithms.privacy import private_aggregation
from base import aliases
from base import errors
from base import settings
from tasks.models import models

# Replaces the number of a batch, for which clients draw from their seeds, too.
_OWN_NOISE = 2**30


@dataclasses.dataclass(frozen=True)
class UnaccountedNoiseSettings(settings.Settings):
  """The settings of noise that a client adds without a guarantee.

  The noise is on weights that a client keeps and never sends, so that it makes
  nothing private: it shows what noise on all weights of a client would cost.
  Trainers that cannot be private have it on the weights that a client sends.
  """

  own_noise: aliases.Number = settings.field(
    0.0,
    'The deviation of the noise, over own_clip, on the change in a round of the'
    ' weights that a client keeps; in fedembed_som and pfedkm, of those that it'
    ' sends.',
    minimum=0,
  )
  own_clip: aliases.Number = settings.field(
    1.0,
    'The norm to which such a change is clipped, if there is noise.',
    above=0,
  )

  def add_noise(
    self, before: models.Weights, after: models.Weights, seed: aliases.Seed
  ) -> models.Weights:
    """Returns the weights after a round, with noise if there is any."""
    if not before:
      return after
    names, changes = list(before), client_work.difference(before, after)
    clipped, _ = tf.clip_by_global_norm(list(changes.values()), self.own_clip)
    stddev = self.own_noise * self.own_clip
    seed = tf.random.experimental.stateless_fold_in(seed, _OWN_NOISE)
    noise = private_aggregation.normal(clipped, seed, stddev)
    noised = [
      before[name] - change - z
      for name, change, z in zip(names, clipped, noise)
    ]
    return client_work.choose(
      tf.greater(self.own_noise, 0.0),
      collections.OrderedDict(zip(names, noised)),
      after,
    )


def names_of_parts(
  model: models.Model, parts: Sequence[str], setting: str
) -> tuple[str, ...]:
  """Returns the names of the weights in some parts of a model.

  Args:
    model: The model.
    parts: The parts.
    setting: The name of the setting that has them.

  Raises:
    UserError: If the model has no such part.
  """
  for part in parts:
    if part not in model.parts:
      raise errors.unknown(f'part in {setting}', part, model.parts)
  return tuple(name for part in parts for name in model.parts[part])


class PersonalState(NamedTuple):
  """A client's state.

  Attributes:
    personal: The personal model, v_k.
    rounds: The number of rounds that the client took part in.
    shared: The state that the client keeps as a client of FedAvg.
  """

  personal: models.Weights
  rounds: aliases.Scalar
  shared: aliases.ClientState

  def advance(
    self, v: models.Weights, shared: aliases.ClientState | None = None
  ) -> 'PersonalState':
    """Returns the state after a round; `shared` stays if it is None."""
    return PersonalState(v, self.rounds + 1, shared or self.shared)


@dataclasses.dataclass(frozen=True)
class PersonalModels(fedavg.FedAvg):
  """Trains a global model by FedAvg; each client keeps a personal one."""

  start_name = 'personal model'
  start_is_shared = False
  shared_name: ClassVar[str | None] = 'global model'

  @property
  def personal_names(self) -> tuple[str, ...] | None:
    """The names of the weights that clients keep; None for all."""
    return None

  def initialize_client(self, seed: aliases.Seed) -> aliases.ClientState:
    # Only the shapes matter: a client starts from the w of its first round.
    kept = client_work.select(self.model.init(seed), self.personal_names)
    v = tf.nest.map_structure(tf.zeros_like, kept)
    return PersonalState(v, 0, super().initialize_client(seed))

  def personal_model(
    self, w: models.Weights, state: aliases.ClientState
  ) -> models.Weights:
    """Returns the client's model, given the global one."""
    first = client_work.select(w, self.personal_names)
    v = client_work.choose(state.rounds > 0, state.personal, first)
    return client_work.merge(w, v)

  def start(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.Start:
    return trainers.Start(
      self.personal_model(message, client.state), shared=message
    )
