"""TFF's serialized TensorFlow blocks as functions to be called in a graph."""

from collections.abc import Callable, Iterable, Iterator
import itertools
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.saved_model import function_deserialization
import tensorflow_federated as tff

from runtimes import values

# Every call of a block that holds variables gets variables of its own.
_call_count = itertools.count()


def _tensor_names(binding: Any) -> Iterator[str]:
  """The names of a block's parameter or result tensors, depth first."""
  kind = binding.WhichOneof('binding')
  if kind == 'struct':
    for element in binding.struct.element:
      yield from _tensor_names(element)
  elif kind == 'sequence':
    yield binding.sequence.variant_tensor_name
  elif kind == 'tensor':
    yield binding.tensor.tensor_name


def _node(name: str) -> str:
  return name.lstrip('^').split(':')[0]


def _needed(graph_def: tf.compat.v1.GraphDef, names: Iterable[str]) -> set[str]:
  """The names of the nodes that `names` depend on, and their own."""
  nodes = {node.name: node for node in graph_def.node}
  needed, pending = set(), [_node(name) for name in names]
  while pending:
    name = pending.pop()
    if name not in needed:
      needed.add(name)
      pending.extend(_node(source) for source in nodes[name].input)
  return needed


def _keep(graph_def: tf.compat.v1.GraphDef, names: set[str]):
  """Removes all other nodes."""
  kept = [node for node in graph_def.node if node.name in names]
  del graph_def.node[:]
  graph_def.node.extend(kept)


def _initialize_first(graph_def: tf.compat.v1.GraphDef, initialize_op: str):
  """Makes all that does not initialize variables wait until they are there."""
  initializing = _needed(graph_def, [initialize_op])
  for node in graph_def.node:
    if node.name not in initializing and node.op != 'Placeholder':
      node.input.append(f'^{_node(initialize_op)}')


def _load_functions(graph_def: tf.compat.v1.GraphDef):
  """Moves the graph's functions into the graph that is being built.

  They get new names, as TensorFlow numbers the functions of each graph anew and
  here the graphs of many blocks meet; and what they call their variables and
  tables gets new names, too.
  """
  for function in graph_def.library.function:
    for node in function.node_def:
      # Nobody asks for a gradient here, and the loader would warn of it.
      node.attr.pop('_gradient_op_type', None)
  functions = function_deserialization.load_function_def_library(
    graph_def.library
  )
  names = {}
  for name, function in functions.items():
    function.add_to_graph(tf.compat.v1.get_default_graph())
    names[tf.compat.as_str(name)] = tf.compat.as_str(function.name)
  for node in graph_def.node:
    node.op = names.get(node.op, node.op)
    for attribute in node.attr.values():
      for called in (attribute.func, *attribute.list.func):
        if called.name in names:
          called.name = names[called.name]
  graph_def.ClearField('library')


def _detach_placeholders(graph_def: tf.compat.v1.GraphDef):
  """Makes placeholders, which the import leaves behind unread, harmless.

  XLA refuses a graph that has one, and TensorFlow one that waits for one.
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


def _own_resources(graph_def: tf.compat.v1.GraphDef):
  """Gives the graph's variables and tables names that no other call uses."""
  suffix = f'_call{next(_call_count)}'
  for count, node in enumerate(graph_def.node):
    if 'shared_name' in node.attr:
      name = node.attr['shared_name'].s.decode() or f'unnamed{count}'
      node.attr['shared_name'].s = (name + suffix).encode()


def to_callable(
  block: tff.framework.CompiledComputation,
) -> Callable[..., Any]:
  """A function that puts `block` into the graph that is being built.

  Args:
    block: The TensorFlow block of a TFF computation.

  Returns:
    A function from the block's argument, if it has one, to its result; structs
    are `tff.structure.Struct`, sequences are variant tensors.
  """
  kind = block.proto.WhichOneof('computation')
  if kind != 'tensorflow':
    raise NotImplementedError(
      f'The cohort runtime runs TensorFlow blocks, not {kind} blocks; use'
      ' the native runtime for this computation.'
    )
  proto = block.proto.tensorflow
  graph_def = tf.compat.v1.GraphDef()
  if not proto.graph_def.Unpack(graph_def):
    raise ValueError('A TensorFlow block without a graph.')
  type_spec = block.type_signature
  parameter_names = list(_tensor_names(proto.parameter))
  result_names = list(_tensor_names(proto.result))
  session_token = proto.session_token_tensor_name

  needed = [*result_names]
  if proto.initialize_op:
    needed.append(proto.initialize_op)
  needed = _needed(graph_def, needed)
  _keep(graph_def, needed.union(map(_node, parameter_names)))
  if proto.initialize_op:
    _initialize_first(graph_def, proto.initialize_op)
  _detach_placeholders(graph_def)

  def call(argument: Any = None) -> Any:
    own_graph_def = tf.compat.v1.GraphDef()
    own_graph_def.CopyFrom(graph_def)
    _own_resources(own_graph_def)
    _load_functions(own_graph_def)
    input_map = {}
    if type_spec.parameter is not None:
      leaves = values.flatten(argument, type_spec.parameter)
      # The identity brings in what is from outside the graph being built.
      leaves = [tf.identity(leaf) for leaf in leaves]
      input_map = dict(zip(parameter_names, leaves, strict=True))
    if _node(session_token) in needed:
      input_map[session_token] = tf.constant('')
    results = tf.graph_util.import_graph_def(
      own_graph_def, input_map, result_names, name='block'
    )
    return values.unflatten(results, type_spec.result)

  return call
