"""Tests of the words of messages."""

import pytest

from base import words


@pytest.mark.parametrize(
  ('number', 'plural', 'written'),
  [
    (1, 'test clients', '1 test client'),
    (0, 'epochs', '0 epochs'),
    (1, 'classes', '1 class'),
    (1, 'processes', '1 process'),
    (1, 'categories', '1 category'),
    (12345678, 'runs', '12345678 runs'),
  ],
)
def test_a_noun_is_singular_after_one(number, plural, written):
  assert words.count(number, plural) == written
