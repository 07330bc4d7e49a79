"""Tests of programs that run with their clients stacked."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from runtimes import programs
from runtimes import stacking

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
  assert stacking.find_stacking(_map_and_sum(work, _FLOAT)).whole


def _count(x: tf.Tensor) -> tf.Tensor:
  total = tf.Variable(0.0)
  with tf.control_dependencies([total.assign_add(x)]):
    return total.read_value()


def _check(x: tf.Tensor) -> tf.Tensor:
  with tf.control_dependencies([tf.debugging.assert_positive(x)]):
    return tf.identity(x)


@pytest.mark.parametrize(
  ('work', 'client_type'),
  [
    (lambda x: x * tf.random.uniform([]), _FLOAT),
    (_check, _FLOAT),
    (_count, _FLOAT),
    (lambda text: tf.strings.length(text), tff.TensorType(np.str_)),
    (_convolve, _IMAGE),
    (lambda image: tf.nn.max_pool2d(image, 2, 2, 'SAME'), _IMAGE),
    (
      lambda rows: rows.reduce(0.0, lambda a, b: a + b),
      tff.SequenceType(np.float32),
    ),
  ],
  ids=[
    'unseeded numbers',
    'assertion',
    'variable',
    'strings',
    'convolution',
    'pooling',
    'sequence',
  ],
)
def test_other_work_of_clients_is_not_stacked(work, client_type):
  assert stacking.find_stacking(_map_and_sum(work, client_type)) is None


def test_work_of_the_server_alone_is_not_stacked():
  double = tff.tensorflow.computation(lambda x: 2 * x, np.float32)
  assert stacking.find_stacking(programs.Program(double)) is None


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _sum_as_text(clients):
  to_text = tff.tensorflow.computation(
    lambda number: tf.strings.as_string(number), np.int32
  )
  return tff.federated_map(to_text, tff.federated_sum(clients)), clients


def test_with_text_at_the_server_only_the_clients_are_compiled():
  found = stacking.find_stacking(programs.Program(_sum_as_text))
  assert not found.whole


def test_with_text_at_the_server_the_result_is_right():
  program = programs.Program(_sum_as_text)
  runner = stacking.StackedRunner(program, stacking.find_stacking(program))
  clients = np.arange(4, dtype=np.int32)
  text, same_clients = runner({}, dict(part0=[clients]), 4)
  assert text[0].numpy() == b'6'
  np.testing.assert_array_equal(same_clients.leaves, [clients])


@pytest.mark.parametrize('size', [10, 1000])
def test_client_bytes_are_those_of_a_large_result(size):
  program = _map_and_sum(lambda x: tf.fill([size], x), _FLOAT)
  assert stacking.find_stacking(program).client_bytes == 4 * size


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

  found = stacking.find_stacking(programs.Program(run))
  assert found.client_bytes == 400


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
  program = programs.Program(_center)
  return stacking.StackedRunner(program, stacking.find_stacking(program))


@pytest.mark.parametrize('size', [1, 2, 5])
def test_stages_that_depend_on_each_other_run_stacked(center, size):
  clients = np.arange(size, dtype=np.float32)
  mean, centered = center(
    dict(part0=[np.float32(3)]), dict(part1=[clients]), size
  )
  np.testing.assert_allclose(mean, [3 * clients.mean()], rtol=1e-6)
  np.testing.assert_allclose(
    centered.leaves, [3 * (clients - clients.mean())], rtol=1e-6
  )


def test_results_of_clients_are_stacked(center):
  clients = np.ones(3, np.float32)
  _, centered = center(dict(part0=[np.float32(3)]), dict(part1=[clients]), 3)
  assert isinstance(centered, programs.ClientLeaves)
  assert centered.stacked
