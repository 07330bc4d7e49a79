"""TFF's serialized TensorFlow blocks as functions to be called in a graph."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import functools
import itertools
import weakref

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_runtimes import aliases
from tff_runtimes import interpreting
from tff_runtimes import operations
from tff_runtimes import private_api
from tff_runtimes import reductions
from tff_runtimes import values

# Numbers the calls of blocks, for the names of their resources.
_call_count = itertools.count()

# The collection of a graph's nodes that run even if their results are unused.
_ALWAYS_RUN = 'always_run'

_ANONYMOUS_TABLES = {
  'HashTableV2': 'AnonymousHashTable',
  'MutableDenseHashTableV2': 'AnonymousMutableDenseHashTable',
  'MutableHashTableOfTensorsV2': 'AnonymousMutableHashTableOfTensors',
  'MutableHashTableV2': 'AnonymousMutableHashTable',
}


def _tensor_names(binding: private_api.Binding) -> Iterator[str]:
  """Yields the names of a block's parameter or result tensors, depth first."""
  kind = binding.WhichOneof('binding')
  if kind == 'struct':
    for element in binding.struct.element:
      yield from _tensor_names(element)
  elif kind == 'sequence':
    yield binding.sequence.variant_tensor_name
  elif kind == 'tensor':
    yield binding.tensor.tensor_name


def _node(name: str) -> str:
  """Returns the name of the node of a tensor or a control input."""
  return name.lstrip('^').split(':')[0]


def _needed(graph_def: tf.compat.v1.GraphDef, names: Iterable[str]) -> set[str]:
  """Returns the nodes of `names`, and all nodes that they depend on."""
  nodes = {node.name: node for node in graph_def.node}
  needed, pending = set(), [_node(name) for name in names]
  while pending:
    name = pending.pop()
    if name not in needed:
      needed.add(name)
      pending.extend(_node(source) for source in nodes[name].input)
  return needed


def _keep(graph_def: tf.compat.v1.GraphDef, names: set[str]) -> None:
  """Removes all nodes but those called `names`."""
  kept = [node for node in graph_def.node if node.name in names]
  del graph_def.node[:]
  graph_def.node.extend(kept)


def _initialize_first(
  graph_def: tf.compat.v1.GraphDef, initialize_op: str
) -> None:
  """Makes all other nodes wait until the variables are initialized."""
  initializing = _needed(graph_def, [initialize_op])
  for node in graph_def.node:
    if node.name not in initializing and node.op != 'Placeholder':
      node.input.append(f'^{_node(initialize_op)}')


def _add_functions(
  graph_def: tf.compat.v1.GraphDef,
  functions: Mapping[str, tf.types.experimental.ConcreteFunction],
) -> None:
  """Adds the functions of `graph_def` to the graph that is being built.

  They have new names, as that graph has the functions of many blocks.

  Args:
    graph_def: The graph, whose nodes then call the functions by the new names.
    functions: The functions, as loaded, by the names in `graph_def`.
  """
  graph = tf.compat.v1.get_default_graph()
  names = {}
  for name, function in functions.items():
    function.add_to_graph(graph)
    names[name] = tf.compat.as_str(function.name)
  for node in graph_def.node:
    node.op = names.get(node.op, node.op)
    for attribute in node.attr.values():
      for called in (attribute.func, *attribute.list.func):
        if called.name in names:
          called.name = names[called.name]
  graph_def.ClearField('library')


def _detach_placeholders(graph_def: tf.compat.v1.GraphDef) -> None:
  """Turns placeholders into constants that no other node waits for.

  When the graph is imported, the arguments replace the placeholders, but the
  placeholders stay. XLA refuses a graph with placeholders, and TensorFlow would
  wait forever for the value of one that is a control input.

  Args:
    graph_def: The graph, which is changed.
  """
  waits = set()
  for node in graph_def.node:
    if node.op == 'Placeholder':
      waits.add(f'^{node.name}')
      dtype = tf.as_dtype(node.attr['dtype'].type)
      if dtype.is_numpy_compatible:
        node.op = 'Const'
        node.attr.pop('shape', None)
        zero = '' if dtype == tf.string else np.zeros([], dtype.as_numpy_dtype)
        node.attr['value'].tensor.CopyFrom(tf.make_tensor_proto(zero, dtype))
  for node in graph_def.node:
    if waits.intersection(node.input):
      kept = [source for source in node.input if source not in waits]
      del node.input[:]
      node.input.extend(kept)


def _isolate_state(graph_def: tf.compat.v1.GraphDef) -> list[str]:
  """Makes each run of a graph begin with new variables and tables.

  By default variables and tables live as long as the process and are found by
  their names. Anonymous ones are new in each run. Resources that have no
  anonymous form get a name that no other call uses.

  Args:
    graph_def: The graph, which is changed.

  Returns:
    The names of the nodes that make a variable, as TensorFlow does not delete
    variables by itself.
  """
  suffix = f'_call{next(_call_count)}'
  variables = []
  for count, node in enumerate(graph_def.node):
    if node.op == 'VarHandleOp':
      node.attr['shared_name'].s = operations.ANONYMOUS_VARIABLE
      variables.append(node.name)
    elif node.op in _ANONYMOUS_TABLES:
      node.op = _ANONYMOUS_TABLES[node.op]
      for attribute in ('container', 'shared_name', 'use_node_name_sharing'):
        node.attr.pop(attribute, None)
    elif 'shared_name' in node.attr:
      name = node.attr['shared_name'].s.decode() or f'unnamed{count}'
      node.attr['shared_name'].s = (name + suffix).encode()
  return variables


# Attributes that ask for one device, or for compilation by XLA.
_PLACEMENT_ATTRIBUTES = (
  '_class',
  '_XlaMustCompile',
  '_XlaCompile',
  '_XlaScope',
)


def _clear_placement(graph_def: tf.compat.v1.GraphDef) -> None:
  """Removes the attributes of a graph that say how to run it.

  Nodes that ask to be on the same device as another may be without it here.
  TFF's own runtime compiles nothing, and compiled work may differ: it draws
  other numbers from a seed, and checks no indices.

  Args:
    graph_def: The graph, which is changed.
  """
  holders: list[tf.compat.v1.NodeDef | private_api.FunctionDef] = [
    *graph_def.node
  ]
  for function in graph_def.library.function:
    holders.append(function)
    holders.extend(function.node_def)
  for holder in holders:
    for wish in _PLACEMENT_ATTRIBUTES:
      holder.attr.pop(wish, None)


# The functions of blocks, for as long as these live: the pieces of a
# computation have blocks in common, and to load one takes long.
_callables: weakref.WeakKeyDictionary[
  tff.framework.CompiledComputation, Callable[..., aliases.BlockValue]
] = weakref.WeakKeyDictionary()


def to_callable(
  block: tff.framework.CompiledComputation,
) -> Callable[..., aliases.BlockValue]:
  """Makes a function that puts `block` into the graph that is being built.

  Args:
    block: The TensorFlow block of a TFF computation.

  Returns:
    A function from the block's argument, if it has one, to its result; structs
    are `tff.structure.Struct`, sequences are variant tensors.

  Raises:
    NotImplementedError: If the block is not a TensorFlow block.
  """
  made = _callables.get(block)
  if made is None:
    made = _callables[block] = _make_callable(block)
  return made


def _make_callable(
  block: tff.framework.CompiledComputation,
) -> Callable[..., aliases.BlockValue]:
  """Makes the function of a block; see `to_callable`."""
  kind = block.proto.WhichOneof('computation')
  if kind != 'tensorflow':
    raise NotImplementedError(
      f'The cohort runtime runs TensorFlow blocks, not {kind} blocks; use'
      ' the native runtime for this computation.'
    )
  proto = block.proto.tensorflow
  graph_def = tf.compat.v1.GraphDef()
  if not proto.graph_def.Unpack(graph_def):
    raise ValueError('A TensorFlow block has no graph.')
  type_spec = block.type_signature
  parameter_names = list(_tensor_names(proto.parameter))
  result_names = list(_tensor_names(proto.result))
  session_token = proto.session_token_tensor_name

  wanted = [*result_names]
  if proto.initialize_op:
    wanted.append(proto.initialize_op)
  needed = _needed(graph_def, wanted)
  _keep(graph_def, needed.union(map(_node, parameter_names)))
  if proto.initialize_op:
    _initialize_first(graph_def, proto.initialize_op)
  plain = tf.compat.v1.GraphDef()
  plain.CopyFrom(graph_def)
  _detach_placeholders(graph_def)
  _clear_placement(graph_def)
  reductions.make_loops(graph_def)
  # Calls share the functions of a block, unless these may have variables or
  # tables.
  functions: Mapping[str, tf.types.experimental.ConcreteFunction] | None = None
  if not operations.are_stateful(graph_def.library.function):
    functions = private_api.load_functions(graph_def.library)
    graph_def.ClearField('library')

  @functools.cache
  def interpretable() -> tuple[interpreting.Library, interpreting.Graph]:
    return (
      interpreting.Library(plain.library.function),
      interpreting.make_graph(plain.node, parameter_names, result_names),
    )

  def call(argument: aliases.BlockValue = None) -> aliases.BlockValue:
    if interpreting.is_on():
      leaves = []
      if type_spec.parameter is not None:
        leaves = values.flatten(argument, type_spec.parameter)
      library, own_graph = interpretable()
      results = interpreting.Interpreter(library).run(own_graph, leaves)
      return values.unflatten(results, type_spec.result)
    own_graph_def = tf.compat.v1.GraphDef()
    own_graph_def.CopyFrom(graph_def)
    variables = _isolate_state(own_graph_def)
    own_functions = functions
    if own_functions is None:
      own_functions = private_api.load_functions(own_graph_def.library)
      own_graph_def.ClearField('library')
    _add_functions(own_graph_def, own_functions)
    input_map = {}
    if type_spec.parameter is not None:
      leaves = values.flatten(argument, type_spec.parameter)
      # The identity captures tensors from outside of the graph.
      leaves = [tf.identity(leaf) for leaf in leaves]
      input_map = dict(zip(parameter_names, leaves, strict=True))
    if _node(session_token) in needed:
      input_map[session_token] = tf.constant('')
    results = tf.graph_util.import_graph_def(
      own_graph_def,
      input_map,
      [*result_names, *(f'{name}:0' for name in variables)],
      name='block',
    )
    results, handles = (
      results[: len(result_names)],
      results[len(result_names) :],
    )
    with tf.control_dependencies(results):
      deleted = [tf.raw_ops.DestroyResourceOp(resource=h) for h in handles]
    graph = tf.compat.v1.get_default_graph()
    for node in (*results, *deleted):
      graph.add_to_collection(_ALWAYS_RUN, node)
    return values.unflatten(results, type_spec.result)

  return call


def wait_for_all(leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Makes tensors wait for all blocks in the graph that is being built.

  Otherwise blocks whose results are unused would not run. But each may raise an
  error, and has variables to delete.

  Args:
    leaves: The results of the graph.

  Returns:
    The same tensors; at least one.
  """
  graph = tf.compat.v1.get_default_graph()
  # The graph of a function shares the collections of the graph around it.
  nodes = [
    node for node in graph.get_collection(_ALWAYS_RUN) if node.graph is graph
  ]
  with tf.control_dependencies(nodes):
    return [tf.identity(leaf) for leaf in leaves or [tf.constant(0)]]
