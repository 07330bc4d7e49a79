"""MOON: clients learn to represent examples as the global model does.

Li, He and Song 2021 ("Model-contrastive federated learning"), algorithm 1. The
global model represents examples better than what a client makes of it. So
client i, with z, z_glob and z_prev the representations of an example by its
model w, by the model w^t that it received, and by its own model after its last
round, adds to the loss of the example, their equations (3) and (4),

  mu l_con,   l_con = -log (e_glob / (e_glob + e_prev)),
              e_glob = exp(cos(z, z_glob) / tau),
              e_prev = exp(cos(z, z_prev) / tau)

  client i:    w <- w^t;  for each batch b:
                 w <- w - eta grad (F_i(w; b) + mu l_con(w; w^t, w_i^(t-1); b))
               keeps w as w_i^t
  the server:  as in FedAvg

In the first round of a client there is no last model, and it is w^t: the two
cosines are equal, and l_con has no gradient. So it is with mu = 0: then this is
FedAvg. The cosine with a representation of zeros is 0.

In the paper, the network has a projection head of two layers before its output,
and z is what it returns. Here z is what `encode` returns, of each entry of an
example; the mean over the entries counts.
"""

import dataclasses

import tensorflow as tf

from algorithms import client_work
from algorithms import fedavg
from algorithms import personal_models
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import errors
from base import settings
from tasks.models import models

# The least square of a norm, below which a representation counts as zeros.
_LEAST_SQUARE = 1e-12


@dataclasses.dataclass(frozen=True)
class MoonSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and of the contrast of representations."""

  contrast: aliases.Number = settings.field(
    1.0,
    'mu, how much the contrast of representations counts; in the paper .1, 1, 5'
    ' or 10.',
    minimum=0,
  )
  temperature: aliases.Number = settings.field(
    0.5, 'tau, the temperature of the contrast.', above=0
  )


@dataclasses.dataclass(frozen=True)
class Moon(fedavg.FedAvg):
  """Trains one global model, whose representation clients keep to."""

  settings: MoonSettings

  def __post_init__(self) -> None:
    if not self._kept:
      raise errors.UserError(
        'moon needs a model that learns a representation, such as that of'
        ' emnist.'
      )

  @property
  def _kept(self) -> tuple[str, ...]:
    """The names of the weights that a representation depends on."""
    return tuple(
      name
      for part, names in self.model.parts.items()
      for name in names
      if part != models.HEAD or self.model.encodes_by_head
    )

  def initialize_client(
    self, seed: aliases.Seed
  ) -> personal_models.PersonalState:
    # Only the shapes matter: in its first round a client has no last model.
    kept = client_work.select(self.model.init(seed), self._kept)
    zeros = tf.nest.map_structure(tf.zeros_like, kept)
    return personal_models.PersonalState(
      zeros, 0, super().initialize_client(seed)
    )

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    state = client.state
    received = client_work.select(message, self._kept)
    last = client_work.choose(state.rounds > 0, state.personal, received)
    after, loss, shared = self.descend(
      message,
      client._replace(state=state.shared),
      added=self._contrast_to(message, client_work.merge(message, last)),
    )
    kept = state.advance(client_work.select(after, self._kept), shared)
    return self.result(message, after, loss, kept, client)

  def _contrast_to(
    self, w_t: models.Weights, last: models.Weights
  ) -> client_work.AddedLoss:
    """Returns mu l_con as a function of w, a batch and its z."""

    def contrast(
      w: models.Weights, examples: models.Batch, z: tf.Tensor
    ) -> tf.Tensor:
      del w
      z, z_glob, z_prev = (
        tf.math.l2_normalize(represented, -1, _LEAST_SQUARE)
        for represented in (
          z,
          *(self.model.encode(weights, examples) for weights in (w_t, last)),
        )
      )
      # log(1 + e^x) at x = (cos(z, z_prev) - cos(z, z_glob)) / tau.
      apart = tf.reduce_sum(z * z_prev, -1) - tf.reduce_sum(z * z_glob, -1)
      mask = self.model.entry_mask(examples)
      of_entries = tf.reshape(
        tf.nn.softplus(apart / self.settings.temperature), tf.shape(mask)
      )
      return self.settings.contrast * tf.math.divide_no_nan(
        tf.reduce_sum(mask * of_entries, 1), tf.reduce_sum(mask, 1)
      )

    return contrast


registry.register_trainer(
  'moon',
  Moon,
  title='MOON',
  paper='Li et al. 2021b',
  does=(
    'one global model; in a round, a client is drawn to represent its examples'
    ' as the model that it received, and not as its own last one'
  ),
  sends='the update of the model',
  keeps='the encoder of its last model',
)
