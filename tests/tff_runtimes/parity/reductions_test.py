"""Reductions of data sets, which become loops, do what TFF's runtime does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tff_runtimes.parity import checks

_Data = tf.data.Dataset


def _elements(size: int) -> _Data:
  return _Data.range(tf.cast(size, tf.int64)).map(
    lambda k: tf.cast(k, tf.int32)
  )


def _counting(x: tf.Tensor) -> Any:
  """Changes a variable in each step, and reads it when all are done."""
  count = tf.Variable(10)

  @tf.function
  def run() -> Any:
    def step(state: tf.Tensor, element: tf.Tensor) -> tf.Tensor:
      count.assign(2 * count + element)
      return state + count

    total = _elements(x).reduce(0, step)
    return total, count.read_value()

  return run()


def _only_effects(x: tf.Tensor) -> tf.Tensor:
  """Returns a variable that the reduction changed, and not its result."""
  count = tf.Variable(1)

  @tf.function
  def run() -> tf.Tensor:
    def step(state: tf.Tensor, element: tf.Tensor) -> tf.Tensor:
      count.assign_add(element)
      return state

    _elements(x).reduce(0, step)
    return 3 * count

  return run()


def _nested(x: tf.Tensor) -> tf.Tensor:
  def step(state: tf.Tensor, element: tf.Tensor) -> tf.Tensor:
    inner = _elements(element).reduce(state, lambda a, b: 2 * a + b)
    return inner + tf.cast(tf.random.stateless_uniform([], [1, 2]), tf.int32)

  return _elements(x).reduce(1, step)


def _growing(x: tf.Tensor) -> tf.Tensor:
  return _elements(x).reduce(
    tf.zeros([0], tf.int32), lambda a, b: tf.concat([a, [b]], 0)
  )


def _seeded(x: tf.Tensor) -> tf.Tensor:
  """Draws the same numbers in each of two reductions by one function."""

  def step(state: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
    drawn = _elements(3).reduce(
      0.0, lambda a, _: 2 * a + tf.random.uniform([], seed=3)
    )
    return 3 * state + drawn

  return _elements(x).reduce(0.0, step)


_WORK: dict[str, Callable[[tf.Tensor], Any]] = {
  'a variable': _counting,
  'only a variable': _only_effects,
  'a reduction in a reduction': _nested,
  'a state that grows': _growing,
  'random numbers with a seed': _seeded,
  'a state of several parts': lambda x: _elements(x).reduce(
    (0, dict(a='', b=(1.5, [x]))),
    lambda s, k: (
      s[0] + k,
      dict(
        a=tf.strings.as_string(k) + s[1]['a'],
        b=(2 * s[1]['b'][0], [s[1]['b'][1][0] - k]),
      ),
    ),
  ),
  'a data set that ends early': lambda x: (
    _elements(x).take_while(lambda k: k < 2).reduce(5, lambda a, b: 2 * a + b)
  ),
}


@pytest.mark.parametrize('name', _WORK)
def test_a_reduction(parity, name):
  parity(checks.everywhere(_WORK[name], np.int32), [0, 1, 4], 3)


@tf.function
def _fails_in_the_data_set(x: tf.Tensor) -> tf.Tensor:
  data = _elements(x).map(lambda k: tf.gather([1, 2], k))
  return data.reduce(0, lambda a, b: a + b)


@tf.function
def _fails_in_a_step(x: tf.Tensor) -> tf.Tensor:
  return _elements(x).reduce(0, lambda a, b: a + tf.gather([1, 2], b))


@tf.function
def _fails_beside_the_result(x: tf.Tensor) -> tf.Tensor:
  def step(state: tf.Tensor, element: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_less(element, 2)]):
      return tf.identity(state)

  _elements(x).reduce(0, step)
  return x


@pytest.mark.parametrize(
  'work',
  [_fails_in_the_data_set, _fails_in_a_step, _fails_beside_the_result],
)
def test_an_error_in_a_reduction(parity, work):
  computation = checks.mapped(work, np.int32)
  parity(computation, [0, 1, 2])
  parity.raises(computation, lambda: ([1, 3],), tf.errors.InvalidArgumentError)
