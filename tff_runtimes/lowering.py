"""Lowers TFF computations to alternating work of the server and the clients.

TFF compiles a federated computation to a flat list of calls of a few
intrinsics. They are sorted by where they run and by how many aggregations they
wait for, into stages:

  server work, work of each client, aggregation; server work, ...

A stage's client work is one function of one client. It can be run for one
client after another, for several at once, or for a whole stacked cohort.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
from typing import TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

from tff_runtimes import aliases
from tff_runtimes import private_api
from tff_runtimes import tensorflow_blocks
from tff_runtimes import values

_Block: TypeAlias = tff.framework.ComputationBuildingBlock
Struct = tff.structure.Struct
# Values by their names: structs of tensors, or functions of such.
Environment = Mapping[str, aliases.BlockValue]
# Computes a value for one party from the argument.
_Function: TypeAlias = Callable[[aliases.BlockValue], aliases.BlockValue]

# The intrinsics, besides the aggregation, that TFF's reductions leave. For one
# party, those in _APPLY and _EVAL call a function, and those in _PLACE are the
# identity, as they only say where a value is.
_APPLY = frozenset(
  ['federated_map', 'federated_map_all_equal', 'federated_apply']
)
_EVAL = frozenset(['federated_eval_at_clients', 'federated_eval_at_server'])
_PLACE = frozenset(
  [
    'federated_broadcast',
    'federated_value_at_clients',
    'federated_value_at_server',
    'federated_zip_at_clients',
    'federated_zip_at_server',
  ]
)


def _sequence_dataset(
  sequence: tf.Tensor, type_spec: tff.SequenceType
) -> tf.data.Dataset:
  return tf.data.experimental.from_variant(
    sequence, values.element_structure(type_spec.element)
  )


def _to_struct(
  element: aliases.Value, type_spec: tff.Type
) -> aliases.BlockValue:
  return values.unflatten(values.flatten(element, type_spec), type_spec)


def _to_element(
  struct: aliases.BlockValue, type_spec: tff.Type
) -> aliases.Value:
  leaves = tensorflow_blocks.wait_for_all(values.flatten(struct, type_spec))
  return tff.types.type_to_py_container(
    values.unflatten(leaves, type_spec), type_spec
  )


def _sequence_map(type_spec: tff.FunctionType) -> _Function:
  result_type = type_spec.result
  sequence_type = type_spec.parameter[1]
  # `Dataset.map` spreads an element that is a tuple over several arguments.
  is_spread = type(values.element_structure(sequence_type.element)) is tuple

  def call(argument: aliases.BlockValue) -> tf.Tensor:
    function, sequence = argument

    def map_element(*element: aliases.Value) -> aliases.Value:
      struct = _to_struct(
        element if is_spread else element[0], sequence_type.element
      )
      return _to_element(function(struct), result_type.element)

    return tf.data.experimental.to_variant(
      _sequence_dataset(sequence, sequence_type).map(map_element)
    )

  return call


def _sequence_reduce(type_spec: tff.FunctionType) -> _Function:
  sequence_type, state_type = type_spec.parameter[0], type_spec.parameter[1]

  def call(argument: aliases.BlockValue) -> aliases.BlockValue:
    sequence, zero, function = argument

    def step(
      state: tuple[tf.Tensor, ...], element: aliases.Value
    ) -> tuple[tf.Tensor, ...]:
      result = function(
        Struct(
          [
            (None, values.unflatten(state, state_type)),
            (None, _to_struct(element, sequence_type.element)),
          ]
        )
      )
      return tuple(
        tensorflow_blocks.wait_for_all(values.flatten(result, state_type))
      )

    state = _sequence_dataset(sequence, sequence_type).reduce(
      tuple(values.flatten(zero, state_type)), step
    )
    return values.unflatten(state, state_type)

  return call


def _sequence_sum(type_spec: tff.FunctionType) -> _Function:
  sequence_type = type_spec.parameter
  element_type = sequence_type.element

  def call(sequence: tf.Tensor) -> aliases.BlockValue:
    zero = [tf.zeros(s.shape, s.dtype) for s in values.leaf_specs(element_type)]
    total = _sequence_dataset(sequence, sequence_type).reduce(
      tuple(zero),
      lambda total, element: tuple(
        t + e for t, e in zip(total, values.flatten(element, element_type))
      ),
    )
    return values.unflatten(total, element_type)

  return call


def _federated_select(type_spec: tff.FunctionType) -> _Function:
  """Makes a function that returns the values that a client's keys select."""
  element_type = type_spec.result.member.element

  def call(argument: aliases.BlockValue) -> tf.Tensor:
    keys, _, server_value, select = argument
    result = tf.data.Dataset.from_tensor_slices(keys).map(
      lambda key: _to_element(
        select(Struct([(None, server_value), (None, key)])), element_type
      )
    )
    return tf.data.experimental.to_variant(result)

  return call


_FUNCTIONS = {
  'sequence_map': _sequence_map,
  'sequence_reduce': _sequence_reduce,
  'sequence_sum': _sequence_sum,
  'federated_select': _federated_select,
}


def _intrinsic(block: tff.framework.Intrinsic) -> _Function:
  """Makes the function that computes an intrinsic for one party."""
  if block.uri in _APPLY:
    return lambda argument: argument[0](argument[1])
  if block.uri in _EVAL:
    return lambda function: function()
  if block.uri in _PLACE:
    return lambda value: value
  if block.uri in _FUNCTIONS:
    return _FUNCTIONS[block.uri](block.type_signature)
  raise NotImplementedError(
    f'The cohort runtime cannot run the intrinsic {block.uri!r}.'
  )


def evaluate(block: _Block, environment: Environment) -> aliases.BlockValue:
  """Computes a building block for one party in the graph that is being built.

  Args:
    block: The building block.
    environment: The values of the names that occur in it.

  Returns:
    Its value: tensors in `tff.structure.Struct`, or a function of such.

  Raises:
    NotImplementedError: If the block, or one in it, cannot be run here.
  """
  match block:
    case tff.framework.Reference():
      return environment[block.name]
    case tff.framework.Selection():
      source = evaluate(block.source, environment)
      return source[block.as_index()]
    case tff.framework.Struct():
      return Struct(
        [
          (name, evaluate(element, environment))
          for name, element in tff.structure.iter_elements(block)
        ]
      )
    case tff.framework.Lambda():

      def function(*argument: aliases.BlockValue) -> aliases.BlockValue:
        inner = dict(environment)
        if block.parameter_name is not None:
          (inner[block.parameter_name],) = argument
        return evaluate(block.result, inner)

      return function
    case tff.framework.Block():
      inner = dict(environment)
      for name, value in block.locals:
        inner[name] = evaluate(value, inner)
      return evaluate(block.result, inner)
    case tff.framework.Call():
      function = evaluate(block.function, environment)
      if block.argument is None:
        return function()
      return function(evaluate(block.argument, environment))
    case tff.framework.CompiledComputation():
      return tensorflow_blocks.to_callable(block)
    case tff.framework.Literal():
      return tf.constant(block.value, block.type_signature.dtype)
    case tff.framework.Intrinsic():
      return _intrinsic(block)
  raise NotImplementedError(
    f'The cohort runtime cannot run a {type(block).__name__} block.'
  )


@dataclasses.dataclass
class Aggregation:
  """The arguments of `tff.federated_aggregate`, and the name of its result."""

  name: str
  value: _Block
  zero: _Block
  accumulate: _Block
  merge: _Block  # Used only where several workers have clients.
  report: _Block

  @property
  def partial_type(self) -> tff.Type:
    """The type of the aggregate of some of the clients."""
    return self.accumulate.type_signature.parameter[0]

  @property
  def value_type(self) -> tff.Type:
    """The type of the value that one client adds."""
    return values.member(self.value.type_signature)


@dataclasses.dataclass
class Stage:
  """The work that depends on the results of the same number of aggregations.

  Attributes:
    server: The blocks that the server computes first, with their names.
    clients: The blocks that each client computes then, with their names.
    aggregations: The aggregations over the clients at the end.
    arguments: The numbers of the parts of the argument that the clients need.
    reads: The names of the server's results that the clients and the
      aggregations need.
    keep: The names of the clients' results that later stages or the caller
      need.
  """

  server: list[tuple[str, _Block]] = dataclasses.field(default_factory=list)
  clients: list[tuple[str, _Block]] = dataclasses.field(default_factory=list)
  aggregations: list[Aggregation] = dataclasses.field(default_factory=list)
  arguments: list[int] = dataclasses.field(default_factory=list)
  reads: list[str] = dataclasses.field(default_factory=list)
  keep: list[str] = dataclasses.field(default_factory=list)

  @property
  def is_federated(self) -> bool:
    """Whether the clients have anything to do."""
    return bool(self.clients or self.aggregations)

  def run_server(
    self, environment: Environment
  ) -> dict[str, aliases.BlockValue]:
    """Returns the server's `environment` with this stage's results added."""
    extended = dict(environment)
    for name, block in self.server:
      extended[name] = evaluate(block, extended)
    return extended

  def run_client(
    self, environment: Environment
  ) -> tuple[dict[str, aliases.BlockValue], list[aliases.BlockValue]]:
    """Computes one client's kept results and its values for the aggregates."""
    extended = dict(environment)
    for name, block in self.clients:
      extended[name] = evaluate(block, extended)
    added = [evaluate(one.value, extended) for one in self.aggregations]
    return {name: extended[name] for name in self.keep}, added


@dataclasses.dataclass
class LoweredComputation:
  """A TFF computation as a list of stages.

  Attributes:
    parameter_name: The argument's name in the stages; None if there is none.
    parameter_type: The argument's type.
    stages: The stages, in order.
    types: The types, for one party, of the stages' results, by their names.
    result: The result as a block, to be computed after the last stage.
    result_arguments: The numbers of the parts of the argument in the result.
    result_type: The result's type, which has its Python containers.
  """

  parameter_name: str | None
  parameter_type: tff.Type | None
  stages: list[Stage]
  types: dict[str, tff.Type]
  result: _Block
  result_arguments: list[int]
  result_type: tff.Type


def _arguments(argument: _Block) -> list[_Block]:
  """Lists the elements of a call's argument."""
  if isinstance(argument, tff.framework.Struct):
    return [block for _, block in tff.structure.iter_elements(argument)]
  return [
    tff.framework.Selection(argument, index=index)
    for index in range(len(argument.type_signature))
  ]


def references(block: _Block) -> Iterator[tuple[str, tuple[int, ...]]]:
  """Yields the names that occur in a block, with the paths of used parts.

  Args:
    block: The block.

  Yields:
    For each occurrence of a name, the name and the indices that are selected
    from its value, from the outside to the inside.
  """
  match block:
    case tff.framework.Reference():
      yield block.name, ()
    case tff.framework.Selection():
      path: list[int] = []
      source = block
      while isinstance(source, tff.framework.Selection):
        path.insert(0, source.as_index())
        source = source.source
      if isinstance(source, tff.framework.Reference):
        yield source.name, tuple(path)
      else:
        yield from references(source)
    case tff.framework.Struct():
      for element in block:
        yield from references(element)
    case tff.framework.Lambda():
      yield from references(block.result)
    case tff.framework.Block():
      for _, value in block.locals:
        yield from references(value)
      yield from references(block.result)
    case tff.framework.Call():
      yield from references(block.function)
      if block.argument is not None:
        yield from references(block.argument)


def part_paths(
  type_spec: tff.Type | None, path: tuple[int, ...] = ()
) -> list[tuple[int, ...]]:
  """Lists the paths to the `values.parts` of an argument's type."""
  if type_spec is None:
    return []
  if not isinstance(type_spec, tff.StructType):
    return [path]
  return [
    inner
    for i, (_, element) in enumerate(tff.structure.iter_elements(type_spec))
    for inner in part_paths(element, (*path, i))
  ]


def used_parts(
  block: _Block, parameter_name: str | None, parameter_type: tff.Type | None
) -> set[int]:
  """Returns the numbers of the parts of the argument that a block uses.

  Args:
    block: The block.
    parameter_name: The argument's name in the block.
    parameter_type: Its type.
  """
  used = set()
  for name, path in references(block):
    if name == parameter_name:
      for part, part_path in enumerate(part_paths(parameter_type)):
        length = min(len(path), len(part_path))
        if path[:length] == part_path[:length]:
          used.add(part)
  return used


def _refuse_functions(computation: tff.framework.ConcreteComputation) -> None:
  """Raises an error if a computation takes or returns a function."""
  signature = computation.type_signature
  for type_spec, what in (
    (signature.parameter, 'an argument'),
    (signature.result, 'a result'),
  ):
    if type_spec is not None and tff.types.contains(
      type_spec, lambda part: isinstance(part, tff.FunctionType)
    ):
      raise NotImplementedError(
        f'The cohort runtime cannot run a computation with a function as {what}'
        f', as {signature} has it; use the native runtime for this computation.'
      )


def _reduce(computation: tff.framework.ConcreteComputation) -> _Block:
  """Reduces `computation` to call-dominant form with a few basic intrinsics."""
  computation = private_api.replace_secure_sums(computation)
  return tff.framework.to_call_dominant(
    private_api.replace_composite_intrinsics(computation.to_building_block())
  )


def lower(
  computation: tff.framework.ConcreteComputation,
) -> LoweredComputation:
  """Sorts the calls of a computation into stages.

  Args:
    computation: Any TFF computation.

  Returns:
    The stages and how the result follows from them.

  Raises:
    NotImplementedError: If it takes or returns a function.
  """
  _refuse_functions(computation)
  block = _reduce(computation)
  parameter_name = parameter_type = None
  if isinstance(block, tff.framework.Lambda):
    parameter_name, parameter_type = block.parameter_name, block.parameter_type
    block = block.result
  elif isinstance(block.type_signature, tff.FunctionType):
    # A TensorFlow computation by itself.
    parameter_type = block.type_signature.parameter
    argument = None
    if parameter_type is not None:
      parameter_name = 'argument'
      argument = tff.framework.Reference(parameter_name, parameter_type)
    block = tff.framework.Call(block, argument)
  bindings: list[tuple[str, _Block]] = []
  result = block
  if isinstance(block, tff.framework.Block):
    bindings, result = list(block.locals), block.result
  if isinstance(result, tff.framework.Call):
    bindings.append(('result', result))
    result = tff.framework.Reference('result', result.type_signature)

  stages = [Stage()]
  stage_of: dict[str, int] = {}
  types: dict[str, tff.Type] = {}
  per_client: set[str] = set()

  def list_used(block: _Block) -> list[str]:
    """Lists the results that occur in `block`."""
    return [name for name, _ in references(block) if name in types]

  def find_parts(block: _Block) -> set[int]:
    return used_parts(block, parameter_name, parameter_type)

  def note(names: list[str], stage: int, by_client: bool) -> None:
    """Notes that a block of `stage` uses the results called `names`."""
    for name in names:
      if name in per_client:
        earlier = stages[stage_of[name]]
        if stage_of[name] < stage and name not in earlier.keep:
          earlier.keep.append(name)
      elif by_client and name not in stages[stage].reads:
        stages[stage].reads.append(name)

  for name, block in bindings:
    names = list_used(block)
    stage = max((stage_of[used] for used in names), default=0)
    is_aggregation = (
      isinstance(block.function, tff.framework.Intrinsic)
      and block.function.uri == 'federated_aggregate'
    )
    is_clients = values.is_per_client(block.type_signature)
    note(names, stage, is_aggregation or is_clients)
    if is_aggregation or is_clients:
      arguments = stages[stage].arguments
      arguments.extend(find_parts(block).difference(arguments))
    if is_aggregation:
      stages[stage].aggregations.append(
        Aggregation(name, *_arguments(block.argument))
      )
      stage += 1
      if stage == len(stages):
        stages.append(Stage())
    elif is_clients:
      per_client.add(name)
      stages[stage].clients.append((name, block))
    else:
      stages[stage].server.append((name, block))
    stage_of[name] = stage
    types[name] = values.member(block.type_signature)
  note(list_used(result), len(stages), False)
  return LoweredComputation(
    parameter_name,
    parameter_type,
    stages,
    types,
    result,
    sorted(find_parts(result)),
    computation.type_signature.result,
  )
