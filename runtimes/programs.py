"""The pieces of a lowered computation as functions that TensorFlow can trace.

What goes in and out of a piece are flat lists of tensors, by name: `arguments`
has one list for each part of the computation's argument that the piece can
see; `server` and `kept` have one for each result of the server and of a client.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from runtimes import lowering
from runtimes import private_api
from runtimes import values

Struct = tff.structure.Struct
Leaves = list[Any]
Arguments = Mapping[str, Leaves]


def to_tensor(leaf: Any, dtype: tf.DType) -> tf.Tensor:
  """Copies an array into a tensor; a tensor is returned as it is."""
  return leaf if isinstance(leaf, tf.Tensor) else tf.constant(leaf, dtype)


def gather_row(leaf: tf.Tensor, row: Any) -> tf.Tensor:
  """Gathers one row of a tensor in the graph that is being built."""
  gather: Any = tf.gather  # Its annotations ask for types that do not exist.
  return gather(leaf, row)


class TracedFunction:
  """A function that is traced once, for arguments that fit given specs.

  It takes arrays and tensors. It is called once for each client, and
  `tf.function` would look for the right trace at each call, which takes longer
  than the work of a small client.

  Attributes:
    concrete: The concrete function.
  """

  def __init__(
    self,
    function: Callable[..., Any],
    specs: Sequence[Any],
    jit_compile: bool | None = None,
  ):
    """Traces a function.

    Args:
      function: The function.
      specs: For each of its arguments, a structure of `tf.TensorSpec`.
      jit_compile: Whether XLA compiles it, as for `tf.function`.
    """

    def flat(*leaves: tf.Tensor) -> Any:
      return function(*tf.nest.pack_sequence_as(specs, leaves))

    self.concrete = tf.function(
      flat, autograph=False, jit_compile=jit_compile
    ).get_concrete_function(*tf.nest.flatten(specs))
    self._dtypes = [spec.dtype for spec in tf.nest.flatten(specs)]

  def __call__(self, *arguments: Any) -> Any:
    leaves = [
      to_tensor(leaf, dtype)
      for leaf, dtype in zip(
        tf.nest.flatten(arguments), self._dtypes, strict=True
      )
    ]
    return private_api.call_flat(self.concrete, leaves)


@dataclasses.dataclass(frozen=True)
class ClientLeaves:
  """The leaves of what is one value for each client.

  Attributes:
    leaves: A list of each client's leaves; or the leaves of all clients,
      stacked.
    stacked: Whether they are stacked.
  """

  leaves: Any
  stacked: bool = False


class Program:
  """A lowered computation that is ready to be traced.

  Attributes:
    stages: The computation's stages.
    parameter_type: The type of its argument; None if it takes none.
    part_types: The types of the argument's parts, each with one placement. The
      names of the parts are given to them here.
    result_type: The type of its result.
  """

  def __init__(self, computation: tff.framework.ConcreteComputation):
    lowered = lowering.lower(computation)
    self._lowered = lowered
    self.stages = lowered.stages
    self.result_type = lowered.result_type
    self.parameter_type = lowered.parameter_type
    self.part_types = {
      f'part{i}': part_type
      for i, part_type in enumerate(values.parts(lowered.parameter_type))
    }
    self._functions: dict[Any, Any] = {}

  def _environment(
    self,
    arguments: Arguments,
    *results: Mapping[str, Leaves],
  ) -> dict[str, Any]:
    """Puts leaves into the structs that the building blocks read."""
    environment = {
      name: values.unflatten(leaves, self._lowered.types[name])
      for result in results
      for name, leaves in result.items()
    }
    if self.parameter_type is not None:
      parts: list[Any] = []
      for part, part_type in self.part_types.items():
        leaves = arguments.get(part)
        if leaves is not None and not isinstance(leaves, ClientLeaves):
          leaves = values.unflatten(leaves, part_type)
        parts.append(leaves)
      name = self._lowered.parameter_name or ''
      environment[name] = values.join(parts, self.parameter_type)
    return environment

  def _server_names(self, i: int) -> list[str]:
    """Returns the names of the results of `server_step` in stage `i`."""
    reported = self.stages[i - 1].aggregations if i else []
    return [aggregation.name for aggregation in reported] + [
      name for name, _ in self.stages[i].server
    ]

  def _flat(
    self, environment: Mapping[str, Any], names: Sequence[str]
  ) -> dict[str, Leaves]:
    return {
      name: values.flatten(environment[name], self._lowered.types[name])
      for name in names
    }

  def server_step(
    self,
    i: int,
    arguments: Arguments,
    server: Mapping[str, Leaves],
    aggregates: Sequence[Leaves],
  ) -> dict[str, Leaves]:
    """Computes the server's results in stage `i`.

    Args:
      i: The number of the stage.
      arguments: The parts of the argument that are not one value for each
        client.
      server: The server's results of all earlier stages.
      aggregates: The aggregates of the stage before.

    Returns:
      The server's results in this stage.
    """
    environment = self._environment(arguments, server)
    if i > 0:
      aggregations = self.stages[i - 1].aggregations
      for aggregation, leaves in zip(aggregations, aggregates, strict=True):
        report = lowering.evaluate(aggregation.report, environment)
        environment[aggregation.name] = report(
          values.unflatten(leaves, aggregation.partial_type)
        )
    environment = self.stages[i].run_server(environment)
    return self._flat(environment, self._server_names(i))

  def client_step(
    self,
    i: int,
    arguments: Arguments,
    server: Mapping[str, Leaves],
    kept: Mapping[str, Leaves],
  ) -> tuple[dict[str, Leaves], list[Leaves]]:
    """Computes a client's results in stage `i`.

    Args:
      i: The number of the stage.
      arguments: All parts of the argument; where they are one value for each
        client, this client's.
      server: The server's results that the stage reads.
      kept: What the client kept in earlier stages.

    Returns:
      What the client keeps, and its part of each aggregate.
    """
    environment = self._environment(arguments, server, kept)
    keep, parts = self.stages[i].run_client(environment)
    aggregations = self.stages[i].aggregations
    return self._flat(keep, list(keep)), [
      values.flatten(part, aggregation.partial_type)
      for part, aggregation in zip(parts, aggregations)
    ]

  def zeros(
    self,
    i: int,
    arguments: Arguments,
    server: Mapping[str, Leaves],
  ) -> list[Leaves]:
    """Computes the aggregates of stage `i` over no clients at all."""
    environment = self._environment(arguments, server)
    return [
      values.flatten(
        lowering.evaluate(aggregation.zero, environment),
        aggregation.partial_type,
      )
      for aggregation in self.stages[i].aggregations
    ]

  def merge(
    self,
    i: int,
    server: Mapping[str, Leaves],
    ones: Sequence[Leaves],
    others: Sequence[Leaves],
  ) -> list[Leaves]:
    """Merges the aggregates of stage `i` over one and over other clients."""
    environment = self._environment({}, server)
    merged = []
    for aggregation, *pair in zip(self.stages[i].aggregations, ones, others):
      partial_type = aggregation.partial_type
      merge = lowering.evaluate(aggregation.merge, environment)
      both = Struct(
        [(None, values.unflatten(leaves, partial_type)) for leaves in pair]
      )
      merged.append(values.flatten(merge(both), partial_type))
    return merged

  def result(
    self,
    arguments: Mapping[str, Any],
    server: Mapping[str, Leaves],
    of_clients: Mapping[str, ClientLeaves],
  ) -> list[Any]:
    """Collects the result of the computation.

    Args:
      arguments: All parts of the argument.
      server: The server's results of all stages.
      of_clients: What the clients kept in all stages.

    Returns:
      For each part of the result its leaves, or `ClientLeaves`.
    """
    environment = {**self._environment(arguments, server), **of_clients}
    result = lowering.evaluate(self._lowered.result, environment)
    return [
      part
      if isinstance(part, ClientLeaves)
      else values.flatten(part, part_type)
      for part, part_type in zip(
        values.split(result, self.result_type),
        values.parts(self.result_type),
      )
    ]

  # The pieces, each traced by itself for all shapes that the types allow.

  def _specs(self, names: Iterable[str]) -> dict[str, list[tf.TensorSpec]]:
    return {
      name: values.leaf_specs(self._lowered.types[name]) for name in names
    }

  def read_specs(self, i: int) -> dict[str, list[tf.TensorSpec]]:
    """Returns the specs of the server's results that stage `i` reads."""
    return self._specs(self.stages[i].reads)

  def _argument_specs(self, of_clients: bool) -> dict[str, list[tf.TensorSpec]]:
    return {
      part: values.leaf_specs(part_type)
      for part, part_type in self.part_types.items()
      if of_clients or not values.is_per_client(part_type)
    }

  def _part_specs(self, i: int) -> list[list[tf.TensorSpec]]:
    return [
      values.leaf_specs(aggregation.partial_type)
      for aggregation in self.stages[i].aggregations
    ]

  def _function(
    self, piece: Callable[..., Any], i: int, specs: Sequence[Any], lane: int = 0
  ) -> TracedFunction:
    """Traces a piece for stage `i`, unless it was traced before."""
    key = (piece.__name__, i, lane)
    if key not in self._functions:
      self._functions[key] = TracedFunction(functools.partial(piece, i), specs)
    return self._functions[key]

  def server_function(self, i: int) -> TracedFunction:
    """Returns `server_step` for stage `i`, traced."""
    earlier = [name for j in range(i) for name in self._server_names(j)]
    return self._function(
      self.server_step,
      i,
      [
        self._argument_specs(of_clients=False),
        self._specs(earlier),
        self._part_specs(i - 1) if i else [],
      ],
    )

  def client_function(self, i: int, lane: int) -> TracedFunction:
    """Returns `client_step` for stage `i`, traced.

    Args:
      i: The number of the stage.
      lane: A number for each of the clients that work at the same time. They
        have functions of their own, as they must not share variables.
    """
    earlier = [name for stage in self.stages[:i] for name in stage.keep]
    return self._function(
      self.client_step,
      i,
      [
        self._argument_specs(of_clients=True),
        self.read_specs(i),
        self._specs(earlier),
      ],
      lane,
    )

  def merge_function(self, i: int) -> TracedFunction:
    """Returns `merge` for stage `i`, traced."""
    specs = self._part_specs(i)
    return self._function(self.merge, i, [self.read_specs(i), specs, specs])

  def zeros_function(self, i: int) -> TracedFunction:
    """Returns `zeros` for stage `i`, traced."""
    return self._function(
      self.zeros,
      i,
      [
        self._argument_specs(of_clients=False),
        self.read_specs(i),
      ],
    )
