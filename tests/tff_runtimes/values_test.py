"""Tests of values as flat lists of leaves, and of stacked clients."""

import collections
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tests.tff_runtimes import helpers
from tff_runtimes import values

_OrderedDict = collections.OrderedDict


class LeftRight(NamedTuple):
  """A struct of two fields."""

  left: Any
  right: Any


class EmptyFields(NamedTuple):
  """A struct without fields."""


@attrs.define
class AttrsPoint:
  """A struct in TFF's other kind of class with fields."""

  x: Any
  y: Any


_INT = np.int32(1)
_VECTOR = np.array([1, 2, 3], np.float32)
# A type, and a value in the containers of the type.
_VALUES = {
  'tensor': (np.int32, _INT),
  'tuple': ((np.int32, np.int32), (_INT, np.int32(2))),
  'list': ([np.int32, np.int32], [_INT, np.int32(2)]),
  'dict': (
    _OrderedDict(b=np.int32, a=(np.float32, [3])),
    _OrderedDict(b=_INT, a=_VECTOR),
  ),
  'NamedTuple': (
    LeftRight(np.int32, (np.float32, [3])),
    LeftRight(_INT, _VECTOR),
  ),
  'attrs': (AttrsPoint(np.int32, np.int32), AttrsPoint(_INT, np.int32(2))),
  'dict of NamedTuples': (
    _OrderedDict(q=LeftRight(np.int32, np.int32), p=np.int32),
    _OrderedDict(q=LeftRight(_INT, np.int32(2)), p=np.int32(3)),
  ),
  'NamedTuple of dicts of NamedTuples': (
    LeftRight(_OrderedDict(p=LeftRight(np.int32, np.int32)), (np.int32,)),
    LeftRight(_OrderedDict(p=LeftRight(_INT, np.int32(2))), (np.int32(3),)),
  ),
  'empty tuple': ((), ()),
  'empty dict': (_OrderedDict(), _OrderedDict()),
  'empty NamedTuple': (EmptyFields(), EmptyFields()),
  'NamedTuple of an empty one': (
    LeftRight(EmptyFields(), np.int32),
    LeftRight(EmptyFields(), _INT),
  ),
}
_ANY_VALUE = pytest.mark.parametrize(
  ('type_spec', 'value'), _VALUES.values(), ids=_VALUES
)
_PAIR = tff.to_type(LeftRight(np.int32, np.float32))


@_ANY_VALUE
def test_a_value_comes_back_from_its_leaves(type_spec, value):
  type_spec = tff.to_type(type_spec)
  result = values.to_python(values.flatten(value, type_spec), type_spec)
  np.testing.assert_equal(result, value)


@_ANY_VALUE
def test_containers_come_back_from_leaves(type_spec, value):
  type_spec = tff.to_type(type_spec)
  result = values.to_python(values.flatten(value, type_spec), type_spec)
  assert helpers.containers(result) == helpers.containers(value)


@_ANY_VALUE
def test_there_is_a_spec_for_each_leaf(type_spec, value):
  type_spec = tff.to_type(type_spec)
  specs = values.leaf_specs(type_spec)
  leaves = values.flatten(value, type_spec)
  assert [(s.shape, s.dtype) for s in specs] == [
    (leaf.shape, tf.as_dtype(leaf.dtype)) for leaf in leaves
  ]


def test_leaves_come_depth_first():
  type_spec = tff.to_type([(np.int32, [np.int32]), np.int32])
  assert values.flatten([(1, [2]), 3], type_spec) == [1, 2, 3]


def test_a_struct_of_tff_comes_back_from_its_leaves():
  type_spec = tff.to_type(LeftRight(np.int32, _OrderedDict(a=np.int32)))
  struct = values.unflatten([1, 2], type_spec)
  assert struct == tff.structure.Struct(
    [('left', 1), ('right', tff.structure.Struct([('a', 2)]))]
  )
  assert values.flatten(struct, type_spec) == [1, 2]


@pytest.mark.parametrize('leaf', [_VECTOR, tf.constant(_VECTOR)], ids=type)
def test_tensors_and_arrays_are_not_copied(leaf):
  type_spec = tff.to_type(LeftRight((np.float32, [3]), np.int32))
  assert values.flatten(LeftRight(leaf, 1), type_spec)[0] is leaf


def test_a_variable_gives_its_value():
  (leaf,) = values.flatten(tf.Variable(2.0), tff.TensorType(np.float32))
  assert not isinstance(leaf, tf.Variable)
  assert leaf == 2


def test_numbers_take_the_dtype_of_the_type():
  (leaf,) = values.flatten(1, tff.TensorType(np.int64))
  assert leaf.dtype == np.int64


def test_a_dict_may_have_any_order():
  type_spec = tff.to_type(_OrderedDict(a=np.int32, b=np.int32))
  assert values.flatten(dict(b=2, a=1), type_spec) == [1, 2]


@pytest.mark.parametrize(
  'value', [dict(left=1, wrong=2), dict(left=1), (1,), [1, 2, 3]], ids=str
)
def test_other_elements_than_those_of_the_type_are_an_error(value):
  with pytest.raises(TypeError, match='Expected'):
    values.flatten(value, _PAIR)


def test_a_named_tuple_of_other_fields_is_an_error():
  swapped = collections.namedtuple('swapped', ['right', 'left'])
  with pytest.raises(TypeError, match=r"'left', 'right'.*'right', 'left'"):
    values.flatten(swapped(1, 2), _PAIR)


def test_a_named_tuple_fits_a_type_of_a_tuple():
  type_spec = tff.to_type((np.int32, np.int32))
  assert values.flatten(LeftRight(1, 2), type_spec) == [1, 2]


def test_another_shape_is_an_error_that_names_the_type():
  with pytest.raises(TypeError, match=r'float32\[2\].*\(3,\)'):
    values.flatten(_VECTOR, tff.TensorType(np.float32, [2]))


@pytest.mark.parametrize('make', [np.array, tf.constant])
def test_another_dtype_is_an_error_that_names_both(make):
  with pytest.raises(TypeError, match='int32.*float32'):
    values.flatten(make(_VECTOR), tff.TensorType(np.int32, [3]))


def test_an_unknown_dimension_fits_any_size():
  type_spec = tff.TensorType(np.float32, [None])
  assert values.flatten(_VECTOR, type_spec)[0] is _VECTOR


def test_stacked_values_have_one_axis_more():
  type_spec = tff.TensorType(np.float32, [3])
  (leaf,) = values.flatten(np.stack([_VECTOR] * 2), type_spec, stacked=True)
  assert leaf.shape == (2, 3)
  with pytest.raises(TypeError, match='shape'):
    values.flatten(_VECTOR, type_spec, stacked=True)


@pytest.mark.parametrize(
  'make', [list, lambda rows: tf.data.Dataset.from_tensor_slices(rows)]
)
def test_a_sequence_comes_back_as_a_data_set(make):
  type_spec = tff.SequenceType(np.int32)
  leaves = values.flatten(make([1, 2, 3]), type_spec)
  assert [leaf.dtype for leaf in leaves] == [tf.variant]
  result = values.to_python(leaves, type_spec)
  assert isinstance(result, tf.data.Dataset)
  assert list(result.as_numpy_iterator()) == [1, 2, 3]


def test_elements_of_a_sequence_may_differ_in_shape():
  type_spec = tff.SequenceType(tff.TensorType(np.int32, [None]))
  rows = [[], [0], [0, 1]]
  data_set = tf.data.Dataset.range(3, output_type=tf.int32).map(tf.range)
  result = values.to_python(values.flatten(data_set, type_spec), type_spec)
  assert [row.tolist() for row in result.as_numpy_iterator()] == rows


@pytest.mark.parametrize(
  'data_set',
  [
    tf.data.Dataset.range(3),
    tf.data.Dataset.range(3, output_type=tf.int32).batch(2),
    tf.data.Dataset.from_tensors(dict(x=1)),
  ],
  ids=['type', 'shape', 'columns'],
)
def test_a_data_set_of_other_elements_is_refused(data_set):
  with pytest.raises(TypeError, match=r'TFF type int32\*'):
    values.flatten(data_set, tff.SequenceType(np.int32))


def test_something_else_than_a_sequence_is_refused():
  with pytest.raises(TypeError, match='neither a data set nor a list'):
    values.flatten((1, 2), tff.SequenceType(np.int32))


def test_a_sequence_comes_back_in_plain_containers():
  type_spec = tff.SequenceType(LeftRight(np.int32, _OrderedDict(a=np.int32)))
  rows = [LeftRight(k, _OrderedDict(a=k + 1)) for k in range(2)]
  result = values.to_python(values.flatten(rows, type_spec), type_spec)
  result = list(result.as_numpy_iterator())
  assert result == [
    _OrderedDict(left=k, right=_OrderedDict(a=k + 1)) for k in range(2)
  ]


def test_a_data_set_with_tensors_in_another_order_is_refused():
  data_set = tf.data.Dataset.from_tensors((1, 2))
  type_spec = tff.SequenceType(_OrderedDict(b=np.int32, a=np.int32))
  with pytest.raises(TypeError, match='in another order'):
    values.flatten(data_set, type_spec)


_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)
_AT_SERVER = tff.FederatedType(np.int32, tff.SERVER)
_EQUAL_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS, all_equal=True)


@pytest.mark.parametrize(
  ('type_spec', 'expected'),
  [
    (_AT_CLIENTS, True),
    (_EQUAL_AT_CLIENTS, False),
    (_AT_SERVER, False),
    (tff.TensorType(np.int32), False),
  ],
  ids=str,
)
def test_what_is_one_value_for_each_client(type_spec, expected):
  assert values.is_per_client(type_spec) == expected


def test_parts_are_the_largest_pieces_of_one_placement():
  pair_at_server = tff.FederatedType(_PAIR, tff.SERVER)
  type_spec = tff.StructType([_AT_CLIENTS, [('a', pair_at_server)]])
  assert values.parts(type_spec) == [_AT_CLIENTS, pair_at_server]


def test_no_argument_has_no_parts():
  assert values.parts(None) == values.split(None, None) == []


def test_a_value_comes_back_from_its_parts():
  type_spec = tff.to_type(
    LeftRight(_AT_CLIENTS, _OrderedDict(a=_AT_SERVER, b=_AT_SERVER))
  )
  value = LeftRight([1, 2], _OrderedDict(a=3, b=4))
  parts = values.split(value, type_spec)
  assert parts == [[1, 2], 3, 4]
  joined = values.join(parts, type_spec)
  np.testing.assert_equal(
    tff.types.type_to_py_container(joined, values.replace_clients(type_spec)),
    value,
  )


def test_without_clients_only_what_is_per_client_changes():
  type_spec = tff.to_type(LeftRight(_AT_CLIENTS, (_AT_SERVER, np.float32)))
  expected = tff.to_type(LeftRight(np.int32, (_AT_SERVER, np.float32)))
  assert values.replace_clients(type_spec) == expected


_STACKED = LeftRight(
  np.arange(3, dtype=np.int32),
  _OrderedDict(b=LeftRight(tf.range(3.0), np.arange(6).reshape(3, 2))),
)
_ROWS = [
  LeftRight(
    np.int32(k), _OrderedDict(b=LeftRight(float(k), [2 * k, 2 * k + 1]))
  )
  for k in range(3)
]


@pytest.fixture(name='clients')
def _clients() -> values.StackedClients:
  return values.StackedClients(_STACKED, 3)


def _assert_rows(rows: Any, expected: Any) -> None:
  assert len(rows) == len(expected)
  for row, expected_row in zip(rows, expected):
    tree.map_structure_up_to(
      expected_row, np.testing.assert_array_equal, row, expected_row
    )


def test_stacked_clients_have_a_number(clients):
  assert len(clients) == 3


def test_stacked_clients_can_be_iterated(clients):
  _assert_rows(list(clients), _ROWS)


@pytest.mark.parametrize('client', [0, 2, -1, -3])
def test_a_stacked_client_has_a_position(clients, client):
  _assert_rows([clients[client]], [_ROWS[client]])


@pytest.mark.parametrize(
  'clients_slice', [slice(1, None), slice(None, None, -1), slice(0, 0)]
)
def test_stacked_clients_can_be_sliced(clients, clients_slice):
  _assert_rows(clients[clients_slice], _ROWS[clients_slice])


@pytest.mark.parametrize('client', [3, -4])
def test_a_stacked_client_that_is_not_there_is_an_error(clients, client):
  with pytest.raises(IndexError, match='of 3'):
    clients[client]


def test_stacked_clients_keep_their_containers(clients):
  client = clients[1]
  assert isinstance(client, LeftRight)
  assert isinstance(client.right, _OrderedDict)
  assert isinstance(client.right['b'], LeftRight)
  assert isinstance(next(iter(clients)).right['b'], LeftRight)


def test_stacked_clients_look_like_a_list():
  assert repr(values.StackedClients(np.array(['a', 'b']), 2)) == repr(
    [np.array(c)[()] for c in ('a', 'b')]
  )
