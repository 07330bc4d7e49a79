"""Preparing what comes next while what came last is being used."""

from collections.abc import Iterable, Iterator
import concurrent.futures
from typing import TypeVar

_T = TypeVar('_T')


def prefetch(items: Iterable[_T]) -> Iterator[_T]:
  """Yields `items`, each of which is made while the one before it is in use.

  One thread makes them, in order, and is at most one item ahead. Whoever stops
  early waits no longer than for that one, and nothing is left running. Use
  `contextlib.closing` to stop at once where the loop may end by an exception.

  Args:
    items: What to prepare, as a generator of cohorts. An exception in it is
      raised here, when it is its turn.

  Yields:
    The items.
  """
  iterator = iter(items)
  end = object()
  with concurrent.futures.ThreadPoolExecutor(1, 'prefetch') as thread:
    coming = thread.submit(next, iterator, end)
    while (item := coming.result()) is not end:
      coming = thread.submit(next, iterator, end)
      yield item
