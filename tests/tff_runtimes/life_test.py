"""Tests of what the cohort runtime does when it is interrupted or dropped."""

import asyncio
from collections.abc import Callable
import concurrent.futures
import gc
import os
import pathlib
import signal
import threading
import time
from typing import Any
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes import helpers
from tff_runtimes import cohort

_NUMBERS = tff.FederatedType(np.float32, tff.CLIENTS)


def _mapped(work: Callable[..., Any]) -> tff.Computation:
  block = tff.tensorflow.computation(work, np.float32)
  return tff.federated_computation(
    lambda x: tff.federated_map(block, x), _NUMBERS
  )


def _run_for_ever(x: tf.Tensor) -> tf.Tensor:
  # As the loop begins with the argument, nobody can compute it beforehand.
  return tf.while_loop(lambda y: y < 1e9, lambda y: [y * 1], [x])[0]


def _wait_for_ever(x: tf.Tensor) -> tf.Tensor:
  queue = tf.queue.FIFOQueue(1, tf.float32, shapes=[[]])
  return queue.dequeue() + x


def _reduce_for_ever(x: tf.Tensor) -> tf.Tensor:
  numbers = tf.data.Dataset.range(10**15)
  return numbers.reduce(x, lambda total, _: total * 1)


_DOUBLE = _mapped(lambda x: 2 * x)
_FOR_EVER = {
  'a loop': _mapped(_run_for_ever),
  'a queue': _mapped(_wait_for_ever),
  'a data set': _mapped(_reduce_for_ever),
  'the server': tff.tensorflow.computation(_run_for_ever, np.float32),
}


def _interrupt(seconds: float) -> None:
  """Does in some seconds what Ctrl-C does."""
  threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


@pytest.mark.parametrize('name', _FOR_EVER)
def test_ctrl_c_ends_a_call_at_once(name):
  context = cohort.create_cohort_context()
  argument = 1.0 if name == 'the server' else [1.0, 2.0, 3.0, 4.0, 5.0]
  _interrupt(1.0)
  start = time.monotonic()
  with pytest.raises(KeyboardInterrupt):
    helpers.run(context, _FOR_EVER[name], argument)
  assert time.monotonic() - start < 2.5
  assert helpers.run(context, _DOUBLE, [1.0, 2.0]) == [2, 4]


def test_ctrl_c_does_not_wait_for_what_cannot_be_cancelled():
  def count(x: tf.Tensor) -> tf.Tensor:
    # Some seconds in XLA, which has no way to stop it.
    return tf.while_loop(
      lambda i, _: i < 300_000_000,
      lambda i, y: (i + 1, tf.sin(y + x)),
      (0, x),
    )[1]

  context = cohort.create_cohort_context()
  work = _mapped(count)
  assert 'are stacked' in context.explain(work)
  _interrupt(1.0)
  start = time.monotonic()
  with pytest.raises(KeyboardInterrupt):
    helpers.run(context, work, [1.0])
  assert time.monotonic() - start < 2.5
  assert helpers.run(context, _DOUBLE, [1.0, 2.0]) == [2, 4]


def test_cancelling_a_task_ends_its_call():
  context = cohort.create_async_cohort_context()

  async def run() -> None:
    with tff.framework.get_context_stack().install(context):
      await asyncio.wait_for(_FOR_EVER['a loop']([1.0, 2.0]), timeout=1)

  start = time.monotonic()
  with pytest.raises(asyncio.TimeoutError):
    asyncio.run(run())  # At its end it waits for all threads.
  assert time.monotonic() - start < 3


def test_an_error_leaves_the_context_usable(cohort_context):
  divide = tff.tensorflow.computation(lambda n: 10 // n, np.int32)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def run(n):
    return tff.federated_map(divide, n)

  for _ in range(3):
    with pytest.raises(tf.errors.InvalidArgumentError, match='client 3 of 5'):
      helpers.run(cohort_context, run, [1, 2, 5, 0, 10])
    assert helpers.run(cohort_context, run, [1, 2, 5]) == [10, 5, 2]


def _count_to(x: tf.Tensor) -> tf.Tensor:
  total = tf.Variable(0.0)

  def step() -> list[tf.Operation]:
    with tf.control_dependencies([total.assign_add(1.0)]):
      return [total.read_value()]

  return tf.while_loop(lambda y: y < x, lambda _: step(), [0.0])[0]


@pytest.mark.parametrize('at_server', [False, True])
def test_threads_share_no_variables(cohort_context, at_server):
  work = tff.tensorflow.computation(_count_to, np.float32)

  def call(x: float) -> Any:
    if at_server:
      return helpers.run(cohort_context, work, x)
    return helpers.run(cohort_context, _mapped(_count_to), [x])[0]

  numbers = [float(k) for k in range(300, 340)]
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    assert list(threads.map(call, numbers)) == numbers


def test_a_closed_context_refuses_to_run():
  with cohort.create_cohort_context() as context:
    assert helpers.run(context, _DOUBLE, [1.0]) == [2]
  context.close()
  with pytest.raises(RuntimeError, match='closed'):
    helpers.run(context, _DOUBLE, [1.0])


def test_a_dropped_context_is_freed():
  context = cohort.create_cohort_context()
  helpers.run(context, _DOUBLE, [1.0])
  alive = weakref.ref(context)
  del context
  gc.collect()
  assert alive() is None


def _memory() -> int:
  gc.collect()
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return pages * os.sysconf('SC_PAGE_SIZE')


_MIB = 2**20


def test_cohorts_of_many_sizes_need_little_memory():
  context = cohort.create_cohort_context()
  for size in range(1, 10):
    helpers.run(context, _DOUBLE, [1.0] * size)
  before = _memory()
  for size in range(10, 210):
    assert helpers.run(context, _DOUBLE, [1.0] * size) == [2.0] * size
  assert _memory() - before < 60 * _MIB


def test_computations_of_the_past_need_little_memory():
  context = cohort.create_cohort_context()

  def run_new(n: int) -> None:
    result = helpers.run(context, _mapped(lambda x: x + float(n)), [1.0, 2.0])
    assert result == [1 + n, 2 + n]

  for n in range(70):  # More than a context keeps.
    run_new(n)
  before = _memory()
  for n in range(50):
    run_new(n)
  assert _memory() - before < 25 * _MIB


def test_contexts_of_the_past_need_little_memory():
  for _ in range(5):
    helpers.run(cohort.create_cohort_context(), _DOUBLE, [1.0])
  before = _memory()
  for _ in range(60):
    helpers.run(cohort.create_cohort_context(), _DOUBLE, [1.0])
  assert _memory() - before < 40 * _MIB


def test_large_clients_are_not_all_in_memory():
  size, num_clients = 5_000_000, 16
  vector = tff.TensorType(np.float32, [size])
  mean = tff.tensorflow.computation(lambda x: tf.reduce_mean(x), vector)

  @tff.federated_computation(tff.FederatedType(vector, tff.CLIENTS))
  def run(x):
    return tff.federated_map(mean, x)

  clients = [np.full(size, k, np.float32) for k in range(num_clients)]
  context = cohort.create_cohort_context()
  helpers.run(context, run, clients[:1])
  grown = helpers.peak_memory(lambda: helpers.run(context, run, clients))
  # A copy for each client that is at work, and one that is prepared.
  assert grown < (2 * len(os.sched_getaffinity(0)) + 2) * 4 * size
