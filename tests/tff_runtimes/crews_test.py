"""Tests of who does what, with servers that only say that they are there."""

from collections.abc import Iterator
import concurrent.futures
import contextlib
import queue
import threading
import time

import grpc
import pytest

from tff_runtimes import crews


@contextlib.contextmanager
def _worker(port: int = 0) -> Iterator[str]:
  """Starts a server; yields its address."""
  with concurrent.futures.ThreadPoolExecutor() as pool:
    server = grpc.server(pool)
    port = server.add_insecure_port(f'127.0.0.1:{port}')
    server.start()
    try:
      yield f'127.0.0.1:{port}'
    finally:
      server.stop(None).wait()


@pytest.fixture(name='workers')
def _workers(monkeypatch) -> Iterator[list[str]]:
  monkeypatch.setattr(crews, '_SECONDS_BETWEEN_CALLS', 0.1)
  monkeypatch.setattr(crews, '_SECONDS_OF_GRACE', 0.1)
  with contextlib.ExitStack() as stack:
    yield [stack.enter_context(_worker()) for _ in range(2)]


@pytest.fixture(name='told')
def _told() -> queue.Queue:
  return queue.Queue()


@pytest.fixture(name='start')
def _start(told):
  over = threading.Event()
  yield lambda addresses: crews.Crew(addresses, None, told.put, over)
  over.set()


def _lose(context) -> None:
  del context
  raise crews.WorkerError('It is gone.')


def test_results_are_in_the_order_of_the_calls(workers, start):
  def give(k):
    return lambda _: time.sleep(0.01 * (8 - k)) or k

  assert start(workers).run([give(k) for k in range(8)]) == [*range(8)]


def test_a_call_at_which_a_worker_is_lost_is_done_again(workers, start):
  losses = [None, None]

  def work(context):
    return _lose(context) if losses and losses.pop() is None else 'done'

  assert start(workers).run([work]) == ['done']


def test_a_call_that_ends_worker_after_worker_is_an_error(workers, start):
  with pytest.raises(crews.WorkerError, match='gone'):
    start(workers).run([_lose, lambda _: None])


def test_another_error_is_raised_at_once(workers, start):
  released = threading.Event()

  def fail(context):
    raise ValueError('Of the work.')

  with pytest.raises(ValueError, match='Of the work'):
    start(workers).run([lambda _: released.wait(60), fail])
  released.set()


def test_a_late_call_is_done_by_another_worker(workers, start):
  crew = start(workers)
  released, contexts = threading.Event(), []

  def wait_at_first(context):
    contexts.append(context)
    if len(contexts) == 1:
      released.wait(60)
    return 'done'

  assert crew.run([wait_at_first, lambda _: 1, lambda _: 2]) == ['done', 1, 2]
  first, second = contexts
  assert first is not second
  # It is busy, and the next calls are done by the other worker.
  for _ in range(3):
    crew.run([contexts.append])
  assert {id(context) for context in contexts[2:]} == {id(second)}
  released.set()


def test_a_worker_that_is_lost_is_told_and_used_again_when_it_comes(
  workers, start, told
):
  with _worker() as address:
    crew = start([address, *workers])
  assert f'{address} cannot be used' in told.get(timeout=10)
  assert crew.run([lambda _: 1] * 3) == [1] * 3
  port = int(address.rpartition(':')[2])
  with _worker(port):
    assert f'{address} is used again' in told.get(timeout=10)
    contexts = crew.run([lambda context: time.sleep(0.1) or context] * 3)
    assert len({id(context) for context in contexts}) == 3


def test_a_worker_that_comes_takes_a_call_that_is_late(workers, start, told):
  with _worker() as address:
    port = int(address.rpartition(':')[2])
  crew = start([workers[0], address])
  released, seen = threading.Event(), []

  def wait_at_first(context):
    seen.append(context)
    if len(seen) == 1:
      released.wait(60)
    return len(seen)

  assert 'cannot be used' in told.get(timeout=10)
  with concurrent.futures.ThreadPoolExecutor() as pool:
    call = pool.submit(crew.run, [wait_at_first, lambda _: 0])
    time.sleep(0.2)
    assert not call.done()
    with _worker(port):
      assert call.result(timeout=30) == [2, 0]
      released.set()


def test_without_workers_each_is_named(start):
  with pytest.raises(crews.WorkerError, match='127.0.0.1:1 .*127.0.0.1:2 '):
    start(['127.0.0.1:1', '127.0.0.1:2'])
