"""Every shape, known or not, comes back as itself."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes.parity import checks

_FLOAT = np.float32


def _of(*shape: int) -> np.ndarray:
  return np.arange(np.prod(shape), dtype=_FLOAT).reshape(shape) - 1.5


_UNKNOWN = tff.TensorType(_FLOAT, [None])
_MATRIX = tff.TensorType(_FLOAT, [None, 2])
_ANY = tff.TensorType(_FLOAT, None)
_VALUES = {
  'vectors of one size': (_UNKNOWN, [_of(3), _of(3) * 2, _of(3) * 3]),
  'vectors of different sizes': (_UNKNOWN, [_of(3), _of(1), _of(4)]),
  'empty vectors': (_UNKNOWN, [_of(0), _of(0)]),
  'some empty vectors': (_UNKNOWN, [_of(2), _of(0), _of(3)]),
  'the last is empty': (_UNKNOWN, [_of(2), _of(0)]),
  'matrices': (_MATRIX, [_of(3, 2), _of(1, 2), _of(0, 2)]),
  'matrices of one size': (_MATRIX, [_of(3, 2), _of(3, 2) + 1]),
  'empty of a known shape': (
    tff.TensorType(_FLOAT, [0, 3]),
    [_of(0, 3), _of(0, 3)],
  ),
  'scalars': (tff.TensorType(_FLOAT), [_FLOAT(1), _FLOAT(2)]),
  'unknown rank': (_ANY, [_of(2, 3), _of(2, 3)]),
  'different ranks': (_ANY, [_of(2, 3), _of(4), _of(1, 1, 1)]),
  'two unknown dimensions': (
    tff.TensorType(_FLOAT, [None, 2, None]),
    [_of(1, 2, 3), _of(3, 2, 1), _of(1, 2, 3)],
  ),
  'no clients': (_UNKNOWN, []),
  'one client': (_UNKNOWN, [_of(3)]),
}
_WORK = {
  'double': lambda x: 2 * x,
  'sum': tf.reduce_sum,
  'positive ones': lambda x: tf.boolean_mask(
    tf.reshape(x, [-1]), tf.reshape(x, [-1]) > 0
  ),
  'range': lambda x: tf.range(tf.size(x)),
  'several': lambda x: collections.OrderedDict(
    z=tf.size(x), a=[tf.reduce_sum(x), tf.zeros(tf.shape(x))]
  ),
  'loop': lambda x: tf.map_fn(lambda e: e * e, tf.reshape(x, [-1])),
  'itself': lambda x: x,
  'size': tf.size,
  'shape': tf.shape,
  'rank': tf.rank,
  'flat': lambda x: tf.reshape(x, [-1]),
  'where': lambda x: tf.where(tf.expand_dims(x, 0) > 0),
  'unique': lambda x: tf.unique(tf.round(tf.reshape(x, [-1]) / 2)),
  'sum of positive ones': lambda x: tf.reduce_sum(
    tf.boolean_mask(tf.reshape(x, [-1]), tf.reshape(x, [-1]) > 0)
  ),
  'mean': tf.reduce_mean,
  'largest': tf.reduce_max,
  'sorted': lambda x: tf.sort(tf.reshape(x, [-1])),
  'normalized': lambda x: x / tf.norm(x),
}


@pytest.mark.parametrize('work', checks.first(6, _WORK))
@pytest.mark.parametrize('name', _VALUES)
def test_work_on_a_shape(parity, name, work):
  kind, clients = _VALUES[name]
  computation = checks.everywhere(_WORK[work], kind)
  parity(computation, clients, clients[-1] if clients else _of(3))


@pytest.mark.parametrize('name', _VALUES)
def test_a_shape_passes_through(parity, name):
  kind, clients = _VALUES[name]
  computation = tff.federated_computation(
    lambda x, y, z: (x, y, z),
    [checks.at_clients(kind), checks.at_server(kind), kind],
  )
  some = clients[0] if clients else _of(2)
  parity(computation, clients, some, some)


@pytest.mark.parametrize(
  'name', [name for name in _VALUES if _VALUES[name][0] is not _ANY]
)
@pytest.mark.parametrize('aggregate', ['sum', 'mean', 'min', 'max'])
def test_aggregates_of_the_sum_of_a_shape(parity, name, aggregate):
  kind, clients = _VALUES[name]
  total = tff.tensorflow.computation(lambda x: tf.reduce_sum(x), kind)

  @tff.federated_computation(checks.at_clients(kind))
  def run(x):
    return getattr(tff, f'federated_{aggregate}')(tff.federated_map(total, x))

  parity(run, clients)


def _collect(kind: tff.TensorType, work) -> tff.Computation:
  """Concatenates what clients give; only the aggregate sees its size."""
  block = tff.tensorflow.computation(lambda x: work(x), kind)
  piece = block.type_signature.result
  zero = tff.tensorflow.computation(lambda: tf.zeros([0], piece.dtype))
  add = tff.tensorflow.computation(
    lambda a, x: tf.concat([a, x], 0),
    tff.TensorType(piece.dtype, [None]),
    piece,
  )
  merge = tff.tensorflow.computation(
    lambda a, b: tf.concat([a, b], 0),
    *[tff.TensorType(piece.dtype, [None])] * 2,
  )
  report = tff.tensorflow.computation(
    lambda a: (a, tf.size(a)), tff.TensorType(piece.dtype, [None])
  )

  @tff.federated_computation(checks.at_clients(kind))
  def run(x):
    return tff.federated_aggregate(
      tff.federated_map(block, x), zero(), add, merge, report
    )

  return run


@pytest.mark.parametrize('work', ['itself', 'positive ones', 'range'])
@pytest.mark.parametrize(
  'name', [name for name in _VALUES if _VALUES[name][0] is _UNKNOWN]
)
def test_only_the_aggregate_sees_a_size(parity, name, work):
  kind, clients = _VALUES[name]
  parity(_collect(kind, _WORK[work]), clients)


@pytest.mark.parametrize('equal', [True, False])
def test_only_a_later_stage_sees_a_size(parity, equal):
  kind = tff.TensorType(_FLOAT, [4])
  mask = tff.tensorflow.computation(lambda x: tf.boolean_mask(x, x > 0), kind)
  count = tff.tensorflow.computation(
    lambda kept, total: (tf.cast(tf.size(kept), tf.float32) * total, kept),
    mask.type_signature.result,
    _FLOAT,
  )

  @tff.federated_computation(checks.at_clients(kind))
  def run(x):
    kept = tff.federated_map(mask, x)
    total = tff.federated_sum(
      tff.federated_map(
        tff.tensorflow.computation(
          lambda k: tf.reduce_sum(k), mask.type_signature.result
        ),
        kept,
      )
    )
    return tff.federated_map(count, (kept, tff.federated_broadcast(total)))

  shift = 0 if equal else 1
  parity(run, [_of(4) + shift * k - 1 for k in range(4)])


@pytest.mark.parametrize('sizes', [[3, 3, 3], [3, 1, 2], [2, 0, 0], []])
def test_sums_of_vectors_of_a_known_size_made_from_ragged_ones(parity, sizes):
  work = tff.tensorflow.computation(
    lambda x: tf.math.bincount(
      tf.cast(x + 2, tf.int32), minlength=5, maxlength=5
    ),
    _UNKNOWN,
  )
  fixed = tff.tensorflow.computation(
    lambda x: tf.ensure_shape(x, [5]), work.type_signature.result
  )

  @tff.federated_computation(checks.at_clients(_UNKNOWN))
  def run(x):
    return tff.federated_sum(
      tff.federated_map(fixed, tff.federated_map(work, x))
    )

  parity(run, [_of(size) for size in sizes])


def test_a_large_struct(parity):
  kind = tff.to_type(
    collections.OrderedDict(
      (f'layer_{k}', tff.TensorType(_FLOAT, [k, 2])) for k in range(20)
    )
  )
  computation = tff.federated_computation(
    lambda x: (tff.federated_sum(x), tff.federated_mean(x), x),
    checks.at_clients(kind),
  )
  client = collections.OrderedDict((f'layer_{k}', _of(k, 2)) for k in range(20))
  parity(computation, [client, client, client])


def test_arrays_in_any_layout(parity):
  kind = tff.TensorType(_FLOAT, [3, 2])
  clients = [
    np.asfortranarray(_of(3, 2)),
    _of(2, 3).T,
    _of(6, 4)[::2, ::2],
    _of(3, 2)[::-1],
    _of(3, 2).astype('>f4').astype('<f4'),
    np.broadcast_to(_of(2), [3, 2]),
  ]
  parity(checks.everywhere(lambda x: (x, x * 2), kind), clients, clients[1])
