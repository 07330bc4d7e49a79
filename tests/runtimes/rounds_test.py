"""Tests of many rounds as one program."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from runtimes import cohort
from runtimes import rounds

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


def _make_clients(fixed, kept, own):
  return collections.OrderedDict(x=fixed + own['shift'], kept=kept)


_PLAN = rounds.Plan(_make_clients, lambda kept, own, new: new + own['add'])


@pytest.fixture(name='context')
def _context():
  context = cohort.create_cohort_context()
  with tff.framework.get_context_stack().install(context):
    yield context


@pytest.mark.parametrize('num_rounds', [0, 1, 3, 5])
def test_they_are_the_rounds_one_by_one(context, num_rounds):
  rng = np.random.default_rng(1)
  fixed = rng.normal(size=[4, 2]).astype(np.float32)
  own = dict(
    shift=rng.normal(size=[5, 1, 1]).astype(np.float32),
    add=rng.normal(size=[5]).astype(np.float32),
  )
  state = collections.OrderedDict(w=np.float32(0.3), round=np.int32(0))
  kept = np.zeros(4, np.float32)
  at_once = context.rounds(_next, _PLAN)
  result = at_once(num_rounds, state, kept, fixed, own)

  means = []
  for i in range(num_rounds):
    clients = [
      collections.OrderedDict(x=fixed[k] + own['shift'][i, 0], kept=kept[k])
      for k in range(4)
    ]
    state, new, mean = _next(state, clients)
    kept = np.array(new) + own['add'][i]
    means.append(mean)
  tree.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
    result,
    (state, kept, np.array(means, np.float32)),
  )


def test_a_program_is_kept(context):
  assert context.rounds(_next, _PLAN) is context.rounds(_next, _PLAN)


def test_what_has_another_form_has_no_rounds(context):
  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def no_state(values):
    return tff.federated_mean(values)

  assert context.rounds(no_state, _PLAN) is None


def test_clients_that_are_not_stacked_have_no_rounds():
  context = cohort.create_cohort_context(stack=False)
  assert context.rounds(_next, _PLAN) is None
