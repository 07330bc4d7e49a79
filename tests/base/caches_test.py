"""Tests of caches."""

import gc
import weakref

import pytest

from base import caches


class _Squares:
  """Counts what it computes."""

  def __init__(self):
    self.computed = []
    self.square = caches.last(self._square, 2)

  def _square(self, x: int) -> int:
    self.computed.append(x)
    return x * x


@pytest.fixture(name='no_collection')
def _no_collection():
  gc.disable()
  yield
  gc.enable()


def test_the_last_results_are_kept():
  squares = _Squares()
  assert [squares.square(x) for x in (1, 2, 2, 1, 3, 1)] == [1, 4, 4, 1, 9, 1]
  assert squares.computed == [1, 2, 3]


def test_a_result_that_was_not_used_lately_is_computed_again():
  squares = _Squares()
  assert [squares.square(x) for x in (1, 2, 3, 1)] == [1, 4, 9, 1]
  assert squares.computed == [1, 2, 3, 1]


def test_its_object_is_freed_at_once(no_collection):
  squares = _Squares()
  squares.square(3)
  alive = weakref.ref(squares)
  del squares
  assert alive() is None
