"""Tests of the pieces of a program."""

from collections.abc import Callable
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_runtimes import programs

_multiply = tff.tensorflow.computation(
  lambda x, y: x * y, (np.float32, np.float32)
)


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(np.float32, tff.CLIENTS),
)
def _weigh(factor, clients):
  products = tff.federated_map(
    _multiply, (tff.federated_broadcast(factor), clients)
  )
  return tff.federated_sum(products), products


@pytest.fixture(name='program')
def _program() -> programs.Program:
  return programs.Program(_weigh)


def test_a_tensor_stays_as_it_is():
  tensor = tf.constant(1.0)
  assert programs.to_tensor(tensor, tf.float32) is tensor


def test_an_array_becomes_a_tensor():
  tensor = programs.to_tensor(np.float32(1), tf.float32)
  assert isinstance(tensor, tf.Tensor)


def test_a_traced_function_takes_tensors_and_arrays():
  specs = [tf.TensorSpec([], tf.int32), [tf.TensorSpec([], tf.float32)]]
  function = programs.TracedFunction(
    lambda n, x: tf.cast(n, tf.float32) * x[0], specs
  )
  assert function(2, [tf.constant(1.5)]) == function(2, [np.float32(1.5)]) == 3


def test_a_traced_function_wants_all_leaves():
  specs = [[tf.TensorSpec([], tf.int32)] * 2]
  function = programs.TracedFunction(lambda numbers: sum(numbers), specs)
  with pytest.raises(ValueError, match='longer'):
    function([1])


def test_the_parts_of_the_argument_have_names(program):
  assert list(program.part_types) == ['part0', 'part1']


def test_the_pieces_make_a_round(program):
  arguments = dict(part0=[np.float32(2)])
  server = program.server_function(0)(arguments, {}, [])
  reads = {name: server[name] for name in program.stages[0].reads}
  client = program.client_function(0)
  (first, ones), (second, others) = [
    client(dict(part1=[np.float32(number)]), reads, {}) for number in (3, 4)
  ]
  aggregates = program.zeros_function(0)({}, reads)
  for added in (ones, others):
    aggregates = program.accumulate_function(0)({}, reads, aggregates, added)
  server |= program.server_function(1)(arguments, server, aggregates)
  (name,) = program.stages[0].keep
  kept = programs.ClientRows([first[name], second[name]])
  total, products = program.result(arguments, server, {name: kept})
  np.testing.assert_array_equal(total, [14])
  np.testing.assert_array_equal(products.rows, [[6], [8]])


def test_over_no_clients_the_aggregates_are_zero(program):
  arguments = dict(part0=[np.float32(2)])
  server = program.server_function(0)(arguments, {}, [])
  reads = {name: server[name] for name in program.stages[0].reads}
  np.testing.assert_array_equal(program.zeros_function(0)({}, reads), [[0]])


def test_what_the_clients_read_has_specs(program):
  specs = program.read_specs(0)
  assert list(specs) == program.stages[0].reads
  # What the server sends, and the zero that the sum begins with.
  assert list(specs.values()) == [[tf.TensorSpec([], tf.float32)]] * 2


def test_a_piece_is_traced_once(program):
  assert program.client_function(0) is program.client_function(0)
  assert program.server_function(0) is program.server_function(0)


def test_pieces_with_nothing_to_do_are_not_traced():
  double = tff.tensorflow.computation(lambda x: 2 * x, np.float32)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def run(x):
    return tff.federated_map(double, x)

  program = programs.Program(run)
  functions = {
    program.server_function(0): {},
    program.zeros_function(0): [],
    program.accumulate_function(0): [],
  }
  for function, nothing in functions.items():
    assert isinstance(function, programs.NoFunction)
    assert function({}, {}, nothing) == nothing


def test_clients_take_only_the_parts_of_the_argument_that_they_need(program):
  # The factor reaches them as a result of the server.
  assert program.client_arguments(0) == ['part1']
  assert program.shared_arguments(0) == []


def _enqueue(x: tf.Tensor) -> tf.Tensor:
  queue = tf.queue.FIFOQueue(3, tf.float32, shapes=[[]])
  with tf.control_dependencies([queue.enqueue(x)]):
    return queue.size()


def test_a_piece_that_makes_a_queue_is_isolated():
  program = programs.Program(tff.tensorflow.computation(_enqueue, np.float32))
  for _ in range(5):
    result = program.server_function(0)(dict(part0=[np.float32(1)]), {}, [])
    assert list(result.values()) == [[1]]
  assert program.isolated() == [("The server's work", 'FIFOQueueV2')]


def test_a_session_takes_and_gives_data_sets():
  spec = tf.TensorSpec([], tf.int64)

  def double(data_set: tf.Tensor) -> tf.Tensor:
    doubled = tf.data.experimental.from_variant(data_set, spec).map(
      lambda x: 2 * x
    )
    return tf.data.experimental.to_variant(doubled)

  function = programs.SessionFunction(
    double, [tf.TensorSpec([], tf.variant)], jit_compile=False
  )
  result = function(tf.data.experimental.to_variant(tf.data.Dataset.range(3)))
  result = tf.data.experimental.from_variant(result, spec)
  assert list(result.as_numpy_iterator()) == [0, 2, 4]


def _endless_function(is_isolated: bool) -> Callable[..., Any]:
  specs = [tf.TensorSpec([], tf.int32)]

  def run_for_ever(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i: i >= 0, lambda i: [i * 1], [x])[0]

  if is_isolated:
    return programs.SessionFunction(run_for_ever, specs, jit_compile=False)
  return programs.TracedFunction(run_for_ever, specs)


@pytest.mark.parametrize('is_isolated', [False, True])
def test_a_cancellation_ends_a_function(is_isolated):
  function = _endless_function(is_isolated)
  cancellation = programs.Cancellation()
  threading.Timer(0.5, cancellation.cancel).start()
  with pytest.raises(tf.errors.CancelledError):
    function(np.int32(1), cancellation=cancellation)


@pytest.mark.parametrize('is_isolated', [False, True])
def test_a_cancellation_ends_a_function_that_begins_after_it(is_isolated):
  function = _endless_function(is_isolated)
  cancellation = programs.Cancellation()
  cancellation.cancel()
  with pytest.raises(tf.errors.CancelledError):
    function(np.int32(1), cancellation=cancellation)


def test_a_tensor_for_the_clients_passes_the_server_by_reference():
  size = 1000
  model_type = tff.TensorType(np.float32, [size])

  @tff.federated_computation(
    tff.FederatedType(model_type, tff.SERVER),
    tff.FederatedType(np.float32, tff.CLIENTS),
  )
  def send(model, clients):
    del clients
    return tff.federated_broadcast(model)

  program = programs.Program(send)
  model = tf.ones([size])
  server = program.server_function(0)(dict(part0=[model]), {}, [])
  ((sent,),) = server.values()
  assert np.shares_memory(np.asarray(memoryview(model)), memoryview(sent))
