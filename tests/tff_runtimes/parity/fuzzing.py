"""Random federated computations, to hold one runtime to another.

A `Plan` is plain data that hypothesis draws and shrinks. `build` makes a
computation of it, and `arguments` its argument. Operations that do not fit what
they are applied to are left out, so that each plan is a valid computation.
"""

import collections
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

from hypothesis import strategies as st
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

_FLOATS = ('float32', 'float64', 'float16')
_INTS = ('int32', 'int64', 'uint8')
_DTYPES = (*_FLOATS, *_INTS, 'bool')
_SHAPES = ((), (2,), (3,), (2, 3), (0,), (None,), (None, 2), (1, None))
# The numbers that replace an unknown dimension: one for all clients, or another
# for each.
_KINDS = ('ordinary', 'special', 'extreme', 'zero')


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A tensor in an argument."""

  dtype: str
  shape: tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class Rows:
  """A sequence in an argument."""

  element: Any


@dataclasses.dataclass(frozen=True)
class Fields:
  """A struct in an argument: with names, or a tuple."""

  children: tuple[Any, ...]
  names: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Step:
  """An operation on one or two of the tensors that there are already."""

  name: str
  first: int
  second: int


@dataclasses.dataclass(frozen=True)
class Stage:
  """Work of the clients, aggregations, and work of the server."""

  clients: tuple[Step, ...]
  aggregations: tuple[int, ...]
  server: tuple[Step, ...]
  reads_server: bool


@dataclasses.dataclass(frozen=True)
class Plan:
  """A computation and its argument.

  Attributes:
    client: The structure of each client's value.
    server: The structure of the server's value.
    stages: What is done, one after the other.
    results: Which of all values are results.
    size: The number of clients.
    kind: Which numbers the argument has.
    ragged: Whether unknown dimensions differ between clients.
    seed: What else the numbers depend on.
  """

  client: Any
  server: Any
  stages: tuple[Stage, ...]
  results: tuple[int, ...]
  size: int
  kind: str
  ragged: bool
  seed: int


def tff_type(node: Any) -> tff.Type:
  """Returns the type of values of a structure."""
  if isinstance(node, Leaf):
    return tff.TensorType(np.dtype(node.dtype).type, node.shape)
  if isinstance(node, Rows):
    return tff.SequenceType(tff_type(node.element))
  children = [tff_type(child) for child in node.children]
  if node.names is None:
    return tff.to_type(tuple(children))
  return tff.to_type(collections.OrderedDict(zip(node.names, children)))


_SPECIAL = {
  'ordinary': [0.5, -1.5, 2.0, 1.0, -0.5, 3.0],
  'special': [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.0],
  'extreme': [3e38, -3e38, 1e-30, -1e-30, 1e10, 1.0, -1.0],
  'zero': [0.0],
}


def _array(
  leaf: Leaf, kind: str, unknown: int, rng: np.random.Generator
) -> Any:
  """Makes an array of a leaf's type."""
  shape = tuple(unknown if size is None else size for size in leaf.shape)
  dtype = np.dtype(leaf.dtype)
  if dtype.kind == 'f':
    numbers = np.array(_SPECIAL[kind])
    limit = float(np.finfo(dtype).max)
    numbers = np.where(
      np.isfinite(numbers), np.clip(numbers, -limit, limit), numbers
    )
    return rng.choice(numbers, shape).astype(dtype)[()]
  if dtype.kind == 'b':
    return (rng.integers(0, 2, shape) * (kind != 'zero')).astype(dtype)[()]
  limits = np.iinfo(dtype)
  numbers = {
    'extreme': [limits.max, limits.min, 1, limits.max - 1],
    'zero': [0],
  }.get(kind, [0, 1, 2, 3, 5, 7])
  return rng.choice(np.array(numbers, dtype), shape)[()]


def _value(node: Any, kind: str, unknown: int, rng: np.random.Generator) -> Any:
  """Makes a value of a structure."""
  if isinstance(node, Leaf):
    return _array(node, kind, unknown, rng)
  if isinstance(node, Rows):
    rows = [_value(node.element, kind, 2, rng) for _ in range(unknown)]
    if not rows:
      empty = _value(node.element, kind, 2, rng)
      return tf.data.Dataset.from_tensors(empty).take(0)
    stacked = tf.nest.map_structure(lambda *leaves: np.stack(leaves), *rows)
    return tf.data.Dataset.from_tensor_slices(stacked)
  children = [_value(child, kind, unknown, rng) for child in node.children]
  if node.names is None:
    return tuple(children)
  return collections.OrderedDict(zip(node.names, children))


def arguments(plan: Plan) -> tuple[list[Any], Any]:
  """Makes the argument of a plan's computation."""
  rng = np.random.default_rng(plan.seed)
  sizes = rng.integers(0, 4, plan.size) if plan.ragged else [2] * plan.size
  clients = [_value(plan.client, plan.kind, int(n), rng) for n in sizes]
  return clients, _value(plan.server, plan.kind, 2, rng)


@dataclasses.dataclass(frozen=True)
class _Item:
  """A tensor, and whether runtimes may round it differently."""

  tensor: tf.Tensor
  exact: bool
  wild: bool


def _number(x: tf.Tensor) -> tf.Tensor:
  """Turns truth values into integers."""
  return tf.cast(x, tf.int32) if x.dtype == tf.bool else x


def _real(x: tf.Tensor) -> tf.Tensor:
  return x if x.dtype.is_floating else tf.cast(x, tf.float32)


def _flat(x: tf.Tensor) -> tf.Tensor:
  return tf.reshape(x, [-1])


def _scalar(x: tf.Tensor) -> tf.Tensor:
  """Returns the last number of a tensor; zero of one that has none."""
  return tf.concat([tf.zeros([1], x.dtype), _flat(x)], 0)[-1]


def _alike(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Makes y something that can be added to x."""
  y = tf.cast(_number(y), x.dtype)
  same = x.shape.is_fully_defined() and x.shape == y.shape
  return y if same else _scalar(y)


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
  def apply(x: tf.Tensor, y: tf.Tensor) -> Any:
    x = _number(x)
    return function(x, _alike(x, y))

  return apply


def _loop(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  x = _number(x)
  return tf.while_loop(
    lambda k, _: k < tf.size(y) % 4, lambda k, t: (k + 1, t + x), (0, x)
  )[1]


def _small(x: tf.Tensor) -> tf.Tensor:
  """Turns a tensor's first number into one from 0 to 4."""
  last = _scalar(_number(x))
  if last.dtype.is_floating:
    last = tf.where(tf.math.is_finite(last), last, tf.zeros_like(last))
    last = tf.clip_by_value(last, -4, 4)
  return tf.math.floormod(tf.cast(last, tf.int32), 5)


# Operations that give the same bits on every runtime if their arguments have
# the same bits and are not huge.
_EXACT: dict[str, Callable[[Any, Any], Any]] = {
  'add': _binary(lambda x, y: x + y),
  'subtract': _binary(lambda x, y: x - y),
  'multiply': _binary(lambda x, y: x * y),
  'sum': lambda x, _: tf.reduce_sum(_number(x)),
  'sum of rows': lambda x, _: tf.reduce_sum(_number(x), -1),
  'double': lambda x, _: _number(x) + _number(x),
  'square': lambda x, _: tf.square(_number(x)),
  'cumulative sum': lambda x, _: tf.cumsum(_flat(_number(x))),
  'loop': _loop,
  'outer': lambda x, y: tf.einsum(
    'i,j->ij', _flat(_number(x)), tf.cast(_flat(_number(y)), _number(x).dtype)
  ),
  'segment sum': lambda x, _: tf.math.unsorted_segment_sum(
    _flat(_number(x)), tf.range(tf.size(x)) % 3, 3
  ),
  'scan': lambda x, _: tf.scan(lambda a, e: a + e, _flat(_number(x))),
  'gradient': lambda x, _: _gradient(x),
}
# The same for all numbers.
_TAME: dict[str, Callable[[Any, Any], Any]] = {
  'minimum': _binary(tf.minimum),
  'maximum': _binary(tf.maximum),
  'relu': lambda x, _: tf.nn.relu(_number(x)),
  'negative': lambda x, _: -_number(x),
  'abs': lambda x, _: tf.abs(_number(x)),
  'clip': lambda x, _: tf.clip_by_value(
    _real(x), tf.constant(-1, _real(x).dtype), tf.constant(2, _real(x).dtype)
  ),
  'largest': lambda x, _: tf.reduce_max(_number(x)),
  'smallest': lambda x, _: tf.reduce_min(_number(x)),
  'flat': lambda x, _: _flat(x),
  'transpose': lambda x, _: tf.transpose(x),
  'reverse': lambda x, _: _flat(x)[::-1],
  'concatenate': lambda x, y: tf.concat(
    [_flat(_number(x)), tf.cast(_flat(_number(y)), _number(x).dtype)], 0
  ),
  'stack': lambda x, _: tf.stack([x, x]),
  'tile': lambda x, y: tf.tile(_flat(x), [_small(y)]),
  'repeat': lambda x, _: tf.repeat(_flat(x), 2),
  'pad': lambda x, _: tf.pad(_flat(x), [[1, 2]]),
  'slice': lambda x, y: _flat(x)[_small(y) :],
  'gather': lambda x, y: tf.gather(_flat(x), _small(y)),
  'take one': lambda x, _: _flat(x)[1],
  'roll': lambda x, _: tf.roll(_flat(x), 1, 0),
  'size': lambda x, _: tf.size(x),
  'shape': lambda x, _: tf.shape(x),
  'range': lambda x, _: tf.range(_small(x)),
  'zeros': lambda x, _: tf.zeros_like(x),
  'fill': lambda x, y: tf.fill([_small(y)], _scalar(x)),
  'is NaN': lambda x, _: tf.math.is_nan(_real(x)),
  'identity': lambda x, _: tf.identity(x),
  'variable': lambda x, _: (
    tf.Variable(tf.zeros(x.shape, x.dtype)).assign(x).read_value()
  ),
  'one hot': lambda x, _: tf.one_hot(_small(x), 4),
  'random': lambda x, _: tf.random.stateless_uniform(
    [2], tf.stack([_small(x), 7]), 0, 9, tf.int32
  ),
  'data set': lambda x, _: (
    tf.data.Dataset.from_tensor_slices(_flat(x))
    .batch(2)
    .reduce(tf.constant(0), lambda a, b: a * 2 + tf.size(b))
  ),
  'text': lambda x, _: tf.strings.length(tf.strings.as_string(_small(x))),
}
# They jump: their arguments must have the same bits.
_JUMPS: dict[str, Callable[[Any, Any], Any]] = {
  'less': _binary(tf.less),
  'equal': _binary(tf.equal),
  'floor': lambda x, _: tf.floor(_real(x)),
  'sign': lambda x, _: tf.sign(_number(x)),
  'arg max': lambda x, _: tf.argmax(
    tf.concat([_flat(_number(x)), tf.zeros([1], _number(x).dtype)], 0)
  ),
  'to int': lambda x, _: tf.cast(
    tf.clip_by_value(
      tf.where(tf.math.is_nan(_real(x)), tf.zeros_like(_real(x)), _real(x)),
      tf.constant(-9, _real(x).dtype),
      tf.constant(9, _real(x).dtype),
    ),
    tf.int32,
  ),
  'positive ones': lambda x, _: tf.boolean_mask(
    _flat(x), _flat(_number(x)) > 0
  ),
  'where': lambda x, _: tf.where(_flat(_number(x)) > 0),
  'choose': lambda x, y: tf.cond(
    _small(y) > 2, lambda: _number(x) + _number(x), lambda: _number(x)
  ),
  'select': _binary(lambda x, y: tf.where(x > y, x, y + y)),
  'unique': lambda x, _: tf.unique(tf.math.floormod(_flat(_int(x)), 3))[0],
  'sort': lambda x, _: tf.sort(_flat(_int(x))),
  'histogram': lambda x, _: tf.math.bincount(
    tf.math.abs(tf.math.floormod(_flat(_int(x)), 4)), minlength=4, maxlength=4
  ),
  'divide integers': lambda x, y: tf.math.floordiv(_int(x), _small(y)),
  'checked': lambda x, y: _checked(x, y),
  # To a size that fits: TensorFlow simplifies some reshapes away, and with them
  # their errors, on either runtime.
  'reshape': lambda x, y: tf.reshape(
    tf.tile(_flat(x), [2 * _small(y)]), [-1, 2]
  ),
}
# They round.
_ROUND: dict[str, Callable[[Any, Any], Any]] = {
  'tanh': lambda x, _: tf.tanh(_real(x)),
  'sigmoid': lambda x, _: tf.sigmoid(_real(x)),
  'exp': lambda x, _: tf.exp(tf.clip_by_value(_real(x), -4, 4)),
  'log': lambda x, _: tf.math.log1p(tf.abs(_real(x))),
  'sqrt': lambda x, _: tf.sqrt(tf.abs(_real(x))),
  'mean': lambda x, _: tf.reduce_mean(_real(x)),
  'divide': _binary(
    lambda x, y: _real(x) / (tf.cast(tf.abs(_real(y)), _real(x).dtype) + 1)
  ),
  'softmax': lambda x, _: tf.nn.softmax(_flat(_real(x))),
  'norm': lambda x, _: tf.norm(_flat(_real(x))),
}
_OPERATIONS = _EXACT | _TAME | _JUMPS | _ROUND


def _int(x: tf.Tensor) -> tf.Tensor:
  if x.dtype.is_floating:
    return _JUMPS['to int'](x, None)
  return tf.cast(x, tf.int32)


def _checked(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  with tf.control_dependencies([tf.debugging.assert_less(_small(y), 4)]):
    return tf.identity(x)


def _gradient(x: tf.Tensor) -> tf.Tensor:
  x = _real(x)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = tf.reduce_sum(x * x + x)
  return tape.gradient(y, x)


def _items(value: Any, wild: bool) -> list[_Item]:
  """Lists the tensors in a value; of a sequence, what sums it up."""
  if isinstance(value, tf.data.Dataset):
    count = value.reduce(tf.constant(0), lambda n, _: n + 1)
    found = [_Item(count, True, wild)]

    def add(totals: Any, row: Any) -> Any:
      return tuple(
        tf.maximum(total, tf.reduce_max(_clipped(leaf)))
        for total, leaf in zip(totals, tf.nest.flatten(row))
      )

    # No list, which would become a tensor.
    zeros = tuple(
      tf.constant(-9.0) for _ in tf.nest.flatten(value.element_spec)
    )
    return found + [
      _Item(total, True, wild) for total in value.reduce(zeros, add)
    ]
  if isinstance(value, dict):
    return [i for element in value.values() for i in _items(element, wild)]
  if isinstance(value, (list, tuple)):
    return [i for element in value for i in _items(element, wild)]
  return [_Item(value, True, wild)]


def _clipped(leaf: tf.Tensor) -> tf.Tensor:
  leaf = tf.cast(leaf, tf.float32)
  leaf = tf.where(tf.math.is_nan(leaf), tf.zeros_like(leaf), leaf)
  return tf.clip_by_value(leaf, -9.0, 9.0)


def _work(items: list[_Item], steps: Sequence[Step]) -> list[_Item]:
  """Applies operations; returns all tensors that come of it."""
  items = list(items)
  made: list[_Item] = []
  for step in steps:
    x = items[step.first % len(items)]
    y = items[step.second % len(items)]
    exact, wild = x.exact and y.exact, x.wild or y.wild
    if step.name in _JUMPS and not exact:
      continue
    if wild and step.name in (*_EXACT, *_ROUND):
      continue  # The order of additions would decide.
    try:
      tensor = _OPERATIONS[step.name](x.tensor, y.tensor)
    except (TypeError, ValueError, tf.errors.OpError):
      continue
    if tensor.dtype == tf.float16 and step.name in (*_EXACT, *_ROUND):
      exact = False
    made.append(_Item(tensor, exact and step.name not in _ROUND, wild))
    items.append(made[-1])
  return made or items[:1]


class _Builder:
  """Makes the computation of a plan."""

  def __init__(self, plan: Plan):
    self._plan = plan
    self._wild = plan.kind == 'extreme'
    # By the place of a value in a struct, whether it is exact.
    self.exact = True

  def block(
    self, types: Sequence[tff.Type], steps: Sequence[Step], exact: bool
  ) -> tuple[tff.Computation, bool]:
    """Makes a TensorFlow block, and tells whether its result is exact."""
    results: list[bool] = []

    def work(value: Any) -> Any:
      items = _items(value, self._wild)
      items = [dataclasses.replace(i, exact=exact) for i in items]
      made = _work(items, steps)[-3:]
      results.append(all(item.exact for item in made))
      return collections.OrderedDict(
        (name, item.tensor) for name, item in zip('cab', made)
      )

    block = tff.tensorflow.computation(
      lambda value: work(value), tff.to_type(list(types))
    )
    return block, results[-1]


def _aggregate(value: Any, choice: int) -> Any:
  """Aggregates a client's tensor in one of the ways that its type allows."""
  kind = value.type_signature.member
  if not (kind.shape is not None and all(n is not None for n in kind.shape)):
    return _collect(value)
  if kind.dtype == np.bool_:
    return _collect(value)
  ways = [tff.federated_sum, tff.federated_min, tff.federated_max, _collect]
  if np.issubdtype(kind.dtype, np.floating):
    ways.append(tff.federated_mean)
  return ways[choice % len(ways)](value)


def _collect(value: Any) -> Any:
  """Puts the numbers of all clients one after the other."""
  kind = value.type_signature.member
  dtype = tf.as_dtype(kind.dtype)
  many = tff.TensorType(kind.dtype, [None])
  zero = tff.tensorflow.computation(lambda: tf.zeros([0], dtype))
  add = tff.tensorflow.computation(
    lambda a, x: tf.concat([a, _flat(x)], 0), many, kind
  )
  merge = tff.tensorflow.computation(
    lambda a, b: tf.concat([a, b], 0), many, many
  )
  report = tff.tensorflow.computation(lambda a: a, many)
  return tff.federated_aggregate(value, zero(), add, merge, report)


def build(plan: Plan) -> tff.Computation:
  """Makes the computation of a plan."""
  builder = _Builder(plan)

  @tff.federated_computation(
    tff.FederatedType(tff_type(plan.client), tff.CLIENTS),
    tff.FederatedType(tff_type(plan.server), tff.SERVER),
  )
  def run(clients: Any, server: Any) -> Any:
    values = [server, clients]
    exact_clients = exact_server = True
    for stage in plan.stages:
      # Work.
      parts = [clients]
      if stage.reads_server:
        parts.append(tff.federated_broadcast(server))
        exact_clients = exact_clients and exact_server
      block, exact_clients = builder.block(
        [part.type_signature.member for part in parts],
        stage.clients,
        exact_clients,
      )
      clients = tff.federated_map(block, tuple(parts))
      # Aggregations.
      names = [
        name
        for name, _ in tff.structure.iter_elements(
          clients.type_signature.member
        )
      ]
      aggregates = [
        _aggregate(clients[name], choice)
        for name, choice in zip(names, stage.aggregations)
      ]
      # The server's work.
      block, exact_server = builder.block(
        [part.type_signature.member for part in (server, *aggregates)],
        stage.server,
        False if plan.kind == 'extreme' else exact_clients and exact_server,
      )
      server = tff.federated_map(block, tuple([server, *aggregates]))
      # A mean rounds, and what follows must not jump.
      exact_server = False
      values += [server, clients, *aggregates]
    chosen = [values[k % len(values)] for k in plan.results]
    return tuple(chosen)

  return run


def _leaves() -> st.SearchStrategy[Leaf]:
  return st.builds(Leaf, st.sampled_from(_DTYPES), st.sampled_from(_SHAPES))


def _structs(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Fields]:
  def fields(parts: list[Any], named: bool) -> Fields:
    names = ('z', 'a', 'm')[: len(parts)] if named else None
    return Fields(tuple(parts), names)

  parts = st.lists(children, min_size=1, max_size=3)
  return st.builds(fields, parts, st.booleans())


def _known() -> st.SearchStrategy[Leaf]:
  shapes = [shape for shape in _SHAPES if None not in shape]
  return st.builds(Leaf, st.sampled_from(_DTYPES), st.sampled_from(shapes))


def _values() -> st.SearchStrategy[Any]:
  rows = st.builds(Rows, st.one_of(_known(), _structs(_known())))
  leaves = st.one_of(_leaves(), _leaves(), _leaves(), rows)
  return st.one_of(leaves, _structs(leaves), _structs(_structs(_leaves())))


def _steps(number: int) -> st.SearchStrategy[tuple[Step, ...]]:
  step = st.builds(
    Step,
    st.sampled_from(sorted(_OPERATIONS)),
    st.integers(0, 9),
    st.integers(0, 9),
  )
  return st.lists(step, max_size=number).map(tuple)


def plans() -> st.SearchStrategy[Plan]:
  """Draws plans."""
  stage = st.builds(
    Stage,
    _steps(6),
    st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple),
    _steps(3),
    st.booleans(),
  )
  return st.builds(
    Plan,
    client=_values(),
    server=_values(),
    stages=st.lists(stage, min_size=1, max_size=3).map(tuple),
    results=st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple),
    size=st.integers(1, 5),
    kind=st.sampled_from(_KINDS),
    ragged=st.booleans(),
    seed=st.integers(0, 1000),
  )
