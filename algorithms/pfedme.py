"""pFedMe: personal models that are minima near the global one.

Dinh et al. 2020, algorithm 1. The personal model of client i is the minimum of
its loss, pulled to its local model w_i (their equation 3):

  theta_i(w_i) = argmin_theta F_i(theta) + lambda / 2 ||theta - w_i||^2

  client i:    w_i <- w;  for each batch:
                 theta <- K steps down F_i(theta) + lambda / 2 ||theta - w_i||^2
                 w_i <- w_i - eta lambda (w_i - theta)
  the server:  w <- (1 - beta) w + beta sum_i w_i / S

A client is evaluated at theta, after passes over its personalization set that
start from w; the baseline is w. It can also keep the theta or the w_i of the
last round that it took part in (`personal_model`). The authors' code means to
judge that theta, but judges that w_i, as the list that should hold theta is
that of the model's own weights, which are then set to w_i.

beta is FedAvg's `server_learning_rate`, and the rate of the K steps its
`client_learning_rate`. All clients count the same, unless `client_weighting`
says otherwise. On each batch theta starts where the steps on the batch before
ended, as in the authors' code.

With `proximal_parts`, such as the head, only these parts of the model have a
theta and a w_i. On each batch, after the K steps, the other parts take a step
at theta with a separate optimizer, and are sent as in FedAvg. A client is
evaluated with the other parts as it received them.
"""

import dataclasses

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import fedavg
from algorithms import optimizers
from algorithms import personal_models
from algorithms import registry
from algorithms import trainers
from algorithms.privacy import private_steps
from base import aliases
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class PFedMeSettings(fedavg.FedAvgSettings):
  """The settings of pFedMe; the defaults are the authors' for MNIST."""

  client_weighting: str = settings.redefine(
    fedavg.FedAvgSettings, 'client_weighting', 'uniform'
  )
  proximal: aliases.Number = settings.field(
    15.0, 'lambda, how strongly theta is pulled to w_i.', minimum=0
  )
  proximal_steps: int = settings.field(
    5, 'K, the steps down for each batch.', minimum=1
  )
  local_rate: aliases.Number = settings.field(
    0.005, 'eta, the rate at which w_i follows theta.', minimum=0
  )
  proximal_parts: tuple[str, ...] = settings.field(
    (), 'The parts of the model that have a theta and a w_i; none for all.'
  )
  shared_optimizer: str = settings.field(
    'adam', 'The optimizer of the other parts.', choices=optimizers.NAMES
  )
  shared_learning_rate: aliases.Number = settings.field(
    0.001, 'The learning rate of the other parts.', minimum=0
  )
  personal_passes: int = settings.field(
    1, 'The passes over the personalization set.', minimum=1
  )
  personal_model: str = settings.field(
    'new',
    'The model that a client uses: a theta that it finds anew from the last w'
    ' (new), or the theta or the w_i of its last round (theta, local). Clients'
    ' without a round find it anew.',
    choices=('new', 'theta', 'local'),
  )

  @property
  def shared_steps(self) -> optimizers.Optimizer:
    """The optimizer of the parts that are not proximal."""
    return dataclasses.replace(
      self.client_optimizer_at(self.shared_learning_rate),
      name=self.shared_optimizer,
    )


# w_i, theta, the other weights, the sum of the losses, the number of the step.
_Carry = tuple[
  models.Weights, models.Weights, optimizers.Learner, tf.Tensor, tf.Tensor
]


@dataclasses.dataclass(frozen=True)
class PFedMe(fedavg.FedAvg):
  """Trains a global model; personal models are minima near it."""

  settings: PFedMeSettings
  start_is_shared = False
  shared_name = 'global model'

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('pfedme')
    _ = self._proximal_names  # Refuses parts that the model does not have.

  @property
  def start_name(self) -> str:
    return 'w_i' if self.settings.personal_model == 'local' else 'theta'

  @property
  def _proximal_names(self) -> tuple[str, ...]:
    """The names of the weights that have a theta and a w_i."""
    parts = self.settings.proximal_parts or tuple(self.model.parts)
    return personal_models.names_of_parts(self.model, parts, 'proximal_parts')

  def _follow(
    self,
    w: models.Weights,
    data: batches.ClientData,
    part: int = 0,
    passes: int = 1,
    trains_others: bool = True,
  ) -> tuple[models.Weights, models.Weights, optimizers.Learner, tf.Tensor]:
    """Follows theta for some passes over the data.

    Args:
      w: The global model.
      data: The batches.
      part: The part of the client's work, for the noise that protects examples.
      passes: The number of passes.
      trains_others: Whether weights that are not proximal take steps, too.

    Returns:
      w_i, theta, the learner of the other weights, and the sum of the examples'
      losses at theta.
    """
    proximal = self._proximal_names
    first = client_work.select(w, proximal)
    others = client_work.select(w, [n for n in w if n not in proximal])

    def step(carry: _Carry, examples: models.Batch, mask: tf.Tensor) -> _Carry:
      w_i, theta, others, total, number = carry
      pull = client_work.pull(w_i, self.settings.proximal)
      learner = self.settings.client_steps.start(theta)
      for k in range(self.settings.proximal_steps):
        gradient, loss = client_work.gradient(
          private_steps.mark(self.model, part=part, step=number + k),
          client_work.merge(w, learner.weights, others.weights),
          examples,
          mask,
          lambda all_weights: pull(client_work.select(all_weights, proximal)),
          proximal,
        )
        learner = self.settings.client_steps.step(learner, gradient)
      rate = (
        self.settings.local_rate
        * self.settings.proximal
        * tf.sign(tf.reduce_sum(mask))
      )
      w_i = tf.nest.map_structure(
        lambda w, theta: w - rate * (w - theta), w_i, learner.weights
      )
      if others.weights and trains_others:
        gradient, _ = client_work.gradient(
          private_steps.mark(
            self.model, part=part, step=number + self.settings.proximal_steps
          ),
          client_work.merge(w, learner.weights, others.weights),
          examples,
          mask,
          only=tuple(others.weights),
        )
        others = client_work.take_step(
          self.settings.shared_steps, others, gradient, mask
        )
      total += loss * tf.reduce_sum(mask)
      number += self.settings.proximal_steps + 1
      return w_i, learner.weights, others, total, number

    start = (
      first,
      first,
      self.settings.shared_steps.start(others),
      tf.constant(0.0),
      0,
    )
    steps = None if passes == 1 else passes * client_work.num_steps(data)
    return client_work.fold_batches(data, step, start, steps)[:-1]

  def passes(self, rounds: int) -> trainers.Passes:
    # Parts that are not proximal take a step after the others.
    others = bool(self.settings.proximal_parts)
    return trainers.Passes((self.settings.proximal_steps + others) * rounds)

  @property
  def start_passes(self) -> trainers.Passes:
    return trainers.Passes(
      self.settings.proximal_steps * self.settings.personal_passes
    )

  def initialize_client(self, seed: aliases.Seed) -> aliases.ClientState:
    nothing = super().initialize_client(seed)
    if self.settings.personal_model == 'new':
      return nothing
    w = self.model.init(seed)  # Only the shapes matter.
    kept = client_work.select(w, self._proximal_names)
    return personal_models.PersonalState(kept, 0, nothing)

  def _personal_model(
    self, w_i: models.Weights, theta: models.Weights
  ) -> models.Weights:
    return w_i if self.settings.personal_model == 'local' else theta

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    w_i, theta, others, loss = self._follow(message, client.data)
    update = aggregation.Update(
      client_work.difference(
        message, client_work.merge(message, w_i, others.weights)
      ),
      self.settings.client_weight(client),
    )
    state = None
    if client.state:
      state = client.state.advance(self._personal_model(w_i, theta))
    return trainers.ClientResult({'model': update}, loss, state)

  def start(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.Start:
    w_i, theta, _, _ = self._follow(
      message,
      client.data,
      private_steps.START,
      self.settings.personal_passes,
      trains_others=False,
    )
    personal, state = self._personal_model(w_i, theta), client.state
    if state:
      personal = client_work.choose(state.rounds > 0, state.personal, personal)
    return trainers.Start(client_work.merge(message, personal), shared=message)


registry.register_trainer(
  'pfedme',
  PFedMe,
  title='pFedMe',
  paper='Dinh et al. 2020',
  does=(
    "a global model near which each client's personal model is a minimum of"
    ' its loss; with proximal_parts=head, only heads are personal, and the'
    ' encoder is trained as by FedAvg'
  ),
  sends='the update of the model',
  keeps='its personal model, with a personal_model that is not new',
)
