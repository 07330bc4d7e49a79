"""FedALA: a client learns, weight by weight, how much it takes of a model.

Zhang et al. 2023 ("FedALA: Adaptive local aggregation for personalized
federated learning"), algorithm 1. Client i keeps its last model theta_i, and a
share W_i in [0, 1] for each weight. It does not train on from the theta that it
receives, but from a mixture, their equation (4),

  theta^_i = theta_i + (theta - theta_i) * W_i

where * is entry by entry:

  client i:   for each batch b of the share s of its examples:
                W_i <- clip(W_i - eta grad F_i(theta^_i; b) * (theta - theta_i),
                            0, 1)
              theta_i <- theta^_i;  for each batch b:
                theta_i <- theta_i - rate grad F_i(theta_i; b)
              sends theta_i - theta, and keeps theta_i and W_i
  the server: as in FedAvg

W_i starts at 1. In the first round of a client there is no theta_i, and the
round is that of FedAvg. In its second round it passes over the s examples until
the deviation of the losses of the last ten passes is below a threshold, and in
each later one it passes over them once. With eta = 0 this is FedAvg.

Only the last p layers are mixed, in the paper one of them; the others are those
of theta. Here they are parts of the model, such as the head (`mixing_parts`).

A client is evaluated at the mixture that it makes of the last theta, for which
it learns W_i on its personalization set. One that was never trained on starts
from theta.

Which examples are used to learn W_i is drawn anew in each round: they are those
of the first batches. In the authors' code,

- the threshold is 0.1, and the loss of a pass is that of its last batch
  (`mixing_loss=last`);
- p counts tensors; the last two are the kernel and the bias of the head;
- a client passes at least eleven times in its second round, and without a
  bound, which is `mixing_passes` here;
- the examples are neighbors in the order of the data;
- clients that are not drawn learn W_i as well, as all clients are evaluated.
"""

import collections
from collections.abc import Callable
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from algorithms import client_work
from algorithms import example_uses
from algorithms import fedavg
from algorithms import personal_models
from algorithms import registry
from algorithms import trainers
from algorithms.privacy import private_steps
from base import aliases
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import models

# W, and the number of the step.
_PassCarry = tuple[models.Weights, tf.Tensor]
# W, the sum of the losses, the last loss, and the number of the step.
_StepCarry = tuple[models.Weights, tf.Tensor, tf.Tensor, tf.Tensor]
# The number of losses whose deviation says whether W has converged.
_NUM_LOSSES = 10


@dataclasses.dataclass(frozen=True)
class FedAlaSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and of how W is learned."""

  mixing_rate: aliases.Number = settings.field(
    1.0, 'eta, the rate at which a client learns W.', minimum=0
  )
  mixing_examples: aliases.Number = settings.field(
    0.8,
    's, the share of its examples on which a client learns W.',
    above=0,
    maximum=1,
  )
  mixing_parts: tuple[str, ...] = settings.field(
    (models.HEAD,),
    'The parts of the model that are mixed. The others are those of the global'
    ' model.',
  )
  mixing_passes: int = settings.field(
    100,
    'The most passes over these examples in the second round of a client; in'
    ' later rounds it is one.',
    minimum=1,
  )
  mixing_threshold: aliases.Number = settings.field(
    0.01,
    'The deviation of the losses of the last ten passes below which these'
    ' passes end.',
    minimum=0,
  )
  mixing_loss: str = settings.field(
    'mean',
    "Whether the loss of a pass is the mean of its examples' losses, or that of"
    " its last batch, as in the authors' code.",
    choices=('mean', 'last'),
  )


class FedAlaState(NamedTuple):
  """A client's state.

  Attributes:
    personal: The mixed parts of its last model, theta_i.
    rounds: The number of rounds that it took part in.
    shared: The state that it keeps as a client of FedAvg.
    mixture: Its W_i.
  """

  personal: models.Weights
  rounds: aliases.Scalar
  shared: aliases.ClientState
  mixture: models.Weights


class _Mixed(NamedTuple):
  """The model that a client starts its steps from, and how it is mixed.

  Attributes:
    weights: The mixture, theta^_i.
    mixture: W_i.
    num_examples: The examples of all passes over which W_i was learned.
  """

  weights: models.Weights
  mixture: models.Weights
  num_examples: tf.Tensor


def take_share(
  data: batches.ClientData, share: aliases.Number
) -> batches.ClientData:
  """Returns the first batches, up to a share of a client's examples.

  Args:
    data: The batches of one or several epochs.
    share: The share, which is rounded to at least one example.
  """
  most = tf.round(share * client_work.num_distinct_examples(data))
  exists = tf.cast(tf.reshape(data.mask, [-1]) > 0, tf.float32)
  number = tf.reshape(tf.cumsum(exists), tf.shape(data.mask))
  mask = tf.where(number <= tf.maximum(most, 1.0), data.mask, 0.0)
  return data._replace(mask=mask)


@dataclasses.dataclass(frozen=True)
class FedAla(personal_models.PersonalModels):
  """Trains a global model, which each client mixes with its own last one."""

  settings: FedAlaSettings
  start_name = 'mixture'

  def __post_init__(self) -> None:
    if not self.personal_names:
      raise errors.UserError(
        'The model of this task has no weights in'
        f' {", ".join(self.settings.mixing_parts)}, the mixing_parts of fedala.'
      )

  @property
  def personal_names(self) -> tuple[str, ...]:
    return personal_models.names_of_parts(
      self.model, self.settings.mixing_parts, 'mixing_parts'
    )

  def initialize_client(self, seed: aliases.Seed) -> FedAlaState:
    personal, rounds, shared = super().initialize_client(seed)
    ones = tf.nest.map_structure(tf.ones_like, personal)
    return FedAlaState(personal, rounds, shared, ones)

  def passes(self, rounds: int) -> trainers.Passes:
    return trainers.Passes((1 + float(self.settings.mixing_examples)) * rounds)

  @property
  def start_passes(self) -> trainers.Passes:
    return trainers.Passes(float(self.settings.mixing_examples))

  def example_uses(self, rounds: int) -> example_uses.Uses:
    if self.settings.mixing_passes > _NUM_LOSSES:
      raise errors.UserError(
        'How many passes a client of fedala takes to learn W depends on the'
        ' losses of its examples, which thus cannot be protected. Set'
        f' mixing_passes to at most {_NUM_LOSSES}.'
      )
    # W is learned each time that theta is received after the first round, the
    # last time by `start`; the first of these times takes all passes.
    learns = rounds - 1 + self.settings.mixing_passes - 1 if rounds else 0
    return example_uses.Uses(
      (example_uses.Walk(rounds), example_uses.Walk(learns))
    )

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    state = client.state
    mixed = self._mix(message, client, part=1)
    after, loss, shared = self.descend(
      mixed.weights, client._replace(state=state.shared)
    )
    kept = FedAlaState(
      client_work.select(after, self.personal_names),
      state.rounds + 1,
      shared or state.shared,
      mixed.mixture,
    )
    # Of the passes that `passes` counts.
    num_examples = client_work.num_examples(client.data)
    passes = tf.math.divide_no_nan(
      num_examples + mixed.num_examples,
      (1 + self.settings.mixing_examples) * num_examples,
    )
    result = self.result(message, after, loss, kept, client)
    return result._replace(measured={'passes': passes})

  def start(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.Start:
    mixed = self._mix(message, client, private_steps.START)
    return trainers.Start(mixed.weights, shared=message)

  def _mix(
    self, theta: models.Weights, client: trainers.Client, part: int
  ) -> _Mixed:
    """Learns W_i, and mixes theta with theta_i by it.

    Args:
      theta: The model that the client received.
      client: The client.
      part: The part of its work, for the noise that protects examples.
    """
    state, names = client.state, self.personal_names
    # theta_i - theta, which is zero in the first round.
    away = client_work.difference(
      client_work.select(self.personal_model(theta, state), names), theta
    )

    def mix(w: models.Weights) -> models.Weights:
      # So that it is theta to the last bit where W is 1.
      return client_work.merge(
        theta,
        collections.OrderedDict(
          (name, theta[name] + (1 - w[name]) * away[name]) for name in names
        ),
      )

    model, (data,) = client_work.represent_once(
      self.model,
      theta,
      names,
      [take_share(client.data, self.settings.mixing_examples)],
    )

    def step(
      carry: _StepCarry, examples: models.Batch, mask: tf.Tensor
    ) -> _StepCarry:
      w, total, last, number = carry
      slopes, loss = client_work.gradient(
        private_steps.mark(model, part=part, step=number),
        mix(w),
        examples,
        mask,
        only=names,
      )
      w = tf.nest.map_structure(
        lambda w, slope, away: tf.clip_by_value(
          w + self.settings.mixing_rate * slope * away, 0.0, 1.0
        ),
        w,
        slopes,
        away,
      )
      size = tf.reduce_sum(mask)
      last = tf.where(size > 0, loss, last)
      return w, total + loss * size, last, number + 1

    size = client_work.num_examples(data)

    def learn(carry: _PassCarry) -> tuple[_PassCarry, tf.Tensor]:
      """Passes over the examples once; returns the loss of the pass, too."""
      w, number = carry
      w, total, last, number = client_work.fold_batches(
        data, step, (w, 0.0, 0.0, number)
      )
      mean = tf.math.divide_no_nan(total, size)
      loss = last if self.settings.mixing_loss == 'last' else mean
      return (w, number), loss

    (w, _), num_passes = self._until_converged(
      learn, (state.mixture, 0), state.rounds
    )
    return _Mixed(mix(w), w, tf.cast(num_passes, tf.float32) * size)

  def _until_converged(
    self,
    learn: Callable[[_PassCarry], tuple[_PassCarry, tf.Tensor]],
    carry: _PassCarry,
    rounds: tf.Tensor,
  ) -> tuple[_PassCarry, tf.Tensor]:
    """Takes the passes of a client that took part in some rounds.

    Args:
      learn: Maps the carry to the carry after a pass, and the loss of the pass.
      carry: The carry for the first pass.
      rounds: The number of rounds before.

    Returns:
      The carry after the last pass, and the number of passes.
    """
    most = tf.where(tf.equal(rounds, 1), self.settings.mixing_passes, 1)
    most = tf.where(tf.equal(rounds, 0), 0, most)

    def goes_on(
      number: tf.Tensor, losses: tf.Tensor, _: _PassCarry
    ) -> tf.Tensor:
      converged = tf.less(
        tf.math.reduce_std(losses), self.settings.mixing_threshold
      )
      return (number < most) & ~(converged & (number >= _NUM_LOSSES))

    def body(
      number: tf.Tensor, losses: tf.Tensor, carry: _PassCarry
    ) -> tuple[tf.Tensor, tf.Tensor, _PassCarry]:
      carry, loss = learn(carry)
      return number + 1, tf.concat([losses[1:], [loss]], 0), carry

    number, _, carry = tf.while_loop(
      goes_on, body, (0, tf.zeros([_NUM_LOSSES]), carry)
    )
    return carry, number


registry.register_trainer(
  'fedala',
  FedAla,
  title='FedALA',
  paper='Zhang et al. 2023',
  does=(
    'a global model, which each client mixes with its own last one before it'
    ' trains on; it learns a share for each weight of the head, or of other'
    ' mixing_parts'
  ),
  sends='the update of the model',
  keeps='the head of its last model, and the shares',
  small={'mixing_passes': 3, 'mixing_examples': 1.0},
)
