"""Any TFF computation as alternating work of the server and of the clients.

TFF compiles a federated computation to a flat list of calls of a few
intrinsics. Sorted by where they run and by how many aggregations they wait
for, these become stages:

  server work, work of each client, aggregation; server work, ...

A stage's client work is one function of one client. Whoever executes the plan
may run it for one client after another, for several at once, or for a whole
cohort stacked.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.environments.tensorflow_backend import (
  tensorflow_tree_transformations,
)

from runtimes import tensorflow_blocks
from runtimes import values

_Block = tff.framework.ComputationBuildingBlock
Struct = tff.structure.Struct
# Names to values: tensors in structs, or functions of such.
Environment = Mapping[str, Any]

# What a federated computation may call after TFF's own reductions. All of these
# but the aggregation and the two that call a function are, for one party, the
# identity: where a value lives is what they are about.
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


def _sequence_dataset(sequence: tf.Tensor, type_spec: tff.SequenceType):
  return tf.data.experimental.from_variant(
    sequence, values.element_structure(type_spec.element)
  )


def _from_element(element: Any, type_spec: tff.Type) -> Any:
  return values.unflatten(values.flatten(element, type_spec), type_spec)


def _sequence_map(type_spec: tff.FunctionType) -> Callable[[Any], Any]:
  sequence_type = type_spec.parameter[1]

  def call(argument: Any) -> tf.Tensor:
    function, sequence = argument
    result = _sequence_dataset(sequence, sequence_type).map(
      lambda *parts: tff.types.type_to_py_container(
        function(_from_element(_joined(parts), sequence_type.element)),
        type_spec.result.element,
      )
    )
    return tf.data.experimental.to_variant(result)

  return call


def _joined(parts: tuple[Any, ...]) -> Any:
  """`Dataset.map` spreads an element that is a tuple over its arguments."""
  return parts[0] if len(parts) == 1 else parts


def _sequence_reduce(type_spec: tff.FunctionType) -> Callable[[Any], Any]:
  sequence_type, state_type = type_spec.parameter[0], type_spec.parameter[1]

  def call(argument: Any) -> Any:
    sequence, zero, function = argument

    def step(state: list[Any], element: Any) -> list[Any]:
      result = function(
        Struct(
          [
            (None, values.unflatten(state, state_type)),
            (None, _from_element(element, sequence_type.element)),
          ]
        )
      )
      return tuple(values.flatten(result, state_type))

    state = _sequence_dataset(sequence, sequence_type).reduce(
      tuple(values.flatten(zero, state_type)), step
    )
    return values.unflatten(state, state_type)

  return call


def _sequence_sum(type_spec: tff.FunctionType) -> Callable[[Any], Any]:
  element_type = type_spec.parameter.element

  def call(sequence: tf.Tensor) -> Any:
    zero = [tf.zeros(s.shape, s.dtype) for s in values.leaf_specs(element_type)]
    total = _sequence_dataset(sequence, type_spec.parameter).reduce(
      tuple(zero),
      lambda total, element: tuple(
        t + e for t, e in zip(total, values.flatten(element, element_type))
      ),
    )
    return values.unflatten(total, element_type)

  return call


def _federated_select(type_spec: tff.FunctionType) -> Callable[[Any], Any]:
  """What each client asked for with its keys, as a sequence."""

  def call(argument: Any) -> tf.Tensor:
    keys, _, server_value, select = argument
    result = tf.data.Dataset.from_tensor_slices(keys).map(
      lambda key: tff.types.type_to_py_container(
        select(Struct([(None, server_value), (None, key)])),
        type_spec.result.member.element,
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


def _intrinsic(block: tff.framework.Intrinsic) -> Callable[[Any], Any]:
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


def evaluate(block: _Block, environment: Environment) -> Any:
  """The value of `block` for one party, in the graph that is being built."""
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

      def function(*argument: Any) -> Any:
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
  """`tff.federated_aggregate`: its arguments, and the name of its result."""

  name: str
  value: _Block
  zero: _Block
  accumulate: _Block
  merge: _Block
  report: _Block

  @property
  def partial_type(self) -> tff.Type:
    return self.merge.type_signature.result


@dataclasses.dataclass
class Stage:
  """What runs after a given number of dependent aggregations.

  Attributes:
    server: What the server computes, before its clients.
    clients: What each client then computes.
    aggregations: What is aggregated over the clients at the end.
    reads: What the clients, and the aggregations, read of the server's results.
    keep: The clients' results that later stages, or the caller, need.
  """

  server: list[tuple[str, _Block]] = dataclasses.field(default_factory=list)
  clients: list[tuple[str, _Block]] = dataclasses.field(default_factory=list)
  aggregations: list[Aggregation] = dataclasses.field(default_factory=list)
  reads: list[str] = dataclasses.field(default_factory=list)
  keep: list[str] = dataclasses.field(default_factory=list)

  @property
  def is_federated(self) -> bool:
    """Whether the clients have anything to do."""
    return bool(self.aggregations or self.keep)

  def run_server(self, environment: Environment) -> dict[str, Any]:
    """The environment of the server, with this stage's results."""
    environment = dict(environment)
    for name, block in self.server:
      environment[name] = evaluate(block, environment)
    return environment

  def run_client(
    self, environment: Environment
  ) -> tuple[dict[str, Any], list[Any]]:
    """One client's kept results and its parts of the aggregates."""
    environment = dict(environment)
    for name, block in self.clients:
      environment[name] = evaluate(block, environment)
    parts = []
    for aggregation in self.aggregations:
      arguments = Struct(
        [
          (None, evaluate(aggregation.zero, environment)),
          (None, evaluate(aggregation.value, environment)),
        ]
      )
      parts.append(evaluate(aggregation.accumulate, environment)(arguments))
    return {name: environment[name] for name in self.keep}, parts


@dataclasses.dataclass
class Plan:
  """A TFF computation, lowered.

  Attributes:
    parameter_name: What the stages call the argument; None if there is none.
    parameter_type: The argument's type.
    stages: The stages, in order.
    types: The type, for one party, of each result of a stage.
    result: The result, from the environment after the last stage.
    result_type: The result's type, with the Python containers to give it in.
  """

  parameter_name: str | None
  parameter_type: tff.Type | None
  stages: list[Stage]
  types: dict[str, tff.Type]
  result: _Block
  result_type: tff.Type


def _arguments(call: tff.framework.Call) -> list[_Block]:
  if isinstance(call.argument, tff.framework.Struct):
    return [block for _, block in tff.structure.iter_elements(call.argument)]
  return [
    tff.framework.Selection(call.argument, index=index)
    for index in range(len(call.argument.type_signature))
  ]


def _reduced(computation: tff.framework.ConcreteComputation) -> _Block:
  """`computation` in call-dominant form, with TFF's few basic intrinsics."""
  # A simulation protects nothing from itself: a secure sum is a sum.
  block = tff.backends.test.replace_secure_intrinsics_with_bodies(
    computation
  ).to_building_block()
  block, _ = tensorflow_tree_transformations.replace_intrinsics_with_bodies(
    block
  )
  return tff.framework.to_call_dominant(block)


def lower(computation: tff.framework.ConcreteComputation) -> Plan:
  """Sorts what `computation` calls into stages."""
  block = _reduced(computation)
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
  bindings, result = [], block
  if isinstance(block, tff.framework.Block):
    bindings, result = list(block.locals), block.result
  if isinstance(result, tff.framework.Call):
    bindings.append(('result', result))
    result = tff.framework.Reference('result', result.type_signature)

  stages = [Stage()]
  stage_of = {parameter_name: 0}
  types, per_client = {}, set()

  def uses(block: _Block) -> list[str]:
    names = []

    def visit(inner: _Block) -> tuple[_Block, bool]:
      if isinstance(inner, tff.framework.Reference) and inner.name in types:
        names.append(inner.name)
      return inner, False

    tff.framework.transform_postorder(block, visit)
    return names

  def note(names: list[str], stage: int, by_client: bool) -> None:
    """Notes that something in `stage` uses the results called `names`."""
    for name in names:
      if name in per_client:
        earlier = stages[stage_of[name]]
        if stage_of[name] < stage and name not in earlier.keep:
          earlier.keep.append(name)
      elif by_client and name not in stages[stage].reads:
        stages[stage].reads.append(name)

  for name, block in bindings:
    names = uses(block)
    stage = max((stage_of[used] for used in names), default=0)
    is_aggregation = (
      isinstance(block.function, tff.framework.Intrinsic)
      and block.function.uri == 'federated_aggregate'
    )
    is_clients = values.is_per_client(block.type_signature)
    note(names, stage, is_aggregation or is_clients)
    if is_aggregation:
      stages[stage].aggregations.append(Aggregation(name, *_arguments(block)))
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
  note(uses(result), len(stages), False)
  return Plan(
    parameter_name,
    parameter_type,
    stages,
    types,
    result,
    computation.type_signature.result,
  )
