"""Self-FL: uncertainties decide how much a client learns by itself.

Chen et al. 2022, "Self-aware personalized federated learning". The personal
parameters theta_m of the clients vary around common ones by the inter-client
uncertainty sigma_0^2, and the parameters that client m would learn alone vary
around theta_m by its intra-client uncertainty sigma_m^2. With
w_m = 1 / (sigma_0^2 + sigma_m^2), and S_m the sum of these weights over the
clients of the round before, without client m,

  client m:    theta_init <- theta - w_m / S_m (theta_m - theta)            (10)
               l_m from (1 - eta / sigma_m^2)^l_m = S_m / (sigma_m^-2 + S_m) (8)
               theta_m <- l_m steps of rate eta from theta_init
               sends theta_m and sigma_m^2
  the server:  sigma_0^2 <- the variance of the theta_m of this round       (14)
               theta <- (1 - C) theta + C sum_m w_m theta_m / sum_m w_m     (11)

where sigma_m^2 is the variance of the client's models over its earlier rounds
(13), updated in each of them (19), and C is the share of all clients that took
part in the round. The variance of vectors is the sum of the entries' variances.

- (11) is `smoothed`, which changes nothing where all clients take part. Without
  it, training diverges if rounds have few of many clients: each starts as far
  away from its model of many rounds ago as (10) says, about 1 / n of the way,
  and theta follows. Another remedy is to take S_m in (10) over all clients
  (`all_others`).
- In (8), eta is the rate of steps down the loss of all N_m examples of the
  client together. For steps of rate eta down their mean loss it is eta / N_m
  (`per_example`).
- S_m in (8) is the precision of theta, so that (8) leads to the posterior mean
  of theta_m if theta_m = theta (equation 3). In the two-level model theta_m
  varies around theta by sigma_0^2, however many clients say what theta is:
  `posterior=hierarchical` has 1 / (sigma_0^2 + 1 / S_m) instead of S_m in (8),
  which leads to the posterior mean in this model.
- Algorithm 1 is the default. Algorithm 2 ("augmented") goes on training from
  theta_m until it converges, and uses the converged model instead of theta_m in
  (13) and (14). Here `augmented_steps` further steps stand for convergence.
- Generic Self-FL knows the variances: sigma_0^2 is `inter_variance`, and
  sigma_m^2 is `example_variance` over the client's number of examples.
- Each of the three components can be switched off: then a client starts from
  theta, takes as many steps as it has batches, or counts as in FedAvg.

Where the paper leaves it open: a variance is the mean squared distance from the
mean, and is undefined before there are two observations. If a variance that
(10) and (8) need is undefined, or nobody else was in the round before, the
client starts from theta and takes as many steps as it has batches, as in
FedAvg. A client with an undefined variance counts as if it had the mean
variance of the others; if all are undefined, all count the same. l_m is
rounded, and at least 1 and at most `most_steps`; where eta >= sigma_m^2 it is
1. After the last batch comes the first again.

With `one_pass`, which privacy needs, the server sees only sums. Client m
computes w_m with the uncertainties of the round before, and relative to a
typical client there: s w_m, with s = sigma_0^2 + the mean variance, which is at
most `_MOST_WEIGHT`. It sends s w_m (theta_m - theta), s w_m and
||theta_m - theta||^2. Their sums over n clients give (11) and, with the mean of
(11), (14). The mean variance, by which new clients count, is the variance of a
client whose s w_m is the mean of all s w_m.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import client_work
from algorithms import example_uses
from algorithms import fedavg
from algorithms import optimizers
from algorithms import registry
from algorithms import trainers
from algorithms import vectors
from algorithms.privacy import private_steps
from base import aliases
from base import errors
from base import settings
from tasks import task
from tasks.models import models

# Replaces a variance of zero, which is a divisor.
_SMALLEST_VARIANCE = 1e-20
# With `one_pass`: the largest weight of a client, relative to a typical one.
_MOST_WEIGHT = 2.0


@dataclasses.dataclass(frozen=True)
class SelfFlSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and of the components of Self-FL."""

  initialization: bool = settings.field(
    True, 'Whether clients start away from the global model, equation (10).'
  )
  adaptive_steps: bool = settings.field(
    True, 'Whether the number of steps follows from equation (8).'
  )
  precision_weights: bool = settings.field(
    True,
    'Whether clients count by their uncertainties, equation (11), instead of by'
    ' client_weighting.',
  )
  per_example: bool = settings.field(
    True,
    'Whether equation (8) has the rate eta / N_m for a client of N_m examples'
    ' where steps go down the mean loss of examples.',
  )
  posterior: str = settings.field(
    'paper',
    'Whether the steps of equation (8) lead to the posterior mean of equation'
    ' (3), or to that of the hierarchical model, in which clients differ.',
    choices=('paper', 'hierarchical'),
  )
  all_others: bool = settings.field(
    False,
    'Whether the sum of weights in equation (10) is over all other clients,'
    ' estimated from those of the round before.',
  )
  smoothed: bool = settings.field(
    True,
    'Whether the step of the global model is multiplied by C, the share of all'
    ' clients that took part in the round.',
  )
  num_clients: int = settings.field(
    0,
    'The number of clients to train on; 0 for all that the task has.',
    minimum=0,
  )
  most_steps: int = settings.field(
    40,
    'l_max, the largest number of steps that a client takes in a round.',
    minimum=1,
  )
  augmented_steps: int = settings.field(
    0,
    'The further steps of algorithm 2, after which a client counts as'
    ' converged; 0 for algorithm 1.',
    minimum=0,
  )
  one_pass: bool = settings.field(
    False,
    'Whether clients count by the uncertainties of the round before, so that'
    ' the server needs only sums over clients, as privacy requires.',
  )
  variances: str = settings.field(
    'estimated',
    'Whether the variances are estimated, or known from inter_variance and'
    ' example_variance.',
    choices=('estimated', 'known'),
  )
  inter_variance: aliases.Number = settings.field(
    1.0, 'sigma_0^2, if it is known.', minimum=0
  )
  example_variance: aliases.Number = settings.field(
    1.0,
    'sigma_m^2 times the number of examples of client m, if it is known.',
    above=0,
  )


class Uncertainty(NamedTuple):
  """The uncertainties of a round, as the server knows them.

  Attributes:
    inter_variance: sigma_0^2.
    mean_variance: The mean of the defined sigma_m^2; 0 if none is defined.
    weight: The sum of the w_m; 0 if sigma_0^2 is undefined.
    number: The number of clients, or clusters, in the sum.
  """

  inter_variance: tf.Tensor
  mean_variance: tf.Tensor
  weight: tf.Tensor
  number: tf.Tensor


def precision(
  inter_variance: tf.Tensor, variance: tf.Tensor, mean_variance: tf.Tensor
) -> tf.Tensor:
  """Computes w_m = 1 / (sigma_0^2 + sigma_m^2), for any number of clients.

  Args:
    inter_variance: sigma_0^2.
    variance: sigma_m^2; 0 if it is undefined.
    mean_variance: The value that replaces an undefined sigma_m^2.

  Returns:
    w_m.
  """
  variance = tf.where(variance > 0, variance, mean_variance)
  return 1 / tf.maximum(inter_variance + variance, _SMALLEST_VARIANCE)


def relative_weight(of_round: Uncertainty, variance: tf.Tensor) -> tf.Tensor:
  """Computes s w_m, or 1 if nothing is known of the round before.

  Args:
    of_round: The uncertainties of the round before.
    variance: sigma_m^2; 0 if it is undefined.
  """
  inter_variance, mean_variance = of_round[:2]
  s = inter_variance + mean_variance
  weight = s * precision(inter_variance, variance, mean_variance)
  return tf.where(s > 0, tf.minimum(weight, _MOST_WEIGHT), 1.0)


def num_steps(
  variance: tf.Tensor,
  others: tf.Tensor,
  learning_rate: aliases.Number,
  most: int,
) -> tf.Tensor:
  """Solves equation (8) for l_m.

  Args:
    variance: sigma_m^2, above 0.
    others: S_m, above 0.
    learning_rate: eta.
    most: l_max.

  Returns:
    l_m, rounded, from 1 to `most`.
  """
  # log(S / (1 / sigma^2 + S)) and log(1 - eta / sigma^2), without cancellation.
  wanted = tf.math.log1p(1 / (variance * others))
  of_step = -tf.math.log1p(-tf.minimum(learning_rate / variance, 0.5))
  # Above a half, up to 1, log1p(-x) is less precise.
  ratio = tf.minimum(learning_rate / variance, 1.0)
  of_step = tf.where(ratio > 0.5, -tf.math.log(1 - ratio), of_step)
  steps = tf.math.divide_no_nan(wanted, of_step)
  # With a rate of zero, no number of steps is large enough.
  steps = tf.where(of_step > 0, steps, float(most))
  return tf.cast(tf.round(tf.clip_by_value(steps, 1.0, float(most))), tf.int32)


class RunningVariance(NamedTuple):
  """The variance of models, without keeping the models (equation 19).

  Attributes:
    mean: The mean of the models so far.
    variance: The sum of the entries' variances.
    number: The number of models so far.
  """

  mean: models.Weights
  variance: aliases.Scalar
  number: aliases.Scalar

  @property
  def variance_or_zero(self) -> tf.Tensor:
    """The variance; 0 before there are two models."""
    return tf.where(self.number >= 2, self.variance, 0.0)

  def add(self, weights: models.Weights) -> 'RunningVariance':
    """Returns the variance with one more model."""
    number = self.number + 1
    t = tf.cast(number, tf.float32)
    mean = tf.nest.map_structure(
      lambda old, new: old + (new - old) / t, self.mean, weights
    )
    moved = _square(client_work.difference(mean, self.mean))
    away = _square(client_work.difference(weights, mean))
    variance = (t - 1) / t * (self.variance + moved) + away / t
    return RunningVariance(mean, variance, number)


def _square(weights: models.Weights) -> tf.Tensor:
  return 2 * client_work.half_square(weights)


class _ByPrecision(tff.aggregators.WeightedAggregationFactory):
  """Estimates sigma_0^2 of the clients' models, and averages them by precision.

  The clients' values are {'model': theta - theta_m, 'variance': sigma_m^2, or 0
  if it is undefined}, and in algorithm 2 also 'converged', which sigma_0^2 is
  then the variance of. The weights are FedAvg's, and 0 for a dropped client.

  The result is {'model': the mean, 'uncertainty': `Uncertainty`}.
  """

  def __init__(self, known: bool, by_precision: bool):
    """Makes the factory.

    Args:
      known: Whether sigma_0^2 is known; the clients' variances then include it.
      by_precision: Whether the mean is weighted by w_m, or else as in FedAvg.
    """
    self._known = known
    self._by_precision = by_precision

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    known, by_precision = self._known, self._by_precision

    @tff.tensorflow.computation(value_type, weight_type)
    def measure(
      value: aliases.Structure, weight: tf.Tensor
    ) -> aliases.Structure:
      """Returns the numbers whose sums give the variances."""
      is_defined = tf.cast(value['variance'] > 0, tf.float32)
      numbers = collections.OrderedDict(
        number=tf.cast(weight > 0, tf.float32),
        variance=is_defined * value['variance'],
        num_defined=is_defined,
      )
      if not known:
        theta = value.get('converged', value['model'])
        numbers |= dict(theta=theta, square=_square(theta))
      return numbers

    @tff.tensorflow.computation(measure.type_signature.result)
    def estimate(sums: aliases.Structure) -> tuple[tf.Tensor, tf.Tensor]:
      """Returns sigma_0^2 and the mean sigma_m^2."""
      number, inter_variance = sums['number'], tf.zeros([])
      if not known:
        mean = tf.nest.map_structure(
          lambda leaf: tf.math.divide_no_nan(leaf, number), sums['theta']
        )
        mean_square = tf.math.divide_no_nan(sums['square'], number)
        inter_variance = tf.maximum(mean_square - _square(mean), 0.0)
      return (
        inter_variance,
        tf.math.divide_no_nan(sums['variance'], sums['num_defined']),
      )

    estimate_type = estimate.type_signature.result

    @tff.tensorflow.computation(value_type, weight_type, estimate_type)
    def weigh(
      value: aliases.Structure,
      weight: tf.Tensor,
      estimates: tuple[tf.Tensor, tf.Tensor],
    ) -> aliases.Structure:
      """Returns the terms to sum: w_m, the weighted model and its weight."""
      inter_variance, mean_variance = estimates
      w = precision(inter_variance, value['variance'], mean_variance)
      w = tf.where(weight > 0, w, 0.0)
      share = w if by_precision else weight
      model = client_work.scale(value['model'], share)
      return collections.OrderedDict(model=model, share=share, weight=w)

    @tff.tensorflow.computation(
      weigh.type_signature.result, measure.type_signature.result, estimate_type
    )
    def divide(
      weighted: aliases.Structure,
      sums: aliases.Structure,
      estimates: tuple[tf.Tensor, tf.Tensor],
    ) -> aliases.Structure:
      inter_variance, mean_variance = estimates
      number = sums['number']
      is_defined = tf.logical_or(known, number >= 2)
      return collections.OrderedDict(
        model=tf.nest.map_structure(
          lambda leaf: tf.math.divide_no_nan(leaf, weighted['share']),
          weighted['model'],
        ),
        uncertainty=Uncertainty(
          inter_variance,
          mean_variance,
          tf.where(is_defined, weighted['weight'], 0.0),
          number,
        ),
      )

    @tff.federated_computation
    def initialize() -> tff.Value:
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_mean(
      state: tff.Value, value: tff.Value, weight: tff.Value
    ) -> tff.templates.MeasuredProcessOutput:
      sums = tff.federated_sum(tff.federated_map(measure, (value, weight)))
      estimates = tff.federated_map(estimate, sums)
      weighted = tff.federated_sum(
        tff.federated_map(
          weigh, (value, weight, tff.federated_broadcast(estimates))
        )
      )
      result = tff.federated_map(divide, (weighted, sums, estimates))
      nothing = tff.federated_value((), tff.SERVER)
      return tff.templates.MeasuredProcessOutput(state, result, nothing)

    return tff.templates.AggregationProcess(initialize, next_mean)


class Totals(NamedTuple):
  """Sums over the clients of a round, with `one_pass`.

  Attributes:
    weight: The sum of s w_m; 0 if noise alone may have made it.
    square: The sum of ||theta_m - theta||^2.
    of_means: The deviation of the noise on the mean of the updates.
  """

  weight: tf.Tensor
  square: tf.Tensor
  of_means: tf.Tensor


class _Sums(aggregation.Sums):
  """Sums the numbers that clients send beside their models, see `Totals`."""

  def measure(
    self, value: aliases.Structure, clip: tf.Tensor | None = None
  ) -> tf.Tensor:
    square = value['square']
    if clip is not None:
      square = tf.minimum(square / tf.square(clip), 1.0)
    # With a clip neither is above 1, so that the norm is not, either.
    return 0.5**0.5 * tf.stack([value['weight'] / _MOST_WEIGHT, square])

  def finish(
    self, total: tf.Tensor, noise: aggregation.Noise | None = None
  ) -> Totals:
    weight, square = tf.unstack(2**0.5 * total)
    if noise is None:
      return Totals(_MOST_WEIGHT * weight, square, tf.zeros([]))
    weight = tf.where(total[0] > 2 * noise.stddev, _MOST_WEIGHT * weight, 0.0)
    return Totals(weight, tf.square(noise.clip) * square, noise.of_means)


class SelfFlState(NamedTuple):
  """The server's state.

  Attributes:
    model: The global model, theta.
    optimizer: The slots of the server's optimizer.
    uncertainty: The uncertainties of the last round.
    round: The number of rounds that clients took part in.
  """

  model: models.Weights
  optimizer: optimizers.Slots
  uncertainty: Uncertainty
  round: aliases.Scalar


class SelfFlMessage(NamedTuple):
  """The message to the clients, see `SelfFlState`."""

  model: models.Weights
  uncertainty: Uncertainty
  round: aliases.Scalar


class SelfFlClientState(NamedTuple):
  """A client's state.

  Attributes:
    personal: The personal model, theta_m.
    running: The running variance of the client's models; empty if sigma_m^2 is
      known.
    sent: The variance that the client sent last; w_m with `one_pass`.
    steps: l_m, the number of steps in its last round.
    last_round: The number of its last round, from 1 on; 0 for none.
  """

  personal: models.Weights
  running: RunningVariance | collections.OrderedDict
  sent: aliases.Scalar
  steps: aliases.Scalar
  last_round: aliases.Scalar


@dataclasses.dataclass(frozen=True)
class SelfFl(fedavg.FedAvg):
  """Trains a global model, and a personal one for each client."""

  settings: SelfFlSettings
  start_name = 'personal model'
  start_is_shared = False
  shared_name = 'global model'

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('self_fl')
    if not self.settings.num_clients:
      raise errors.UserError(
        'self_fl needs the number of clients to train on, num_clients.'
      )
    if self.settings.one_pass and (
      self._is_known or self.settings.augmented_steps
    ):
      raise errors.UserError(
        'self_fl: with one_pass, variances must be estimated, not known, and'
        ' augmented_steps 0.'
      )

  @property
  def why_no_statistics(self) -> str | None:
    return 'its server weights models by their uncertainty'

  @property
  def why_not_private(self) -> str | None:
    if self.settings.one_pass:
      return None
    return (
      'its server weights clients by variances that it first estimates from'
      ' their models; set one_pass=true'
    )

  def example_uses(self, rounds: int) -> example_uses.Uses:
    # The number of steps follows from noised models, and so reveals no more
    # than these do.
    most = self.settings.most_steps if self.settings.adaptive_steps else 0
    walks = [example_uses.Walk(rounds, most_steps=most)]
    augmented = self.settings.augmented_steps
    if augmented:
      # These steps start at the first batch again, and may be less than a pass.
      walks.append(example_uses.Walk(rounds, 0, most_steps=augmented))
    return example_uses.Uses(tuple(walks), reuses_batches=True)

  @property
  def _is_known(self) -> bool:
    return self.settings.variances == 'known'

  @property
  def attributes(self) -> Sequence[str]:
    return tuple(dict.fromkeys((*super().attributes, task.SIZE)))

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    if self.settings.one_pass:
      return {'model': None, 'sums': _Sums()}
    return {
      'model': _ByPrecision(self._is_known, self.settings.precision_weights)
    }

  def initialize(self, seed: aliases.Seed) -> trainers.ServerState:
    theta = self.model.init(seed)
    slots = self.settings.server_steps.slots(theta)
    return SelfFlState(theta, slots, Uncertainty(0.0, 0.0, 0.0, 0.0), 0)

  def initialize_client(self, seed: aliases.Seed) -> SelfFlClientState:
    # Only the shapes matter: a client starts from the theta of its first round.
    zeros = tf.nest.map_structure(tf.zeros_like, self.model.init(seed))
    if self._is_known:
      return SelfFlClientState(zeros, collections.OrderedDict(), 0.0, 0, 0)
    return SelfFlClientState(zeros, RunningVariance(zeros, 0.0, 0), 0.0, 0, 0)

  def message(self, server: trainers.ServerState) -> trainers.Message:
    return SelfFlMessage(server.model, server.uncertainty, server.round)

  def _variance(self, client: trainers.Client) -> tf.Tensor:
    """Returns sigma_m^2, equation (13); 0 if it is undefined."""
    if not self._is_known:
      return client.state.running.variance_or_zero
    return self._example_share(self.settings.example_variance, client)

  def _example_share(
    self, total: aliases.Number, client: trainers.Client
  ) -> tf.Tensor:
    size = tf.cast(client.attributes[task.SIZE], tf.float32)
    return tf.math.divide_no_nan(total, size)

  def _num_steps(
    self,
    variance: tf.Tensor,
    others: tf.Tensor,
    of_round: Uncertainty,
    client: trainers.Client,
  ) -> tf.Tensor:
    """Returns l_m, given sigma_m^2 and S_m."""
    if self.settings.posterior == 'hierarchical':
      inter_variance = of_round.inter_variance
      if self._is_known:
        inter_variance = self.settings.inter_variance
      others = 1 / (inter_variance + 1 / others)
    rate = self.settings.client_learning_rate
    if self.settings.per_example and not self.model.loss_is_total:
      rate = self._example_share(rate, client)
    return num_steps(variance, others, rate, self.settings.most_steps)

  def _own_weight(
    self, message: trainers.Message, client: trainers.Client
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns whether a client was in the last round, and its w_m if so."""
    state, of_round = client.state, message.uncertainty
    was_there = (state.last_round > 0) & tf.equal(
      state.last_round, message.round
    )
    weight = state.sent
    if not self.settings.one_pass:
      weight = precision(
        of_round.inter_variance, weight, of_round.mean_variance
      )
    return was_there, tf.where(was_there, weight, 0.0)

  def _others(
    self, message: trainers.Message, client: trainers.Client
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns S_m, and whether it is defined."""
    of_round = message.uncertainty
    was_there, own_weight = self._own_weight(message, client)
    # Rounding must not make this difference negative.
    others = tf.maximum(of_round.weight - own_weight, 1e-6 * of_round.weight)
    number = of_round.number - tf.cast(was_there, tf.float32)
    return others, (of_round.weight > 0) & (number > 0)

  def _push(
    self, of_round: Uncertainty, variance: tf.Tensor, others: tf.Tensor
  ) -> tf.Tensor:
    """Returns w_m / S_m of equation (10), given what the client sends."""
    w_m = precision(of_round.inter_variance, variance, of_round.mean_variance)
    if self.settings.all_others:
      others *= self.settings.num_clients / of_round.number
    return w_m / others

  def client(
    self, message: trainers.Message, client: trainers.Client
  ) -> trainers.ClientResult:
    theta, of_round = message.model, message.uncertainty
    variance = sent = self._variance(client)
    if self._is_known:
      sent = self.settings.inter_variance + variance
    others, is_any = self._others(message, client)
    is_defined = is_any & (variance > 0)

    theta_m = self.start(message, client).weights
    pushed = tf.where(
      is_defined & self.settings.initialization,
      self._push(of_round, sent, others),
      0.0,
    )
    theta_init = tf.nest.map_structure(  # (10)
      lambda g, p: g - pushed * (p - g), theta, theta_m
    )
    _, num_batches = client_work.places_of_batches(client.data)
    steps = num_batches
    if self.settings.adaptive_steps:
      solved = self._num_steps(variance, others, of_round, client)
      steps = tf.where(is_defined, solved, steps)
    optimizer = self.settings.client_steps
    learner, loss = client_work.train(
      self.model,
      optimizer.start(theta_init),
      client.data,
      optimizer,
      steps=steps,
    )
    theta_m = converged = learner.weights
    delta = client_work.difference(theta, theta_m)
    sends = collections.OrderedDict(model=delta, variance=sent)
    if self.settings.augmented_steps:
      further, _ = client_work.train(
        private_steps.mark(self.model, part=1),
        learner,
        client.data,
        optimizer,
        steps=tf.constant(self.settings.augmented_steps),
      )
      converged = further.weights
      sends['converged'] = client_work.difference(theta, converged)
    updates = {
      'model': aggregation.Update(sends, self.settings.client_weight(client))
    }
    if self.settings.one_pass:
      relative = relative_weight(of_round, variance)
      s = of_round.inter_variance + of_round.mean_variance
      sent = tf.math.divide_no_nan(relative, s)
      updates = self._one_pass_updates(delta, relative, client)
    running = client.state.running
    return trainers.ClientResult(
      updates=updates,
      loss=loss,
      state=SelfFlClientState(
        personal=theta_m,
        running=running if self._is_known else running.add(converged),
        sent=sent,
        steps=steps,
        last_round=message.round + 1,
      ),
      measured={
        'steps': tf.cast(steps, tf.float32),
        'passes': tf.math.divide_no_nan(
          tf.cast(steps + self.settings.augmented_steps, tf.float32),
          tf.cast(num_batches, tf.float32),
        ),
        'intra_variance': variance,
      },
    )

  def _one_pass_updates(
    self, delta: models.Weights, relative: tf.Tensor, client: trainers.Client
  ) -> dict[str, aggregation.Update]:
    """Returns what a client sends, given theta - theta_m and s w_m."""
    numbers = {'weight': relative, 'square': _square(delta)}
    weight = self.settings.client_weight(client)
    if self.settings.precision_weights:
      delta = client_work.scale(delta, relative)
      weight = tf.constant(1.0)
    return {
      'model': aggregation.Update(delta, weight),
      'sums': aggregation.Update(collections.OrderedDict(numbers)),
    }

  def _finish_one_pass(
    self, old: Uncertainty, aggregate: trainers.Aggregate, number: tf.Tensor
  ) -> tuple[models.Weights, Uncertainty]:
    """Computes theta minus the mean (11), and the uncertainties, from sums."""
    totals, delta = aggregate['sums'], aggregate['model']
    stddev = totals.of_means
    if self.settings.precision_weights:  # (11)
      scale = tf.math.divide_no_nan(number, totals.weight)
      delta = client_work.scale(delta, scale)
      stddev *= scale
    # The noise of the mean adds its variance to the square of each entry.
    entries = vectors.count(delta.values())
    moved = tf.maximum(_square(delta) - entries * tf.square(stddev), 0.0)
    mean_square = tf.math.divide_no_nan(totals.square, number)
    s = old.inter_variance + old.mean_variance
    mean_variance = (
      tf.math.divide_no_nan(s * number, totals.weight) - old.inter_variance
    )
    return delta, Uncertainty(
      tf.maximum(mean_square - moved, 0.0),  # (14)
      tf.maximum(mean_variance, 0.0),
      tf.math.divide_no_nan(totals.weight, s),
      number,
    )

  def step(
    self,
    server: trainers.ServerState,
    delta: models.Weights,
    sums: trainers.RoundSums,
  ) -> optimizers.Learner:
    """Moves theta against delta, which is theta minus the mean (11)."""
    if self.settings.smoothed:
      c = sums.num_clients / self.settings.num_clients
      delta = client_work.scale(delta, c)
    return self.settings.server_steps.step(
      optimizers.Learner(server.model, server.optimizer), delta
    )

  def server(
    self,
    server: trainers.ServerState,
    aggregate: trainers.Aggregate,
    sums: trainers.RoundSums,
  ) -> trainers.ServerState:
    is_any = sums.num_clients > 0
    if self.settings.one_pass:
      delta, uncertainty = self._finish_one_pass(
        server.uncertainty, aggregate, sums.num_clients
      )
      is_any = aggregate['sums'].weight > 0
    else:
      result = aggregate['model']
      delta, uncertainty = result['model'], result['uncertainty']
    learner = self.step(server, delta, sums)
    after = SelfFlState(
      learner.weights, learner.slots, uncertainty, server.round + 1
    )
    return client_work.choose(is_any, after, server)

  def start(
    self, message: trainers.Message, client: trainers.Client
  ) -> trainers.Start:
    theta_m = client_work.choose(
      client.state.last_round > 0, client.state.personal, message.model
    )
    return trainers.Start(theta_m, shared=message.model)


registry.register_trainer(
  'self_fl',
  SelfFl,
  title='Self-FL',
  paper='Chen et al. 2022',
  does=(
    'a global model, and a personal one for each client; estimated or known'
    ' variances decide where a client starts, how many steps it takes and how'
    ' much it counts'
  ),
  sends=(
    'with one_pass, its update times its weight; beside it, for sums, the'
    " weight and the square of the update's norm"
  ),
  keeps='its personal model, and its variance',
)
