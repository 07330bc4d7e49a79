"""Every placement and every intrinsic gives the same."""

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes.parity import checks

_INT, _FLOAT = np.int32, np.float32
_CLIENT_FLOAT = checks.at_clients(_FLOAT)
_CLIENT_INT = checks.at_clients(_INT)
_SERVER_INT = checks.at_server(_INT)
_SERVER_FLOAT = checks.at_server(_FLOAT)
_VECTOR = tff.TensorType(_FLOAT, [2])
_STRUCT = tff.to_type(collections.OrderedDict(b=_VECTOR, a=_INT))


class Pair(NamedTuple):
  """Two values."""

  left: Any
  right: Any


def _tf(work, *types):
  return tff.tensorflow.computation(work, *types)


_DOUBLE = _tf(lambda x: 2 * x, _INT)
_ADD = _tf(lambda a, b: a + b, _INT, _INT)
_ADD_FLOATS = _tf(lambda a, b: a + b, _FLOAT, _FLOAT)
_ONE = _tf(lambda: tf.constant(1))
_FIVE = [3, 1, 4, 1, 5]
_FIVE_FLOATS = [0.5, -1.25, 3.0, 8.0, 0.1]
_FIVE_STRUCTS = [
  collections.OrderedDict(b=np.array([k, -k], _FLOAT), a=k) for k in range(5)
]


def _fed(*types):
  return tff.federated_computation(*types)


@_fed(_CLIENT_INT)
def _map_twice(x):
  return tff.federated_map(_DOUBLE, tff.federated_map(_DOUBLE, x))


@_fed(_SERVER_INT)
def _map_at_server(x):
  return tff.federated_map(_DOUBLE, x)


@_fed(_SERVER_INT, _CLIENT_INT)
def _broadcast(x, y):
  return tff.federated_map(_ADD, (tff.federated_broadcast(x), y))


@_fed(_SERVER_INT, _CLIENT_INT)
def _broadcast_result(x, y):
  return tff.federated_broadcast(x), y


@_fed(_CLIENT_INT)
def _value_at_clients(y):
  return tff.federated_map(_ADD, (tff.federated_value(7, tff.CLIENTS), y))


@_fed(_CLIENT_INT)
def _value_results(y):
  return (
    tff.federated_value(7, tff.CLIENTS),
    tff.federated_value([1.5, 2.5], tff.SERVER),
    y,
  )


@_fed(_CLIENT_INT)
def _eval_at_both(y):
  ones = tff.federated_eval(_ONE, tff.CLIENTS)
  return ones, tff.federated_eval(_ONE, tff.SERVER), tff.federated_sum(ones), y


@_fed(_CLIENT_INT, _CLIENT_FLOAT, _SERVER_INT, _SERVER_FLOAT)
def _zips(a, b, c, d):
  return (
    tff.federated_zip((a, b)),
    tff.federated_zip(collections.OrderedDict(z=a, y=(b, a))),
    tff.federated_zip((c, d)),
    tff.federated_zip(collections.OrderedDict(z=c, y=[d, c])),
    tff.federated_zip(Pair(a, collections.OrderedDict(b=b))),
  )


@_fed(_CLIENT_INT, _CLIENT_FLOAT)
def _sum_of_a_zip(a, b):
  return tff.federated_sum(
    tff.federated_zip(collections.OrderedDict(z=a, y=(b, a)))
  )


@_fed(checks.at_clients(_STRUCT))
def _sums_of_structs(x):
  return (
    tff.federated_sum(x),
    tff.federated_min(x),
    tff.federated_max(x),
    tff.federated_mean(tff.federated_map(_tf(lambda s: s['b'], _STRUCT), x)),
    tff.federated_map(_tf(lambda s: s['a'], _STRUCT), x),
  )


@_fed(_CLIENT_FLOAT, checks.at_clients(_VECTOR))
def _weighted_mean(weight, x):
  return tff.federated_mean(x, weight), tff.federated_mean(x)


@_fed(_CLIENT_INT, _CLIENT_FLOAT)
def _mean_weighted_by_integers(weight, x):
  return tff.federated_mean(x, weight)


@_fed(_CLIENT_FLOAT)
def _mean_of_a_broadcast(x):
  mean = tff.federated_mean(x)
  work = _tf(lambda a, b: (a - b) ** 2, _FLOAT, _FLOAT)
  squares = tff.federated_map(work, (x, tff.federated_broadcast(mean)))
  variance = tff.federated_mean(squares)
  scaled = tff.federated_map(
    _tf(lambda a, v: a / tf.sqrt(v), _FLOAT, _FLOAT),
    (x, tff.federated_broadcast(variance)),
  )
  return mean, tff.federated_max(scaled), scaled, tff.federated_sum(squares)


@_fed(_CLIENT_INT)
def _twice_the_same(x):
  return x, x, (x, [x])


@_fed(_SERVER_INT)
def _twice_the_same_at_the_server(x):
  return x, collections.OrderedDict(b=x, a=x)


@_fed(_CLIENT_FLOAT)
def _sums_of_the_same(x):
  return tff.federated_sum(x), tff.federated_sum(x), tff.federated_max(x)


@_fed(_SERVER_FLOAT)
def _called(x):
  return tff.federated_map(_tf(lambda a: a + 1, _FLOAT), x)


@_fed(_CLIENT_FLOAT)
def _called_with_clients(x):
  return tff.federated_mean(x), x


@_fed(_CLIENT_FLOAT, _SERVER_FLOAT)
def _calls_others(x, y):
  mean, same = _called_with_clients(x)
  return _called(mean), _called(_called(y)), _called_with_clients(same)[0]


@_fed(_CLIENT_INT)
def _secure_sums(x):
  return (
    tff.federated_secure_sum(x, 100),
    tff.federated_secure_sum_bitwidth(x, 8),
  )


@_fed(checks.at_clients(_STRUCT))
def _secure_sum_of_a_struct(x):
  ints = tff.federated_map(_tf(lambda s: (s['a'], s['a'] * 2), _STRUCT), x)
  return tff.federated_secure_sum(ints, (10, 20))


@_fed(_CLIENT_FLOAT)
def _quantized_sum(x):
  return tff.aggregators.secure_quantized_sum(x, -10.0, 10.0)


@_fed(tff.FederatedType(_INT, tff.CLIENTS, all_equal=True), _CLIENT_INT)
def _all_equal(x, y):
  return (
    x,
    tff.federated_sum(x),
    tff.federated_map(_ADD, (x, y)),
    tff.federated_map(_DOUBLE, x),
  )


@_fed(_CLIENT_INT, _INT, (_FLOAT, _STRUCT))
def _without_placement(x, plain, more):
  return tff.federated_sum(x), plain, _DOUBLE(plain), more[1]


@_fed(collections.OrderedDict(b=_CLIENT_INT, a=(_SERVER_INT, _CLIENT_FLOAT)))
def _nested_argument(everything):
  return collections.OrderedDict(
    z=tff.federated_sum(everything['b']),
    y=[everything['a'][0], tff.federated_mean(everything['a'][1])],
  )


@_fed(_CLIENT_INT)
def _named_results(x):
  return Pair(
    left=collections.OrderedDict(z=x, y=tff.federated_sum(x)),
    right=(Pair(x, tff.federated_max(x)), []),
  )


@_fed(_CLIENT_INT)
def _constants(x):
  return 5, 'text', tff.federated_sum(x), (1.5, True)


@_fed(_CLIENT_INT)
def _sum_of_sequences_of_aggregates(x):
  total = tff.federated_sum(x)
  largest = tff.federated_max(
    tff.federated_map(_ADD, (x, tff.federated_broadcast(total)))
  )
  smallest = tff.federated_min(
    tff.federated_map(_ADD, (x, tff.federated_broadcast(largest)))
  )
  return tff.federated_map(
    _tf(lambda a, b, c: [a, b, c], _INT, _INT, _INT),
    (total, largest, smallest),
  )


_COMPUTATIONS = {
  'map': (_map_twice, _FIVE),
  'map at the server': (_map_at_server, 5),
  'broadcast': (_broadcast, 5, _FIVE),
  'result of a broadcast': (_broadcast_result, 5, _FIVE),
  'value at clients': (_value_at_clients, _FIVE),
  'values as results': (_value_results, _FIVE),
  'eval at both': (_eval_at_both, _FIVE),
  'zips': (_zips, _FIVE, _FIVE_FLOATS, 6, 1.5),
  'sum of a zip': (_sum_of_a_zip, _FIVE, _FIVE_FLOATS),
  'sums of structs': (_sums_of_structs, _FIVE_STRUCTS),
  'weighted mean': (
    _weighted_mean,
    [1.0, 2.0, 0.5, 0.0, 4.0],
    [np.array([k, k * k], _FLOAT) for k in range(5)],
  ),
  'mean weighted by integers': (
    _mean_weighted_by_integers,
    _FIVE,
    _FIVE_FLOATS,
  ),
  'weights that sum to zero': (
    _weighted_mean,
    [1.0, -1.0],
    [np.ones(2, _FLOAT), np.zeros(2, _FLOAT)],
  ),
  'mean of a broadcast': (_mean_of_a_broadcast, _FIVE_FLOATS),
  'twice the same': (_twice_the_same, _FIVE),
  'twice the same at the server': (_twice_the_same_at_the_server, 5),
  'sums of the same': (_sums_of_the_same, _FIVE_FLOATS),
  'calls others': (_calls_others, _FIVE_FLOATS, 1.0),
  'secure sums': (_secure_sums, _FIVE),
  'secure sum of a struct': (_secure_sum_of_a_struct, _FIVE_STRUCTS),
  'quantized sum': (_quantized_sum, _FIVE_FLOATS),
  'all equal': (_all_equal, 4, _FIVE),
  'without placement': (
    _without_placement,
    _FIVE,
    6,
    (1.5, _FIVE_STRUCTS[2]),
  ),
  'nested argument': (
    _nested_argument,
    collections.OrderedDict(b=_FIVE, a=(6, _FIVE_FLOATS)),
  ),
  'named results': (_named_results, _FIVE),
  'constants': (_constants, _FIVE),
  'a chain of aggregates': (_sum_of_sequences_of_aggregates, _FIVE),
}


def _resized(arg: Any, size: int) -> Any:
  """Gives an argument another number of clients."""
  if isinstance(arg, list):
    return [arg[k % len(arg)] for k in range(size)]
  if isinstance(arg, dict):
    return collections.OrderedDict(
      (name, _resized(element, size)) for name, element in arg.items()
    )
  if isinstance(arg, tuple):
    return tuple(_resized(element, size) for element in arg)
  return arg


@pytest.mark.parametrize('size', checks.first(2, [5, 0, 1, 2, 7]))
@pytest.mark.parametrize('name', _COMPUTATIONS)
def test_a_computation_of_any_number_of_clients(parity, name, size):
  computation, *args = _COMPUTATIONS[name]
  # The native runtime lacks a value that all of no clients have.
  run = parity if size else parity.at_least
  run(computation, *(_resized(arg, size) for arg in args))


@pytest.mark.parametrize('name', ['min', 'max'])
@pytest.mark.parametrize('dtype', [np.int32, np.int64, np.float32, np.uint8])
def test_the_limit_of_no_clients(parity, name, dtype):
  aggregate = {'min': tff.federated_min, 'max': tff.federated_max}[name]
  parity(_fed(checks.at_clients(dtype))(lambda x: aggregate(x)), [])


def _aggregation(client_type, zero, accumulate, merge, report):
  """Makes a federated_aggregate of TensorFlow functions."""
  zero = _tf(zero)
  accumulator = zero.type_signature.result
  accumulate = _tf(lambda a, x: accumulate(a, x), accumulator, client_type)
  merge = _tf(lambda a, b: merge(a, b), accumulator, accumulator)
  report = _tf(lambda a: report(a), accumulator)

  @_fed(checks.at_clients(client_type))
  def run(x):
    return tff.federated_aggregate(x, zero(), accumulate, merge, report)

  return run


def _growing() -> tff.Computation:
  """An accumulator that grows: its type has an unknown size."""
  unknown = tff.TensorType(_INT, [None])
  zero = _tf(lambda: tf.zeros([0], tf.int32))
  accumulate = _tf(lambda a, x: tf.concat([a, [x]], 0), unknown, _INT)
  merge = _tf(lambda a, b: tf.concat([a, b], 0), unknown, unknown)
  report = _tf(lambda a: (a, tf.size(a)), unknown)

  @_fed(_CLIENT_INT)
  def run(x):
    return tff.federated_aggregate(x, zero(), accumulate, merge, report)

  return run


_AGGREGATIONS = {
  'zero that is not neutral': lambda: _aggregation(
    _INT,
    lambda: tf.constant(100),
    lambda a, x: a + x,
    lambda a, b: a + b,
    lambda a: a * 2,
  ),
  'order of the clients': lambda: _aggregation(
    _INT,
    lambda: tf.constant(1),
    lambda a, x: a * 10 + x,
    lambda a, b: a * 1000 + b,
    lambda a: a,
  ),
  'merge that does something else': lambda: _aggregation(
    _FLOAT,
    lambda: tf.constant(0.5),
    lambda a, x: a / 2 + x,
    lambda a, b: a - b,
    lambda a: -a,
  ),
  'accumulator of another type': lambda: _aggregation(
    _INT,
    lambda: tf.constant(0.25),
    lambda a, x: a + tf.cast(x, tf.float32) / 8,
    lambda a, b: a + b,
    lambda a: tf.strings.as_string(a, 3),
  ),
  'struct': lambda: _aggregation(
    _FLOAT,
    lambda: collections.OrderedDict(
      total=tf.constant(0.0), count=tf.constant(3), last=tf.constant(-1.0)
    ),
    lambda a, x: collections.OrderedDict(
      total=a['total'] + x, count=a['count'] + 1, last=x
    ),
    lambda a, b: collections.OrderedDict(
      total=a['total'] + b['total'],
      count=a['count'] + b['count'],
      last=a['last'],
    ),
    lambda a: (a['total'] / tf.cast(a['count'], tf.float32), a),
  ),
  'struct of clients': lambda: _aggregation(
    _STRUCT,
    lambda: [tf.zeros([2]), tf.constant(1)],
    lambda a, x: [a[0] * 2 + x['b'], a[1] * 2 + x['a']],
    lambda a, b: [a[0] + b[0], a[1] + b[1]],
    lambda a: collections.OrderedDict(z=a[1], y=a[0]),
  ),
  'text': lambda: _aggregation(
    _INT,
    lambda: tf.constant('zero'),
    lambda a, x: tf.strings.join([a, tf.strings.as_string(x)], ','),
    lambda a, b: tf.strings.join([a, b], ';'),
    tf.strings.upper,
  ),
  'work in the accumulation': lambda: _aggregation(
    tff.TensorType(_FLOAT, [2]),
    lambda: tf.eye(2),
    lambda a, x: tf.linalg.matmul(a, tf.linalg.diag(x)) + 1,
    lambda a, b: a,
    tf.linalg.trace,
  ),
  'loop in the accumulation': lambda: _aggregation(
    _INT,
    lambda: tf.constant(0),
    lambda a, x: tf.while_loop(
      lambda k, _: k < x, lambda k, t: (k + 1, t * 2 + 1), (0, a)
    )[1],
    lambda a, b: a,
    lambda a: a,
  ),
  'it grows': _growing,
}


@pytest.mark.parametrize('size', checks.first(2, [5, 0, 1, 2]))
@pytest.mark.parametrize('name', _AGGREGATIONS)
def test_an_aggregation_of_ones_own(parity, name, size):
  computation = _AGGREGATIONS[name]()
  member = computation.type_signature.parameter.member
  if isinstance(member, tff.StructType):
    clients = _FIVE_STRUCTS
  elif member == tff.TensorType(_INT):
    clients = _FIVE
  else:
    clients = [np.full(member.shape, x, _FLOAT) for x in _FIVE_FLOATS]
  parity(computation, clients[:size])


def test_an_aggregation_of_a_zero_from_the_argument(parity):
  @_fed(_CLIENT_INT, _INT)
  def run(x, zero):
    same = _tf(lambda a: a, _INT)
    return tff.federated_aggregate(x, zero, _ADD, _ADD, same)

  parity(run, _FIVE, 100)


def test_the_sum_of_selected_rows(parity):
  table_type = tff.TensorType(_FLOAT, [4])
  pick = _tf(lambda table, key: tf.gather(table, key), table_type, _INT)
  total = _tf(
    lambda rows: rows.reduce(0.0, lambda a, b: a + b), tff.SequenceType(_FLOAT)
  )

  @_fed(
    checks.at_clients(tff.TensorType(_INT, [2])), checks.at_server(table_type)
  )
  def run(keys, table):
    largest = tff.federated_value(4, tff.SERVER)
    rows = tff.federated_select(keys, largest, table, pick)
    return tff.federated_map(total, rows)

  keys = [np.array(pair, np.int32) for pair in ([0, 1], [2, 2], [3, 0])]
  parity(run, keys, np.array([1, 10, 100, 1000], np.float32))


def test_selected_rows(parity):
  table_type = tff.TensorType(_FLOAT, [4, 2])
  pick = _tf(lambda table, key: (key, tf.gather(table, key)), table_type, _INT)

  @_fed(
    checks.at_clients(tff.TensorType(_INT, [2])),
    checks.at_server(table_type),
  )
  def run(keys, table):
    largest = tff.federated_value(4, tff.SERVER)
    return tff.federated_select(keys, largest, table, pick)

  keys = [np.array(rows, np.int32) for rows in ([0, 1], [2, 2], [3, 0])]
  parity(run, keys, np.arange(8, dtype=np.float32).reshape(4, 2))


_OF_SEQUENCES = {
  'map': lambda x: tff.sequence_map(_DOUBLE, x),
  'reduce': lambda x: tff.sequence_reduce(x, 100, _ADD),
  'sum': tff.sequence_sum,
  'sum of a map': lambda x: tff.sequence_sum(tff.sequence_map(_DOUBLE, x)),
  'reduce of a map of a map': lambda x: tff.sequence_reduce(
    tff.sequence_map(_DOUBLE, tff.sequence_map(_DOUBLE, x)), 1, _ADD
  ),
}


@pytest.mark.parametrize('name', _OF_SEQUENCES)
@pytest.mark.parametrize('where', ['nowhere', 'server', 'clients'])
def test_an_intrinsic_of_sequences(parity, name, where):
  work = _fed(tff.SequenceType(_INT))(lambda x: _OF_SEQUENCES[name](x))
  # The native runtime knows few of them.
  if where == 'nowhere':
    parity.at_least(work, [3, 1, 4])
    return
  place = {'server': tff.SERVER, 'clients': tff.CLIENTS}[where]

  @_fed(tff.FederatedType(tff.SequenceType(_INT), place))
  def run(x):
    return tff.federated_map(work, x)

  parity.at_least(run, [3, 1, 4] if where == 'server' else [[3, 1, 4], [], [2]])


@pytest.mark.parametrize('place', [tff.CLIENTS, tff.SERVER])
def test_a_result_shares_no_memory_with_the_argument(parity, place):
  kind = tff.FederatedType(_VECTOR, place)
  computation = _fed(kind, _VECTOR)(lambda x, y: (x, y))
  placed, plain = np.ones(2, _FLOAT), np.ones(2, _FLOAT)
  given = [placed, placed] if place is tff.CLIENTS else placed
  parity(computation, given, plain)
  for name, context in parity.cohorts.items():
    result = checks.run_once(context, computation, given, plain)
    placed[:] = plain[:] = 2.0
    parts = result[0] if place is tff.CLIENTS else [result[0]]
    assert all(np.all(part == 1.0) for part in [*parts, result[1]]), name
    placed[:] = plain[:] = 1.0


def test_results_are_read_only_as_on_the_native_runtime(parity):
  computation = _fed(checks.at_clients(_VECTOR))(
    lambda x: (x, tff.federated_sum(x))
  )
  clients = [np.ones(2, _FLOAT)] * 3
  expected = parity(computation, clients)
  writable = [expected[0][0].flags.writeable, expected[1].flags.writeable]
  for name, context in parity.cohorts.items():
    result = checks.run_once(context, computation, clients)
    assert [
      result[0][0].flags.writeable,
      result[1].flags.writeable,
    ] == writable, name


def test_a_result_is_an_argument_again(parity):
  computation = _fed(checks.at_clients(_STRUCT), checks.at_server(_STRUCT))(
    lambda x, y: (x, y)
  )
  first = parity(computation, _FIVE_STRUCTS, _FIVE_STRUCTS[0])
  assert len(parity(computation, *first)[0]) == 5
  for context in parity.cohorts.values():
    again = checks.run_once(context, computation, *first)
    checks.assert_same(checks.run_once(context, computation, *again), first)


def test_the_default_number_of_clients_is_none(parity):
  @_fed()
  def run():
    return tff.federated_sum(tff.federated_eval(_ONE, tff.CLIENTS))

  assert parity(run) == 0


def test_a_computation_without_an_argument(parity):
  parity(_fed()(lambda: tff.federated_value((1, 2.5), tff.SERVER)))
  parity(_fed()(lambda: tff.federated_eval(_ONE, tff.SERVER)))
  parity(_ONE)


def _map_reduce_process() -> tff.Computation:
  """A round that the form for MapReduce can express."""
  server_type = tff.to_type(collections.OrderedDict(total=_FLOAT))
  prepare = _tf(lambda s: s['total'], server_type)
  work = _tf(
    lambda data, total: (
      collections.OrderedDict(a=tf.reduce_sum(data) + total),
      tf.reduce_max(data),
    ),
    tff.TensorType(_FLOAT, [3]),
    _FLOAT,
  )
  update = _tf(
    lambda s, part: collections.OrderedDict(total=s['total'] + part['a']),
    server_type,
    collections.OrderedDict(a=_FLOAT),
  )

  @_fed(
    checks.at_server(server_type),
    checks.at_clients(tff.TensorType(_FLOAT, [3])),
  )
  def next_round(state, data):
    total = tff.federated_broadcast(tff.federated_map(prepare, state))
    parts = tff.federated_map(work, (data, total))
    summed = tff.federated_sum(parts[0])
    new = tff.federated_map(update, (state, summed))
    return new, tff.federated_sum(parts[1])

  return next_round


def test_a_map_reduce_form_runs(parity):
  mapreduce = tff.backends.mapreduce
  computation = _map_reduce_process()
  form = mapreduce.get_map_reduce_form_for_computation(computation)
  again = mapreduce.get_computation_for_map_reduce_form(form)
  clients = [np.array([k, 1, 2 * k], _FLOAT) for k in range(4)]
  state = collections.OrderedDict(total=np.float32(2.0))
  for each in (computation, again):
    parity(each, state, clients)
    parity(each, state, [])


def test_a_broadcast_form_runs(parity):
  mapreduce = tff.backends.mapreduce
  form = mapreduce.get_broadcast_form_for_computation(_broadcast_form_source)
  again = mapreduce.get_computation_for_broadcast_form(form)
  parity(again, 3, _FIVE)


@_fed(_SERVER_INT, _CLIENT_INT)
def _broadcast_form_source(x, y):
  return tff.federated_map(_ADD, (tff.federated_broadcast(x), y))


def test_a_distribute_aggregate_form_runs(parity):
  mapreduce = tff.backends.mapreduce
  computation = _map_reduce_process()
  form = mapreduce.get_distribute_aggregate_form_for_computation(computation)
  again = mapreduce.get_computation_for_distribute_aggregate_form(form)
  clients = [np.array([k, 1, 2 * k], _FLOAT) for k in range(4)]
  parity(again, collections.OrderedDict(total=np.float32(2.0)), clients)


@pytest.mark.parametrize('depth', [1, 2, 3])
def test_lambdas_and_structs_are_composed(parity, depth):
  @_fed(_CLIENT_INT, _SERVER_INT)
  def run(x, y):
    value = (x, y)
    for _ in range(depth):
      shifted = tff.federated_map(
        _ADD, (value[0], tff.federated_broadcast(value[1]))
      )
      value = (shifted, tff.federated_sum(shifted))
    return value

  parity(run, _FIVE, 2)


def test_many_clients(parity):
  @_fed(_CLIENT_INT)
  def run(x):
    return tff.federated_sum(x), tff.federated_map(_DOUBLE, x)

  parity(run, list(range(300)))
