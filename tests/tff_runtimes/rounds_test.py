"""Tests of many rounds as one program."""

import collections
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tests.tff_runtimes import helpers
from tff_runtimes import cohort
from tff_runtimes import rounds

_STATE = tff.types.to_type(
  collections.OrderedDict(w=np.float32, round=np.int32)
)
_CLIENT = tff.types.to_type(
  collections.OrderedDict(x=tff.TensorType(np.float32, [2]), kept=np.float32)
)


@tff.tensorflow.computation(_STATE, _CLIENT)
def _work(state, client):
  sent = tf.reduce_sum(client['x']) * state['w'] + client['kept']
  return sent, client['kept'] + tf.cast(state['round'], tf.float32)


@tff.tensorflow.computation(_STATE, np.float32)
def _update(state, mean):
  return collections.OrderedDict(
    w=state['w'] / 2 + mean, round=state['round'] + 1
  )


@tff.federated_computation(
  tff.FederatedType(_STATE, tff.SERVER), tff.FederatedType(_CLIENT, tff.CLIENTS)
)
def _next(state, clients):
  result = tff.federated_map(_work, (tff.federated_broadcast(state), clients))
  mean = tff.federated_mean(result[0])
  return tff.federated_map(_update, (state, mean)), result[1], mean


def _make_clients(fixed: Any, kept: Any, now: Any) -> Any:
  return collections.OrderedDict(x=fixed + now['shift'], kept=kept)


_PLAN = rounds.Plan(_make_clients, lambda kept, now, new: new + now['add'])


@pytest.fixture(name='context')
def _context() -> Iterator[cohort.CohortContext]:
  context = cohort.create_cohort_context(trust_xla=True)
  with tff.framework.get_context_stack().install(context):
    yield context


_RNG = np.random.default_rng(1)
_FIXED = _RNG.normal(size=[4, 2]).astype(np.float32)
_PER_ROUND = dict(
  shift=_RNG.normal(size=[5, 1, 1]).astype(np.float32),
  add=_RNG.normal(size=[5]).astype(np.float32),
)
_FIRST_STATE = collections.OrderedDict(w=np.float32(0.3), round=np.int32(0))
_FIRST_KEPT = np.zeros(4, np.float32)


def _one_by_one(
  next_round: tff.Computation, num_rounds: int, *constants: Any
) -> tuple[Any, Any, Any]:
  """Calls `next` round by round; returns what `Rounds` returns."""
  state, kept, means = _FIRST_STATE, _FIRST_KEPT, []
  for i in range(num_rounds):
    clients = [
      collections.OrderedDict(
        x=_FIXED[k] + _PER_ROUND['shift'][i, 0], kept=kept[k]
      )
      for k in range(4)
    ]
    state, new, mean = next_round(state, clients, *constants)
    kept = np.array(new) + _PER_ROUND['add'][i]
    means.append(mean)
  return state, kept, np.array(means, np.float32)


def _assert_close(first: Any, second: Any) -> None:
  tree.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), first, second
  )


@pytest.mark.parametrize('num_rounds', [0, 1, 3, 5])
def test_they_are_the_rounds_one_by_one(context, num_rounds):
  at_once = context.rounds(_next, _PLAN)
  result = at_once(num_rounds, _FIRST_STATE, _FIRST_KEPT, _FIXED, _PER_ROUND)
  _assert_close(result, _one_by_one(_next, num_rounds))


def test_they_may_be_run_in_portions(context):
  at_once = context.rounds(_next, _PLAN)
  expected = at_once(5, _FIRST_STATE, _FIRST_KEPT, _FIXED, _PER_ROUND)
  state, kept, means = _FIRST_STATE, _FIRST_KEPT, []
  for first, num_rounds in ((0, 1), (1, 3), (4, 1)):
    state, kept, metrics = at_once(
      num_rounds, state, kept, _FIXED, _PER_ROUND, first=first
    )
    means.append(metrics)
  tree.map_structure(
    np.testing.assert_array_equal,
    (state, kept, np.concatenate(means)),
    expected,
  )


class FrozenPair(NamedTuple):
  """Weights that no round changes."""

  scale: Any
  table: Any


_FROZEN = tff.to_type(FrozenPair(np.float32, [tff.TensorType(np.float32, [2])]))


@tff.tensorflow.computation(_STATE, _CLIENT, _FROZEN, np.float32)
def _frozen_work(state, client, frozen, shift):
  x = tf.reduce_sum(client['x'] * frozen.table[0])
  sent = frozen.scale * x * state['w'] + client['kept'] + shift
  return sent, client['kept'] + tf.cast(state['round'], tf.float32)


@tff.federated_computation(
  tff.FederatedType(_STATE, tff.SERVER),
  tff.FederatedType(_CLIENT, tff.CLIENTS),
  tff.FederatedType(_FROZEN, tff.SERVER),
  tff.FederatedType(np.float32, tff.SERVER),
)
def _frozen_next(state, clients, frozen, shift):
  sent = tff.federated_broadcast(tff.federated_zip((state, frozen, shift)))
  work = tff.tensorflow.computation(
    lambda sent, client: _frozen_work(sent[0], client, sent[1], sent[2]),
    (_STATE, _FROZEN, np.float32),
    _CLIENT,
  )
  result = tff.federated_map(work, (sent, clients))
  mean = tff.federated_mean(result[0])
  return tff.federated_map(_update, (state, mean)), result[1], mean


def _constants(scale: float) -> tuple[Any, ...]:
  return (
    FrozenPair(np.float32(scale), [np.array([0.5, -0.3], np.float32)]),
    np.float32(0.1),
  )


@pytest.mark.parametrize('scale', [0.7, 1.3])
def test_with_constants_they_are_the_rounds_one_by_one(context, scale):
  constants = _constants(scale)
  at_once = context.rounds(_frozen_next, _PLAN)
  result = at_once(
    3, _FIRST_STATE, _FIRST_KEPT, _FIXED, _PER_ROUND, constants=constants
  )
  _assert_close(result, _one_by_one(_frozen_next, 3, *constants))


def test_constants_may_be_tensors(context):
  at_once = context.rounds(_frozen_next, _PLAN)
  arguments = (3, _FIRST_STATE, _FIRST_KEPT, _FIXED, _PER_ROUND)
  arrays = _constants(0.7)
  tensors = tree.map_structure(tf.constant, arrays)
  _assert_close(at_once(*arguments, tensors), at_once(*arguments, arrays))


@pytest.mark.parametrize('number', [0, 1, 3])
def test_another_number_of_constants_is_an_error(context, number):
  at_once = context.rounds(_frozen_next, _PLAN)
  constants = (*_constants(1.0), np.float32(1))[:number]
  with pytest.raises(ValueError, match=f'Expected 2 constants, got {number}'):
    at_once(3, _FIRST_STATE, _FIRST_KEPT, _FIXED, _PER_ROUND, constants)


def test_a_constant_of_another_type_is_an_error(context):
  at_once = context.rounds(_frozen_next, _PLAN)
  frozen, _ = _constants(1.0)
  with pytest.raises(TypeError, match='Expected'):
    at_once(
      3, _FIRST_STATE, _FIRST_KEPT, _FIXED, _PER_ROUND, (frozen, frozen.table)
    )


def test_tensors_that_are_constants_are_not_copied():
  size = 50_000_000
  model_type = tff.TensorType(np.float32, [size])

  @tff.tensorflow.computation(_STATE, _CLIENT, model_type)
  def work(state, client, model):
    return state['w'] * client['x'][0] + model[3], client['kept'] + model[5]

  @tff.federated_computation(
    tff.FederatedType(_STATE, tff.SERVER),
    tff.FederatedType(_CLIENT, tff.CLIENTS),
    tff.FederatedType(model_type, tff.SERVER),
  )
  def next_round(state, clients, model):
    sent = tff.federated_broadcast(tff.federated_zip((state, model)))
    result = tff.federated_map(
      tff.tensorflow.computation(
        lambda sent, client: work(sent[0], client, sent[1]),
        (_STATE, model_type),
        _CLIENT,
      ),
      (sent, clients),
    )
    mean = tff.federated_mean(result[0])
    return tff.federated_map(_update, (state, mean)), result[1], mean

  context = cohort.create_cohort_context(stack=True, trust_xla=True)
  at_once = context.rounds(next_round, _PLAN)
  model = tf.ones([size])
  grown = helpers.peak_memory(
    lambda: at_once(3, _FIRST_STATE, _FIRST_KEPT, _FIXED, _PER_ROUND, (model,))
  )
  assert grown < 4 * size


def test_a_program_is_kept(context):
  assert context.rounds(_next, _PLAN) is context.rounds(_next, _PLAN)


_SERVER = tff.FederatedType(np.float32, tff.SERVER)
_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)


@pytest.mark.parametrize(
  ('parameters', 'fits'),
  [
    ([_CLIENTS], False),
    ([_CLIENTS, _SERVER], False),
    ([_SERVER, _CLIENTS], True),
    ([_SERVER, _CLIENTS, _SERVER], True),
    ([_SERVER, _CLIENTS, _SERVER, _SERVER], True),
    ([_SERVER, _CLIENTS, _CLIENTS], False),
    ([_SERVER, _CLIENTS, _SERVER, _CLIENTS], False),
    ([_SERVER, _CLIENTS, [_SERVER]], False),
  ],
  ids=str,
)
def test_the_form_of_the_argument_decides(context, parameters, fits):
  @tff.federated_computation(parameters)
  def next_round(arguments):
    clients = next(a for a in arguments if a.type_signature is _CLIENTS)
    return (
      tff.federated_value(0.0, tff.SERVER),
      clients,
      tff.federated_mean(clients),
    )

  assert (context.rounds(next_round, _PLAN) is not None) == fits


def test_the_form_of_the_result_decides(context):
  @tff.federated_computation(_SERVER, _CLIENTS)
  def next_round(state, clients):
    return state, tff.federated_mean(clients), clients

  assert context.rounds(next_round, _PLAN) is None


def test_a_state_that_grows_has_no_rounds(context):
  state_type = tff.TensorType(np.float32, [None])

  @tff.tensorflow.computation(state_type, np.float32)
  def append(state, mean):
    return tf.concat([state, [mean]], 0)

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER), _CLIENTS
  )
  def next_round(state, clients):
    mean = tff.federated_mean(clients)
    return tff.federated_map(append, (state, mean)), clients, mean

  assert context.rounds(next_round, _PLAN) is None


def test_what_returns_one_value_has_no_rounds(context):
  @tff.federated_computation(_CLIENTS)
  def no_state(clients):
    return tff.federated_mean(clients)

  assert context.rounds(no_state, _PLAN) is None


def test_without_trust_in_xla_there_are_no_rounds():
  assert cohort.create_cohort_context().rounds(_next, _PLAN) is None


def test_clients_that_are_not_stacked_have_no_rounds():
  context = cohort.create_cohort_context(stack=False, trust_xla=True)
  assert context.rounds(_next, _PLAN) is None
