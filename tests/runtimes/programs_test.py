"""Tests of the pieces of a program."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from runtimes import programs

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


def test_a_row_is_gathered():
  table = tf.constant([[1, 2], [3, 4]])
  row = programs.gather_row(table, tf.constant(1))
  np.testing.assert_array_equal(row, [3, 4])


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
  client = program.client_function(0, lane=0)
  results = [
    client(arguments | dict(part1=[np.float32(own)]), reads, {})
    for own in (3, 4)
  ]
  (first, ones), (second, others) = results
  aggregates = program.merge_function(0)(reads, ones, others)
  server |= program.server_function(1)(arguments, server, aggregates)
  (name,) = program.stages[0].keep
  kept = programs.ClientLeaves([first[name], second[name]])
  total, products = program.result(arguments, server, {name: kept})
  np.testing.assert_array_equal(total, [14])
  np.testing.assert_array_equal(products.leaves, [[6], [8]])


def test_over_no_clients_the_aggregates_are_zero(program):
  arguments = dict(part0=[np.float32(2)])
  server = program.server_function(0)(arguments, {}, [])
  reads = {name: server[name] for name in program.stages[0].reads}
  np.testing.assert_array_equal(
    program.zeros_function(0)(arguments, reads), [[0]]
  )


def test_what_the_clients_read_has_specs(program):
  specs = program.read_specs(0)
  assert list(specs) == program.stages[0].reads
  # What the server sends, and the zero that the sum begins with.
  assert list(specs.values()) == [[tf.TensorSpec([], tf.float32)]] * 2


def test_a_piece_is_traced_once(program):
  assert program.client_function(0, 1) is program.client_function(0, 1)
  assert program.server_function(0) is program.server_function(0)


def test_clients_that_work_at_the_same_time_have_functions_of_their_own(
  program,
):
  assert program.client_function(0, 0) is not program.client_function(0, 1)


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
