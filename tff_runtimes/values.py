"""Conversions between Python values of TFF types and flat lists of tensors.

A *leaf* is a tensor or an array of a value. A runtime computes with lists of
leaves; the value's TFF type has the containers around them, such as dicts and
NamedTuples.
"""

import collections
from collections.abc import (
  Callable,
  Iterable,
  Iterator,
  KeysView,
  Sequence,
  ValuesView,
)
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_runtimes import aliases
from tff_runtimes import private_api
from tff_runtimes import sequences

Struct = tff.structure.Struct


class StackedClients(Sequence[aliases.Value]):
  """The values of a cohort's clients, with the clients as the first axis.

  It can be used like the list of values, one for each client, that TFF takes
  and returns. A runtime that works on the whole cohort at once takes and
  returns it without the copies that a list would need.

  Attributes:
    stacked: The values in the containers of one client's value. Each leaf, an
      array or a tensor, has the clients as its first axis.
  """

  def __init__(self, stacked: aliases.Value, size: int):
    self.stacked = stacked
    self._size = size

  def __len__(self) -> int:
    return self._size

  def __repr__(self) -> str:
    return repr(list(self))

  def __getitem__(self, client: int | slice) -> aliases.Value:
    if isinstance(client, slice):
      return [self[k] for k in range(*client.indices(len(self)))]
    if not -len(self) <= client < len(self):
      raise IndexError(f'Client {client} of {len(self)}.')
    return tree.map_structure(
      lambda leaf: np.asarray(leaf[client]), self.stacked
    )

  def __iter__(self) -> Iterator[aliases.Value]:
    arrays = tree.map_structure(np.asarray, self.stacked)
    for k in range(len(self)):
      yield tree.map_structure(lambda leaf: leaf[k], arrays)  # noqa: B023


def is_per_client(type_spec: tff.Type) -> bool:
  """Returns whether a value of this type is one value for each client."""
  return (
    isinstance(type_spec, tff.FederatedType)
    and type_spec.placement is tff.CLIENTS
    and not type_spec.all_equal
  )


def to_clients(value: aliases.Value) -> aliases.Value:
  """Makes a list of the keys or values of a dictionary, as TFF takes them."""
  return list(value) if isinstance(value, (KeysView, ValuesView)) else value


def count_clients(
  clients: Iterable[Sequence[aliases.Value]], default: int = 0
) -> int:
  """Returns the number of clients.

  Args:
    clients: The parts of an argument that are one value for each client.
    default: The number if there is no such part.

  Raises:
    TypeError: If a part is no sequence.
    ValueError: If their lengths differ.
  """
  sizes = set()
  for part in clients:
    if not isinstance(part, Sequence) or isinstance(part, (str, bytes)):
      raise TypeError(
        'Expected a list with one value for each client, got a'
        f' {type(part).__name__}.'
      )
    sizes.add(len(part))
  if len(sizes) > 1:
    raise ValueError(
      f'Got values of different numbers of clients: {sorted(sizes)}.'
    )
  return sizes.pop() if sizes else default


def member(type_spec: tff.Type) -> tff.Type:
  """Returns the type that one party, a client or the server, sees."""
  if isinstance(type_spec, tff.FederatedType):
    return type_spec.member
  return type_spec


def elements(
  value: aliases.Value, type_spec: tff.StructType
) -> Sequence[aliases.Value]:
  """Returns the elements of a struct in the order of its type.

  Args:
    value: The struct, in any Python container.
    type_spec: Its type.

  Raises:
    TypeError: If the struct has other elements than its type.
  """
  return _elements(value, _names(type_spec))


@functools.cache
def _names(type_spec: tff.StructType) -> tuple[str | None, ...]:
  return tuple(name for name, _ in tff.structure.iter_elements(type_spec))


@functools.cache
def _children(type_spec: tff.StructType) -> tuple[tff.Type, ...]:
  return tuple(child for _, child in tff.structure.iter_elements(type_spec))


def _elements(
  value: aliases.Value, names: tuple[str | None, ...]
) -> Sequence[aliases.Value]:
  if isinstance(value, dict):
    # TFF's own runtime takes the values in this order, whatever their names.
    is_ordered = isinstance(value, collections.OrderedDict)
    given = list(value) if is_ordered else sorted(value)
    if given != list(names):
      raise TypeError(
        f'Expected {list(names)}, got {given}, as TFF orders the names. Use a'
        ' collections.OrderedDict with the expected names in their order.'
      )
    return list(map(value.__getitem__, names))
  fields = getattr(value, '_fields', names)  # Of a NamedTuple.
  if isinstance(value, Struct):
    fields = tuple(tff.structure.name_list_with_nones(value))
    if not any(fields):
      fields = names
  if fields != names and (any(names) or isinstance(value, Struct)):
    raise TypeError(f'Expected {list(names)}, got {list(fields)}.')
  if not isinstance(value, (list, tuple)):
    if not isinstance(value, Struct):
      value = tff.structure.from_container(value)
    value = [element for _, element in tff.structure.iter_elements(value)]
  if len(value) != len(names):
    raise TypeError(f'Expected {len(names)} elements, got {len(value)}.')
  return value


def _drop_containers(type_spec: tff.Type) -> tff.Type:
  """Returns a type without the Python containers of its structs."""
  if not isinstance(type_spec, tff.StructType):
    return type_spec
  if not len(type_spec):
    # As TFF converts a struct without elements, in a sequence.
    return tff.StructWithPythonType([], collections.OrderedDict)
  return tff.StructType(
    [
      (name, _drop_containers(element)) if name else _drop_containers(element)
      for name, element in tff.structure.iter_elements(type_spec)
    ]
  )


def element_structure(type_spec: tff.Type) -> aliases.Structure:
  """Returns the `element_spec` of a data set of elements of this type."""
  return tff.types.type_to_py_container(
    unflatten(leaf_specs(type_spec), type_spec), type_spec
  )


def _tensor_order(element_type: tff.Type) -> list[int]:
  """Returns the order in which `tf.data` has the leaves of elements."""
  numbers = unflatten(range(len(leaf_specs(element_type))), element_type)
  return tf.nest.flatten(tff.types.type_to_py_container(numbers, element_type))


def _check_elements(
  data_set: tf.data.Dataset, type_spec: tff.SequenceType
) -> None:
  """Raises an error if a data set has elements of another type."""
  # TFF's own check.
  tff.framework.serialize_value(data_set.take(0), type_spec)
  element_type = tff.types.tensorflow_to_type(data_set.element_spec)
  if _tensor_order(element_type) != _tensor_order(type_spec.element):
    raise TypeError(
      f'Expected {type_spec}, got a data set of {data_set.element_spec}, in'
      ' which tf.data has the tensors in another order.'
    )


def _sequence_flattener(
  type_spec: tff.SequenceType, keep_data_sets: bool
) -> '_Flattener':
  """Makes the function that flattens sequences of a type."""
  checked: set[str] = set()  # Checks equal data sets only once.

  def flatten_sequence(value: aliases.Value, leaves: aliases.Leaves) -> None:
    # In a graph that is being built.
    if isinstance(value, (tf.Tensor, sequences.Elements)):
      leaves.append(value)
      return
    if isinstance(value, list):
      value = private_api.to_data_set(value, type_spec.element)
    if not isinstance(value, tf.data.Dataset):
      raise TypeError(
        f'Expected {type_spec}, got a {type(value).__name__}, which is neither'
        ' a data set nor a list.'
      )
    element_spec = repr(value.element_spec)
    if element_spec not in checked:
      _check_elements(value, type_spec)
      checked.add(element_spec)
    if keep_data_sets:
      leaves.append(value)
      return
    # A copy, so that random numbers start again at each call, as in TFF.
    graph = tf.raw_ops.DatasetToGraphV2(
      input_dataset=tf.data.experimental.to_variant(value)
    )
    leaves.append(tf.raw_ops.DatasetFromGraph(graph_def=graph))

  return flatten_sequence


def _fits(shape: Sequence[int | None], expected: Sequence[int | None]) -> bool:
  return len(shape) == len(expected) and all(
    e is None or s is None or s == e for s, e in zip(shape, expected)
  )


# Takes a value and a list, and adds the value's leaves to the list.
_Flattener = Callable[[aliases.Value, aliases.Leaves], None]


@functools.cache
def _flattener(
  type_spec: tff.Type, stacked: bool, keep_data_sets: bool
) -> _Flattener:
  """Makes the function that flattens values of a type.

  A type is thus analyzed once and not again for each client.

  Args:
    type_spec: The type.
    stacked: Whether the values are those of several clients, stacked.
    keep_data_sets: Whether data sets are leaves as they are.

  Returns:
    The function.
  """
  type_spec = member(type_spec)
  if isinstance(type_spec, tff.StructType):
    names = _names(type_spec)
    children = [
      _flattener(child, stacked, keep_data_sets)
      for child in _children(type_spec)
    ]

    def flatten_struct(value: aliases.Value, leaves: aliases.Leaves) -> None:
      for element, child in zip(_elements(value, names), children):
        child(element, leaves)

    return flatten_struct
  if isinstance(type_spec, tff.SequenceType):
    return _sequence_flattener(type_spec, keep_data_sets)

  dtype = type_spec.dtype
  expected = type_spec.shape
  if stacked and expected is not None:
    expected = [None, *expected]

  def flatten_tensor(value: aliases.Value, leaves: aliases.Leaves) -> None:
    if isinstance(value, tf.Variable):
      value = value.read_value()
    if isinstance(value, tf.Tensor) and value.dtype.as_numpy_dtype == dtype:
      shape = value.shape if value.shape.rank is not None else expected
    else:
      is_array = isinstance(value, (np.ndarray, np.generic))
      if not is_array or value.dtype != dtype:
        value = _to_array(value, type_spec)
      shape = value.shape
    if expected is not None and not _fits(shape, expected):
      raise TypeError(f'Expected {type_spec}, got the shape {tuple(shape)}.')
    leaves.append(value)

  return flatten_tensor


def _to_array(value: aliases.Value, type_spec: tff.TensorType) -> aliases.Leaf:
  """Converts a value to an array of the type that TFF allows it to have.

  Args:
    value: A number, text, an array or a tensor, or nested lists of numbers.
    type_spec: The type.

  Returns:
    A tensor if the value is text in a tensor; otherwise an array.

  Raises:
    TypeError: If TFF does not accept the value for this type.
  """
  dtype = type_spec.dtype
  is_text = np.issubdtype(dtype, np.str_)
  if isinstance(value, tf.Tensor):
    if is_text and value.dtype == tf.string:
      return value
    if not hasattr(value, 'numpy'):
      raise TypeError(f'Expected {type_spec}, got {value.dtype.name}.')
    value = value.numpy()
  is_nested = isinstance(value, (list, tuple))
  numbers = tree.flatten(value) if is_nested else [value]
  for number in numbers:
    if not isinstance(
      number, (np.ndarray, np.generic, bool, int, float, complex, str, bytes)
    ) or not private_api.is_compatible(number, np.dtype(dtype)):
      kind = getattr(number, 'dtype', type(number).__name__)
      raise TypeError(f'Expected {type_spec}, got {number!r:.50} ({kind}).')
  return np.asarray(value, object if is_text else dtype)


def flatten(
  value: aliases.Value,
  type_spec: tff.Type,
  stacked: bool = False,
  keep_data_sets: bool = False,
) -> aliases.Leaves:
  """Lists the leaves of a value, depth first.

  Args:
    value: One party's value, in any containers that fit the type.
    type_spec: Its type.
    stacked: Whether it is the values of several clients, stacked.
    keep_data_sets: Whether data sets are leaves as they are.

  Returns:
    The leaves. Tensors and arrays are returned as they are, without a copy;
    a sequence becomes one variant tensor, unless `keep_data_sets`.

  Raises:
    TypeError: If TFF does not accept the value for the type.
  """
  leaves: aliases.Leaves = []
  _flattener(type_spec, stacked, keep_data_sets)(value, leaves)
  return leaves


def leaf_specs(type_spec: tff.Type) -> list[tf.TensorSpec]:
  """Returns the specs of the leaves that `flatten` lists."""
  type_spec = member(type_spec)
  if isinstance(type_spec, tff.StructType):
    return [
      spec
      for _, element in tff.structure.iter_elements(type_spec)
      for spec in leaf_specs(element)
    ]
  if isinstance(type_spec, tff.SequenceType):
    return [tf.TensorSpec([], tf.variant)]
  return [tf.TensorSpec(type_spec.shape, type_spec.dtype)]


def _fill(
  type_spec: tff.Type,
  remaining: Iterator[aliases.Value],
  enter: Callable[[tff.Type], tff.Type],
) -> aliases.Value:
  """Makes structs of a type, with what is remaining in place of other types."""
  type_spec = enter(type_spec)
  if not isinstance(type_spec, tff.StructType):
    return next(remaining)
  return Struct(
    [
      (name, _fill(element, remaining, enter))
      for name, element in tff.structure.iter_elements(type_spec)
    ]
  )


def unflatten(
  leaves: Iterable[aliases.Leaf], type_spec: tff.Type
) -> aliases.Value:
  """Undoes `flatten`; structs become `tff.structure.Struct`."""
  return _fill(type_spec, iter(leaves), member)


def parts(type_spec: tff.Type | None) -> list[tff.Type]:
  """Lists the parts of a type: the largest pieces that have one placement.

  Args:
    type_spec: The type of a computation's argument or result; None, which has
      no parts, if it takes no argument.

  Returns:
    The types of the parts, depth first.
  """
  if type_spec is None:
    return []
  if isinstance(type_spec, tff.StructType):
    return [
      part
      for _, element in tff.structure.iter_elements(type_spec)
      for part in parts(element)
    ]
  return [type_spec]


def split(
  value: aliases.Value, type_spec: tff.Type | None
) -> list[aliases.Value]:
  """Splits a value into the values of the `parts` of its type."""
  if type_spec is None:
    return []
  if isinstance(type_spec, tff.StructType):
    types = [element for _, element in tff.structure.iter_elements(type_spec)]
    return [
      part
      for element, element_type in zip(elements(value, type_spec), types)
      for part in split(element, element_type)
    ]
  return [value]


def join(parts: Iterable[aliases.Value], type_spec: tff.Type) -> aliases.Value:
  """Undoes `split`; structs become `tff.structure.Struct`."""
  return _fill(type_spec, iter(parts), lambda type_spec: type_spec)


@functools.cache
def _builder(
  type_spec: tff.Type,
) -> Callable[[Iterator[aliases.Leaf]], aliases.Value]:
  """Makes the function that builds Python values of a type from their leaves.

  Args:
    type_spec: The type.

  Returns:
    A function that takes the leaves that it needs from an iterator.
  """
  type_spec = member(type_spec)
  if isinstance(type_spec, tff.StructType):
    names = _names(type_spec)
    children = [_builder(child) for child in _children(type_spec)]
    container = type_spec.python_container
    if container is None:
      container = collections.OrderedDict if any(names) else tuple
    if issubclass(container, dict):
      return lambda leaves: container(
        (name, child(leaves)) for name, child in zip(names, children)
      )
    is_named_tuple = hasattr(container, '_fields')
    if issubclass(container, (tuple, list)) and not is_named_tuple:
      return lambda leaves: container(child(leaves) for child in children)
    return lambda leaves: container(
      **{name or '': child(leaves) for name, child in zip(names, children)}
    )
  if isinstance(type_spec, tff.SequenceType):
    element: tff.Type = type_spec.element
    plain = _drop_containers(element)
    # As in TFF, elements come in OrderedDicts and tuples.
    structure = element_structure(
      plain if _tensor_order(plain) == _tensor_order(element) else element
    )
    return lambda leaves: tf.data.experimental.from_variant(
      next(leaves), structure
    )

  def build_tensor(leaves: Iterator[aliases.Leaf]) -> aliases.Value:
    leaf = next(leaves)
    if isinstance(leaf, tf.Tensor):
      if not hasattr(leaf, 'numpy'):
        return leaf  # In a graph that is being built it has no value yet.
      # Unlike `numpy()`, `asarray` copies nothing.
      leaf = np.asarray(leaf) if leaf.shape.rank else leaf.numpy()
    if not isinstance(leaf, np.ndarray):
      return leaf
    leaf.setflags(write=False)  # Like TFF's results.
    # Numbers and text become NumPy's scalars, not arrays without dimensions.
    return leaf[()]

  return build_tensor


def to_python(
  leaves: Sequence[aliases.Leaf], type_spec: tff.Type
) -> aliases.Value:
  """Puts leaves, of one party or stacked, into the containers of their type."""
  return _builder(type_spec)(iter(leaves))


def replace_clients(type_spec: tff.Type) -> tff.Type:
  """Replaces parts of a type that are one value for each client by int32."""
  if is_per_client(type_spec):
    return tff.TensorType(np.int32)
  if isinstance(type_spec, tff.StructType):
    children = [
      (name, replace_clients(element)) if name else replace_clients(element)
      for name, element in tff.structure.iter_elements(type_spec)
    ]
    if isinstance(type_spec, tff.StructWithPythonType):
      return tff.StructWithPythonType(children, type_spec.python_container)
    return tff.StructType(children)
  return type_spec


def join_python(
  parts: Sequence[aliases.Value], type_spec: tff.Type
) -> aliases.Value:
  """Puts Python values of the `parts` of a type in the type's containers."""
  return tff.types.type_to_py_container(
    join(parts, type_spec), replace_clients(type_spec)
  )
