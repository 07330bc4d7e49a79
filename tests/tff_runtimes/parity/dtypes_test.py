"""Every type of number comes back as itself."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes.parity import checks

_BFLOAT16 = tf.bfloat16.as_numpy_dtype
_DTYPES = {
  'bool': np.bool_,
  'int8': np.int8,
  'int16': np.int16,
  'int32': np.int32,
  'int64': np.int64,
  'uint8': np.uint8,
  'uint16': np.uint16,
  'uint32': np.uint32,
  'uint64': np.uint64,
  'float16': np.float16,
  'bfloat16': _BFLOAT16,
  'float32': np.float32,
  'float64': np.float64,
  'complex64': np.complex64,
  'complex128': np.complex128,
  'string': np.str_,
}
_NUMBERS = [name for name in _DTYPES if name not in ('bool', 'string')]
# TFF cannot send the largest uint64, where a minimum starts, to its worker.
_ORDERED = [
  name
  for name in _NUMBERS
  if 'complex' not in name and name not in ('bfloat16', 'uint64')
]
_MEANS = ['float16', 'float32', 'float64', 'complex64', 'complex128']


def _values(name: str, shape: tuple[int, ...], number: int = 3) -> list:
  """Makes the values of some clients."""
  size = int(np.prod(shape))
  result = []
  for k in range(number):
    flat = np.arange(k, k + size) % 5
    if name == 'string':
      array = np.array([b'x' * j for j in flat], object).reshape(shape)
      result.append(array.item() if not shape else array)
      continue
    array = (flat % 2 if name == 'bool' else flat).astype(_DTYPES[name])
    if 'complex' in name:
      array = array * np.array(1 - 0.5j, _DTYPES[name])
    result.append(array.reshape(shape)[()])
  return result


def _type(name: str, shape: tuple[int, ...]) -> tff.TensorType:
  return tff.TensorType(_DTYPES[name], shape)


_SHAPES = pytest.mark.parametrize(
  'shape', checks.first(2, [(), (2,), (0,), (2, 1)]), ids=str
)


@_SHAPES
@pytest.mark.parametrize('name', _DTYPES)
def test_values_pass_through(parity, name, shape):
  kind = _type(name, shape)

  @tff.federated_computation(
    checks.at_clients(kind), checks.at_server(kind), kind
  )
  def run(clients, server, plain):
    return clients, server, plain, tff.federated_broadcast(server)

  clients = _values(name, shape)
  parity(run, clients, clients[0], clients[1])


@_SHAPES
@pytest.mark.parametrize('name', _DTYPES)
def test_values_go_through_work(parity, name, shape):
  work = lambda x: (tf.identity(x), tf.expand_dims(x, 0))  # noqa: E731
  clients = _values(name, shape)
  computation = checks.everywhere(work, _type(name, shape))
  parity(computation, clients, clients[1])
  parity(
    tff.tensorflow.computation(lambda x: work(x), _type(name, shape)),
    clients[2],
  )


@_SHAPES
@pytest.mark.parametrize('name', _NUMBERS)
def test_sums(parity, name, shape):
  computation = tff.federated_computation(
    lambda x: tff.federated_sum(x), checks.at_clients(_type(name, shape))
  )
  parity(computation, _values(name, shape, 5))
  parity(computation, [])


@_SHAPES
@pytest.mark.parametrize('name', _ORDERED)
def test_minima_and_maxima(parity, name, shape):
  computation = tff.federated_computation(
    lambda x: (tff.federated_min(x), tff.federated_max(x)),
    checks.at_clients(_type(name, shape)),
  )
  parity(computation, _values(name, shape, 5))
  parity(computation, [])


@_SHAPES
@pytest.mark.parametrize('name', _MEANS)
def test_means(parity, name, shape):
  computation = tff.federated_computation(
    lambda x: tff.federated_mean(x), checks.at_clients(_type(name, shape))
  )
  parity(computation, _values(name, shape, 5))


@pytest.mark.parametrize('name', ['int32', 'int64', 'float64', 'float16'])
def test_weights_of_a_mean(parity, name):
  @tff.federated_computation(
    checks.at_clients(np.float32), checks.at_clients(_DTYPES[name])
  )
  def run(x, weight):
    return tff.federated_mean(x, weight)

  dtype = _DTYPES[name]
  parity(run, [0.5, 1.5, 4.0], [dtype(1), dtype(2), dtype(1)])


@pytest.mark.parametrize('name', _DTYPES)
def test_sequences_of_a_type(parity, name):
  kind = tff.SequenceType(_type(name, (2,)))

  @tff.federated_computation(checks.at_clients(kind))
  def run(x):
    first = tff.tensorflow.computation(
      lambda ds: ds.map(lambda row: row[:1]), kind
    )
    return tff.federated_map(first, x), x

  rows = _values(name, (2,), 3)
  parity(run, [rows, rows[:1], rows[1:]])


@pytest.mark.parametrize('name', _DTYPES)
def test_a_struct_of_a_type(parity, name):
  kind = tff.to_type(
    collections.OrderedDict(
      z=_type(name, ()), a=[_type(name, (2,)), (_type('int32', ()),)]
    )
  )

  @tff.federated_computation(checks.at_clients(kind), checks.at_server(kind))
  def run(x, y):
    work = tff.tensorflow.computation(
      lambda s: collections.OrderedDict(y=s['a'], x=s['z']), kind
    )
    return tff.federated_map(work, x), tff.federated_map(work, y), x, y

  clients = [
    collections.OrderedDict(z=one, a=[two, (np.int32(5),)])
    for one, two in zip(_values(name, ()), _values(name, (2,)))
  ]
  parity(run, clients, clients[0])


@pytest.mark.parametrize('to', [name for name in _DTYPES if name != 'string'])
@pytest.mark.parametrize(
  'name', checks.first(1, ['float32', 'bool', 'uint8', 'int64'])
)
def test_casts(parity, name, to):
  dtype = tf.as_dtype(_DTYPES[to])
  clients = _values(name, (4,))
  parity(
    checks.everywhere(lambda x: tf.cast(x, dtype), _type(name, (4,))),
    clients,
    clients[0],
  )
