"""Turns reductions of data sets in a loaded graph into loops.

TensorFlow's operation `ReduceDataset` prepares its function, and all functions
that this calls, each time that it runs: for a client of `tff.learning` this
takes longer than the client's training. A loop over an iterator has its
functions prepared once, with the graph around it:

  optional = next(iterator)
  while optional has a value:
    state = function(state, value of optional)
    optional = next(iterator)

Elements and states are computed in the same order as by the operation, errors
are those of the data set and of the function, and without elements the state is
the initial one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import tensorflow as tf

from tff_runtimes import operations
from tff_runtimes import private_api

_OPTIONAL = tf.variant.as_datatype_enum
_ITERATOR = tf.resource.as_datatype_enum
# Their seeds live as long as the process for an iterator, and for a reduction
# as long as this runs.
_SHUFFLE_ANEW = frozenset(['ShuffleAndRepeatDataset', 'ShuffleDataset'])
# Types of tensors, as numbers of the format of graphs.
_Types = Sequence[int]


def _names(prefix: str, count: int) -> list[str]:
  return [f'{prefix}{i}' for i in range(count)]


def _add_node(
  function: private_api.FunctionDef,
  name: str,
  op: str,
  inputs: Sequence[str],
  types: Mapping[str, _Types] | None = None,
  functions: Mapping[str, private_api.Called] | None = None,
) -> None:
  """Adds a node to a function.

  Args:
    function: The function.
    name: The node's name.
    op: Its operation.
    inputs: Its inputs.
    types: Its attributes that are lists of types. Where the operation asks for
      the shapes of outputs, too, they are left open: the data set has them.
    functions: Its attributes that are functions.
  """
  node = function.node_def.add(name=name, op=op, input=inputs)
  for key, dtypes in (types or {}).items():
    node.attr[key].list.type.extend(dtypes)
    if key == 'output_types':
      for _ in dtypes:
        node.attr['output_shapes'].list.shape.add(unknown_rank=True)
  for key, called in (functions or {}).items():
    node.attr[key].func.CopyFrom(called)


def _new_function(name: str, arguments: _Types) -> private_api.FunctionDef:
  """Makes a function without nodes, with arguments of some types."""
  function = private_api.FunctionDef()
  function.signature.name = name
  function.signature.is_stateful = True
  for argument, dtype in zip(_names('argument', len(arguments)), arguments):
    function.signature.input_arg.add(name=argument, type=dtype)
  return function


def _return(
  function: private_api.FunctionDef,
  outputs: Sequence[str],
  types: _Types,
  last: str,
) -> None:
  """Has a function return some outputs of its nodes, when it has ended.

  Args:
    function: The function.
    outputs: The outputs.
    types: Their types.
    last: The node with which the function ends. Who waits for a call without
      reading its results, but variables, would not wait otherwise.
  """
  for name, output, dtype in zip(
    _names('result', len(outputs)), outputs, types
  ):
    function.signature.output_arg.add(name=name, type=dtype)
    function.ret[name] = output
  function.signature.control_output.append(last)
  function.control_ret[last] = last


def _make_loop(
  name: str, reduction: operations.Node, step: private_api.FunctionDef
) -> list[private_api.FunctionDef]:
  """Makes a function that does a reduction, and the functions of its loop.

  Args:
    name: The name of the function, with which the names of the others begin.
    reduction: The reduction. The function has the same inputs and outputs.
    step: What makes a state out of a state and an element.
  """
  states = list(reduction.attr['Tstate'].list.type)
  captured = list(reduction.attr['Targuments'].list.type)
  taken = [argument.type for argument in step.signature.input_arg]
  elements = taken[len(states) : len(taken) - len(captured)]
  variables = [*states, _OPTIONAL, _ITERATOR, *captured]
  names = _names('argument', len(variables))
  optional, iterator = names[len(states) : len(states) + 2]

  condition = _new_function(f'{name}_condition', variables)
  _add_node(condition, 'has', 'OptionalHasValue', [optional])
  _return(condition, ['has:has_value:0'], [tf.bool.as_datatype_enum], 'has')

  body = _new_function(f'{name}_body', variables)
  _add_node(
    body, 'element', 'OptionalGetValue', [optional], {'output_types': elements}
  )
  _add_node(
    body,
    'step',
    'StatefulPartitionedCall',
    [
      *names[: len(states)],
      *(f'element:components:{i}' for i in range(len(elements))),
      *names[len(states) + 2 :],
      '^element',
    ],
    {'Tin': taken, 'Tout': states},
    {'f': reduction.attr['f'].func},
  )
  _add_node(
    body,
    'next',
    'IteratorGetNextAsOptional',
    [iterator, '^step'],
    {'output_types': elements},
  )
  _return(
    body,
    [
      *(f'step:output:{i}' for i in range(len(states))),
      'next:optional:0',
      *names[len(states) + 1 :],
    ],
    variables,
    'next',
  )

  loop = _new_function(name, [_OPTIONAL, *states, *captured])
  data_set, *others = _names('argument', 1 + len(states) + len(captured))
  types = {'output_types': elements}
  _add_node(loop, 'iterator', 'AnonymousIteratorV3', [], types)
  _add_node(loop, 'made', 'MakeIterator', [data_set, 'iterator:handle:0'])
  _add_node(
    loop,
    'first',
    'IteratorGetNextAsOptional',
    ['iterator:handle:0', '^made'],
    types,
  )
  _add_node(
    loop,
    'while',
    'While',
    [
      *others[: len(states)],
      'first:optional:0',
      'iterator:handle:0',
      *others[len(states) :],
    ],
    {'T': variables},
    {
      'cond': private_api.Called(name=condition.signature.name),
      'body': private_api.Called(name=body.signature.name),
    },
  )
  loop.node_def[-1].attr['_lower_using_switch_merge'].b = True
  _return(
    loop, [f'while:output:{i}' for i in range(len(states))], states, 'while'
  )
  return [condition, body, loop]


def _reachable(
  name: str, functions: Mapping[str, private_api.FunctionDef]
) -> Iterator[private_api.FunctionDef]:
  """Yields a function, and those that it calls."""
  pending, seen = [name], set()
  while pending:
    name = pending.pop()
    if name in functions and name not in seen:
      seen.add(name)
      yield functions[name]
      for node in functions[name].node_def:
        pending.append(node.op)
        for attribute in node.attr.values():
          for called in (attribute.func, *attribute.list.func):
            pending.append(called.name)


def _call(node: operations.Node, signature: private_api.OpDef) -> None:
  """Makes a node call a function."""
  node.op = 'StatefulPartitionedCall'
  node.attr.clear()
  node.attr['f'].func.name = signature.name
  node.attr['Tin'].list.type.extend(a.type for a in signature.input_arg)
  node.attr['Tout'].list.type.extend(a.type for a in signature.output_arg)


def _rename_outputs(
  function: private_api.FunctionDef, called: set[str]
) -> None:
  """Reads the outputs of nodes that became calls as those of calls."""

  def rename(source: str) -> str:
    name, *rest = source.split(':')
    return ':'.join([name, 'output', *rest[1:]]) if name in called else source

  for node in function.node_def:
    node.input[:] = map(rename, node.input)
  for result, source in list(function.ret.items()):
    function.ret[result] = rename(source)


def make_loops(graph_def: tf.compat.v1.GraphDef) -> None:
  """Turns the reductions of data sets in a graph into loops.

  Reductions stay as they are if each begins something anew that a loop would
  continue: the numbers of a function that are drawn from a seed, or the orders
  of a data set that the graph shuffles by an operation of TensorFlow 1.

  Args:
    graph_def: The graph, which is changed. Its nodes keep their names.
  """
  functions = {f.signature.name: f for f in graph_def.library.function}
  nodes = operations.all_nodes(graph_def)
  if any(node.op in _SHUFFLE_ANEW for node in nodes):
    return
  added: list[private_api.FunctionDef] = []

  def replace(nodes: Iterable[operations.Node]) -> set[str]:
    """Replaces the reductions among some nodes; returns their names."""
    replaced = set()
    for node in nodes:
      if node.op == 'ReduceDataset':
        step = functions[node.attr['f'].func.name]
        called = _reachable(step.signature.name, functions)
        if operations.find_state_of(f.node_def for f in called) is None:
          loop = _make_loop(f'{step.signature.name}_{len(added)}', node, step)
          added.extend(loop)
          _call(node, loop[-1].signature)
          replaced.add(node.name)
    return replaced

  replace(graph_def.node)
  for function in functions.values():
    _rename_outputs(function, replace(function.node_def))
  graph_def.library.function.extend(added)
