"""Aggregation of updates that consist of named parts.

Each part has an aggregator of its own. A method hands its main parts to the
aggregator that the caller chooses, which may be robust or private, and says
itself how the others are aggregated.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

Factory: TypeAlias = tff.aggregators.AggregationFactory


class Update(NamedTuple):
  """A part of what a client sends.

  Attributes:
    value: The part, a structure of tensors.
    weight: How much the client counts in a mean, or what the best is told by.
  """

  value: Any
  weight: Any = 1.0


def mean() -> Factory:
  """Makes the mean weighted by the updates' weights; zero over no clients."""
  return tff.aggregators.MeanFactory(no_nan_division=True)


def total() -> Factory:
  """Makes the sum, whatever the weights."""
  return tff.aggregators.SumFactory()


class _BestFactory(tff.aggregators.WeightedAggregationFactory):
  """Keeps the value of the client with the largest weight above zero."""

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    @tff.federated_computation
    def initialize() -> Any:
      return tff.federated_value((), tff.SERVER)

    @tff.tensorflow.computation
    def zero() -> Any:
      return tff.types.structure_from_tensor_type_tree(
        lambda leaf: tf.zeros(leaf.shape, leaf.dtype), value_type
      ), tf.zeros([], weight_type.dtype)

    pair_type = zero.type_signature.result

    @tff.tensorflow.computation(pair_type, pair_type)
    def better(kept: Any, other: Any) -> Any:
      return tf.nest.map_structure(
        lambda a, b: tf.where(other[1] > kept[1], b, a), kept, other
      )

    @tff.tensorflow.computation(pair_type)
    def report(kept: Any) -> Any:
      return kept[0]

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_best(state: Any, value: Any, weight: Any) -> Any:
      best = tff.federated_aggregate(
        tff.federated_zip((value, weight)), zero(), better, better, report
      )
      nothing = tff.federated_value((), tff.SERVER)
      return tff.templates.MeasuredProcessOutput(state, best, nothing)

    return tff.templates.AggregationProcess(initialize, next_best)


def best() -> Factory:
  """Makes the aggregator that keeps the value of the largest weight.

  A weight of 0, as of a client that was dropped, is never the best; if there is
  none above it, the result is zeros. The earlier client wins a tie.
  """
  return _BestFactory()


class Counts(tff.aggregators.UnweightedAggregationFactory):
  """Counts the clients of some other parts.

  A client's value is a vector of int32, which is 1 at the part that it sends
  and 0 at the others.

  Attributes:
    parts: The names of these parts.
  """

  def __init__(self, parts: Sequence[str]):
    self.parts = tuple(parts)

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    return tff.aggregators.SumFactory().create(value_type)


def by_part(
  factories: Mapping[str, Factory], updates_type: Mapping[str, Any]
) -> tff.templates.AggregationProcess:
  """Makes the process that aggregates each part of the clients' updates.

  Args:
    factories: The aggregator of each part.
    updates_type: The TFF type of each part, an `Update`.

  Returns:
    A process from {part: `Update`} of each client to {part: aggregate}.
  """
  processes = collections.OrderedDict()
  for name, factory in factories.items():
    part_type = updates_type[name]
    weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    # A factory that does not weight counts all clients alike.
    argument_types = list(part_type) if weighted else [part_type[0]]
    processes[name] = factory.create(*argument_types), weighted

  @tff.federated_computation
  def initialize() -> Any:
    return tff.federated_zip(
      collections.OrderedDict(
        (name, process.initialize()) for name, (process, _) in processes.items()
      )
    )

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(updates_type, tff.CLIENTS),
  )
  def next_aggregate(state: Any, updates: Any) -> Any:
    outputs = {
      name: process.next(
        state[name],
        updates[name].value,
        *([updates[name].weight] if weighted else []),
      )
      for name, (process, weighted) in processes.items()
    }

    def together(field: str) -> Any:
      return tff.federated_zip(
        collections.OrderedDict(
          (name, getattr(output, field)) for name, output in outputs.items()
        )
      )

    return tff.templates.MeasuredProcessOutput(
      together('state'), together('result'), together('measurements')
    )

  return tff.templates.AggregationProcess(initialize, next_aggregate)
