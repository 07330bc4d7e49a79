"""Aggregation of several updates a client, each by itself."""

from collections.abc import Sequence

import tensorflow_federated as tff

_Processes = Sequence[tff.templates.AggregationProcess]


def _initialize(processes: _Processes) -> tff.Computation:

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      tuple(process.initialize() for process in processes)
    )

  return initialize


def _next(
  processes: _Processes, state: tff.Value, *arguments: tff.Value
) -> tff.templates.MeasuredProcessOutput:
  """Calls each process with its part of the state and of the arguments."""
  outputs = [
    process.next(state[i], *(argument[i] for argument in arguments))
    for i, process in enumerate(processes)
  ]
  return tff.templates.MeasuredProcessOutput(
    tff.federated_zip(tuple(output.state for output in outputs)),
    tff.federated_zip(tuple(output.result for output in outputs)),
    tff.federated_zip(tuple(output.measurements for output in outputs)),
  )


class _Unweighted(tff.aggregators.UnweightedAggregationFactory):
  def __init__(self, aggregator: tff.aggregators.UnweightedAggregationFactory):
    self._aggregator = aggregator

  def create(
    self, value_type: tff.StructType
  ) -> tff.templates.AggregationProcess:
    processes = [self._aggregator.create(part) for part in value_type]
    initialize = _initialize(processes)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_round(state, value):
      return _next(processes, state, value)

    return tff.templates.AggregationProcess(initialize, next_round)


class _Weighted(tff.aggregators.WeightedAggregationFactory):
  def __init__(self, aggregator: tff.aggregators.WeightedAggregationFactory):
    self._aggregator = aggregator

  def create(
    self, value_type: tff.StructType, weight_type: tff.StructType
  ) -> tff.templates.AggregationProcess:
    processes = [
      self._aggregator.create(*parts)
      for parts in zip(value_type, weight_type, strict=True)
    ]
    initialize = _initialize(processes)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_round(state, value, weight):
      return _next(processes, state, value, weight)

    return tff.templates.AggregationProcess(initialize, next_round)


def each(
  aggregator: tff.aggregators.AggregationFactory,
) -> tff.aggregators.AggregationFactory:
  """Aggregates each of a tuple of updates by itself, with its own weight.

  Args:
    aggregator: What aggregates one of them. If it does not weight, an update
      that a client has nothing to say to counts as the zero it is sent as. In
      what it learns of the updates' norms, it does so in any case.

  Returns:
    A factory for tuples of updates and, if `aggregator` weights, of weights.
  """
  if isinstance(aggregator, tff.aggregators.WeightedAggregationFactory):
    return _Weighted(aggregator)
  return _Unweighted(aggregator)
