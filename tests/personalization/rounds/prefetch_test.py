"""Tests of preparing what comes next."""

from collections.abc import Iterator
import contextlib
import itertools
import threading

import pytest

from personalization.rounds import prefetch


def _threads() -> list[threading.Thread]:
  return [t for t in threading.enumerate() if t.name.startswith('prefetch')]


def test_items_come_in_order_and_all_of_them():
  assert list(prefetch.prefetch(range(5))) == [0, 1, 2, 3, 4]
  assert list(prefetch.prefetch([])) == []


def test_an_item_may_be_none():
  assert list(prefetch.prefetch([None, None])) == [None, None]


def test_the_next_item_is_made_while_one_is_in_use():
  made = [threading.Event() for _ in range(3)]

  def make() -> Iterator[int]:
    for i, event in enumerate(made):
      event.set()
      yield i

  for i in prefetch.prefetch(make()):
    # It would wait for ever if the next were made when it is asked for.
    assert i == 2 or made[i + 1].wait(60)


def test_it_is_at_most_one_item_ahead():
  made = []

  def make() -> Iterator[int]:
    for i in itertools.count():
      made.append(i)
      yield i

  with contextlib.closing(prefetch.prefetch(make())) as items:
    assert [next(items), next(items)] == [0, 1]
  # It has ended, so that no more can come.
  assert made == [0, 1, 2]


def test_items_are_made_in_one_other_thread():
  def make() -> Iterator[int]:
    for _ in range(4):
      yield threading.get_ident()

  threads = set(prefetch.prefetch(make()))
  assert len(threads) == 1
  assert threading.get_ident() not in threads


def test_an_exception_comes_in_its_turn():
  def make() -> Iterator[int]:
    yield 1
    yield 2
    raise KeyError('broken')

  items = prefetch.prefetch(make())
  assert [next(items), next(items)] == [1, 2]
  with pytest.raises(KeyError, match='broken'):
    next(items)
  assert not _threads()


def test_nothing_is_left_running_when_the_consumer_stops():
  for i in prefetch.prefetch(itertools.count()):
    if i == 3:
      break
  assert not _threads()


def test_nothing_is_left_running_when_the_consumer_fails():
  with pytest.raises(ZeroDivisionError):
    with contextlib.closing(prefetch.prefetch(itertools.count())) as items:
      for i in items:
        1 / (i - 2)
  assert not _threads()


def test_nothing_is_made_before_the_first_item_is_asked_for():
  items = prefetch.prefetch(pytest.fail('Made.') for _ in range(1))
  assert not _threads()
  items.close()
