"""Evaluates a loaded graph node by node, so that XLA can compile it.

In the graphs of `tff.learning` a model has variables, and a client reads its
data set in a reduction. XLA compiles neither within a larger program. Here

- a variable is the tensor that was last assigned to it, which loops and
  branches pass on. What nobody reads, such as random weights that are replaced
  at once, is not computed;
- a data set is arrays (`sequences.Elements`), and a reduction a loop over them;
- where XLA does not raise an error that TensorFlow raises, or may lose NaN, a
  *guard* is computed: a truth that says whether both do the same. If a guard
  is false, what was computed must not be used.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
import contextlib
import contextvars
import dataclasses
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tff_runtimes import operations
from tff_runtimes import private_api
from tff_runtimes import sequences

# Whether the blocks of the graph that is being built are interpreted.
_IS_ON = contextvars.ContextVar('_IS_ON', default=False)
# The collection of the guards of a graph.
_GUARDS = 'guards'


class CannotInterpretError(Exception):
  """A graph has something that is not known here; the message says what."""


@contextlib.contextmanager
def switched(on: bool) -> Iterator[None]:
  """Has blocks interpreted, or not, in graphs that are built meanwhile."""
  token = _IS_ON.set(on)
  try:
    yield
  finally:
    _IS_ON.reset(token)


def is_on() -> bool:
  """Tells whether blocks are interpreted."""
  return _IS_ON.get()


class Variable:
  """A variable of TensorFlow."""


def _add_node(
  node: operations.Node, inputs: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
  """Adds a node like another to the graph that is being built."""
  # The shapes of its outputs follow from its inputs.
  attributes = {k: v for k, v in node.attr.items() if not k.startswith('_')}
  graph = tf.compat.v1.get_default_graph()
  operation = graph.create_op(
    node.op, list(inputs), name=node.name.split('/')[-1], attrs=attributes
  )
  return list(operation.outputs)


class _Node:
  """A node that is added to its graph when an output of it is needed."""

  def __init__(self, make: Callable[[], Sequence[tf.Tensor]]):
    self._graph = tf.compat.v1.get_default_graph()
    self._make = make
    self._outputs: Sequence[tf.Tensor] | None = None

  def output(self, k: int) -> tf.Tensor:
    if self._outputs is None:
      with self._graph.as_default(), tf.control_dependencies(None):
        self._outputs = self._make()
    return self._outputs[k]


class _EmptyList(_Node):
  """An empty list of tensors.

  Attributes:
    limit: How many it can have; None for as many as the operation says.
  """

  def __init__(self, node: operations.Node, inputs: Sequence['_Value']):
    self.limit: int | None = None

    def make() -> Sequence[tf.Tensor]:
      shape, limit = map(_tensor, inputs)
      if self.limit is not None:
        limit = tf.constant(self.limit)
      return _add_node(node, [shape, limit])

    super().__init__(make)


@dataclasses.dataclass(frozen=True)
class _Output:
  """An output of a node that may not be in its graph yet."""

  node: _Node
  place: int


@dataclasses.dataclass(frozen=True, eq=False)
class _SameList:
  """A list of tensors of the same known value, such as a shape.

  XLA has to know shapes, and does not know what is in a list.
  """

  value: np.ndarray


_Value: TypeAlias = (
  tf.Tensor | _Output | _SameList | Variable | sequences.Elements
)


def guard(condition: tf.Tensor) -> None:
  """Adds a guard to the graph that is being built."""
  tf.compat.v1.get_default_graph().add_to_collection(_GUARDS, condition)


def own_guards() -> list[tf.Tensor]:
  """Lists the guards of the graph that is being built."""
  graph = tf.compat.v1.get_default_graph()
  # The graph of a function shares the collections of the graph around it.
  return [node for node in graph.get_collection(_GUARDS) if node.graph is graph]


def guards() -> tf.Tensor:
  """Returns whether all guards of the graph that is being built are true."""
  own = own_guards()
  return tf.reduce_all(tf.stack(own)) if own else tf.constant(True)


def _tensor(value: _Value) -> tf.Tensor:
  if isinstance(value, _Output):
    return value.node.output(value.place)
  if not isinstance(value, tf.Tensor):
    raise CannotInterpretError(f'a {type(value).__name__} is used as a tensor')
  return value


def _is_finite(x: tf.Tensor) -> tf.Tensor:
  if not x.dtype.is_floating:
    return tf.constant(True)
  # One sum is faster than a test of each number.
  return tf.math.is_finite(tf.reduce_sum(x * 0))


def _is_within(indices: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
  size = tf.cast(size, indices.dtype)
  return tf.reduce_all((indices >= 0) & (indices < size))


def _guard_gather(
  _: operations.Node, x: tf.Tensor, indices: tf.Tensor, *axis: tf.Tensor
) -> tf.Tensor:
  place = tf.get_static_value(axis[0]) if axis else 0
  if place is None:
    raise CannotInterpretError('an axis is not fixed')
  return _is_within(indices, tf.shape(x)[int(place)])


def _guard_cast(node: operations.Node, x: tf.Tensor) -> tf.Tensor:
  """Tells whether a float is not too large for an integer, and not NaN."""
  dtype = tf.as_dtype(node.attr['DstT'].type)
  if not (x.dtype.is_floating and dtype.is_integer):
    return tf.constant(True)
  # Less than the largest, as this may not be a float.
  return tf.reduce_all(tf.abs(x) < tf.cast(dtype.max // 2 + 1, x.dtype))


# The guards of operations, as functions of the node and its inputs.
_GUARD_OF: dict[str, Callable[..., tf.Tensor]] = {
  **dict.fromkeys(
    operations.MAY_LOSE_NAN,
    lambda _, *xs: tf.reduce_all([_is_finite(x) for x in xs]),
  ),
  **dict.fromkeys(
    operations.DIVISIONS,
    lambda _, x, y: tf.reduce_all(tf.not_equal(y, tf.zeros([], y.dtype))),
  ),
  'Cast': _guard_cast,
  'GatherV2': _guard_gather,
  # Other powers may overflow, or have no real value.
  'Pow': lambda _, x, y: tf.reduce_all((x > 0) & (x <= 1)) & _is_finite(y),
  'Slice': lambda _, x, begin, size: tf.reduce_all(
    (begin >= 0) & (begin + size <= tf.shape(x, begin.dtype))
  ),
  'SparseSoftmaxCrossEntropyWithLogits': lambda _, logits, labels: _is_within(
    labels, tf.shape(logits)[1]
  ),
  'UnsortedSegmentSum': lambda _, x, ids, size: tf.reduce_all(
    ids < tf.cast(size, ids.dtype)
  ),
}


@dataclasses.dataclass(frozen=True)
class Graph:
  """A graph, or the body of a function, that can be evaluated.

  Attributes:
    nodes: Its nodes, each after those that it waits for.
    arguments: The names of the nodes that its arguments replace.
    results: The names of its results: nodes, with the place of the output.
  """

  nodes: Sequence[operations.Node]
  arguments: Sequence[str]
  results: Sequence[str]


def _split(name: str) -> tuple[str, int]:
  """Splits the name of an output into the node and the place."""
  node, _, place = name.partition(':')
  return node, int(place or 0)


def make_graph(
  nodes: Iterable[operations.Node],
  arguments: Sequence[str],
  results: Sequence[str],
  effects: Iterable[str] = (),
) -> Graph:
  """Puts the nodes of a graph in order.

  Args:
    nodes: The nodes.
    arguments: The names of its arguments.
    results: The names of its results.
    effects: Nodes that are evaluated besides those that results need.
  """
  by_name = {node.name: node for node in nodes}
  arguments = [_split(name)[0] for name in arguments]
  ordered: list[operations.Node] = []
  seen = set(arguments)
  pending = [*effects, *(_split(name)[0] for name in results)]
  while pending:
    name = pending[-1]
    missing = [
      source
      for source, _ in map(
        _split, by_name[name].input if name not in seen else ()
      )
      if source.lstrip('^') not in seen
    ]
    if missing:
      pending.extend(source.lstrip('^') for source in missing)
    else:
      pending.pop()
      if name not in seen:
        seen.add(name)
        ordered.append(by_name[name])
  return Graph(ordered, arguments, results)


def _function_graph(function: private_api.FunctionDef) -> Graph:
  """Makes the graph of the body of a function."""
  # Nodes of a function have other names for the outputs of nodes.
  names = {
    name: f'{node.name}:{place}'
    for node in function.node_def
    for place, name in enumerate(operations.outputs(node))
  }
  nodes = []
  for node in function.node_def:
    renamed = operations.Node()
    renamed.CopyFrom(node)
    renamed.input[:] = [names.get(source, source) for source in node.input]
    nodes.append(renamed)
  signature = function.signature
  results = [function.ret[result.name] for result in signature.output_arg]
  return make_graph(
    nodes,
    [argument.name for argument in signature.input_arg],
    [names.get(result, result) for result in results],
    function.control_ret.values(),
  )


class Library:
  """The functions that a graph calls, as graphs."""

  def __init__(self, functions: Iterable[private_api.FunctionDef]):
    self._functions = {f.signature.name: f for f in functions}
    self._graphs: dict[str, Graph] = {}

  def __contains__(self, name: str) -> bool:
    return name in self._functions

  def graph(self, name: str) -> Graph:
    if name not in self._graphs:
      self._graphs[name] = _function_graph(self._functions[name])
    return self._graphs[name]


class Interpreter:
  """Evaluates a graph once."""

  def __init__(self, library: Library):
    self._library = library
    # What the variables are at this point.
    self._variables: dict[Variable, _Value] = {}
    # The lengths and the shapes of the elements of lists of tensors, where they
    # are known. Loops forget them.
    self._lists: dict[Hashable, tuple[int | None, tf.TensorShape]] = {}

  def run(self, graph: Graph, arguments: Sequence[_Value]) -> list[tf.Tensor]:
    """Evaluates a graph whose variables are its own.

    Args:
      graph: The graph.
      arguments: Its arguments.

    Returns:
      Its results.

    Raises:
      CannotInterpretError: If it does something that is not known here.
    """
    return list(map(_tensor, self._evaluate(graph, arguments)))

  @contextlib.contextmanager
  def _scope(self, variables: dict[Variable, _Value]) -> Iterator[None]:
    """Changes what the variables are, for a while."""
    before, self._variables = self._variables, variables
    try:
      yield
    finally:
      self._variables = before

  def _evaluate(
    self, graph: Graph, arguments: Sequence[_Value]
  ) -> list[_Value]:
    outputs: dict[str, Sequence[_Value]] = {
      name: [value]
      for name, value in zip(graph.arguments, arguments, strict=True)
    }
    for node in graph.nodes:
      inputs = [
        outputs[name][place]
        for name, place in map(_split, node.input)
        if not name.startswith('^')
      ]
      outputs[node.name] = self._outputs(node, inputs)
    return [outputs[name][place] for name, place in map(_split, graph.results)]

  def _call(self, name: str, arguments: Sequence[_Value]) -> list[_Value]:
    """Evaluates a function of the library."""
    return self._evaluate(self._library.graph(name), arguments)

  def _outputs(
    self, node: operations.Node, inputs: Sequence[_Value]
  ) -> Sequence[_Value]:
    """Returns the outputs of a node."""
    match node.op:
      case 'NoOp' | 'DestroyResourceOp':
        return []
      case 'Identity' | 'IdentityN':
        if not all(isinstance(value, (tf.Tensor, _Output)) for value in inputs):
          return inputs
      case 'EmptyTensorList':
        return [_Output(_EmptyList(node, inputs), 0)]
      case 'VarHandleOp':
        return [Variable()]
      case 'PartitionedCall' | 'StatefulPartitionedCall':
        return self._call(node.attr['f'].func.name, inputs)
      case 'If' | 'StatelessIf':
        return self._branch(node, inputs)
      case 'While' | 'StatelessWhile':
        return self._loop(node, inputs)
      case 'ReduceDataset':
        return self._reduce(node, inputs)
    if node.op == 'TensorListPopBack' and isinstance(inputs[0], _SameList):
      return [inputs[0], tf.constant(inputs[0].value)]
    if inputs and isinstance(inputs[0], Variable):
      return self._use_variable(node, inputs[0], inputs[1:])
    if node.op in self._library:
      return self._call(node.op, inputs)
    if 'Dataset' in node.op or any(
      isinstance(value, sequences.Elements) for value in inputs
    ):
      raise CannotInterpretError(
        f'{node.op} makes or changes a data set within the computation'
      )
    return self._add(node, inputs)

  def _use_variable(
    self, node: operations.Node, variable: Variable, inputs: Sequence[_Value]
  ) -> Sequence[_Value]:
    """Reads or changes a variable."""
    if node.op == 'VarIsInitializedOp':
      return [tf.constant(variable in self._variables)]
    if node.op == 'AssignVariableOp':
      self._variables[variable] = inputs[0]
      return []
    if variable not in self._variables:
      raise CannotInterpretError('a variable is read before it is assigned')
    value = self._variables[variable]
    if node.op == 'ReadVariableOp':
      return [value]
    change = _CHANGES.get(node.op)
    if change is not None:
      self._variables[variable] = _add_later(
        lambda: [change(_tensor(value), *map(_tensor, inputs))]
      )[0]
      return []
    if node.op == 'VariableShape':
      return _add_later(
        lambda: [
          tf.shape(_tensor(value), node.attr['out_type'].type or tf.int32)
        ]
      )
    if node.op == 'ResourceGather':
      return _add_later(lambda: [_gather(_tensor(value), _tensor(inputs[0]))])
    raise CannotInterpretError(
      f'{node.op} is not known for variables as values'
    )

  def _in_scope(
    self,
    variables: Sequence[Variable],
    values: Sequence[tf.Tensor],
    compute: Callable[[], Sequence[_Value]],
  ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
    """Computes something in a graph of its own.

    Args:
      variables: The variables that it may change.
      values: What they are before.
      compute: Computes it.

    Returns:
      Whether its guards are true; what the variables are then; and what was
      computed.
    """
    with self._scope(self._variables | dict(zip(variables, values))):
      results = list(map(_tensor, compute()))
      after = [_tensor(self._variables[variable]) for variable in variables]
    return guards(), after, results

  def _known(
    self, values: Sequence[_Value]
  ) -> tuple[list[Variable], list[tf.Tensor]]:
    """Returns the variables among values that were assigned, and their own."""
    variables = list(
      dict.fromkeys(v for v in values if isinstance(v, Variable))
    )
    if not all(variable in self._variables for variable in variables):
      raise CannotInterpretError(
        'a variable is assigned in a loop or branch first'
      )
    return variables, [_tensor(self._variables[v]) for v in variables]

  def _leave(
    self,
    is_same: tf.Tensor,
    variables: Sequence[Variable],
    values: Sequence[tf.Tensor],
  ) -> None:
    """Takes over what a graph of its own has computed."""
    guard(is_same)
    self._variables.update(zip(variables, values))

  def _branch(
    self, node: operations.Node, inputs: Sequence[_Value]
  ) -> Sequence[_Value]:
    condition, *arguments = inputs
    if _tensor(condition).dtype != tf.bool:
      raise CannotInterpretError('a condition is not a truth')
    variables, values = self._known(arguments)

    def run(
      name: str,
    ) -> Callable[[], tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]]:
      function = node.attr[name].func.name
      return lambda: self._in_scope(
        variables, values, lambda: self._call(function, arguments)
      )

    is_same, values, results = tf.cond(
      _tensor(condition), run('then_branch'), run('else_branch')
    )
    self._leave(is_same, variables, values)
    return results

  def _loop(
    self, node: operations.Node, inputs: Sequence[_Value]
  ) -> Sequence[_Value]:
    variables, values = self._known(inputs)
    is_passed = [isinstance(v, (tf.Tensor, _Output)) for v in inputs]
    places = [i for i, passed in enumerate(is_passed) if passed]
    limit, growing = self._limit_lists([inputs[i] for i in places])
    initial = [_tensor(inputs[i]) for i in places]
    same: dict[int, _SameList] = {}

    def merge(state: Sequence[tf.Tensor]) -> list[_Value]:
      merged = list(inputs)
      for i, tensor in zip(places, state):
        merged[i] = tensor
      return merged

    def condition(
      steps: tf.Tensor,
      is_same: tf.Tensor,
      values: list[tf.Tensor],
      state: list[tf.Tensor],
    ) -> tf.Tensor:
      del steps, is_same
      with self._scope(self._variables | dict(zip(variables, values))):
        (result,) = self._call(node.attr['cond'].func.name, merge(state))
        result = _tensor(result)
      if own_guards():
        raise CannotInterpretError('the condition of a loop needs a guard')
      return result

    def body(
      steps: tf.Tensor,
      is_same: tf.Tensor,
      values: list[tf.Tensor],
      state: list[tf.Tensor],
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
      self._pass_lists(initial, state)

      def compute() -> list[_Value]:
        results = self._call(node.attr['body'].func.name, merge(state))
        if any(
          result is not value
          for result, value, passed in zip(results, inputs, is_passed)
          if not passed
        ):
          raise CannotInterpretError('a loop changes which variables it uses')
        return [results[i] for i in places]

      own, after, results = self._in_scope(variables, values, compute)
      for i in growing:
        if (
          results[i].op.type != 'TensorListPushBack'
          or results[i].op.inputs[0] is not state[i]
        ):
          raise CannotInterpretError('a list does not grow in each step')
        self._lists[initial[i].ref()] = None, results[i].op.inputs[1].shape
        added = tf.get_static_value(results[i].op.inputs[1])
        if added is not None:
          same[places[i]] = _SameList(added)
      return (
        steps + 1,
        is_same & own,
        _like(after, values),
        _like(results, state),
      )

    steps, is_same, values, state = tf.while_loop(
      condition,
      body,
      (0, tf.constant(True), values, initial),
    )
    self._pass_lists(initial, state)
    if growing:
      guard(steps <= limit)
    self._leave(is_same, variables, values)
    return [same.get(i, value) for i, value in enumerate(merge(state))]

  def _follow_list(
    self,
    op: str,
    inputs: Sequence[tf.Tensor],
    outputs: list[tf.Tensor],
  ) -> None:
    """Takes note of what is known of lists, and makes use of it."""
    if op in ('AddN', 'Identity', 'ZerosLike'):
      self._pass_lists(inputs[:1], outputs)
    if not op.startswith('TensorList'):
      return
    length, shape = self._lists.get(inputs[0].ref(), (None, None))
    match op:
      case 'TensorListFromTensor':
        self._lists[outputs[0].ref()] = inputs[0].shape[0], inputs[0].shape[1:]
      case 'TensorListReserve':
        size = tf.get_static_value(inputs[1])
        if size is not None:
          self._lists[outputs[0].ref()] = int(size), tf.TensorShape(None)
      case 'TensorListGetItem' | 'TensorListSetItem':
        if length is None:
          raise CannotInterpretError('the length of a list is not known')
        guard(_is_within(inputs[1], tf.constant(length)))
        if op == 'TensorListGetItem':
          outputs[0].set_shape(shape)
        else:
          self._pass_lists(inputs[:1], outputs)
      case 'TensorListPopBack':
        outputs[1].set_shape(shape)
        self._pass_lists(inputs[:1], outputs[:1])
      case 'TensorListLength' if length is not None:
        outputs[0] = tf.constant(length)

  def _limit_lists(self, values: Sequence[_Value]) -> tuple[int, list[int]]:
    """Gives empty lists that grow in a loop the size that XLA has to know.

    TensorFlow keeps what the gradient of a loop needs in such lists. The loop
    of an LSTM takes as many steps as the lists have elements that it reads or
    sets.

    Args:
      values: The initial values of the variables of a loop.

    Returns:
      The size, and the places of the lists.
    """
    empty = {
      i: value.node
      for i, value in enumerate(values)
      if isinstance(value, _Output) and isinstance(value.node, _EmptyList)
    }
    lengths = [
      self._lists.get(_tensor(value).ref(), (None, None))[0] or 0
      for i, value in enumerate(values)
      if i not in empty
    ]
    limit = max(lengths, default=0)
    if empty and not limit:
      raise CannotInterpretError('the number of steps of a loop is not known')
    for node in empty.values():
      node.limit = limit
    return limit, list(empty)

  def _pass_lists(
    self, lists: Sequence[tf.Tensor], others: Sequence[tf.Tensor]
  ) -> None:
    for one, other in zip(lists, others, strict=True):
      if one.ref() in self._lists:
        self._lists[other.ref()] = self._lists[one.ref()]

  def _reduce(
    self, node: operations.Node, inputs: Sequence[_Value]
  ) -> Sequence[_Value]:
    elements, *others = inputs
    if not isinstance(elements, sequences.Elements):
      raise CannotInterpretError('a data set that all share is reduced')
    size = len(node.attr['Tstate'].list.type)
    captured = others[size:]
    variables, values = self._known(captured)
    function = node.attr['f'].func.name

    def body(
      i: tf.Tensor,
      is_same: tf.Tensor,
      values: list[tf.Tensor],
      state: list[tf.Tensor],
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
      def step(
        element: Sequence[tf.Tensor],
      ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        return self._in_scope(
          variables,
          values,
          lambda: self._call(function, [*state, *element, *captured]),
        )

      own, after, results = elements.use(i, step)
      return i + 1, is_same & own, _like(after, values), _like(results, state)

    _, is_same, values, state = tf.while_loop(
      lambda i, *_: i < elements.size,
      body,
      (0, tf.constant(True), values, list(map(_tensor, others[:size]))),
    )
    self._leave(is_same, variables, values)
    return state

  def _add(
    self, node: operations.Node, inputs: Sequence[_Value]
  ) -> list[_Value]:
    """Adds a node to the graph that is being built, when it is needed."""
    if operations.calls_functions(node):
      raise CannotInterpretError(f'{node.op} calls a function')
    if operations.has_effects(node):
      raise CannotInterpretError(f'{node.op} has state or other effects')

    def make() -> Sequence[tf.Tensor]:
      tensors = list(map(_tensor, inputs))
      if node.op in _GUARD_OF:
        guard(_GUARD_OF[node.op](node, *tensors))
      outputs = _add_node(node, tensors)
      self._follow_list(node.op, tensors, outputs)
      return outputs

    return _add_later(make, len(operations.outputs(node)))


def _like(
  tensors: list[tf.Tensor], others: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
  """Tells tensors the shapes that XLA asks of the variables of a loop."""
  for tensor, other in zip(tensors, others, strict=True):
    tensor.set_shape(other.shape)
  return tensors


def _add_later(
  make: Callable[[], Sequence[tf.Tensor]], size: int = 1
) -> list[_Value]:
  node = _Node(make)
  return [_Output(node, k) for k in range(size)]


def _gather(x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
  guard(_is_within(indices, tf.shape(x)[0]))
  return tf.gather(x, indices)


# How operations change a variable.
_CHANGES: dict[str, Callable[..., tf.Tensor]] = {
  'AssignAddVariableOp': tf.add,
  'AssignSubVariableOp': tf.subtract,
  'ResourceApplyGradientDescent': lambda value, rate, gradient: (
    value - rate * gradient
  ),
}
