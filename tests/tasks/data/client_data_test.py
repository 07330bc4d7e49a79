from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from base import seeds
from tasks.data import client_data

_SIZES = (5, 1, 8, 0, 13)


def _epoch(indices, weights):
  """The examples that are not padding, in order."""
  return indices[weights > 0].tolist()


class IndexBatchesTest(parameterized.TestCase):
  @parameterized.product(
    batch_size=(1, 4, 5, 100),
    pad_to=(None, 32),
    shuffle=(False, True),
  )
  def test_every_example_of_every_client_once(
    self, batch_size, pad_to, shuffle
  ):
    rng = seeds.generator(1) if shuffle else None
    indices, weights = client_data.index_batches(
      _SIZES, batch_size, rng=rng, pad_to=pad_to
    )
    self.assertEqual(indices.dtype, np.int32)
    self.assertEqual(weights.dtype, np.float32)
    self.assertContainsSubset(np.unique(weights), {0, 1})
    for k, size in enumerate(_SIZES):
      self.assertCountEqual(_epoch(indices[k], weights[k]), range(size))

  @parameterized.parameters(False, True)
  def test_drops_what_does_not_fill_a_batch(self, shuffle):
    rng = seeds.generator(1) if shuffle else None
    indices, weights = client_data.index_batches(
      _SIZES, 4, rng=rng, drop_partial=True
    )
    # A client with less than a batch has one batch of all that it has.
    for k, kept in enumerate((4, 1, 8, 0, 12)):
      epoch = _epoch(indices[k], weights[k])
      self.assertLen(set(epoch), kept)
      self.assertContainsSubset(epoch, range(_SIZES[k]))
      steps = weights[k].sum(axis=1)
      self.assertContainsSubset(steps, {0, min(4, _SIZES[k])})

  def test_drops_nothing_of_clients_that_all_have_less_than_a_batch(self):
    _, weights = client_data.index_batches([3, 2], 4, drop_partial=True)
    np.testing.assert_array_equal(weights, [[[1, 1, 1]], [[1, 1, 0]]])

  @parameterized.parameters(False, True)
  def test_padding_is_last(self, drop_partial):
    _, weights = client_data.index_batches(
      _SIZES, 4, drop_partial=drop_partial, pad_to=30
    )
    self.assertTrue((np.diff(weights, axis=2) <= 0).all())
    self.assertTrue((np.diff(weights.max(axis=2), axis=1) <= 0).all())

  def test_each_client_is_shuffled_for_itself(self):
    indices, _ = client_data.index_batches([64, 64], 64, rng=seeds.generator(1))
    self.assertNotEqual(*(tuple(order) for order in indices[:, 0]))

  def test_every_order_is_as_likely(self):
    indices, _ = client_data.index_batches(
      np.full(6000, 3), 3, rng=seeds.generator(1)
    )
    _, counts = np.unique(indices[:, 0], axis=0, return_counts=True)
    self.assertLen(counts, 6)
    # Five deviations of a binomial count.
    np.testing.assert_allclose(counts, 1000, atol=5 * 29)

  def test_the_same_seed_gives_the_same_batches(self):
    first, second = (
      client_data.index_batches(_SIZES, 4, rng=seeds.generator('batches', 3))
      for _ in range(2)
    )
    np.testing.assert_array_equal(first[0], second[0])

  def test_padding_does_not_change_the_batches(self):
    plain, padded = (
      client_data.index_batches(
        _SIZES, 4, rng=seeds.generator(1), pad_to=pad_to
      )
      for pad_to in (None, 64)
    )
    steps = plain[0].shape[1]
    for array, padded_array in zip(plain, padded, strict=True):
      np.testing.assert_array_equal(array, padded_array[:, :steps])
      self.assertFalse(padded_array[:, steps:].any())

  def test_the_shape_depends_on_pad_to_only(self):
    shapes = {
      client_data.index_batches(sizes, 8, pad_to=30)[0].shape
      for sizes in ([1, 30], [7, 7], [0, 0])
    }
    self.assertEqual(shapes, {(2, 4, 8)})

  def test_one_client_is_a_cohort_of_one(self):
    one = client_data.index_batches(13, 4, rng=seeds.generator(1))
    cohort = client_data.index_batches([13], 4, rng=seeds.generator(1))
    np.testing.assert_array_equal(one, np.squeeze(cohort, axis=1))

  def test_nobody_has_examples(self):
    indices, _ = client_data.index_batches([0, 0], 4, rng=seeds.generator(1))
    self.assertEqual(indices.size, 0)

  def test_more_examples_than_room(self):
    with self.assertRaisesRegex(ValueError, 'more than 12'):
      client_data.index_batches(_SIZES, 4, pad_to=12)


class StackExamplesTest(absltest.TestCase):
  def test_pads_with_zeros(self):
    clients = [
      {'x': np.ones((size, 2), np.float32), 'y': np.arange(size)}
      for size in (3, 0, 1)
    ]
    stacked = client_data.stack_examples(clients, pad_to=4)
    self.assertEqual(stacked['x'].shape, (3, 4, 2))
    self.assertEqual(stacked['x'].dtype, np.float32)
    np.testing.assert_array_equal(stacked['x'].sum(axis=(1, 2)), [6, 0, 2])
    np.testing.assert_array_equal(
      stacked['y'], [[0, 1, 2, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    )

  def test_pads_to_the_largest_client(self):
    clients = [{'y': np.zeros(size)} for size in (3, 5)]
    self.assertEqual(client_data.stack_examples(clients)['y'].shape, (2, 5))

  def test_depends_on_the_key_alone(self):
    self.assertEqual(
      seeds.generator('x', 1).random(),
      seeds.generator('x', np.int64(1)).random(),
    )

  def test_different_keys_are_unrelated(self):
    keys = ((), (0,), (0, 0), (1,), (1, 0), (2**32,), (0, 1), ('1',), ('x', 1))
    draws = {seeds.generator(*key).random() for key in keys}
    self.assertLen(draws, len(keys))


class PopulationTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    sizes = {'a': 4, 'b': 1, 'c': 0, 'd': 3}
    self.population = client_data.Population(
      tuple(sizes),
      client_data.halves(lambda name: {'y': np.arange(sizes[name])}),
    )

  def test_an_odd_example_is_for_evaluation(self):
    halves = {
      name: load('d')['y'].tolist()
      for name, load in self.population.sets.items()
    }
    self.assertEqual(halves, {'personalization': [0], 'evaluation': [1, 2]})

  def test_the_sizes_of_halves_are_known_from_those_of_clients(self):
    counts = self.population.count_examples()
    np.testing.assert_equal(
      counts, dict(personalization=[2, 0, 0, 1], evaluation=[2, 1, 0, 2])
    )
    np.testing.assert_equal(
      counts, client_data.half_sizes(np.array([4, 1, 0, 3]))
    )

  def test_no_client_is_loaded_to_count_what_is_known(self):
    sizes = {'train': np.array([2, 5])}
    population = client_data.Population(
      ('a', 'b'), {'train': lambda _: self.fail('It loads.')}, sizes
    )
    self.assertIs(population.count_examples(), sizes)

  def test_the_type_fits_the_data(self):
    spec = {'x': tf.TensorSpec([2]), 'y': tf.TensorSpec([], tf.int32)}
    client_type = client_data.client_data_type(spec)
    self.assertEqual(
      str(client_type),
      '<examples=<x=float32[?,2],y=int32[?]>,indices=int32[?,?],'
      'mask=float32[?,?]>',
    )


if __name__ == '__main__':
  absltest.main()
