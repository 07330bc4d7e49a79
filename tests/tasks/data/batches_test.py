"""Tests of the form in which examples enter a computation."""

import numpy as np
import pytest
import tensorflow as tf

from base import seeds
from tasks.data import batches

_SIZES = (5, 1, 8, 0, 13)


def _epoch(indices, mask):
  """Lists the examples that are not padding, in order."""
  return indices[mask > 0].tolist()


@pytest.mark.parametrize('batch_size', (1, 4, 5, 100))
@pytest.mark.parametrize('pad_to', (None, 32))
@pytest.mark.parametrize('shuffle', (False, True))
def test_every_example_of_every_client_is_there_once(
  batch_size, pad_to, shuffle
):
  rng = seeds.generator(1) if shuffle else None
  indices, mask = batches.index_batches(
    _SIZES, batch_size, rng=rng, pad_to=pad_to
  )
  assert indices.dtype == np.int32
  assert mask.dtype == np.float32
  assert set(np.unique(mask)) <= set({0, 1})
  for k, size in enumerate(_SIZES):
    assert sorted(_epoch(indices[k], mask[k])) == sorted(range(size))


@pytest.mark.parametrize('shuffle', [False, True])
def test_what_does_not_fill_a_batch_can_be_dropped(shuffle):
  rng = seeds.generator(1) if shuffle else None
  indices, mask = batches.index_batches(_SIZES, 4, rng=rng, drop_partial=True)
  # A client with less than a batch has one batch of all that it has.
  for k, kept in enumerate((4, 1, 8, 0, 12)):
    epoch = _epoch(indices[k], mask[k])
    assert len(set(epoch)) == kept
    assert set(epoch) <= set(range(_SIZES[k]))
    steps = mask[k].sum(axis=1)
    assert set(steps) <= set({0, min(4, _SIZES[k])})


def test_nothing_is_dropped_of_clients_that_have_less_than_a_batch():
  _, mask = batches.index_batches([3, 2], 4, drop_partial=True)
  np.testing.assert_array_equal(mask, [[[1, 1, 1]], [[1, 1, 0]]])


@pytest.mark.parametrize('drop_partial', [False, True])
def test_padding_is_last(drop_partial):
  _, mask = batches.index_batches(
    _SIZES, 4, drop_partial=drop_partial, pad_to=30
  )
  assert (np.diff(mask, axis=2) <= 0).all()
  assert (np.diff(mask.max(axis=2), axis=1) <= 0).all()


def test_each_client_is_shuffled_for_itself():
  indices, _ = batches.index_batches([64, 64], 64, rng=seeds.generator(1))
  first, second = (tuple(order) for order in indices[:, 0])
  assert first != second


def test_every_order_is_as_likely():
  indices, _ = batches.index_batches(
    np.full(6000, 3), 3, rng=seeds.generator(1)
  )
  _, counts = np.unique(indices[:, 0], axis=0, return_counts=True)
  assert len(counts) == 6
  # Five deviations of a binomial count.
  np.testing.assert_allclose(counts, 1000, atol=5 * 29)


def test_the_same_seed_gives_the_same_batches():
  first, second = (
    batches.index_batches(_SIZES, 4, rng=seeds.generator('batches', 3))
    for _ in range(2)
  )
  np.testing.assert_array_equal(first[0], second[0])


def test_padding_does_not_change_the_batches():
  plain, padded = (
    batches.index_batches(_SIZES, 4, rng=seeds.generator(1), pad_to=pad_to)
    for pad_to in (None, 64)
  )
  steps = plain[0].shape[1]
  for array, padded_array in zip(plain, padded, strict=True):
    np.testing.assert_array_equal(array, padded_array[:, :steps])
    assert not padded_array[:, steps:].any()


def test_the_shape_depends_on_pad_to_only():
  shapes = {
    batches.index_batches(sizes, 8, pad_to=30)[0].shape
    for sizes in ([1, 30], [7, 7], [0, 0])
  }
  assert shapes == {(2, 4, 8)}


def test_one_client_is_a_cohort_of_one():
  one = batches.index_batches(13, 4, rng=seeds.generator(1))
  cohort = batches.index_batches([13], 4, rng=seeds.generator(1))
  np.testing.assert_array_equal(one, np.squeeze(cohort, axis=1))


def test_there_is_no_batch_where_nobody_has_examples():
  indices, _ = batches.index_batches([0, 0], 4, rng=seeds.generator(1))
  assert indices.size == 0


def test_more_examples_than_room_are_refused():
  with pytest.raises(ValueError, match='more than 12'):
    batches.index_batches(_SIZES, 4, pad_to=12)


def test_examples_are_padded_with_zeros():
  clients = [
    {'x': np.ones((size, 2), np.float32), 'y': np.arange(size)}
    for size in (3, 0, 1)
  ]
  stacked = batches.stack_examples(clients, pad_to=4)
  assert stacked['x'].shape == (3, 4, 2)
  assert stacked['x'].dtype == np.float32
  np.testing.assert_array_equal(stacked['x'].sum(axis=(1, 2)), [6, 0, 2])
  np.testing.assert_array_equal(
    stacked['y'], [[0, 1, 2, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
  )


def test_examples_are_padded_to_the_largest_client():
  clients = [{'y': np.zeros(size)} for size in (3, 5)]
  assert batches.stack_examples(clients)['y'].shape == (2, 5)


def test_the_type_fits_the_data():
  spec = {'x': tf.TensorSpec([2]), 'y': tf.TensorSpec([], tf.int32)}
  client_type = batches.client_data_type(spec)
  assert (
    str(client_type)
    == '<examples=<x=float32[?,2],y=int32[?]>,indices=int32[?,?],'
    'mask=float32[?,?]>'
  )


def test_the_examples_that_batches_take_are_listed():
  rng = np.random.default_rng(0)
  indices, _ = batches.index_steps([9, 30, 2], 4, 3, rng=rng)
  used, places = batches.list_used(indices)
  assert used.shape == (3, 12)
  np.testing.assert_array_equal(
    np.take_along_axis(used, places.reshape(3, -1), axis=1).reshape(3, 3, 4),
    indices,
  )


def _poisson(sizes=(4, 40, 100, 0), epochs=30, **values):
  rng = np.random.default_rng(0)
  return batches.index_poisson(sizes, 8, epochs, rng, pad_to=100, **values)


def test_poisson_batches_draw_each_example_with_the_same_probability():
  indices, mask = _poisson(epochs=300)
  for k, size in ((1, 40), (2, 100)):
    drawn = indices[k][mask[k] > 0.5]
    steps = 300 * -(-size // 8)
    counts = np.bincount(drawn, minlength=100)
    assert counts[size:].sum() == 0
    q, deviation = 8 / size, (8 / size * steps) ** 0.5
    assert np.abs(counts[:size] - q * steps).max() < 5 * deviation
  # Sizes vary as those of a binomial distribution, which a shuffle's do not.
  of_largest = mask[2].sum(-1)
  assert of_largest.std() == pytest.approx((8 * (1 - 0.08)) ** 0.5, rel=0.1)


def test_a_poisson_batch_has_no_example_twice():
  indices, mask = _poisson()
  for row, own_mask in zip(indices[2], mask[2]):
    drawn = row[own_mask > 0]
    assert len(set(drawn)) == len(drawn)


def test_a_client_that_fills_no_poisson_batch_has_all_examples_in_each():
  indices, mask = _poisson()
  np.testing.assert_array_equal(mask[0].sum(-1)[:30], np.full(30, 4))
  np.testing.assert_array_equal(
    np.sort(indices[0][3][mask[0][3] > 0]), range(4)
  )


@pytest.mark.parametrize('drop_partial', [True, False])
def test_there_are_as_many_poisson_batches_as_others(drop_partial):
  _, mask = _poisson(drop_partial=drop_partial)
  _, expected = batches.index_batches(
    [4, 40, 100, 0], 8, drop_partial=drop_partial, pad_to=100
  )
  np.testing.assert_array_equal(
    mask.any(-1).sum(-1), 30 * expected.any(-1).sum(-1)
  )


def test_an_empty_poisson_batch_is_no_padding():
  rng = np.random.default_rng(0)
  _, mask = batches.index_poisson([50], 1, 4, rng, pad_to=50)
  sizes = mask[0].sum(-1)
  assert (sizes < 0.5).any()
  assert (mask[0] > 0).any(-1).all()
