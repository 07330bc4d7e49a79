"""Prepares the next item in a thread while the last one is in use."""

from collections.abc import Generator, Iterable
import concurrent.futures
from typing import Any, TypeVar

_T = TypeVar('_T')


def prefetch(items: Iterable[_T]) -> Generator[_T, None, None]:
  """Yields items, each of which is made while the one before it is in use.

  One thread makes them in order, and is at most one item ahead. A caller that
  stops early waits for that item at most, and nothing is left running. Use
  `contextlib.closing` to stop it at once if the loop may raise an exception.

  Args:
    items: The items, such as a generator of cohorts. An exception that it
      raises is raised here after the items before it.

  Yields:
    The items.
  """
  iterator = iter(items)
  end: Any = object()
  with concurrent.futures.ThreadPoolExecutor(1, 'prefetch') as thread:
    coming = thread.submit(next, iterator, end)
    while (item := coming.result()) is not end:
      coming = thread.submit(next, iterator, end)
      yield item
