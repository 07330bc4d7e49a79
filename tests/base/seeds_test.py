"""Tests of seeds."""

import numpy as np

from base import seeds


def test_numbers_depend_on_the_key_alone():
  first, second = seeds.generator('x', 1), seeds.generator('x', np.int64(1))
  assert first.random() == second.random()


def test_different_keys_are_unrelated():
  keys = ((), (0,), (0, 0), (1,), (1, 0), (2**32,), (0, 1), ('1',), ('x', 1))
  draws = {seeds.generator(*key).random() for key in keys}
  assert len(draws) == len(keys)


def test_a_pair_is_a_seed_of_tensorflow():
  pair = seeds.pair('x', 1)
  assert pair.shape == (2,)
  assert pair.dtype == np.int32
  assert pair.min() >= 0
