"""Self-FL: how much a client learns by itself follows from uncertainties.

Chen et al. 2022, "Self-aware personalized federated learning". The personal
parameters theta_m of the clients vary around a common one by the inter-client
uncertainty sigma_0^2, and what client m learns alone varies around theta_m by
its intra-client uncertainty sigma_m^2. With w_m = 1 / (sigma_0^2 + sigma_m^2),
sums over the clients of the round before, and S_m that sum without client m,

  client m:    theta_init <- theta - w_m / S_m (theta_m - theta)            (10)
               l_m from (1 - eta / sigma_m^2)^l_m = S_m / (sigma_m^-2 + S_m) (8)
               theta_m <- l_m steps of rate eta from theta_init
               sends theta_m and sigma_m^2
  the server:  sigma_0^2 <- the variance of the theta_m of this round       (14)
               theta <- sum_m w_m theta_m / sum_m w_m                       (11)

where sigma_m^2 is the variance of the client's own models over the rounds
before in which it took part (13), updated as they come (19). That of vectors is
the sum of the entries' variances. The `smoothed` aggregation is
theta <- (1 - C) theta + C sum_m w_m theta_m / sum_m w_m, where C is the share
of all clients that took part in the round.

- Algorithm 1 is the default. Algorithm 2 ("augmented") trains on from theta_m
  until it converges, for which `augmented_steps` further steps stand here, and
  takes that model in the place of theta_m in (13) and (14).
- Generic Self-FL knows the variances: sigma_0^2 is `inter_variance`, and
  sigma_m^2 is `example_variance` over the client's number of examples.
- Each of the three components can be switched off: then a client starts from
  theta, takes as many steps as it has batches, or counts as in FedAvg.

What the paper leaves open: a variance is the mean squared distance from the
mean, and not defined before there are two observations. Where a variance that
(10) and (8) need is not, or nobody else was in the round before, the client
starts from theta and takes as many steps as it has batches, as in FedAvg. A
client whose variance is not defined counts as if it had the mean variance of
the others: if that of nobody is, all count alike. l_m is rounded, and at least
1 and at most `most_steps`; where eta >= sigma_m^2 it is 1. Batches begin anew
after the last one.

With `one_pass`, as privacy asks for, the server sees nothing but sums. Client m
finds w_m with the uncertainties of the round before, and as a multiple of what
a typical client had there, s w_m with s = sigma_0^2 + the mean variance, which
is at most `_MOST_WEIGHT`. It sends s w_m (theta_m - theta), s w_m and
||theta_m - theta||^2, whose sums over n clients give (11) and, with the mean of
(11), (14). The mean variance, which new clients count by, is the one at which
the mean of all s w_m would be one client's.
"""

import collections
from collections.abc import Mapping
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import client_work
from algorithms import fedavg
from algorithms import optimizers
from algorithms import private_steps
from algorithms import trainers
from base import errors
from base import settings
from tasks.models import models

# In the place of a variance of zero, by which nothing can be divided.
_SMALLEST_VARIANCE = 1e-20
# With `one_pass`: the most that a client counts for, over a typical one.
_MOST_WEIGHT = 2.0


@dataclasses.dataclass(frozen=True)
class SelfFlSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and of what Self-FL does in another way."""

  initialization: bool = settings.field(
    True, 'Whether clients start away from the global model, equation (10).'
  )
  adaptive_steps: bool = settings.field(
    True, 'Whether the number of steps follows from equation (8).'
  )
  precision_weights: bool = settings.field(
    True,
    'Whether clients count by their uncertainty, equation (11), and not by'
    ' client_weighting.',
  )
  smoothed: bool = settings.field(
    False,
    'Whether the global model moves only by the share of clients that took part'
    ' in the round, C.',
  )
  num_clients: int = settings.field(
    0,
    "The number of clients to train on, for C; 0 for that of the task's.",
    minimum=0,
  )
  most_steps: int = settings.field(
    40, 'The most steps that a client takes in a round, l_max.', minimum=1
  )
  augmented_steps: int = settings.field(
    0,
    'The further steps after which a client has converged, in algorithm 2; 0'
    ' for algorithm 1.',
    minimum=0,
  )
  one_pass: bool = settings.field(
    False,
    'Whether clients count by the uncertainties of the round before, so that'
    ' the server needs only sums over them, as privacy does.',
  )
  variances: str = settings.field(
    'estimated',
    'Whether the variances are estimated, or known by the two settings below.',
    choices=('estimated', 'known'),
  )
  inter_variance: float = settings.field(
    1.0, 'sigma_0^2, if it is known.', minimum=0
  )
  example_variance: float = settings.field(
    1.0,
    'sigma_m^2 times the number of examples of client m, if it is known.',
    above=0,
  )


class Uncertainty(NamedTuple):
  """The uncertainties of a round, as the server knows them.

  Attributes:
    inter_variance: sigma_0^2.
    mean_variance: The mean of the sigma_m^2 that are defined; 0 if none is.
    weight: The sum of the w_m; 0 if sigma_0^2 is not defined.
    number: The number of clients, or clusters, that this is the sum over.
  """

  inter_variance: tf.Tensor
  mean_variance: tf.Tensor
  weight: tf.Tensor
  number: tf.Tensor


def precision(
  inter_variance: tf.Tensor, variance: tf.Tensor, mean_variance: tf.Tensor
) -> tf.Tensor:
  """Computes w = 1 / (sigma_0^2 + sigma_m^2), of any number of clients.

  Args:
    inter_variance: sigma_0^2.
    variance: sigma_m^2; 0 if it is not defined.
    mean_variance: What stands for it then.

  Returns:
    w_m.
  """
  variance = tf.where(variance > 0, variance, mean_variance)
  return 1 / tf.maximum(inter_variance + variance, _SMALLEST_VARIANCE)


def relative_weight(of_round: Uncertainty, variance: tf.Tensor) -> tf.Tensor:
  """Computes s w_m, one if nothing is known of the round before.

  Args:
    of_round: The uncertainties of the round before.
    variance: sigma_m^2; 0 if it is not defined.
  """
  inter_variance, mean_variance = of_round[:2]
  s = inter_variance + mean_variance
  weight = s * precision(inter_variance, variance, mean_variance)
  return tf.where(s > 0, tf.minimum(weight, _MOST_WEIGHT), 1.0)


def num_steps(
  variance: tf.Tensor,
  others: tf.Tensor,
  learning_rate: optimizers.Number,
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
  # Beyond a half, where log1p(-x) is not as precise, up to 1.
  ratio = tf.minimum(learning_rate / variance, 1.0)
  of_step = tf.where(ratio > 0.5, -tf.math.log(1 - ratio), of_step)
  steps = tf.math.divide_no_nan(wanted, of_step)
  # With a rate of zero no number of steps is enough.
  steps = tf.where(of_step > 0, steps, float(most))
  return tf.cast(tf.round(tf.clip_by_value(steps, 1.0, float(most))), tf.int32)


class RunningVariance(NamedTuple):
  """The variance of models, of which only the mean is kept (equation 19).

  Attributes:
    mean: The mean of the models so far.
    variance: The sum of the entries' variances.
    number: The number of models so far.
  """

  mean: models.Weights
  variance: Any
  number: Any

  @property
  def defined(self) -> tf.Tensor:
    """The variance; 0 before there are two models."""
    return tf.where(self.number >= 2, self.variance, 0.0)

  def add(self, weights: models.Weights) -> 'RunningVariance':
    """Returns it with one more model."""
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
  """Estimates sigma_0^2 of the clients' models, and means them by precision.

  The clients' values are {'model': theta - theta_m, 'variance': sigma_m^2, or 0
  if it is not defined}, and in algorithm 2 'converged', of which the variance
  is taken. Their weights are FedAvg's; that of a client that was dropped is 0.

  The result is {'model': the mean, 'uncertainty': `Uncertainty`}.
  """

  def __init__(self, known: bool, by_precision: bool):
    """Makes the factory.

    Args:
      known: Whether sigma_0^2 is known, and in the clients' variances already.
      by_precision: Whether the mean is weighted by w_m, and not as in FedAvg.
    """
    self._known = known
    self._by_precision = by_precision

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    known, by_precision = self._known, self._by_precision

    @tff.tensorflow.computation(value_type, weight_type)
    def measure(value: Any, weight: Any) -> Any:
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
    def estimate(sums: Any) -> Any:
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
    def weigh(value: Any, weight: Any, estimates: Any) -> Any:
      """Returns what to sum: w_m, and a model times its weight in the mean."""
      inter_variance, mean_variance = estimates
      w = precision(inter_variance, value['variance'], mean_variance)
      w = tf.where(weight > 0, w, 0.0)
      share = w if by_precision else weight
      model = tf.nest.map_structure(lambda leaf: share * leaf, value['model'])
      return collections.OrderedDict(model=model, share=share, weight=w)

    @tff.tensorflow.computation(
      weigh.type_signature.result, measure.type_signature.result, estimate_type
    )
    def divide(weighted: Any, sums: Any, estimates: Any) -> Any:
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
    def initialize() -> Any:
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_mean(state: Any, value: Any, weight: Any) -> Any:
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
    weight: That of s w_m; 0 if it may be that of nobody.
    square: That of ||theta_m - theta||^2.
    of_means: The deviation of the noise on the mean of the updates.
  """

  weight: Any
  square: Any
  of_means: Any


class _Sums(aggregation.Sums):
  """Sums what stands beside the models: see `Totals`."""

  def measure(self, value: Any, clip: Any = None) -> tf.Tensor:
    square = value['square']
    if clip is not None:
      square = tf.minimum(square / tf.square(clip), 1.0)
    # Neither is above 1, if there is a clip.
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
  optimizer: Any
  uncertainty: Uncertainty
  round: Any


class SelfFlMessage(NamedTuple):
  """The message to the clients, see `SelfFlState`."""

  model: models.Weights
  uncertainty: Uncertainty
  round: Any


class SelfFlClientState(NamedTuple):
  """A client's state.

  Attributes:
    personal: The personal model, theta_m.
    running: The mean and the variance of the models that sigma_m^2 is of; empty
      if it is known.
    sent: The variance that the client sent last; w_m with `one_pass`.
    steps: The steps that it took last, l_m.
    last_round: The number of its last round, from 1 on; 0 for none.
  """

  personal: models.Weights
  running: Any
  sent: Any
  steps: Any
  last_round: Any


@dataclasses.dataclass(frozen=True)
class SelfFl(fedavg.FedAvg):
  """Trains a global model, and a personal one for each client."""

  settings: SelfFlSettings
  start_name = 'personal model'
  start_is_shared = False
  shared_name = 'global model'

  def __post_init__(self) -> None:
    own = self.settings
    own.refuse_kept_slots('self_fl')
    if own.one_pass and (self._is_known or own.augmented_steps):
      raise errors.UserError(
        'self_fl: with one_pass, variances must be estimated, not known, and'
        ' augmented_steps 0.'
      )

  @property
  def against_privacy(self) -> str | None:
    if self.settings.one_pass:
      return None
    return (
      'its clients are weighted by what the server finds from their models'
      ' first; set one_pass=true'
    )

  @property
  def _is_known(self) -> bool:
    return self.settings.variances == 'known'

  @property
  def parts(self) -> Mapping[str, aggregation.Factory | None]:
    own = self.settings
    if own.one_pass:
      return {'model': None, 'sums': _Sums()}
    return {'model': _ByPrecision(self._is_known, own.precision_weights)}

  def initialize(self, seed: tf.Tensor) -> Any:
    theta = self.model.init(seed)
    slots = self.settings.server_steps.slots(theta)
    return SelfFlState(theta, slots, Uncertainty(0.0, 0.0, 0.0, 0.0), 0)

  def initialize_client(self, seed: tf.Tensor) -> SelfFlClientState:
    # Of the right shape; a client begins with the theta of its first round.
    zeros = tf.nest.map_structure(tf.zeros_like, self.model.init(seed))
    running = (
      collections.OrderedDict()
      if self._is_known
      else RunningVariance(zeros, 0.0, 0)
    )
    return SelfFlClientState(zeros, running, 0.0, 0, 0)

  def message(self, server: Any) -> Any:
    return SelfFlMessage(server.model, server.uncertainty, server.round)

  def _variance(self, client: trainers.Client) -> tf.Tensor:
    """Returns sigma_m^2, equation (13); 0 if it is not defined."""
    if not self._is_known:
      return client.state.running.defined
    number = client_work.num_distinct_examples(client.data)
    return tf.math.divide_no_nan(self.settings.example_variance, number)

  def _own_weight(
    self, message: Any, client: trainers.Client
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

  def client(
    self, message: Any, client: trainers.Client
  ) -> trainers.ClientResult:
    own, theta, of_round = self.settings, message.model, message.uncertainty
    variance = sent = self._variance(client)
    if self._is_known:
      sent = own.inter_variance + variance
    w_m = precision(of_round.inter_variance, sent, of_round.mean_variance)
    was_there, own_weight = self._own_weight(message, client)
    # A difference of sums, which rounding must not make negative.
    others = tf.maximum(of_round.weight - own_weight, 1e-6 * of_round.weight)
    is_defined = (
      (variance > 0)
      & (of_round.weight > 0)
      & (of_round.number - tf.cast(was_there, tf.float32) > 0)
    )

    theta_m = self.start(message, client).weights
    pushed = tf.where(is_defined & own.initialization, w_m / others, 0.0)
    theta_init = tf.nest.map_structure(  # (10)
      lambda g, p: g - pushed * (p - g), theta, theta_m
    )
    _, steps = client_work.places_of_batches(client.data)
    if own.adaptive_steps:
      solved = num_steps(
        variance, others, own.client_learning_rate, own.most_steps
      )
      steps = tf.where(is_defined, solved, steps)
    optimizer = own.client_steps
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
    if own.augmented_steps:
      further, _ = client_work.train(
        private_steps.at(self.model, part=1),
        learner,
        client.data,
        optimizer,
        steps=tf.constant(own.augmented_steps),
      )
      converged = further.weights
      sends['converged'] = client_work.difference(theta, converged)
    updates = {'model': aggregation.Update(sends, own.client_weight(client))}
    if own.one_pass:
      relative = relative_weight(of_round, variance)
      s = of_round.inter_variance + of_round.mean_variance
      sent = tf.math.divide_no_nan(relative, s)
      updates = self._of_one_pass(delta, relative, client)
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
        'intra_variance': variance,
      },
    )

  def _of_one_pass(
    self, delta: models.Weights, relative: tf.Tensor, client: trainers.Client
  ) -> dict[str, aggregation.Update]:
    """Returns what a client sends, given theta - theta_m and s w_m."""
    numbers = {'weight': relative, 'square': _square(delta)}
    weight = self.settings.client_weight(client)
    if self.settings.precision_weights:
      delta = tf.nest.map_structure(lambda leaf: relative * leaf, delta)
      weight = tf.constant(1.0)
    return {
      'model': aggregation.Update(delta, weight),
      'sums': aggregation.Update(collections.OrderedDict(numbers)),
    }

  def _finish_one_pass(
    self, old: Uncertainty, aggregate: Mapping[str, Any], number: Any
  ) -> tuple[models.Weights, Uncertainty]:
    """Finds theta less its mean, and the uncertainties, from sums."""
    totals, delta = aggregate['sums'], aggregate['model']
    stddev = totals.of_means
    if self.settings.precision_weights:  # (11)
      scale = tf.math.divide_no_nan(number, totals.weight)
      delta = tf.nest.map_structure(lambda leaf: scale * leaf, delta)
      stddev *= scale
    # The square of the mean's noise is expected to be one of each entry's.
    entries = sum(leaf.shape.num_elements() for leaf in delta.values())
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
    self, server: Any, delta: models.Weights, sums: trainers.RoundSums
  ) -> optimizers.Learner:
    """Moves theta against delta, what it has more than the mean (11)."""
    own = self.settings
    if own.smoothed:
      c = sums.num_clients / own.num_clients
      delta = tf.nest.map_structure(lambda leaf: c * leaf, delta)
    return own.server_steps.step(
      optimizers.Learner(server.model, server.optimizer), delta
    )

  def server(
    self,
    server: Any,
    aggregate: Mapping[str, Any],
    sums: trainers.RoundSums,
  ) -> Any:
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

  def start(self, message: Any, client: trainers.Client) -> trainers.Start:
    theta_m = client_work.choose(
      client.state.last_round > 0, client.state.personal, message.model
    )
    return trainers.Start(theta_m, shared=message.model)
