"""Aggregation of updates that consist of named parts.

Each part has its own aggregator. A method leaves its main parts to the
aggregator that the caller chooses, which may be robust or private, and names
the aggregators of the other parts.
"""

import abc
import collections
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import aliases

Factory: TypeAlias = tff.aggregators.AggregationFactory
# What the aggregators of all parts keep from round to round.
State: TypeAlias = aliases.Structure

SEED_TYPE = tff.TensorType(np.int32, [2])


class Update(NamedTuple):
  """A part of what a client sends.

  Attributes:
    value: The part, a structure of tensors.
    weight: How much the client counts in a mean, or its score for `best`.
  """

  value: aliases.Structure
  weight: aliases.Scalar = 1.0


def mean() -> Factory:
  """Makes the weighted mean, which is zero if there are no clients."""
  return tff.aggregators.MeanFactory(no_nan_division=True)


def total() -> Factory:
  """Makes the sum, which ignores the weights."""
  return tff.aggregators.SumFactory()


# A value, and its weight.
_Weighed = tuple[aliases.Structure, tf.Tensor]


class _BestFactory(tff.aggregators.WeightedAggregationFactory):
  """Keeps the value of the client with the largest weight above zero."""

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    @tff.federated_computation
    def initialize() -> tff.Value:
      return tff.federated_value((), tff.SERVER)

    @tff.tensorflow.computation
    def zero() -> tuple[aliases.Structure, tf.Tensor]:
      return tff.types.structure_from_tensor_type_tree(
        lambda leaf: tf.zeros(leaf.shape, leaf.dtype), value_type
      ), tf.zeros([], weight_type.dtype)

    pair_type = zero.type_signature.result

    @tff.tensorflow.computation(pair_type, pair_type)
    def better(kept: _Weighed, other: _Weighed) -> _Weighed:
      return tf.nest.map_structure(
        lambda a, b: tf.where(other[1] > kept[1], b, a), kept, other
      )

    @tff.tensorflow.computation(pair_type)
    def report(kept: _Weighed) -> aliases.Structure:
      return kept[0]

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_best(
      state: tff.Value, value: tff.Value, weight: tff.Value
    ) -> tff.templates.MeasuredProcessOutput:
      best = tff.federated_aggregate(
        tff.federated_zip((value, weight)), zero(), better, better, report
      )
      nothing = tff.federated_value((), tff.SERVER)
      return tff.templates.MeasuredProcessOutput(state, best, nothing)

    return tff.templates.AggregationProcess(initialize, next_best)


def best() -> Factory:
  """Makes the aggregator that keeps the value of the largest weight.

  A weight of 0, such as that of a dropped client, is never the best; if no
  weight is above 0, the result is zeros. The earlier client wins a tie.
  """
  return _BestFactory()


class Noise(NamedTuple):
  """The noise of private sums over the clients of a round.

  Attributes:
    stddev: The deviation of the noise on each entry of a `Sums` part.
    of_means: The deviation of the noise on each entry of other parts' means.
    clip: The norm to which the other parts are clipped; if it changes, that of
      the first round.
    clients: The number of clients that the means are divided by: the expected
      number, not the number that took part.
  """

  stddev: tf.Tensor
  of_means: tf.Tensor
  clip: tf.Tensor
  clients: tf.Tensor


class Sums(tff.aggregators.UnweightedAggregationFactory, abc.ABC):
  """Aggregates a part by the sum of one vector for each client.

  A private aggregator clips this part separately and adds separate noise.
  """

  @abc.abstractmethod
  def measure(
    self, value: aliases.Structure, clip: tf.Tensor | None = None
  ) -> tf.Tensor:
    """Returns a client's vector.

    Args:
      value: The part of the client's update.
      clip: `Noise.clip` if the aggregator is private; the norm of the vector
        must then be at most one.
    """

  @abc.abstractmethod
  def finish(
    self, total: tf.Tensor, noise: Noise | None = None
  ) -> aliases.Structure:
    """Returns the aggregate, given the sum of all vectors."""

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    @tff.tensorflow.computation(value_type)
    def measure(value: aliases.Structure) -> tf.Tensor:
      return self.measure(value)

    @tff.tensorflow.computation(measure.type_signature.result)
    def finish(total: tf.Tensor) -> aliases.Structure:
      return self.finish(total)

    @tff.federated_computation
    def initialize() -> tff.Value:
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_sum(
      state: tff.Value, value: tff.Value
    ) -> tff.templates.MeasuredProcessOutput:
      total = tff.federated_sum(tff.federated_map(measure, value))
      nothing = tff.federated_value((), tff.SERVER)
      return tff.templates.MeasuredProcessOutput(
        state, tff.federated_map(finish, total), nothing
      )

    return tff.templates.AggregationProcess(initialize, next_sum)


class Senders(Sums):
  """Computes the factors that make means of parts means over their senders.

  A client's value is a vector of int32, which is 1 at the part that it sends
  and 0 at the others. Multiplied by its factor, the mean of a part is over the
  clients that sent it, and zero if nobody did. Without privacy the factors are
  1 or 0, as the mean is weighted. Private means divide all parts by the same
  number of clients; a noised count below two deviations of its noise is taken
  for zero.
  """

  def measure(
    self, value: aliases.Structure, clip: tf.Tensor | None = None
  ) -> tf.Tensor:
    del clip
    return tf.cast(value, tf.float32)

  def finish(self, total: tf.Tensor, noise: Noise | None = None) -> tf.Tensor:
    if noise is None:
      return tf.cast(total > 0, tf.float32)
    number = tf.where(total > 2 * noise.stddev, total, 0.0)
    return tf.math.divide_no_nan(noise.clients, number)


class Process(NamedTuple):
  """The computations of an aggregation.

  Attributes:
    initialize: `(<seed, numbers>@SERVER -> state@SERVER)`, where the numbers
      are the floats of a private aggregator's settings.
    next: `(<state@SERVER, {updates}@CLIENTS, {seed}@CLIENTS> ->
      MeasuredProcessOutput)`, whose result is {part: aggregate}. The seeds stay
      with the clients.
    sums: Returns the sums that the server may use, given the exact sums and the
      measurements of `next`.
    metrics: Returns metrics of a round, given the measurements of `next`.
  """

  initialize: tff.Computation
  next: tff.Computation
  sums: Callable[[aliases.Structure, aliases.Structure], aliases.Structure]
  metrics: Callable[[aliases.Structure], Mapping[str, tf.Tensor]]


def make_process(
  factories: Mapping[str, Factory], updates_type: Mapping[str, tff.Type]
) -> Process:
  """Makes the process that aggregates each part of the clients' updates.

  Args:
    factories: The aggregator of each part.
    updates_type: The TFF type of each part, an `Update`.

  Returns:
    The process. It takes no numbers, and ignores the seeds.
  """
  processes = collections.OrderedDict()
  for name, factory in factories.items():
    part_type = updates_type[name]
    weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    # A factory that does not weight counts all clients alike.
    argument_types = list(part_type) if weighted else [part_type[0]]
    processes[name] = factory.create(*argument_types), weighted

  @tff.federated_computation(
    tff.FederatedType((SEED_TYPE, collections.OrderedDict()), tff.SERVER)
  )
  def initialize(arguments: tff.Value) -> tff.Value:
    del arguments
    return tff.federated_zip(
      collections.OrderedDict(
        (name, process.initialize()) for name, (process, _) in processes.items()
      )
    )

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(updates_type, tff.CLIENTS),
    tff.FederatedType(SEED_TYPE, tff.CLIENTS),
  )
  def next_aggregate(
    state: tff.Value, updates: tff.Value, seeds: tff.Value
  ) -> tff.templates.MeasuredProcessOutput:
    del seeds
    outputs = {
      name: process.next(
        state[name],
        updates[name].value,
        *([updates[name].weight] if weighted else []),
      )
      for name, (process, weighted) in processes.items()
    }

    def zip_outputs(field: str) -> tff.Value:
      return tff.federated_zip(
        collections.OrderedDict(
          (name, getattr(output, field)) for name, output in outputs.items()
        )
      )

    nothing = tff.federated_value((), tff.SERVER)
    return tff.templates.MeasuredProcessOutput(
      zip_outputs('state'), zip_outputs('result'), nothing
    )

  return Process(initialize, next_aggregate, lambda sums, _: sums, lambda _: {})
