"""Aggregators of the parts of updates."""

import collections
import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from algorithms import aggregation
from tests.algorithms import helpers

_VALUE = tff.to_type(
  collections.OrderedDict(
    w=tff.TensorType(np.float32, [2]), n=tff.TensorType(np.int32)
  )
)
_VECTOR = tff.TensorType(np.float32, [2])
# One object each, so that each is traced once.
_MEAN = helpers.MEAN
# A seed and no numbers; nothing of these aggregators is random.
_SEED = np.array([0, 1], np.int32)
_START = _SEED, collections.OrderedDict()
_TOTAL = aggregation.total()
_BEST = aggregation.best()


@functools.cache
def _process_of(names, factories, value_type):
  update_type = aggregation.Update(
    tff.to_type(value_type), tff.TensorType(np.float32)
  )
  return aggregation.make_process(
    dict(zip(names, factories)),
    tff.to_type(collections.OrderedDict((name, update_type) for name in names)),
  )


def _process(factories, value_type=_VECTOR):
  return _process_of(tuple(factories), tuple(factories.values()), value_type)


def _next(process, state, updates):
  return process.next(state, updates, [_SEED] * len(updates))


def _aggregate(factories, *clients, value_type=_VECTOR):
  """Aggregates the clients' updates, each {part: (value, weight)}."""
  process = _process(factories, value_type)
  updates = [
    collections.OrderedDict(
      (name, aggregation.Update(value, np.float32(weight)))
      for name, (value, weight) in client.items()
    )
    for client in clients
  ]
  return _next(process, process.initialize(_START), updates).result


def _aggregate_one(factory, *updates, value_type=_VECTOR):
  """Aggregates values and weights by one factory."""
  clients = [{'part': update} for update in updates]
  return _aggregate({'part': factory}, *clients, value_type=value_type)['part']


def _vector(*values):
  return np.array(values, np.float32)


def _pair(w, n):
  return collections.OrderedDict(w=_vector(w, -w), n=np.int32(n))


_TWO = (_vector(1, 2), 1), (_vector(5, -2), 3)
_FOUR = (*_TWO, (_vector(3, 3), 0), (_vector(-4, 8), 0.5))


@pytest.mark.parametrize('updates', [_TWO, _FOUR], ids=['two', 'four'])
def test_mean_is_weighted(updates, runtime):
  del runtime
  values, weights = zip(*updates)
  np.testing.assert_allclose(
    _aggregate_one(_MEAN, *updates),
    np.average(values, axis=0, weights=weights),
    rtol=1e-6,
  )


@pytest.mark.parametrize('updates', [_TWO, _FOUR], ids=['two', 'four'])
def test_total_is_the_sum_whatever_the_weights(updates, runtime):
  del runtime
  np.testing.assert_allclose(
    _aggregate_one(_TOTAL, *updates),
    np.sum([value for value, _ in updates], axis=0),
    rtol=1e-6,
  )


@pytest.mark.parametrize(
  'weights, expected',
  [
    ((1, 3), 1),
    ((3, 1), 0),
    ((0.5, 0, 2, 1), 2),
    ((0, 0, 0.001), 2),
    ((-1, 2, 1), 1),
  ],
)
def test_best_is_the_value_of_the_largest_weight(weights, expected, runtime):
  del runtime
  updates = [(_pair(k + 1, 10 * k), weight) for k, weight in enumerate(weights)]
  helpers.assert_equal(
    _aggregate_one(_BEST, *updates, value_type=_VALUE),
    _pair(expected + 1, 10 * expected),
  )


# On the native runtime, clients arrive in any order.
@pytest.mark.parametrize('runtime', ['cohort', 'unstacked'], indirect=True)
@pytest.mark.parametrize(
  'weights, expected', [((2, 2), 0), ((1, 2, 2, 2), 1), ((0, 1, 0.5, 1), 1)]
)
def test_the_earlier_client_wins_a_tie(weights, expected, runtime):
  del runtime
  updates = [(_vector(k + 1, 0), weight) for k, weight in enumerate(weights)]
  best = _aggregate_one(_BEST, *updates)
  np.testing.assert_array_equal(best, [expected + 1, 0])


@pytest.mark.parametrize('weights', [(0, 0), (0, -1, 0)])
@pytest.mark.parametrize('factory', [_MEAN, _BEST], ids=['mean', 'best'])
def test_nobodys_mean_and_best_are_zeros(factory, weights, runtime):
  del runtime
  if factory is _MEAN:
    weights = [0] * len(weights)
  updates = [(_vector(k + 1, 7), weight) for k, weight in enumerate(weights)]
  np.testing.assert_array_equal(_aggregate_one(factory, *updates), [0, 0])


_PARTS = {
  'model': _MEAN,
  'count': _TOTAL,
  'winner': _BEST,
  'plain': tff.aggregators.UnweightedMeanFactory(),
}
_CLIENTS = [
  {
    'model': (_vector(1, 2), 1),
    'count': (_vector(1, 0), 9),
    'winner': (_vector(1, 1), 0.1),
    'plain': (_vector(1, 2), 50),
  },
  {
    'model': (_vector(3, 2), 3),
    'count': (_vector(0, 1), 9),
    'winner': (_vector(2, 2), 0.3),
    'plain': (_vector(3, 2), 1),
  },
  {
    'model': (_vector(5, -4), 0),
    'count': (_vector(0, 1), 0),
    'winner': (_vector(3, 3), 0.2),
    'plain': (_vector(8, -1), 1),
  },
]


def test_each_part_is_aggregated_by_its_own(runtime):
  del runtime
  result = _aggregate(_PARTS, *_CLIENTS)
  helpers.assert_close(
    dict(result),
    {
      'model': _vector(2.5, 2),
      'count': _vector(1, 2),
      'winner': _vector(2, 2),
      'plain': _vector(4, 1),
    },
  )


def test_a_client_that_was_dropped_never_wins(runtime):
  # It sends zeros of weight zero, though nobody else is good.
  del runtime
  updates = [
    (_vector(0, 0), 0),
    (_vector(-3, 4), 1e-6),
    (_vector(0, 0), 0),
  ]
  np.testing.assert_array_equal(_aggregate_one(_BEST, *updates), [-3, 4])


def test_a_robust_aggregator_of_one_part_leaves_the_others(runtime):
  del runtime
  zeroing = tff.aggregators.zeroing_factory(2.0, aggregation.mean())
  far_off = _vector(30, 40)
  clients = [
    {'robust': (_vector(1, 0), 1), 'plain': (_vector(1, 0), 1)},
    {'robust': (far_off, 1), 'plain': (far_off, 1)},
  ]
  result = _aggregate(
    {'robust': zeroing, 'plain': aggregation.mean()}, *clients
  )
  helpers.assert_close(
    dict(result),
    {'robust': _vector(1, 0) / 2, 'plain': (_vector(1, 0) + far_off) / 2},
  )


def test_the_state_of_each_part_is_its_own():
  adaptive = tff.learning.robust_aggregator()
  process = _process({'robust': adaptive, 'plain': aggregation.mean()})
  alone = _process({'robust': adaptive})
  value = _vector(30, 40), np.float32(1)
  updates = collections.OrderedDict(
    (name, aggregation.Update(*value)) for name in ('robust', 'plain')
  )
  state, expected = process.initialize(_START), alone.initialize(_START)
  for _ in range(2):
    state = _next(process, state, [updates] * 3).state
    robust = [{'robust': updates['robust']}] * 3
    expected = _next(alone, expected, robust).state
  assert list(state) == ['robust', 'plain']
  helpers.assert_close(state['robust'], expected['robust'])
