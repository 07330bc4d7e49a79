"""What is refused as an argument, and what is converted, is the same."""

import collections
import decimal
import fractions
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes.parity import checks

_REFUSED = (TypeError, ValueError)
_FLOAT = np.float32


class Pair(NamedTuple):
  """A pair whose fields have the order of the type."""

  b: Any
  a: Any


class Turned(NamedTuple):
  """A pair whose fields have another order."""

  a: Any
  b: Any


@attrs.define
class Fields:
  """A pair of a class of attrs."""

  b: Any
  a: Any


def _make(dtype: Any, *shape: int) -> Any:
  return lambda: np.ones(shape, dtype)


# What is tried for each type. Each makes its value anew, as some are used up.
_VALUES = {
  'None': lambda: None,
  'text': lambda: '5',
  'bytes': lambda: b'5',
  'fraction': lambda: 1.7,
  'whole float': lambda: 3.0,
  'truth': lambda: True,
  'int': lambda: 3,
  'negative int': lambda: -3,
  'large int': lambda: 2**40,
  'huge int': lambda: 2**70,
  'int above int8': lambda: 200,
  'complex': lambda: 1 + 2j,
  'infinity': lambda: float('inf'),
  'NaN': lambda: float('nan'),
  'large float': lambda: 1e300,
  'object': object,
  'a Python class': lambda: int,
  'function': lambda: lambda x: x,
  'set': lambda: {1},
  'dict': lambda: {'a': 1},
  'empty dict': dict,
  'empty list': list,
  'empty tuple': tuple,
  'list of an int': lambda: [3],
  'list of floats': lambda: [1.0, 2.0],
  'tuple of floats': lambda: (1.0, 2.0),
  'list of ints': lambda: [1, 2],
  'mixed list': lambda: [1, 2.5],
  'list of truths': lambda: [True, False],
  'list of texts': lambda: ['a', 'b'],
  'list of three floats': lambda: [1.0, 2.0, 3.0],
  'nested list': lambda: [[1.0, 2.0], [3.0, 4.0]],
  'ragged list': lambda: [[1.0], [2.0, 3.0]],
  'list of arrays': lambda: [_FLOAT(1), _FLOAT(2)],
  'range': lambda: range(2),
  'generator': lambda: (float(k) for k in range(2)),
  'Decimal': lambda: decimal.Decimal(1),
  'Fraction': lambda: fractions.Fraction(1, 2),
  **{
    f'{np.dtype(dtype).name} scalar': lambda dtype=dtype: dtype(1)
    for dtype in (
      np.bool_,
      np.int8,
      np.int16,
      np.int32,
      np.int64,
      np.uint8,
      np.uint32,
      np.float16,
      np.float32,
      np.float64,
      np.complex64,
    )
  },
  **{
    f'{np.dtype(dtype).name} array of rank 0': _make(dtype)
    for dtype in (np.int16, np.int32, np.int64, np.float32, np.float64)
  },
  **{
    f'{np.dtype(dtype).name} vector': _make(dtype, 2)
    for dtype in (
      np.bool_,
      np.int16,
      np.int32,
      np.int64,
      np.float16,
      np.float32,
      np.float64,
    )
  },
  'vector of one': _make(_FLOAT, 1),
  'vector of three': _make(_FLOAT, 3),
  'column': _make(_FLOAT, 2, 1),
  'matrix': _make(_FLOAT, 2, 2),
  'empty vector': _make(_FLOAT, 0),
  'big endian vector': lambda: np.ones(2, '>f4'),
  'array of objects': lambda: np.array([1.0, 2.0], object),
  'array of text': lambda: np.array(['a', 'b']),
  'array of bytes': lambda: np.array([b'a', b'b'], object),
  'masked array': lambda: np.ma.masked_array([1.0, 2.0], dtype=_FLOAT),
  'matrix class': lambda: np.matrix([[1.0, 2.0]], dtype=_FLOAT),
  'int tensor': lambda: tf.constant(3),
  'long tensor': lambda: tf.constant(3, tf.int64),
  'float tensor': lambda: tf.constant(3.0),
  'vector tensor': lambda: tf.constant([1.0, 2.0]),
  'double tensor': lambda: tf.constant([1.0, 2.0], tf.float64),
  'text tensor': lambda: tf.constant('a'),
  'variable': lambda: tf.Variable(3),
  'float variable': lambda: tf.Variable(3.0),
  'vector variable': lambda: tf.Variable([1.0, 2.0]),
  'sparse tensor': lambda: tf.sparse.from_dense([1.0, 2.0]),
  'ragged tensor': lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]),
  'symbolic tensor': lambda: tf.keras.Input([2]),
  'data set': lambda: tf.data.Dataset.range(2),
  'tensor spec': lambda: tf.TensorSpec([2]),
  'accents': lambda: 'é'.encode(),
  'zero byte': lambda: b'a\0b',
  'numpy text': lambda: np.str_('a'),
  'numpy bytes': lambda: np.bytes_(b'a'),
}
_TYPES = {
  'int32': tff.TensorType(np.int32),
  'int8': tff.TensorType(np.int8),
  'int64': tff.TensorType(np.int64),
  'uint8': tff.TensorType(np.uint8),
  'float32': tff.TensorType(_FLOAT),
  'float64': tff.TensorType(np.float64),
  'bool': tff.TensorType(np.bool_),
  'complex64': tff.TensorType(np.complex64),
  'string': tff.TensorType(np.str_),
  'float32[2]': tff.TensorType(_FLOAT, [2]),
  'float32[?]': tff.TensorType(_FLOAT, [None]),
  'int32[2]': tff.TensorType(np.int32, [2]),
  'string[2]': tff.TensorType(np.str_, [2]),
}
_COMPUTATIONS = {
  name: tff.federated_computation(
    lambda x, y, z: (x, y, z),
    [checks.at_clients(kind), checks.at_server(kind), kind],
  )
  for name, kind in _TYPES.items()
}
_BLOCKS = {
  name: tff.tensorflow.computation(lambda x: tf.identity(x), kind)
  for name, kind in _TYPES.items()
}


@pytest.mark.parametrize('value', _VALUES)
@pytest.mark.parametrize('kind', _TYPES)
def test_a_value_is_taken_or_refused(parity, kind, value):
  make = _VALUES[value]
  parity.takes_or_refuses(_BLOCKS[kind], lambda: (make(),))


@pytest.mark.parametrize('value', _VALUES)
@pytest.mark.parametrize(
  'kind', ['int32', 'float32[2]', 'string', 'float32[?]']
)
def test_a_value_of_one_client_is_taken_or_refused(parity, kind, value):
  good = {
    'int32': 1,
    'float32[2]': np.ones(2, _FLOAT),
    'string': 'a',
    'float32[?]': np.ones(2, _FLOAT),
  }[kind]
  make = _VALUES[value]
  parity.takes_or_refuses(
    _COMPUTATIONS[kind], lambda: ([good, make()], good, good)
  )
  parity.takes_or_refuses(_COMPUTATIONS[kind], lambda: ([good], make(), good))


_SUM = tff.federated_computation(
  lambda x: (tff.federated_sum(x), x), checks.at_clients(np.int32)
)
_SUM_OF_VECTORS = tff.federated_computation(
  lambda x: (tff.federated_sum(x), x),
  checks.at_clients(tff.TensorType(np.int32, [2])),
)
_CLIENTS = {
  'None': lambda: None,
  'number': lambda: 5,
  'dict': lambda: {'a': 1, 'b': 2},
  'ordered dict': lambda: collections.OrderedDict(a=1, b=2),
  'dict by number': lambda: {0: 1, 1: 2},
  'text': lambda: '12',
  'bytes': lambda: b'12',
  'generator': lambda: (k for k in range(2)),
  'iterator': lambda: iter([1, 2]),
  'map': lambda: map(int, [1, 2]),
  'set': lambda: {1, 2},
  'frozen set': lambda: frozenset([1, 2]),
  'array': lambda: np.array([1, 2], np.int32),
  'matrix': lambda: np.ones([2, 2], np.int32),
  'tensor': lambda: tf.constant([1, 2]),
  'data set': lambda: tf.data.Dataset.range(2),
  'values of a dict': lambda: {'a': 1, 'b': 2}.values(),
  'keys of a dict': lambda: {1: 1, 2: 2}.keys(),
  'function': lambda: lambda: [1, 2],
  'list': lambda: [1, 2],
  'tuple': lambda: (1, 2),
  'nested list': lambda: [[1], [2]],
  'list of vectors': lambda: [np.array([1, 2], np.int32)] * 2,
  'list of lists': lambda: [[1, 2], [3, 4]],
  'list of different types': lambda: [1, 2.0],
  'list with None': lambda: [1, None],
  'list of a list': lambda: [[1, 2]],
}


@pytest.mark.parametrize('name', _CLIENTS)
def test_a_list_of_clients_is_taken_or_refused(parity, name):
  parity.takes_or_refuses(_SUM, lambda: (_CLIENTS[name](),))
  parity.takes_or_refuses(_SUM_OF_VECTORS, lambda: (_CLIENTS[name](),))


@pytest.mark.parametrize(
  'clients',
  [range(3), collections.deque([1, 2]), (4, 5)],
  ids=['range', 'deque', 'tuple'],
)
def test_a_sequence_of_clients_is_taken(parity, clients):
  parity(_SUM, clients)


_STRUCT = tff.to_type(collections.OrderedDict(b=np.int32, a=_FLOAT))
_ALIKE = tff.to_type(collections.OrderedDict(b=np.int32, a=np.int32))
_NO_NAMES = tff.to_type((np.int32, _FLOAT))
_PAIR = tff.to_type(Pair(np.int32, _FLOAT))
_NESTED = tff.to_type(collections.OrderedDict(z=_ALIKE, y=(_ALIKE,)))
_OF_FIELDS = tff.to_type(Fields(np.int32, _FLOAT))
_EMPTY = tff.StructType([])
_STRUCTS = {
  'sorted as the type': lambda: collections.OrderedDict(b=1, a=2.0),
  'sorted otherwise': lambda: collections.OrderedDict(a=2.0, b=1),
  'dict': lambda: {'b': 1, 'a': 2.0},
  'dict sorted otherwise': lambda: {'a': 2.0, 'b': 1},
  'ints sorted as the type': lambda: collections.OrderedDict(b=1, a=2),
  'ints sorted otherwise': lambda: collections.OrderedDict(a=2, b=1),
  'too few': lambda: {'b': 1},
  'too many': lambda: {'b': 1, 'a': 2.0, 'c': 3},
  'another name': lambda: {'b': 1, 'c': 2.0},
  'another name of ints': lambda: {'b': 1, 'c': 2},
  'only other names': lambda: {'x': 1, 'y': 2},
  'tuple': lambda: (1, 2.0),
  'tuple of ints': lambda: (1, 2),
  'list': lambda: [1, 2.0],
  'list of ints': lambda: [1, 2],
  'too short': lambda: (1,),
  'too long': lambda: (1, 2.0, 3),
  'too long of ints': lambda: [1, 2, 3],
  'empty': tuple,
  'named tuple': lambda: Pair(1, 2.0),
  'named tuple of ints': lambda: Pair(1, 2),
  'named tuple sorted otherwise': lambda: Turned(2.0, 1),
  'named tuple of ints sorted otherwise': lambda: Turned(2, 1),
  'attrs': lambda: Fields(1, 2.0),
  'attrs of ints': lambda: Fields(1, 2),
  'Struct': lambda: tff.structure.Struct([('b', 1), ('a', 2.0)]),
  'Struct of ints': lambda: tff.structure.Struct([('b', 1), ('a', 2)]),
  'Struct sorted otherwise': lambda: tff.structure.Struct([('a', 2), ('b', 1)]),
  'Struct without names': lambda: tff.structure.Struct.unnamed(1, 2),
  'number': lambda: 1,
  'text': lambda: 'ab',
  'None': lambda: None,
  'array': lambda: np.array([1, 2], np.int32),
  'set': lambda: {1, 2},
  'generator': lambda: (k for k in (1, 2)),
  'default dict': lambda: collections.defaultdict(int, b=1, a=2),
  'keys that are numbers': lambda: {0: 1, 1: 2},
  'nested': lambda: collections.OrderedDict(
    z=collections.OrderedDict(b=1, a=2), y=({'b': 3, 'a': 4},)
  ),
  'nested, sorted otherwise': lambda: {
    'y': ({'a': 4, 'b': 3},),
    'z': {'a': 2, 'b': 1},
  },
  'nested, inner ones sorted otherwise': lambda: {
    'z': {'a': 2, 'b': 1},
    'y': ({'a': 4, 'b': 3},),
  },
}
_STRUCT_TYPES = {
  'struct': _STRUCT,
  'struct of ints': _ALIKE,
  'without names': _NO_NAMES,
  'named tuple': _PAIR,
  'nested': _NESTED,
  'attrs': _OF_FIELDS,
  'empty': _EMPTY,
}


@pytest.mark.parametrize('value', _STRUCTS)
@pytest.mark.parametrize('kind', _STRUCT_TYPES)
def test_a_struct_is_taken_as_it_is_or_refused(parity, kind, value):
  """By its names or by its order: but never differently."""
  make = _STRUCTS[value]
  plain = tff.federated_computation(lambda x: x, _STRUCT_TYPES[kind])
  federated = tff.federated_computation(
    lambda x, y: (x, y),
    [
      checks.at_clients(_STRUCT_TYPES[kind]),
      checks.at_server(_STRUCT_TYPES[kind]),
    ],
  )
  parity.never_differs(plain, lambda: (make(),))
  parity.never_differs(federated, lambda: ([make(), make()], make()))


@pytest.mark.parametrize('value', _STRUCTS)
def test_the_parts_of_an_argument_are_taken_as_they_are_or_refused(
  parity, value
):
  computation = tff.federated_computation(
    lambda x: (tff.federated_sum(x['b']), x['a']),
    collections.OrderedDict(
      b=checks.at_clients(np.int32), a=checks.at_server(np.int32)
    ),
  )

  def make():
    made = _STRUCTS[value]()
    if isinstance(made, dict) and 'b' in made:
      made['b'] = [made['b']] * 2
    elif isinstance(made, list):
      made[0] = [made[0]] * 2
    return (made,)

  parity.never_differs(computation, make)


_ROWS = tff.SequenceType(
  tff.to_type(
    collections.OrderedDict(b=np.int32, a=tff.TensorType(_FLOAT, [2]))
  )
)


def _data(**columns: Any) -> tf.data.Dataset:
  return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(columns))


_INTS = np.arange(3, dtype=np.int32)
_FLOATS = np.ones([3, 2], _FLOAT)
_DATA = {
  'as the type': lambda: _data(b=_INTS, a=_FLOATS),
  'sorted otherwise': lambda: _data(a=_FLOATS, b=_INTS),
  'another column': lambda: _data(b=_INTS, c=_FLOATS),
  'one column more': lambda: _data(b=_INTS, a=_FLOATS, c=_INTS),
  'one column less': lambda: _data(b=_INTS),
  'another type': lambda: _data(b=_INTS.astype(np.int64), a=_FLOATS),
  'another type of floats': lambda: _data(
    b=_INTS, a=_FLOATS.astype(np.float64)
  ),
  'another shape': lambda: _data(b=_INTS, a=_FLOATS[:, :1]),
  'another rank': lambda: _data(b=_INTS, a=_FLOATS[:, 0]),
  'batched': lambda: _data(b=_INTS, a=_FLOATS).batch(2),
  'tuple': lambda: tf.data.Dataset.from_tensor_slices((_INTS, _FLOATS)),
  'unknown size': lambda: _data(b=_INTS, a=_FLOATS).map(
    lambda row: collections.OrderedDict(
      b=row['b'], a=tf.boolean_mask(row['a'], row['a'] > 0)
    )
  ),
  'only a column': lambda: tf.data.Dataset.from_tensor_slices(_INTS),
  'a list of rows': lambda: (
    [collections.OrderedDict(b=1, a=np.ones(2, _FLOAT))] * 2
  ),
  'a list of rows of another type': lambda: [
    collections.OrderedDict(b=1.5, a=np.ones(2, _FLOAT))
  ],
  'a list of rows of another shape': lambda: [
    collections.OrderedDict(b=1, a=np.ones(3, _FLOAT))
  ],
  'a list of other rows': lambda: [1, 2],
  'an empty list': list,
  'None': lambda: None,
  'a number': lambda: 5,
  'text': lambda: 'abc',
  'an array': lambda: _FLOATS,
  'a dict of columns': lambda: {'b': _INTS, 'a': _FLOATS},
  'an iterator': lambda: iter([]),
}


@pytest.mark.parametrize('name', _DATA)
def test_a_data_set_is_taken_or_refused(parity, name):
  def work(data):
    return data.reduce(
      0.0,
      lambda t, row: (
        2 * t + tf.cast(row['b'], tf.float32) + tf.reduce_sum(row['a'])
      ),
    )

  make = _DATA[name]
  good = lambda: _data(b=_INTS, a=_FLOATS)  # noqa: E731
  computation = checks.everywhere(work, _ROWS)
  parity.never_differs(computation, lambda: ([make(), good()], good()))
  parity.never_differs(computation, lambda: ([good()], make()))
  block = tff.tensorflow.computation(lambda x: work(x), _ROWS)
  parity.never_differs(block, lambda: (make(),))


@pytest.mark.parametrize('sizes', [(1, 2), (2, 3), (0, 1), (3, 0)])
def test_different_numbers_of_clients_are_refused(parity, sizes):
  kind = checks.at_clients(np.int32)
  computation = tff.federated_computation(
    lambda x, y: (tff.federated_sum(x), tff.federated_sum(y)), [kind, kind]
  )
  parity.raises(
    computation, lambda: tuple([1] * size for size in sizes), _REFUSED
  )


@pytest.mark.parametrize('args', [(), (1, 2), ([1], [2])], ids=str)
def test_a_wrong_number_of_arguments_is_refused(parity, args):
  parity.raises(_SUM, lambda: args, _REFUSED)


def test_an_argument_where_none_is_taken_is_refused(parity):
  computation = tff.tensorflow.computation(lambda: tf.constant(1))
  parity.raises(computation, lambda: (1,), _REFUSED)


@pytest.mark.parametrize('all_equal', [[3, 3], [3, 4], 3, 'a', None], ids=str)
def test_an_all_equal_value_is_taken_or_refused(parity, all_equal):
  computation = tff.federated_computation(
    lambda x, y: (x, tff.federated_sum(x), y),
    [
      tff.FederatedType(np.int32, tff.CLIENTS, all_equal=True),
      checks.at_clients(np.int32),
    ],
  )
  parity.takes_or_refuses(computation, lambda: (all_equal, [1, 2]))


def test_arguments_by_name(parity):
  @tff.federated_computation(checks.at_clients(np.int32), np.int32)
  def run(x, factor):
    return tff.federated_sum(x), factor

  for context in [parity.native, *parity.cohorts.values()]:
    with tff.framework.get_context_stack().install(context):
      assert tuple(run(factor=3, x=[1, 2])) == (3, 3)
