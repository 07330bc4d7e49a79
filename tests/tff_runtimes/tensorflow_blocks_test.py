"""Tests of TensorFlow blocks as functions to be called in a graph."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_runtimes import tensorflow_blocks

Struct = tff.structure.Struct


def _callable(computation: tff.Computation) -> Callable[..., Any]:
  return tensorflow_blocks.to_callable(computation.to_building_block())


def test_the_result_is_that_of_the_computation():
  add = _callable(
    tff.tensorflow.computation(lambda x, y: x + y, (np.int32, np.int32))
  )

  @tf.function
  def run(x, y):
    return add(Struct([(None, x), (None, y)]))

  assert run(tf.constant(1), tf.constant(2)) == 3


def test_a_block_may_have_no_argument():
  assert tf.function(_callable(tff.tensorflow.computation(lambda: 5)))() == 5


def test_structs_are_those_of_tff():
  swap = _callable(
    tff.tensorflow.computation(
      lambda x: dict(b=x['a'], c=[x['b']]), dict(a=np.int32, b=np.int32)
    )
  )
  results = []

  @tf.function
  def run():
    results.append(swap(Struct([('a', 1), ('b', 2)])))

  run()
  assert tff.structure.name_list(results[0]) == ['b', 'c']
  assert isinstance(results[0].c, Struct)


def test_xla_compiles_a_block_that_does_not_read_its_argument():
  ignore = _callable(
    tff.tensorflow.computation(lambda x, s: x, (np.int32, np.str_))
  )

  @tf.function(jit_compile=True)
  def run(x):
    return ignore(Struct([(None, x), (None, tf.constant('text'))]))

  assert run(tf.constant(2)) == 2


def test_each_call_has_variables_of_its_own():
  @tff.tensorflow.computation(np.int32)
  def count(x):
    total = tf.Variable(10)
    with tf.control_dependencies([total.assign_add(x)]):
      return total.read_value()

  call = _callable(count)

  @tf.function
  def run(x):
    return call(x), call(2 * x)

  for _ in range(2):
    np.testing.assert_equal([n.numpy() for n in run(tf.constant(1))], [11, 12])


def test_each_call_has_tables_of_its_own():
  def find(words: list[str]) -> Callable[..., Any]:
    @tff.tensorflow.computation(np.str_)
    def position(word):
      initializer = tf.lookup.KeyValueTensorInitializer(
        words, list(range(len(words)))
      )
      return tf.lookup.StaticHashTable(initializer, -1).lookup(word)

    return _callable(position)

  first, second = find(['a', 'b']), find(['b', 'a'])

  @tf.function
  def run(word):
    return first(word), second(word)

  np.testing.assert_equal([n.numpy() for n in run(tf.constant('b'))], [1, 0])


def test_functions_of_equal_names_are_not_mixed_up():
  def scale(factor: int) -> Callable[..., Any]:
    @tf.function
    def inner(x):
      return factor * x

    return _callable(tff.tensorflow.computation(inner, np.int32))

  double, triple = scale(2), scale(3)

  @tf.function
  def run(x):
    return double(x), triple(x), double(triple(x))

  np.testing.assert_equal([n.numpy() for n in run(tf.constant(1))], [2, 3, 6])


def test_a_loop_in_a_block_runs():
  @tff.tensorflow.computation(np.int32)
  def power(n):
    return tf.while_loop(
      lambda i, _: i < n, lambda i, x: (i + 1, 2 * x), (0, 1)
    )[1]

  assert tf.function(_callable(power))(tf.constant(10)) == 1024


def test_a_sequence_is_a_variant():
  total = _callable(
    tff.tensorflow.computation(
      lambda numbers: numbers.reduce(0, lambda a, b: a + b),
      tff.SequenceType(np.int32),
    )
  )
  dataset = tf.data.Dataset.from_tensor_slices([1, 2, 3])
  variant = tf.data.experimental.to_variant(dataset)
  assert tf.function(total)(variant) == 6


def test_an_assertion_in_a_block_is_kept():
  @tff.tensorflow.computation(np.int32)
  def check(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x)]):
      return tf.identity(x)

  run = tf.function(_callable(check))
  assert run(tf.constant(1)) == 1
  with pytest.raises(tf.errors.InvalidArgumentError):
    run(tf.constant(-1))


def test_a_block_of_something_else_is_an_error_that_names_it():
  with pytest.raises(NotImplementedError, match='xla.*native runtime'):
    _callable(tff.jax.computation(lambda x: x + 1, np.int32))
