"""Sequences give the same: as arguments, in work and as results."""

import collections
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes.parity import checks

_FLOAT = np.float32


class Example(NamedTuple):
  """An example. TFF takes only those in the order of the alphabet."""

  label: Any
  x: Any


@attrs.define
class Row:
  """An example of a class of attrs."""

  z: Any
  a: Any


def _numbers(size: int) -> tf.data.Dataset:
  return tf.data.Dataset.range(size, output_type=tf.int32)


def _vectors(size: int) -> np.ndarray:
  return np.arange(2 * size, dtype=_FLOAT).reshape(size, 2)


_VECTOR_SPEC = tff.TensorType(_FLOAT, [2])
_ELEMENTS = {
  'number': (tff.TensorType(np.int32), _numbers),
  'vector': (
    _VECTOR_SPEC,
    lambda size: tf.data.Dataset.from_tensor_slices(_vectors(size)),
  ),
  'text': (
    tff.TensorType(np.str_),
    lambda size: _numbers(size).map(tf.strings.as_string),
  ),
  'truth': (
    tff.TensorType(np.bool_),
    lambda size: _numbers(size).map(lambda k: k % 2 == 0),
  ),
  'unsorted keys': (
    tff.to_type(collections.OrderedDict(y=np.int32, x=_VECTOR_SPEC)),
    lambda size: tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(
        y=np.arange(size, dtype=np.int32), x=_vectors(size)
      )
    ),
  ),
  'keys of one type': (
    tff.to_type(collections.OrderedDict(z=np.int32, m=np.int32, a=np.int32)),
    lambda size: _numbers(size).map(
      lambda k: collections.OrderedDict(z=k, m=2 * k, a=3 * k)
    ),
  ),
  'named tuple': (
    tff.to_type(Example(x=_VECTOR_SPEC, label=np.int32)),
    lambda size: tf.data.Dataset.from_tensor_slices(
      Example(np.arange(size, dtype=np.int32), _vectors(size))
    ),
  ),
  'tuple': (
    tff.to_type((np.int32, np.int32)),
    lambda size: _numbers(size).map(lambda k: (k, -k)),
  ),
  'nested': (
    tff.to_type(
      collections.OrderedDict(
        z=(np.int32, collections.OrderedDict(b=np.int32, a=np.int32)),
        y=Example(np.int32, np.int32),
      )
    ),
    lambda size: _numbers(size).map(
      lambda k: collections.OrderedDict(
        z=(k, collections.OrderedDict(b=2 * k, a=3 * k)), y=Example(k, k + 1)
      )
    ),
  ),
  'batches': (
    tff.TensorType(np.int32, [None]),
    lambda size: _numbers(size).batch(2),
  ),
  'batches of a known size': (
    tff.TensorType(np.int32, [2]),
    lambda size: _numbers(size).batch(2, drop_remainder=True),
  ),
  'batches of structs': (
    tff.to_type(
      collections.OrderedDict(
        y=tff.TensorType(np.int32, [None]), x=tff.TensorType(_FLOAT, [None, 2])
      )
    ),
    lambda size: tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(
        y=np.arange(size, dtype=np.int32), x=_vectors(size)
      )
    ).batch(2),
  ),
  'padded batches': (
    tff.TensorType(np.int32, [None, None]),
    lambda size: _numbers(size).map(tf.range).padded_batch(2),
  ),
}
_SIZES = pytest.mark.parametrize(
  'sizes', checks.first(2, [(3, 1, 5), (0, 2), (3, 3), (0,)])
)
_NAMES = pytest.mark.parametrize('name', _ELEMENTS)


def _leaves(element: Any) -> list[tf.Tensor]:
  return [
    tf.strings.as_string(leaf) if leaf.dtype != tf.string else leaf
    for leaf in tf.nest.flatten(element)
  ]


def _in_order(data: tf.data.Dataset) -> Any:
  """Writes down all that is in a data set, with its order."""

  def step(text: tf.Tensor, element: Any) -> tf.Tensor:
    words = [
      tf.strings.reduce_join(tf.reshape(leaf, [-1]), separator=' ')
      for leaf in _leaves(element)
    ]
    return tf.strings.join([text, *words], ',')

  return data.reduce(tf.constant('start'), step)


@_NAMES
@_SIZES
def test_a_sequence_of_a_client_is_read(parity, name, sizes):
  kind, make = _ELEMENTS[name]
  computation = checks.mapped(_in_order, tff.SequenceType(kind))
  parity(computation, [make(size) for size in sizes])


@_NAMES
@pytest.mark.parametrize('size', checks.first(1, [5, 0, 1]))
def test_a_sequence_at_the_server_is_read(parity, name, size):
  kind, make = _ELEMENTS[name]
  block = tff.tensorflow.computation(_in_order, tff.SequenceType(kind))
  parity(block, make(size))

  @tff.federated_computation(checks.at_server(tff.SequenceType(kind)))
  def run(data):
    return tff.federated_map(block, data)

  parity(run, make(size))


@_NAMES
@_SIZES
def test_sequences_come_back(parity, name, sizes):
  kind, make = _ELEMENTS[name]
  kind = tff.SequenceType(kind)

  @tff.federated_computation(
    checks.at_clients(kind), checks.at_server(kind), kind
  )
  def run(x, y, z):
    return x, y, z

  parity(run, [make(size) for size in sizes], make(2), make(3))


@_NAMES
def test_sequences_come_back_from_work(parity, name):
  kind, make = _ELEMENTS[name]
  computation = checks.everywhere(
    lambda data: (data.take(2), data.map(lambda *e: e[0]).skip(1)),
    tff.SequenceType(kind),
  )
  parity(computation, [make(4), make(1)], make(3))


@_NAMES
def test_lists_are_sequences(parity, name):
  kind, make = _ELEMENTS[name]
  computation = checks.mapped(_in_order, tff.SequenceType(kind))
  rows = [list(make(size).as_numpy_iterator()) for size in (4, 3)]
  parity.agrees(computation, lambda: (rows,))


@pytest.mark.parametrize('rows', [[], [1], [3, 1, 2], (4, 5)], ids=str)
def test_lists_of_numbers_are_sequences(parity, rows):
  kind = tff.SequenceType(np.int32)
  computation = checks.everywhere(
    lambda data: (data.reduce(1, lambda a, b: 2 * a + b), data), kind
  )
  parity(computation, [list(rows), list(rows) * 2], list(rows))


_PIPELINES = {
  'map': lambda data: data.map(lambda x: x * 2 + 1),
  'parallel map': lambda data: data.map(
    lambda x: x * 2 + 1, num_parallel_calls=2
  ),
  'batch': lambda data: data.batch(2),
  'batch without the rest': lambda data: data.batch(2, drop_remainder=True),
  'filter': lambda data: data.filter(lambda x: x % 2 == 0),
  'take': lambda data: data.take(2),
  'skip': lambda data: data.skip(2),
  'repeat': lambda data: data.repeat(3),
  'infinite': lambda data: data.concatenate(_numbers(1)).repeat().take(7),
  'shuffle with a seed': lambda data: data.shuffle(10, seed=3),
  'the same shuffle in each epoch': lambda data: data.shuffle(
    10, seed=3, reshuffle_each_iteration=False
  ).repeat(2),
  'another shuffle in each epoch': lambda data: data.shuffle(
    10, seed=3, reshuffle_each_iteration=True
  ).repeat(2),
  'shuffle in a small buffer': lambda data: data.shuffle(2, seed=5),
  'enumerate': lambda data: data.enumerate(),
  'zip': lambda data: tf.data.Dataset.zip((data, data.map(lambda x: -x))),
  'concatenate': lambda data: data.concatenate(data),
  'interleave': lambda data: data.interleave(
    lambda x: tf.data.Dataset.from_tensors(x).repeat(2), cycle_length=2
  ),
  'flat map': lambda data: data.flat_map(
    lambda x: tf.data.Dataset.range(tf.cast(x, tf.int64))
  ),
  'window': lambda data: data.window(2).flat_map(lambda w: w.batch(2)),
  'scan': lambda data: data.scan(0, lambda s, x: (s + x, s * x)),
  'take while': lambda data: data.take_while(lambda x: x < 3),
  'unique': lambda data: data.map(lambda x: x % 2).unique(),
  'prefetch': lambda data: data.prefetch(2),
  'cache': lambda data: data.cache().repeat(2),
  'shard': lambda data: data.shard(2, 1),
  'unbatch': lambda data: data.batch(3).unbatch(),
  'padded batch': lambda data: data.map(lambda x: tf.range(x)).padded_batch(2),
  'ragged batch': lambda data: (
    data.map(lambda x: tf.range(x))
    .ragged_batch(2)
    .map(lambda x: tf.reduce_sum(x))
  ),
  'group by window': lambda data: data.group_by_window(
    lambda x: tf.cast(x % 2, tf.int64), lambda _, w: w.batch(3), 3
  ),
  'seeded random': lambda data: tf.data.Dataset.zip(
    (data, tf.data.Dataset.random(seed=4).take(3))
  ),
  'seeded map': lambda data: data.map(
    lambda x: tf.random.stateless_uniform([], tf.stack([x, 1]))
  ),
  'sampled': lambda data: tf.data.Dataset.sample_from_datasets(
    [data, data.map(lambda x: -x)], [0.5, 0.5], seed=3
  ),
}


@pytest.mark.parametrize('name', _PIPELINES)
def test_a_pipeline_is_read(parity, name):
  computation = checks.everywhere(
    lambda data: _in_order(_PIPELINES[name](data)), tff.SequenceType(np.int32)
  )
  parity(computation, [_numbers(size) for size in (5, 3, 5, 0)], _numbers(5))


@pytest.mark.parametrize('name', checks.first(12, _PIPELINES))
def test_a_pipeline_comes_back(parity, name):
  if name in ('seeded random',):
    pytest.skip('It draws anew each time that it is read.')
  computation = checks.everywhere(_PIPELINES[name], tff.SequenceType(np.int32))
  parity(computation, [_numbers(5), _numbers(2)], _numbers(5))


_REDUCTIONS = {
  'sum': lambda data: data.reduce(0, lambda a, b: a + b),
  'state': lambda data: data.reduce(
    (0, 1.0), lambda s, x: (s[0] + x, s[1] * 0.5 + tf.cast(x, tf.float32))
  ),
  'state that is named': lambda data: data.reduce(
    collections.OrderedDict(z=0, a=tf.zeros([2])),
    lambda s, x: collections.OrderedDict(
      z=s['z'] + 1, a=s['a'] + tf.cast(x, tf.float32)
    ),
  ),
  'loop': lambda data: _loop(data),
  'count': lambda data: data.cardinality(),
  'first': lambda data: (
    data.concatenate(_numbers(1)).take(1).get_single_element()
  ),
  'twice': lambda data: (
    data.reduce(0, lambda a, b: a + b),
    data.reduce(1, lambda a, b: a * 2 + b),
  ),
  'made within': lambda data: (
    data.reduce(0, lambda a, b: a + b)
    + tf.data.Dataset.range(4)
    .map(lambda k: tf.cast(k, tf.int32))
    .reduce(0, lambda a, b: a + b)
  ),
  'made from what is read': lambda data: tf.data.Dataset.range(
    data.reduce(np.int64(0), lambda a, b: a + 1)
  ).reduce(np.int64(5), lambda a, b: 2 * a + b),
}


@tf.function
def _loop(data):
  total, last = 0, -1
  for x in data:
    total = total * 3 + x
    last = x
    if total > 1000:
      break
  return total, last


@pytest.mark.parametrize('name', _REDUCTIONS)
def test_a_reduction(parity, name):
  computation = checks.everywhere(
    lambda data: _REDUCTIONS[name](data), tff.SequenceType(np.int32)
  )
  parity(computation, [_numbers(size) for size in (5, 3, 0)], _numbers(4))


def test_a_data_set_from_tensors_in_the_argument(parity):
  def work(x):
    data = tf.data.Dataset.from_tensor_slices(x).shuffle(5, seed=2).batch(2)
    return data, data.reduce(0.0, lambda a, b: 2 * a + tf.reduce_sum(b))

  kind = tff.TensorType(_FLOAT, [4])
  clients = [np.arange(k, k + 4, dtype=_FLOAT) for k in range(3)]
  parity(checks.everywhere(work, kind), clients, clients[0])


def test_a_data_set_without_an_argument(parity):
  @tff.tensorflow.computation
  def make():
    return tf.data.Dataset.range(5).batch(2)

  parity(make)

  @tff.federated_computation(checks.at_clients(np.int32))
  def run(x):
    return (
      x,
      tff.federated_eval(make, tff.SERVER),
      tff.federated_eval(make, tff.CLIENTS),
    )

  parity(run, [1, 2])


def test_sequences_in_a_struct(parity):
  kind = tff.to_type(
    collections.OrderedDict(
      b=tff.SequenceType(np.int32), a=(np.int32, tff.SequenceType(_VECTOR_SPEC))
    )
  )

  def work(value):
    return collections.OrderedDict(
      z=value['a'][1].map(lambda row: row * 2),
      y=value['b'].reduce(value['a'][0], lambda a, b: a * 2 + b),
    )

  clients = [
    collections.OrderedDict(
      b=_numbers(k),
      a=(k, tf.data.Dataset.from_tensor_slices(_vectors(k + 1))),
    )
    for k in range(3)
  ]
  parity(checks.everywhere(work, kind), clients, clients[2])


def test_a_sequence_is_broadcast(parity):
  kind = tff.SequenceType(np.int32)
  work = tff.tensorflow.computation(
    lambda data, x: data.reduce(x, lambda a, b: a * 2 + b), kind, np.int32
  )

  @tff.federated_computation(
    checks.at_server(kind), checks.at_clients(np.int32)
  )
  def run(data, x):
    common = tff.federated_broadcast(data)
    return tff.federated_map(work, (common, x))

  parity(run, _numbers(4), [1, 2, 3])


def test_a_sequence_is_broadcast_after_work(parity):
  kind = tff.SequenceType(np.int32)
  double = tff.tensorflow.computation(
    lambda data: data.map(lambda x: 2 * x), kind
  )
  count = tff.tensorflow.computation(
    lambda data, x: data.reduce(x, lambda a, b: a + b), kind, np.int32
  )

  @tff.federated_computation(
    checks.at_server(kind), checks.at_clients(np.int32)
  )
  def run(data, x):
    common = tff.federated_broadcast(tff.federated_map(double, data))
    return tff.federated_map(count, (common, x)), common

  parity.at_least(run, _numbers(4), [1, 2, 3])


def test_a_sequence_lasts_for_two_stages(parity):
  kind = tff.SequenceType(np.int32)
  total = tff.tensorflow.computation(
    lambda data: data.reduce(0, lambda a, b: a + b), kind
  )
  more = tff.tensorflow.computation(
    lambda data, x: data.map(lambda y: y + x).reduce(0, lambda a, b: a + b),
    kind,
    np.int32,
  )

  @tff.federated_computation(checks.at_clients(kind))
  def run(data):
    first = tff.federated_sum(tff.federated_map(total, data))
    return tff.federated_map(more, (data, tff.federated_broadcast(first)))

  parity(run, [_numbers(k) for k in (3, 5, 1)])


def test_a_sequence_of_ones_own_work_lasts_for_two_stages(parity):
  kind = tff.SequenceType(np.int32)
  double = tff.tensorflow.computation(
    lambda data: data.map(lambda x: 2 * x).batch(2), kind
  )
  total = tff.tensorflow.computation(
    lambda data: data.reduce(0, lambda a, b: a + tf.reduce_sum(b)),
    double.type_signature.result,
  )
  more = tff.tensorflow.computation(
    lambda data, x: data.reduce(x, lambda a, b: a + tf.reduce_sum(b)),
    double.type_signature.result,
    np.int32,
  )

  @tff.federated_computation(checks.at_clients(kind))
  def run(data):
    doubled = tff.federated_map(double, data)
    first = tff.federated_sum(tff.federated_map(total, doubled))
    common = tff.federated_broadcast(first)
    return tff.federated_map(more, (doubled, common)), doubled

  parity(run, [_numbers(k) for k in (3, 5, 1)])


def test_a_data_set_of_another_container_is_the_same_or_refused(parity):
  kind = tff.SequenceType(
    tff.to_type(collections.OrderedDict(b=np.int32, a=np.int32))
  )
  computation = checks.mapped(_in_order, kind)
  for make in (
    lambda k: collections.OrderedDict(a=k, b=2 * k),
    lambda k: {'b': k, 'a': 2 * k},
    lambda k: (k, 2 * k),
  ):
    data = _numbers(3).map(make)
    parity.agrees_or_refuses(computation, [data, data])


def test_a_result_is_an_argument_again(parity):
  kind = tff.SequenceType(np.int32)
  computation = checks.mapped(lambda data: data.map(lambda x: 2 * x), kind)
  for context in parity.cohorts.values():
    first = checks.run_once(context, computation, [_numbers(3), _numbers(1)])
    second = checks.run_once(context, computation, list(first))
    assert [list(data.as_numpy_iterator()) for data in second] == [
      [0, 4, 8],
      [0],
    ]


def test_a_result_is_read_twice(parity):
  computation = checks.mapped(
    lambda data: data.map(lambda x: 2 * x), tff.SequenceType(np.int32)
  )
  for context in parity.cohorts.values():
    (result,) = checks.run_once(context, computation, [_numbers(3)])
    for _ in range(2):
      assert list(result.as_numpy_iterator()) == [0, 2, 4]


def test_elements_with_a_struct_of_nothing(parity):
  computation = checks.mapped(
    lambda x: tf.data.Dataset.from_tensors((x, (), {'a': ((), x)})), np.int32
  )
  parity(computation, [1, 2])


def test_a_sequence_of_a_class_of_attrs(parity):
  kind = tff.SequenceType(tff.to_type(Row(z=np.int32, a=np.int32)))
  computation = checks.mapped(
    lambda data: data.reduce(0, lambda t, row: t * 5 + row.z + 2 * row.a), kind
  )
  data = _numbers(3).map(lambda k: Row(z=k, a=k + 1))
  parity.at_least(computation, [data, data])
