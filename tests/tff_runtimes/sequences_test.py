"""Tests of data sets that are read into arrays."""

import numpy as np
import pytest
import tensorflow as tf

from tff_runtimes import sequences

_BYTES = 2**20


def _batches(size: int) -> tf.data.Dataset:
  return tf.data.Dataset.range(size, output_type=tf.int32).batch(2)


def test_elements_are_sorted_by_their_shapes():
  stacked = sequences.Stacker()([_batches(5), _batches(2)], _BYTES)
  np.testing.assert_equal(stacked.size, [3, 1])
  full, last = (leaves[0] for leaves in stacked.kinds)
  np.testing.assert_equal(full[0, :2], [[0, 1], [2, 3]])
  np.testing.assert_equal(full[1, 0], [0, 1])
  np.testing.assert_equal(last[0, 0], [4])
  np.testing.assert_equal(stacked.order[0, :3], [[0, 0], [0, 1], [1, 0]])
  np.testing.assert_equal(stacked.order[1, 0], [0, 0])


def test_each_element_is_used_at_its_place():
  @tf.function
  def sums(order, full, last):
    elements = sequences.Elements(tf.constant(3), order, [[full], [last]])
    return [
      elements.use(tf.constant(i), lambda leaves: tf.reduce_sum(leaves[0]))
      for i in range(3)
    ]

  stacked = sequences.Stacker()([_batches(5)], _BYTES)
  (full,), (last,) = stacked.kinds
  found = sums(stacked.order[0], full[0], last[0])
  np.testing.assert_equal(np.array(found), [1, 5, 4])


def test_cohorts_like_earlier_ones_have_the_same_shapes():
  stacker = sequences.Stacker()
  shapes = [
    [leaf.shape for leaf in tf.nest.flatten(stacker(data_sets, _BYTES))]
    for data_sets in (
      [_batches(7), _batches(4)],
      [_batches(6), _batches(5)],
      [_batches(2), _batches(0)],
    )
  ]
  assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize(
  ('data_set', 'reason'),
  [
    (_batches(9).map(lambda x: tf.gather([1], x)), 'has an error'),
    (_batches(0), 'have 0 shapes'),
    (_batches(100), 'more than 100 bytes'),
    (_batches(2).cache('/nowhere/at/all'), 'CacheDatasetV2'),
    (tf.data.Dataset.range(4).map(tf.range), 'have 4 shapes'),
  ],
)
def test_a_data_set_that_cannot_be_read_says_why(data_set, reason):
  with pytest.raises(sequences.CannotReadError, match=reason):
    sequences.Stacker()([data_set], 100)


def test_a_shuffled_data_set_is_read_each_time():
  data_set = tf.data.Dataset.range(100).shuffle(100)
  stacker = sequences.Stacker()
  first, second = (stacker([data_set], _BYTES).kinds[0][0] for _ in range(2))
  assert not np.array_equal(first, second)
