import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import emnist
from tasks import registry
from tests import data

_NUM_WRITERS = 34


def _dataset(client_id):
  rng = np.random.default_rng(list(client_id.encode()))
  n = rng.integers(1, 9)
  return tf.data.Dataset.from_tensor_slices(
    {
      'label': rng.integers(62, size=n).astype(np.int32),
      'pixels': rng.random((n, 28, 28), np.float32),
    }
  )


def _of_tff(client_data, client_id):
  """A client's examples as TFF gives them."""
  (examples,) = client_data.create_tf_dataset_for_client(client_id).batch(1000)
  return examples['pixels'].numpy()[..., np.newaxis], examples['label'].numpy()


class EmnistTest(parameterized.TestCase):
  """On a small database of TFF's form."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = folder.name
    writers = {f'f{i:04d}_00': 'all_train' for i in range(_NUM_WRITERS)}
    # Those of the test split have other names here, so as not to be mistaken.
    splits = {**writers, 'test': 'all_test'}
    tff.simulation.datasets.save_to_sql_client_data(
      list(splits),
      _dataset,
      str(pathlib.Path(cls.folder) / 'emnist_all.sqlite'),
      split_names_by_client_id=splits,
    )
    cls.writers = list(writers)
    cls.of_tff, _ = tff.simulation.datasets.emnist.load_data(False, cls.folder)

  def load(self, seed=0, **parameters):
    return registry.load(
      'emnist', data_dir=self.folder, seed=seed, **parameters
    )

  def test_writers_are_split_as_in_motley(self):
    task = self.load()
    self.assertFalse(task.cross_silo)
    parts = [
      list(population.client_ids)
      for population in (task.validation, task.test, task.train)
    ]
    self.assertEqual(list(map(len, parts)), [4, 5, 25])
    self.assertEqual(
      sum(parts, []),
      np.random.RandomState(13).permutation(self.writers).tolist(),
    )

  def test_the_seed_of_the_run_changes_nothing(self):
    first, second = self.load(seed=1), self.load(seed=2)
    self.assertEqual(first.test.client_ids, second.test.client_ids)
    for client_id in first.test.client_ids:
      for name, load in first.test.sets.items():
        np.testing.assert_equal(
          load(client_id), second.test.sets[name](client_id)
        )

  def test_train_examples_are_those_of_tff(self):
    task = self.load()
    for client_id in task.train.client_ids:
      own = task.train.sets['train'](client_id)
      x, y = _of_tff(self.of_tff, client_id)
      np.testing.assert_array_equal(own['x'], x)
      np.testing.assert_array_equal(own['y'], y)
      for name, spec in task.model.example_spec.items():
        self.assertEqual(own[name].dtype, spec.dtype)
        self.assertEqual(own[name].shape[1:], tuple(spec.shape))

  def test_held_out_examples_are_halved_in_an_order_of_their_own(self):
    task = self.load()
    in_order = 0
    for population in (task.validation, task.test):
      for client_id in population.client_ids:
        halves = [
          population.sets[name](client_id)
          for name in ('personalization', 'evaluation')
        ]
        x, y = _of_tff(self.of_tff, client_id)
        self.assertLen(halves[0]['y'], len(y) // 2)
        labels = np.concatenate([half['y'] for half in halves])
        images = np.concatenate([half['x'] for half in halves])
        in_order += np.array_equal(images, x)
        # An image stays with its label.
        order = np.argsort(images.sum(axis=(1, 2, 3)))
        expected_order = np.argsort(x.sum(axis=(1, 2, 3)))
        np.testing.assert_array_equal(images[order], x[expected_order])
        np.testing.assert_array_equal(labels[order], y[expected_order])
    self.assertLess(in_order, 4)

  def test_sizes_are_known_without_loading(self):
    task = self.load()
    for population in (task.train, task.validation, task.test):
      for name, load in population.sets.items():
        sizes = [len(load(c)['y']) for c in population.client_ids]
        np.testing.assert_array_equal(population.sizes[name], sizes)

  def test_half_of_the_writers_can_be_rotated(self):
    plain, task = self.load(), self.load(rotate_half=True)
    self.assertEmpty(plain.attributes)
    for population in ('train', 'validation', 'test'):
      client_ids = getattr(task, population).client_ids
      groups = list(map(task.attributes['group'].name, client_ids))
      difference = groups.count(emnist.ROTATED) - groups.count(emnist.UPRIGHT)
      self.assertLessEqual(abs(difference), 1)
      for client_id, group in zip(client_ids, groups):
        for name, load in getattr(task, population).sets.items():
          own = load(client_id)
          expected = getattr(plain, population).sets[name](client_id)
          np.testing.assert_array_equal(own['y'], expected['y'])
          upright = expected['x']
          if group == emnist.ROTATED:
            upright = upright[:, ::-1, ::-1]
          np.testing.assert_array_equal(own['x'], upright)


class StandInTest(parameterized.TestCase):
  """On digits of MNIST by their writers."""

  @parameterized.parameters((True, 10), (False, 62))
  def test_digits_only_have_ten_classes(self, only_digits, num_classes):
    folder = data.tff_cache()
    task = registry.load(
      'emnist', data_dir=str(folder), only_digits=only_digits
    )
    sizes = [
      len(population.client_ids)
      for population in (task.train, task.validation, task.test)
    ]
    self.assertEqual(sizes, [9, 1, 2])
    weights = task.model.init(tf.constant([0, 1]))
    self.assertEqual(weights['output_bias'].shape, [num_classes])
    own = task.train.sets['train'](task.train.client_ids[0])
    self.assertEqual((own['x'].min(), own['x'].max()), (0, 1))
    self.assertGreater(np.median(own['x']), 0.9)  # The background.
    self.assertEqual(set(own['y']), set(range(10)))


if __name__ == '__main__':
  absltest.main()
