"""Values of TFF types as flat lists of tensors, and stacked clients' values."""

import collections
from collections.abc import Callable, Iterator, Sequence
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

Struct = tff.structure.Struct


class StackedClients(Sequence):
  """What the clients of a cohort hold, with the clients as the first axis.

  It behaves as the list of the clients' values that TFF takes and gives, and
  spares the copies that a list needs on its way in and out of a runtime that
  works on the whole cohort at once. A leaf may be an array or a tensor.
  """

  def __init__(self, stacked: Any, size: int):
    self.stacked = stacked
    self._size = size

  def __len__(self) -> int:
    return self._size

  def __repr__(self) -> str:
    return repr(list(self))

  def __getitem__(self, client: int | slice) -> Any:
    if isinstance(client, slice):
      return [self[k] for k in range(*client.indices(len(self)))]
    if not -len(self) <= client < len(self):
      raise IndexError(f'Client {client} of {len(self)}.')
    return tree.map_structure(
      lambda leaf: np.asarray(leaf[client]), self.stacked
    )

  def __iter__(self) -> Iterator[Any]:
    arrays = tree.map_structure(np.asarray, self.stacked)
    for k in range(len(self)):
      yield tree.map_structure(lambda leaf: leaf[k], arrays)  # noqa: B023


def is_per_client(type_spec: tff.Type) -> bool:
  """Whether a value of this type is one value for each client."""
  return (
    isinstance(type_spec, tff.FederatedType)
    and type_spec.placement is tff.CLIENTS
    and not type_spec.all_equal
  )


def member(type_spec: tff.Type) -> tff.Type:
  """The type that one party sees."""
  if isinstance(type_spec, tff.FederatedType):
    return type_spec.member
  return type_spec


def elements(value: Any, type_spec: tff.StructType) -> Sequence[Any]:
  """The elements of a struct, in any Python container, in the type's order."""
  return _elements(value, _names(type_spec))


@functools.cache
def _names(type_spec: tff.StructType) -> tuple[str | None, ...]:
  return tuple(name for name, _ in tff.structure.iter_elements(type_spec))


@functools.cache
def _children(type_spec: tff.StructType) -> tuple[tff.Type, ...]:
  return tuple(child for _, child in tff.structure.iter_elements(type_spec))


def _elements(value: Any, names: Sequence[str | None]) -> Sequence[Any]:
  if isinstance(value, dict):
    if len(value) != len(names) or not all(name in value for name in names):
      raise TypeError(f'Expected {list(names)}, got {list(value)}.')
    return [value[name] for name in names]
  if not isinstance(value, (list, tuple)):
    if not isinstance(value, Struct):
      value = tff.structure.from_container(value)
    value = [element for _, element in tff.structure.iter_elements(value)]
  if len(value) != len(names):
    raise TypeError(f'Expected {len(names)} elements, got {len(value)}.')
  return value


def element_structure(type_spec: tff.Type) -> Any:
  """The `element_spec` of a data set whose elements have this type."""
  return tff.types.type_to_py_container(
    unflatten(leaf_specs(type_spec), type_spec), type_spec
  )


def _to_variant(value: Any, type_spec: tff.SequenceType) -> tf.Tensor:
  """A sequence, given as a data set, as a list of elements, or as a variant."""
  if isinstance(value, tf.Tensor):
    return value
  if not isinstance(value, tf.data.Dataset):
    element = type_spec.element
    specs = leaf_specs(element)

    def dataset(leaves: Sequence[Any]) -> tf.data.Dataset:
      return tf.data.Dataset.from_tensor_slices(
        tff.types.type_to_py_container(unflatten(leaves, element), element)
      )

    rows = [flatten(row, element) for row in value]
    value = dataset(
      [
        np.zeros(
          [0, *(size or 0 for size in spec.shape)], spec.dtype.as_numpy_dtype
        )
        for spec in specs
      ]
    )
    for row in rows:  # One by one, as their shapes may differ.
      value = value.concatenate(
        dataset([tf.expand_dims(leaf, 0) for leaf in row])
      )
  return tf.data.experimental.to_variant(value)


def _fits(shape: Sequence[int | None], expected: Sequence[int | None]) -> bool:
  return len(shape) == len(expected) and all(
    e is None or s is None or s == e for s, e in zip(shape, expected)
  )


# From a value and the list to which it adds its leaves.
_Flattener = Callable[[Any, list[Any]], None]


@functools.cache
def _flattener(type_spec: tff.Type, stacked: bool) -> _Flattener:
  """`flatten` for a type, which is looked at once and not for each client."""
  type_spec = member(type_spec)
  if isinstance(type_spec, tff.StructType):
    names = _names(type_spec)
    children = [_flattener(child, stacked) for child in _children(type_spec)]

    def flatten_struct(value: Any, leaves: list[Any]) -> None:
      for element, child in zip(_elements(value, names), children):
        child(element, leaves)

    return flatten_struct
  if isinstance(type_spec, tff.SequenceType):
    return lambda value, leaves: leaves.append(_to_variant(value, type_spec))

  dtype = type_spec.dtype
  is_text = np.issubdtype(dtype, np.str_)
  expected = None if type_spec.shape is None else list(type_spec.shape)
  if stacked and expected is not None:
    expected = [None, *expected]

  def flatten_tensor(value: Any, leaves: list[Any]) -> None:
    if isinstance(value, tf.Variable):
      value = value.read_value()
    if isinstance(value, tf.Tensor):
      actual = value.dtype.as_numpy_dtype
      shape = value.shape if value.shape.rank is not None else expected
    else:
      if not isinstance(value, np.ndarray):
        value = np.asarray(value, object if is_text else dtype)
      actual, shape = value.dtype, value.shape
    if expected is not None and not _fits(shape, expected):
      raise TypeError(f'Expected {type_spec}, got the shape {tuple(shape)}.')
    if actual != dtype and not is_text:
      raise TypeError(f'Expected {type_spec}, got {actual}.')
    leaves.append(value)

  return flatten_tensor


def flatten(
  value: Any, type_spec: tff.Type, stacked: bool = False
) -> list[Any]:
  """The tensors of a value, depth first; a sequence is a variant.

  Args:
    value: One party's value, in any containers that fit the type.
    type_spec: Its type.
    stacked: Whether it is the values of several clients, stacked.

  Returns:
    The leaves, as arrays or tensors.
  """
  leaves = []
  _flattener(type_spec, stacked)(value, leaves)
  return leaves


def leaf_specs(type_spec: tff.Type) -> list[tf.TensorSpec]:
  """The specs of what `flatten` gives."""
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


def unflatten(leaves: Sequence[Any], type_spec: tff.Type) -> Any:
  """The inverse of `flatten`, with structs as `tff.structure.Struct`."""
  remaining = iter(leaves)

  def build(type_spec: tff.Type) -> Any:
    type_spec = member(type_spec)
    if isinstance(type_spec, tff.StructType):
      return Struct(
        [
          (name, build(element))
          for name, element in tff.structure.iter_elements(type_spec)
        ]
      )
    return next(remaining)

  return build(type_spec)


def parts(type_spec: tff.Type | None) -> list[tff.Type]:
  """The largest pieces of a type that live in one place each."""
  if type_spec is None:
    return []
  if isinstance(type_spec, tff.StructType):
    return [
      part
      for _, element in tff.structure.iter_elements(type_spec)
      for part in parts(element)
    ]
  return [type_spec]


def split(value: Any, type_spec: tff.Type | None) -> list[Any]:
  """The values of the `parts` of a type."""
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


def join(values: Sequence[Any], type_spec: tff.Type) -> Any:
  """The inverse of `split`."""
  remaining = iter(values)

  def build(type_spec: tff.Type) -> Any:
    if isinstance(type_spec, tff.StructType):
      return Struct(
        [
          (name, build(element))
          for name, element in tff.structure.iter_elements(type_spec)
        ]
      )
    return next(remaining)

  return build(type_spec)


@functools.cache
def _builder(type_spec: tff.Type) -> Callable[[Iterator[Any]], Any]:
  """`to_python` for a type, of an iterator over the leaves."""
  type_spec = member(type_spec)
  if isinstance(type_spec, tff.StructType):
    names = _names(type_spec)
    children = [_builder(child) for child in _children(type_spec)]
    container = type_spec.python_container
    if not names or names[0] is None:
      return lambda leaves: (container or tuple)(c(leaves) for c in children)
    if container is None or issubclass(container, dict):
      make = container or collections.OrderedDict
      return lambda leaves: make(
        (name, child(leaves)) for name, child in zip(names, children)
      )
    return lambda leaves: container(
      **{name: child(leaves) for name, child in zip(names, children)}
    )
  if isinstance(type_spec, tff.SequenceType):
    structure = element_structure(type_spec.element)
    return lambda leaves: list(
      tf.data.experimental.from_variant(
        next(leaves), structure
      ).as_numpy_iterator()
    )

  def build_tensor(leaves: Iterator[Any]) -> Any:
    leaf = next(leaves)
    # A tensor of a graph that is being built has no value yet.
    return leaf.numpy() if hasattr(leaf, 'numpy') else leaf

  return build_tensor


def to_python(leaves: Sequence[Any], type_spec: tff.Type) -> Any:
  """Leaves, of one party or stacked, in the Python containers of their type."""
  return _builder(type_spec)(iter(leaves))


def without_clients(type_spec: tff.Type) -> tff.Type:
  """`type_spec`, with a placeholder for what is a value for each client."""
  if is_per_client(type_spec):
    return tff.TensorType(np.int32)
  if isinstance(type_spec, tff.StructType):
    children = [
      (name, without_clients(element)) if name else without_clients(element)
      for name, element in tff.structure.iter_elements(type_spec)
    ]
    if isinstance(type_spec, tff.StructWithPythonType):
      return tff.StructWithPythonType(children, type_spec.python_container)
    return tff.StructType(children)
  return type_spec
