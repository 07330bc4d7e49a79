"""The pieces of a lowered computation, as functions that TensorFlow can trace.

What goes in and out of a piece are flat lists of tensors: `arguments` has one
for each part of the computation's argument that is at hand; `server` and `kept`
have one for each named result.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from runtimes import lowering
from runtimes import values

Struct = tff.structure.Struct
Leaves = list[Any]
Arguments = Mapping[str, Leaves]


class Function:
  """A traced function, called with arrays and tensors that fit `specs`.

  It is called once for each client, and what `tf.function` does at each call to
  find the right trace takes longer than many a client's work.
  """

  def __init__(
    self,
    function: Callable[..., Any],
    specs: Sequence[Any],
    jit_compile: bool | None = None,
  ):
    def flat(*leaves: tf.Tensor) -> Any:
      return function(*tf.nest.pack_sequence_as(specs, leaves))

    self.concrete = tf.function(
      flat, autograph=False, jit_compile=jit_compile
    ).get_concrete_function(*tf.nest.flatten(specs))
    self._dtypes = [spec.dtype for spec in tf.nest.flatten(specs)]

  def __call__(self, *arguments: Any) -> Any:
    leaves = [
      leaf if isinstance(leaf, tf.Tensor) else tf.constant(leaf, dtype)
      for leaf, dtype in zip(
        tf.nest.flatten(arguments), self._dtypes, strict=True
      )
    ]
    # What `concrete(*leaves)` comes to, without naming and checking each leaf.
    return self.concrete._call_flat(leaves, self.concrete.captured_inputs)  # pylint: disable=protected-access


@dataclasses.dataclass(frozen=True)
class OfClients:
  """A value for each client: each one's leaves, or all of theirs stacked."""

  leaves: Any
  stacked: bool = False


class Program:
  """A lowered computation, ready to be traced.

  Attributes:
    stages: The stages of its plan.
    parameter_type: The type of its argument; None if it takes none.
    part_types: The types of the argument's parts, each in one place, by a name
      that is given to them here.
    result_type: The type of its result.
  """

  def __init__(self, computation: tff.framework.ConcreteComputation):
    plan = lowering.lower(computation)
    self._plan = plan
    self.stages = plan.stages
    self.result_type = plan.result_type
    self.parameter_type = plan.parameter_type
    self.part_types = {
      f'part{i}': part_type
      for i, part_type in enumerate(values.parts(plan.parameter_type))
    }
    self._functions: dict[Any, Any] = {}

  def _environment(
    self,
    arguments: Arguments,
    *results: Mapping[str, Leaves],
  ) -> dict[str, Any]:
    environment = {
      name: values.unflatten(leaves, self._plan.types[name])
      for result in results
      for name, leaves in result.items()
    }
    if self._plan.parameter_name is not None:
      parts = []
      for part, part_type in self.part_types.items():
        leaves = arguments.get(part)
        if leaves is not None and not isinstance(leaves, OfClients):
          leaves = values.unflatten(leaves, part_type)
        parts.append(leaves)
      environment[self._plan.parameter_name] = values.join(
        parts, self.parameter_type
      )
    return environment

  def _server_names(self, i: int) -> list[str]:
    """What `server_step` adds in stage `i`."""
    reported = self.stages[i - 1].aggregations if i else []
    return [aggregation.name for aggregation in reported] + [
      name for name, _ in self.stages[i].server
    ]

  def _flat(self, environment: Mapping[str, Any], names: Sequence[str]):
    return {
      name: values.flatten(environment[name], self._plan.types[name])
      for name in names
    }

  def server_step(
    self,
    i: int,
    arguments: Arguments,
    server: Mapping[str, Leaves],
    aggregates: Sequence[Leaves],
  ) -> dict[str, Leaves]:
    """What the server computes in stage `i`, from the last one's aggregates."""
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
    """What a client computes in stage `i`: what it keeps and what it sends."""
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
    """The aggregates of stage `i` over no clients at all."""
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
    """The aggregates of stage `i` over the clients of two groups."""
    environment = self._environment({}, server)
    merged = []
    for aggregation, *pair in zip(self.stages[i].aggregations, ones, others):
      merge = lowering.evaluate(aggregation.merge, environment)
      pair = [
        (None, values.unflatten(p, aggregation.partial_type)) for p in pair
      ]
      merged.append(
        values.flatten(merge(Struct(pair)), aggregation.partial_type)
      )
    return merged

  def result(
    self,
    arguments: Mapping[str, Any],
    server: Mapping[str, Leaves],
    of_clients: Mapping[str, OfClients],
  ) -> list[Any]:
    """The parts of the result: leaves, or `OfClients`."""
    environment = self._environment(arguments, server) | of_clients
    result = lowering.evaluate(self._plan.result, environment)
    return [
      part if isinstance(part, OfClients) else values.flatten(part, part_type)
      for part, part_type in zip(
        values.split(result, self.result_type),
        values.parts(self.result_type),
      )
    ]

  # The pieces by themselves, for whatever shapes their types allow.

  def _specs(self, names: Iterable[str]) -> dict[str, list[tf.TensorSpec]]:
    return {name: values.leaf_specs(self._plan.types[name]) for name in names}

  def read_specs(self, i: int) -> dict[str, list[tf.TensorSpec]]:
    """What the clients read of the server's in stage `i`."""
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
  ) -> Function:
    key = (piece.__name__, i, lane)
    if key not in self._functions:
      self._functions[key] = Function(functools.partial(piece, i), specs)
    return self._functions[key]

  def server_function(self, i: int) -> Function:
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

  def client_function(self, i: int, lane: int) -> Function:
    """One for each thread, as variables must not be shared between clients."""
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

  def merge_function(self, i: int) -> Function:
    specs = self._part_specs(i)
    return self._function(self.merge, i, [self.read_specs(i), specs, specs])

  def zeros_function(self, i: int) -> Function:
    return self._function(
      self.zeros,
      i,
      [
        self._argument_specs(of_clients=False),
        self.read_specs(i),
      ],
    )
