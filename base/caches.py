"""Caches of what methods return."""

from collections.abc import Callable
import functools
from typing import ParamSpec, TypeVar, cast
import weakref

_Parameters = ParamSpec('_Parameters')
_Result = TypeVar('_Result')


def last(
  method: Callable[_Parameters, _Result], size: int
) -> Callable[_Parameters, _Result]:
  """Keeps the last results of a bound method, as long as its object lives.

  A cache that an object holds, and that holds the object, would be freed late:
  Python looks for such cycles rarely, whatever their size.

  Args:
    method: The method, whose arguments are hashable.
    size: How many results to keep.

  Returns:
    The method with the cache, for the object to hold.
  """
  weak = weakref.WeakMethod(method)

  @functools.lru_cache(size)
  def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
    return cast(Callable[_Parameters, _Result], weak())(*args, **kwargs)

  return cast(Callable[_Parameters, _Result], call)
