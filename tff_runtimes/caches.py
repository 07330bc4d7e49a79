"""A cache of bounded size that several threads can use."""

import collections
from collections.abc import Callable, Hashable, Iterator
import threading
from typing import Generic, TypeVar

_Value = TypeVar('_Value')


class Cache(Generic[_Value]):
  """Keeps the values that were used last; iterates over their keys."""

  def __init__(self, max_size: int):
    self._max_size = max_size
    self._values: collections.OrderedDict[Hashable, _Value] = (
      collections.OrderedDict()
    )
    self._lock = threading.RLock()

  def __iter__(self) -> Iterator[Hashable]:
    return iter(list(self._values))

  def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
    """Returns the value of a key, which is made if there is none.

    Args:
      key: The key.
      make: Makes the value. Other threads wait for it.
    """
    with self._lock:
      if key not in self._values:
        self._values[key] = make()
        if len(self._values) > self._max_size:
          self._values.popitem(last=False)
      self._values.move_to_end(key)
      return self._values[key]

  def clear(self) -> None:
    """Drops all values."""
    with self._lock:
      self._values.clear()
