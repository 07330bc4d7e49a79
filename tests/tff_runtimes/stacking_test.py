"""Tests of programs that run with their clients stacked."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes import helpers
from tff_runtimes import cohort
from tff_runtimes import programs
from tff_runtimes import stacking

_FLOAT = tff.TensorType(np.float32)
_IMAGE = tff.TensorType(np.float32, [1, 4, 4, 1])


def _map_and_sum(
  work: Callable[..., Any], client_type: tff.Type
) -> programs.Program:
  """Makes a program in which clients work, and what they give is summed."""
  work = tff.tensorflow.computation(work, client_type)

  @tff.federated_computation(tff.FederatedType(client_type, tff.CLIENTS))
  def run(clients):
    return tff.federated_sum(tff.federated_map(work, clients))

  return programs.Program(run)


def _find(program: programs.Program) -> stacking.Stacking:
  return stacking.find_stacking(program, trust_xla=True)


def _convolve(image: tf.Tensor) -> tf.Tensor:
  return tf.nn.conv2d(image, tf.ones([2, 2, 1, 1]), 1, 'VALID')


def _loop(x: tf.Tensor) -> tf.Tensor:
  return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, 2 * x), (0, x))[
    1
  ]


def _branch(x: tf.Tensor) -> tf.Tensor:
  return tf.cond(x > 0, lambda: 2 * x, lambda: x)


@pytest.mark.parametrize(
  'work',
  [
    lambda x: 2 * x,
    _loop,
    _branch,
    lambda x: x * tf.random.stateless_uniform([], [1, 2]),
    lambda x: tf.reduce_sum(tf.map_fn(lambda y: y * x, tf.range(3.0))),
  ],
  ids=['arithmetic', 'loop', 'branch', 'seeded numbers', 'map over a list'],
)
def test_plain_arithmetic_is_stacked_as_a_whole(work):
  found = _find(_map_and_sum(work, _FLOAT))
  assert found.against is None
  assert found.against_whole is None


def _count(x: tf.Tensor) -> tf.Tensor:
  total = tf.Variable(0.0)
  with tf.control_dependencies([total.assign_add(x)]):
    return total.read_value()


def _check(x: tf.Tensor) -> tf.Tensor:
  with tf.control_dependencies([tf.debugging.assert_positive(x)]):
    return tf.identity(x)


@pytest.mark.parametrize(
  ('work', 'client_type', 'against'),
  [
    (lambda x: x * tf.random.uniform([]), _FLOAT, 'RandomUniform'),
    (_check, _FLOAT, 'Assert'),
    (_count, _FLOAT, 'VarHandleOp'),
    (
      lambda text: tf.strings.length(text),
      tff.TensorType(np.str_),
      'strings',
    ),
    (_convolve, _IMAGE, 'Conv2D is slow'),
    (
      lambda image: tf.nn.max_pool2d(image, 2, 2, 'SAME'),
      _IMAGE,
      'MaxPool is slow',
    ),
  ],
)
def test_other_work_of_clients_is_not_stacked(work, client_type, against):
  found = _find(_map_and_sum(work, client_type))
  assert against in found.against


def test_whether_clients_that_read_data_sets_are_stacked_follows_from_these():
  work = _map_and_sum(
    lambda rows: rows.reduce(0.0, lambda a, b: a + b),
    tff.SequenceType(np.float32),
  )
  found = _find(work)
  assert found.against is None
  assert found.reads_data


_ROWS = tff.TensorType(np.float32, [3])


@pytest.mark.parametrize(
  ('work', 'client_type', 'against'),
  [
    (lambda x: tf.tanh(-x) / 3.0 + x * x, _FLOAT, None),
    (lambda x: tf.reduce_mean(x[1:]), _ROWS, None),
    (_loop, _FLOAT, None),
    (lambda n: tf.maximum(n, 2), tff.TensorType(np.int32), None),
    (lambda x: 1.0 / x, _FLOAT, 'RealDiv divides by what is not fixed'),
    (lambda x: tf.sqrt(x * x), _FLOAT, 'Sqrt (float32)'),
    (lambda x: tf.exp(x) * tf.exp(-x), _FLOAT, 'Exp (float32)'),
    (lambda x: tf.maximum(x, 2.0), _FLOAT, 'Maximum (float32)'),
    (lambda x: tf.nn.relu(x), _FLOAT, 'Relu (float32)'),
    (lambda x: tf.cast(x > 0, tf.float32), _FLOAT, 'Greater (bool, float32)'),
    (lambda x: tf.cast(x, tf.int32), _FLOAT, 'Cast (float32, int32)'),
    (lambda n: 10 // n, tff.TensorType(np.int32), 'FloorDiv (int32)'),
    (
      lambda n: tf.gather([1.0, 2.0], n),
      tff.TensorType(np.int32),
      'GatherV2',
    ),
    (
      lambda n: tf.constant([1, 2, 3])[n],
      tff.TensorType(np.int32),
      'StridedSlice reads at a place that is not fixed',
    ),
    (
      lambda x: x * tf.random.stateless_uniform([], [1, 2]),
      _FLOAT,
      'StatelessRandom',
    ),
    (
      lambda x: tf.reduce_sum(x),
      tff.TensorType(np.float32, [None]),
      'unknown shape',
    ),
    (lambda x: 2 * x, tff.TensorType(np.float16), 'Mul (float16)'),
  ],
)
def test_without_trust_only_what_is_safe_is_stacked(work, client_type, against):
  program = _map_and_sum(work, client_type)
  found = stacking.find_stacking(program, trust_xla=False)
  if against is None:
    assert found.against is None
  else:
    assert against in found.against


def test_a_tensor_of_any_rank_is_not_stacked():
  any_rank = tff.TensorType(np.float32, None)
  found = _find(_map_and_sum(lambda x: tf.reduce_sum(x), any_rank))
  assert 'unknown rank' in found.against


def test_work_of_the_server_alone_is_not_stacked():
  double = tff.tensorflow.computation(lambda x: 2 * x, np.float32)
  assert 'no client' in _find(programs.Program(double)).against


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _sum_as_text(clients):
  to_text = tff.tensorflow.computation(
    lambda number: tf.strings.as_string(number), np.int32
  )
  return tff.federated_map(to_text, tff.federated_sum(clients)), clients


def test_with_text_at_the_server_only_the_clients_are_compiled():
  found = _find(programs.Program(_sum_as_text))
  assert found.against is None
  assert 'AsString' in found.against_whole


@pytest.mark.parametrize('size', [1, 4])
def test_with_text_at_the_server_the_result_is_right(size):
  context = cohort.create_cohort_context()
  assert 'AsString' in context.explain(_sum_as_text)
  clients = list(range(size))
  text, same_clients = helpers.run(context, _sum_as_text, clients)
  assert text == str(sum(clients)).encode()
  assert same_clients == clients


@pytest.mark.parametrize('size', [10, 1000])
def test_client_bytes_are_those_of_a_large_result(size):
  program = _map_and_sum(lambda x: tf.fill([size], x), _FLOAT)
  assert _find(program).client_bytes == 4 * (size + 1)


def test_client_bytes_are_those_of_what_a_client_reads():
  model_type = tff.TensorType(np.float32, [100])
  judge = tff.tensorflow.computation(
    lambda model, x: model[0] * x, (model_type, _FLOAT)
  )

  @tff.federated_computation(
    tff.FederatedType(model_type, tff.SERVER),
    tff.FederatedType(_FLOAT, tff.CLIENTS),
  )
  def run(model, clients):
    return tff.federated_map(judge, (tff.federated_broadcast(model), clients))

  found = _find(programs.Program(run))
  assert found.client_bytes == 404


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(np.float32, tff.CLIENTS),
)
def _center(factor, clients):
  multiply = tff.tensorflow.computation(lambda x, y: x * y, (_FLOAT, _FLOAT))
  subtract = tff.tensorflow.computation(lambda x, y: x - y, (_FLOAT, _FLOAT))
  scaled = tff.federated_map(
    multiply, (clients, tff.federated_broadcast(factor))
  )
  mean = tff.federated_mean(scaled)
  return mean, tff.federated_map(
    subtract, (scaled, tff.federated_broadcast(mean))
  )


@pytest.fixture(name='center', scope='module')
def _center_runner() -> stacking.StackedRunner:
  return stacking.StackedRunner(programs.Program(_center))


@pytest.mark.parametrize('size', [1, 2, 5])
def test_stages_that_depend_on_each_other_run_stacked(center, size):
  clients = np.arange(center.capacity(size), dtype=np.float32)
  mean, centered = center.run_whole(
    size, dict(part0=[np.float32(3)]), dict(part1=[clients])
  )
  clients = clients[:size]
  np.testing.assert_allclose(mean, [3 * clients.mean()], rtol=1e-6)
  np.testing.assert_allclose(
    centered.columns, [3 * (clients - clients.mean())], rtol=1e-6
  )
  assert centered.size == size


def test_cohorts_of_many_sizes_need_few_programs():
  runner = stacking.StackedRunner(programs.Program(_center))
  assert runner.capacity(139) == 139
  capacities = {runner.capacity(size) for size in range(1, 200)}
  assert len(capacities) < 30
  assert all(
    size <= runner.capacity(size) <= 1.25 * size for size in range(1, 200)
  )


def test_rows_without_a_client_change_nothing(center):
  clients = np.array([1, 2, np.nan, np.inf], np.float32)
  mean, centered = center.run_whole(
    2, dict(part0=[np.float32(1)]), dict(part1=[clients])
  )
  assert mean == [1.5]
  np.testing.assert_array_equal(centered.columns, [[-0.5, 0.5]])
