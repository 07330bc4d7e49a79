"""The pieces of a lowered computation as functions that TensorFlow can trace.

The inputs and outputs of a piece are flat lists of tensors, by name:
`arguments` has one list for each part of the computation's argument that the
piece can see; `server` and `kept` have one for each result of the server and of
a client.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import threading
from typing import TypeAlias, TypeVar
import weakref

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_runtimes import aliases
from tff_runtimes import lowering
from tff_runtimes import operations
from tff_runtimes import private_api
from tff_runtimes import tensorflow_blocks
from tff_runtimes import values

Struct = tff.structure.Struct
Arguments: TypeAlias = Mapping[str, aliases.Leaves]


def to_tensor(leaf: aliases.Leaf, dtype: tf.DType) -> tf.Tensor:
  """Copies an array into a tensor; a tensor is returned as it is."""
  return leaf if isinstance(leaf, tf.Tensor) else tf.constant(leaf, dtype)


class Cancellation:
  """Ends, from another thread, the functions that are called with it.

  Functions that are called later end as well: a client's work may begin while
  the work of another is being ended.
  """

  def __init__(self) -> None:
    self.is_cancelled = False
    self._managers: weakref.WeakSet[private_api.CancellationManager] = (
      weakref.WeakSet()
    )
    self._sessions: weakref.WeakSet[tf.compat.v1.Session] = weakref.WeakSet()
    self._lock = threading.Lock()

  def new_manager(self) -> private_api.CancellationManager:
    """Makes the manager of one call, which is cancelled at once if need be."""
    manager = private_api.CancellationManager()
    with self._lock:
      self._managers.add(manager)
    if self.is_cancelled:
      manager.start_cancel()
    return manager

  def add(self, session: tf.compat.v1.Session) -> None:
    """Adds a session, which `cancel` will close.

    Args:
      session: The session.

    Raises:
      tf.errors.CancelledError: If all is cancelled already.
    """
    with self._lock:
      self._sessions.add(session)
    if self.is_cancelled:
      raise tf.errors.CancelledError(None, None, 'The call was cancelled.')

  def cancel(self) -> None:
    """Makes the functions raise a `tf.errors.CancelledError` soon."""
    self.is_cancelled = True
    with self._lock:
      managers, sessions = list(self._managers), list(self._sessions)
    for manager in managers:
      manager.start_cancel()
    for session in sessions:
      session.close()


def _pack(
  structure: aliases.Structure, outputs: Sequence[aliases.Leaf]
) -> aliases.Structure:
  """Packs outputs; an empty structure has one output that is not needed."""
  size = len(tf.nest.flatten(structure))
  return tf.nest.pack_sequence_as(structure, outputs[:size])


class TracedFunction:
  """A function that is traced once, for arguments that fit given specs.

  It takes arrays and tensors. It is called once for each client, and
  `tf.function` would look for the right trace at each call, which takes longer
  than the work of a small client. Several threads can call it at once.

  Attributes:
    graph_def: The graph.
  """

  def __init__(
    self,
    function: Callable[..., aliases.Structure],
    specs: Sequence[aliases.Structure],
  ):
    """Traces a function.

    Args:
      function: The function.
      specs: For each of its arguments, a structure of `tf.TensorSpec`.
    """

    def flat(*leaves: tf.Tensor) -> list[tf.Tensor]:
      result = function(*tf.nest.pack_sequence_as(specs, leaves))
      self._result = tf.nest.map_structure(lambda _: None, result)
      return tensorflow_blocks.wait_for_all(tf.nest.flatten(result))

    # Unlike `tf.function`, it leaves the order of operations to the graph.
    # TensorFlow blocks have all the order that they need; with more, they may
    # wait for each other forever.
    self._function = tf.compat.v1.wrap_function(flat, tf.nest.flatten(specs))
    self._dtypes = [spec.dtype for spec in tf.nest.flatten(specs)]
    self.graph_def = self._function.graph.as_graph_def()

  def __call__(
    self,
    *arguments: aliases.Structure,
    cancellation: Cancellation | None = None,
  ) -> aliases.Structure:
    """Calls the function.

    Args:
      *arguments: Its arguments, structures of arrays and tensors.
      cancellation: Can end the call.

    Returns:
      Its result.
    """
    leaves = [
      to_tensor(leaf, dtype)
      for leaf, dtype in zip(
        tf.nest.flatten(arguments), self._dtypes, strict=True
      )
    ]
    manager = (cancellation or Cancellation()).new_manager()
    outputs = private_api.call_flat(self._function, leaves, manager)
    return _pack(self._result, outputs)


def _to_feed(leaf: aliases.Leaf) -> np.ndarray:
  """Converts a leaf for a session; only data sets are copied."""
  if isinstance(leaf, tf.Tensor) and leaf.dtype == tf.variant:
    return tf.raw_ops.DatasetToGraphV2(input_dataset=leaf).numpy()
  return np.asarray(leaf)


class SessionFunction:
  """A function that runs in a TensorFlow session.

  Everything that it leaves behind is deleted with the session: programs that
  XLA compiled, or variables, tables and queues. TensorFlow deletes them in no
  other way.

  Attributes:
    graph_def: The graph.
  """

  def __init__(
    self,
    function: Callable[..., aliases.Structure],
    specs: Sequence[aliases.Structure],
    jit_compile: bool,
  ):
    """Traces a function.

    Args:
      function: The function.
      specs: For each of its arguments, a structure of `tf.TensorSpec`.
      jit_compile: Whether XLA compiles it, once. Otherwise each call has a new
        session.
    """

    def flat(*leaves: tf.Tensor) -> list[tf.Tensor]:
      result = function(*tf.nest.pack_sequence_as(specs, leaves))
      self._result = tf.nest.map_structure(lambda _: None, result)
      return tensorflow_blocks.wait_for_all(tf.nest.flatten(result))

    self._graph = tf.Graph()
    with self._graph.as_default():
      self._inputs, leaves = [], []
      for spec in tf.nest.flatten(specs):
        # A session takes data sets in serialized form.
        is_sequence = spec.dtype == tf.variant
        leaf = tf.compat.v1.placeholder(
          tf.string if is_sequence else spec.dtype, spec.shape
        )
        self._inputs.append(leaf)
        leaves.append(
          tf.raw_ops.DatasetFromGraph(graph_def=leaf) if is_sequence else leaf
        )
      if jit_compile:
        flat = tf.function(flat, jit_compile=True, autograph=False)
      outputs = flat(*leaves)
      self._is_sequence = [output.dtype == tf.variant for output in outputs]
      self._outputs = [
        tf.raw_ops.DatasetToGraphV2(input_dataset=output)
        if is_sequence
        else output
        for output, is_sequence in zip(outputs, self._is_sequence)
      ]
    self.graph_def = self._graph.as_graph_def()
    self._session: tf.compat.v1.Session | None = None
    if jit_compile:
      config = tf.compat.v1.ConfigProto()
      # XLA needs loops as they are.
      config.graph_options.rewrite_options.disable_meta_optimizer = True
      self._session = tf.compat.v1.Session(graph=self._graph, config=config)
      self._call = private_api.make_callable(
        self._session, self._inputs, self._outputs
      )

  def __call__(
    self,
    *arguments: aliases.Structure,
    cancellation: Cancellation | None = None,
  ) -> aliases.Structure:
    """Calls the function, see `TracedFunction`; returns arrays."""
    feeds = [_to_feed(leaf) for leaf in tf.nest.flatten(arguments)]
    if self._session is not None:
      outputs = self._call(*feeds)
    else:
      with tf.compat.v1.Session(graph=self._graph) as session:
        if cancellation is not None:
          cancellation.add(session)
        outputs = session.run(self._outputs, dict(zip(self._inputs, feeds)))
    return _pack(
      self._result,
      [
        tf.raw_ops.DatasetFromGraph(graph_def=output) if is_sequence else output
        for output, is_sequence in zip(outputs, self._is_sequence)
      ],
    )


class NoFunction:
  """Stands for a function that has nothing to do, and need not be traced.

  Attributes:
    graph_def: An empty graph.
  """

  def __init__(self, make_result: Callable[[], aliases.Structure]):
    """Makes the function of a function that makes an empty container."""
    self._make_result = make_result
    self.graph_def = tf.compat.v1.GraphDef()

  def __call__(
    self,
    *arguments: aliases.Structure,
    cancellation: Cancellation | None = None,
  ) -> aliases.Structure:
    """Returns the empty container."""
    del arguments, cancellation
    return self._make_result()


Function: TypeAlias = TracedFunction | SessionFunction | NoFunction


@dataclasses.dataclass(frozen=True)
class ClientRows:
  """A part that is one value for each client, as each client's leaves."""

  rows: list[aliases.Leaves]


@dataclasses.dataclass(frozen=True)
class ClientColumns:
  """A part that is one value for each client, as stacked leaves.

  Attributes:
    columns: The leaves, with the clients as their first axis.
    size: The number of clients.
  """

  columns: aliases.Leaves
  size: int


# A part of an argument or of a result.
Part: TypeAlias = aliases.Leaves | ClientRows | ClientColumns
_PerClient = TypeVar('_PerClient', bound=ClientRows | ClientColumns)


# The work that each piece is, in words.
_WORK = {
  'server_step': "The server's work",
  'client_step': "The clients' work",
  'zeros': "An aggregator's zero",
  'accumulate': "An aggregator's work",
}


class Program:
  """A lowered computation that is ready to be traced.

  Attributes:
    stages: The computation's stages.
    parameter_type: The type of its argument; None if it takes none.
    part_types: The types of the argument's parts, each with one placement, by
      names that are given to the parts here.
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
    self._functions: dict[tuple[str, int], Function] = {}
    self._states: dict[tuple[str, int], str] = {}
    self._lock = threading.RLock()

  def _environment(
    self,
    arguments: Mapping[str, Part],
    *results: Mapping[str, aliases.Leaves],
  ) -> dict[str, aliases.BlockValue]:
    """Puts leaves into the structs that the building blocks read."""
    environment = {
      name: values.unflatten(leaves, self._lowered.types[name])
      for result in results
      for name, leaves in result.items()
    }
    if self.parameter_type is not None:
      parts: list[aliases.BlockValue] = []
      for part, part_type in self.part_types.items():
        given = arguments.get(part)
        if given is not None and not isinstance(
          given, ClientRows | ClientColumns
        ):
          given = values.unflatten(given, part_type)
        parts.append(given)
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
    self, environment: lowering.Environment, names: Sequence[str]
  ) -> dict[str, aliases.Leaves]:
    return {
      name: values.flatten(environment[name], self._lowered.types[name])
      for name in names
    }

  def server_step(
    self,
    i: int,
    arguments: Arguments,
    server: Mapping[str, aliases.Leaves],
    aggregates: Sequence[aliases.Leaves],
  ) -> dict[str, aliases.Leaves]:
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
    server: Mapping[str, aliases.Leaves],
    kept: Mapping[str, aliases.Leaves],
  ) -> tuple[dict[str, aliases.Leaves], list[aliases.Leaves]]:
    """Computes a client's results in stage `i`.

    Args:
      i: The number of the stage.
      arguments: The parts of the argument that the clients need; of values for
        each client, this client's.
      server: The server's results that the stage reads.
      kept: The results that the client kept in earlier stages.

    Returns:
      The results that the client keeps, and its value for each aggregate.
    """
    environment = self._environment(arguments, server, kept)
    keep, added = self.stages[i].run_client(environment)
    aggregations = self.stages[i].aggregations
    return self._flat(keep, list(keep)), [
      values.flatten(value, aggregation.value_type)
      for value, aggregation in zip(added, aggregations)
    ]

  def zeros(
    self, i: int, arguments: Arguments, server: Mapping[str, aliases.Leaves]
  ) -> list[aliases.Leaves]:
    """Computes the aggregates of stage `i` over no clients."""
    environment = self._environment(arguments, server)
    return [
      values.flatten(
        lowering.evaluate(aggregation.zero, environment),
        aggregation.partial_type,
      )
      for aggregation in self.stages[i].aggregations
    ]

  def accumulate(
    self,
    i: int,
    arguments: Arguments,
    server: Mapping[str, aliases.Leaves],
    aggregates: Sequence[aliases.Leaves],
    added: Sequence[aliases.Leaves],
  ) -> list[aliases.Leaves]:
    """Adds one more client's values to the aggregates of stage `i`."""
    environment = self._environment(arguments, server)
    results = []
    for aggregation, leaves, more in zip(
      self.stages[i].aggregations, aggregates, added, strict=True
    ):
      accumulate = lowering.evaluate(aggregation.accumulate, environment)
      both = Struct(
        [
          (None, values.unflatten(leaves, aggregation.partial_type)),
          (None, values.unflatten(more, aggregation.value_type)),
        ]
      )
      results.append(values.flatten(accumulate(both), aggregation.partial_type))
    return results

  def result(
    self,
    arguments: Arguments,
    server: Mapping[str, aliases.Leaves],
    of_clients: Mapping[str, _PerClient],
  ) -> list[aliases.Leaves | _PerClient]:
    """Collects the result of the computation.

    Args:
      arguments: The parts of the argument that are not one value for each
        client.
      server: The server's results of all stages.
      of_clients: The other parts, and the clients' results of all stages.

    Returns:
      The parts of the result.
    """
    environment = {
      **self._environment(dict(arguments) | dict(of_clients), server),
      **of_clients,
    }
    result = lowering.evaluate(self._lowered.result, environment)
    return [
      part
      if values.is_per_client(part_type)
      else values.flatten(part, part_type)
      for part, part_type in zip(
        values.split(result, self.result_type),
        values.parts(self.result_type),
      )
    ]

  @property
  def result_arguments(self) -> list[str]:
    """The parts of the argument that the result has in it."""
    return [list(self.part_types)[i] for i in self._lowered.result_arguments]

  def isolated(self) -> list[tuple[str, str]]:
    """Lists the work that needs a new session in each call, and why."""
    return [(_WORK[piece], state) for (piece, _), state in self._states.items()]

  # The pieces, each traced separately for all shapes that the types allow.

  def _specs(self, names: Iterable[str]) -> dict[str, list[tf.TensorSpec]]:
    return {
      name: values.leaf_specs(self._lowered.types[name]) for name in names
    }

  def read_specs(self, i: int) -> dict[str, list[tf.TensorSpec]]:
    """Returns the specs of the server's results that stage `i` reads."""
    return self._specs(self.stages[i].reads)

  def client_arguments(self, i: int) -> list[str]:
    """Returns the parts of the argument that the clients of stage `i` need."""
    names = list(self.part_types)
    return [names[part] for part in self.stages[i].arguments]

  def shared_arguments(self, i: int) -> list[str]:
    """Returns the `client_arguments` that are the same for all clients."""
    return [
      part
      for part in self.client_arguments(i)
      if not values.is_per_client(self.part_types[part])
    ]

  def client_specs(self, i: int) -> list[dict[str, list[tf.TensorSpec]]]:
    """Returns the specs of the inputs of a client in stage `i`."""
    earlier = [name for stage in self.stages[:i] for name in stage.keep]
    return [
      self._argument_specs(self.client_arguments(i)),
      self.read_specs(i),
      self._specs(earlier),
    ]

  def _argument_specs(
    self, parts: Iterable[str]
  ) -> dict[str, list[tf.TensorSpec]]:
    return {part: values.leaf_specs(self.part_types[part]) for part in parts}

  def client_result_specs(
    self, i: int
  ) -> tuple[dict[str, list[tf.TensorSpec]], list[list[tf.TensorSpec]]]:
    """Returns the specs of the results of a client in stage `i`."""
    return self._specs(self.stages[i].keep), self._value_specs(i)

  def _value_specs(self, i: int) -> list[list[tf.TensorSpec]]:
    return [
      values.leaf_specs(aggregation.value_type)
      for aggregation in self.stages[i].aggregations
    ]

  def partial_specs(self, i: int) -> list[list[tf.TensorSpec]]:
    """Returns the specs of the aggregates of stage `i`."""
    return [
      values.leaf_specs(aggregation.partial_type)
      for aggregation in self.stages[i].aggregations
    ]

  def _function(
    self,
    piece: Callable[..., aliases.Structure],
    i: int,
    specs: Sequence[aliases.Structure],
  ) -> Function:
    """Traces a piece for stage `i`, unless it was traced before."""
    key = (piece.__name__, i)
    with self._lock:
      if key not in self._functions:
        step = functools.partial(piece, i)
        function: Function = TracedFunction(step, specs)
        state = operations.find_state(function.graph_def)
        if state is not None:
          self._states[key] = state
          function = SessionFunction(step, specs, jit_compile=False)
        self._functions[key] = function
      return self._functions[key]

  def server_function(self, i: int) -> Function:
    """Returns `server_step` for stage `i`, traced."""
    if not self._server_names(i):
      return NoFunction(dict)
    earlier = [name for j in range(i) for name in self._server_names(j)]
    parts = [
      part
      for part, part_type in self.part_types.items()
      if not values.is_per_client(part_type)
    ]
    return self._function(
      self.server_step,
      i,
      [
        self._argument_specs(parts),
        self._specs(earlier),
        self.partial_specs(i - 1) if i else [],
      ],
    )

  def client_function(self, i: int) -> Function:
    """Returns `client_step` for stage `i`, traced."""
    return self._function(self.client_step, i, self.client_specs(i))

  def zeros_function(self, i: int) -> Function:
    """Returns `zeros` for stage `i`, traced."""
    if not self.stages[i].aggregations:
      return NoFunction(list)
    shared = self._argument_specs(self.shared_arguments(i))
    return self._function(self.zeros, i, [shared, self.read_specs(i)])

  def accumulate_function(self, i: int) -> Function:
    """Returns `accumulate` for stage `i`, traced."""
    if not self.stages[i].aggregations:
      return NoFunction(list)
    return self._function(
      self.accumulate,
      i,
      [
        self._argument_specs(self.shared_arguments(i)),
        self.read_specs(i),
        self.partial_specs(i),
        self._value_specs(i),
      ],
    )
