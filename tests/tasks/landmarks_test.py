import contextlib
import io
import os
import pathlib
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from tasks import landmarks
from tasks import registry
from tests.tasks import gld_source

_GLDV2 = tff.simulation.datasets.gldv2
_SIZES = gld_source.SIZES
_SMALL = dict(num_validation_clients=1, num_test_clients=2, image_size=32)


class LandmarksTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.data_dir = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.folder = pathlib.Path(cls.data_dir) / 'landmarks' / 'gld160k'
    gld_source.write(cls.folder)

  def load(self, data_dir=None, **parameters):
    return registry.load(
      'landmarks', data_dir=data_dir or self.data_dir, **_SMALL, **parameters
    )

  def test_splits_the_clients(self):
    task = self.load()
    populations = (task.train, task.validation, task.test)
    self.assertEqual([len(p.client_ids) for p in populations], [3, 1, 2])
    client_ids = [c for p in populations for c in p.client_ids]
    self.assertSameElements(client_ids, _SIZES)
    self.assertNotEqual(sorted(client_ids), client_ids)
    again = self.load()
    self.assertEqual(again.test.client_ids, task.test.client_ids)
    other = self.load(split_seed=14)
    self.assertNotEqual(other.train.client_ids, task.train.client_ids)

  def test_motleys_split_of_its_clients(self):
    client_ids = [str(k) for k in range(1262)]
    parts = landmarks.Parameters().split(
      client_ids, landmarks._VALIDATION, landmarks._TEST
    )
    self.assertEqual([len(part) for part in parts], [50, 100, 1112])

  def test_no_photo_is_read_before_a_client_is_asked_for(self):
    with mock.patch.object(tf.data, 'TFRecordDataset') as dataset:
      self.load()
    dataset.assert_not_called()

  def test_sizes_are_those_of_the_sets(self):
    task = self.load()
    for population in (task.train, task.validation, task.test):
      for name, load in population.sets.items():
        sizes = [len(load(c)['y']) for c in population.client_ids]
        np.testing.assert_array_equal(population.sizes[name], sizes)

  def test_a_client_is_trained_on_64_photos_at_most(self):
    tasks = (self.load(split_seed=seed) for seed in range(50))
    task = next(task for task in tasks if '11' in task.train.client_ids)
    sizes = dict(zip(task.train.client_ids, task.train.sizes['train']))
    self.assertEqual(sizes['11'], 64)
    own = task.train.sets['train']('11')
    self.assertEqual(own['x'].shape, (64, 32, 32, 3))

  def test_photos_are_those_of_tffs_loader(self):
    # Without it TFF's loader fails: see `landmarks`.
    self.enter_context(
      mock.patch.object(
        _GLDV2.vision_datasets_utils.load_tfrecord,
        '__defaults__',
        (_GLDV2.LOGGER,),
      )
    )
    tffs, _ = _GLDV2.load_data(cache_dir=str(self.folder.parent))
    self.assertEqual(tffs.client_ids, sorted(_SIZES))
    task = self.load()
    for population in (task.train, task.validation, task.test):
      for client_id in population.client_ids:
        expected = sorted(
          int(photo['class'][0])
          for photo in tffs.create_tf_dataset_for_client(client_id)
        )
        sets = [load(client_id) for load in population.sets.values()]
        y = np.concatenate([own['y'] for own in sets])
        if len(sets) > 1:
          self.assertEqual(sorted(y), expected)
        self.assertContainsSubset(y, expected)
        for own in sets:
          self.assertEqual(own['x'].dtype, np.uint8)
          self.assertEqual(own['y'].dtype, np.int32)
          # Each pixel is its class, as far as JPEG can say it.
          colors = own['y'][:, np.newaxis, np.newaxis, np.newaxis]
          np.testing.assert_allclose(
            own['x'].astype(int) - colors, 0, rtol=0, atol=2
          )

  def test_sees_the_middle_of_a_photo(self):
    pixels = np.zeros((64, 128, 3), np.uint8)
    pixels[4:60, 8:120] = 200  # 7/8 of either.
    jpeg = tf.io.encode_jpeg(pixels, quality=100).numpy()
    example = _GLDV2.vision_datasets_utils.create_example(jpeg, 3)
    data_dir = self.enter_context(tempfile.TemporaryDirectory())
    folder = pathlib.Path(data_dir) / 'gld160k'
    shutil.copytree(self.folder, folder)
    for client_id in _SIZES:
      with tf.io.TFRecordWriter(str(folder / 'train' / client_id)) as writer:
        writer.write(example.SerializeToString())
    task = self.load(data_dir)
    own = task.train.sets['train'](task.train.client_ids[0])
    self.assertGreater(own['x'].mean(), 197)

  def test_held_out_clients_are_shuffled_once_and_halved(self):
    task = self.load()
    for client_id in task.test.client_ids:
      halves = [load(client_id) for load in task.test.sets.values()]
      again = [load(client_id) for load in task.test.sets.values()]
      for own, other in zip(halves, again):
        np.testing.assert_array_equal(own['x'], other['x'])
      sizes = [len(own['y']) for own in halves]
      self.assertEqual(sizes[0], _SIZES[client_id] // 2)
      self.assertEqual(sum(sizes), _SIZES[client_id])

  def test_counts_the_photos_of_a_file(self):
    for client_id, size in _SIZES.items():
      path = self.folder / 'train' / client_id
      self.assertEqual(landmarks.num_examples(path), size)

  def test_model_is_for_these_photos(self):
    self.assertEqual(self.load().model.example_spec['x'].shape, [32, 32, 3])
    shutil.copytree(self.folder, self.folder.with_name('gld23k'))
    for dataset, classes in (('gld160k', 2028), ('gld23k', 203)):
      weights = self.load(dataset=dataset).model.init(tf.constant([0, 1]))
      self.assertEqual(weights['output_bias'].shape, [classes])

  def test_a_damaged_file_is_named(self):
    data_dir = self.enter_context(tempfile.TemporaryDirectory())
    folder = pathlib.Path(data_dir) / 'landmarks' / 'gld160k'
    shutil.copytree(self.folder, folder)
    task = self.load(data_dir)
    client_id = next(c for c in task.train.client_ids if _SIZES[c])
    path = folder / 'train' / client_id
    path.write_bytes(path.read_bytes()[:-10])
    with self.assertRaisesRegex(errors.UserError, f'{path} is damaged'):
      task.train.sets['train'](client_id)

  def test_more_held_out_clients_than_there_are(self):
    with self.assertRaisesRegex(errors.UserError, 'num_test_clients 6'):
      registry.load('landmarks', data_dir=self.data_dir, num_test_clients=6)

  def test_what_was_not_written_to_its_end_is_not_taken(self):
    data_dir = self.enter_context(tempfile.TemporaryDirectory())
    folder = pathlib.Path(data_dir) / 'landmarks' / 'gld160k'
    shutil.copytree(self.folder, folder)
    (folder / 'test.tfRecord').unlink()
    with (
      mock.patch.dict(os.environ, {'XDG_CACHE_HOME': data_dir}),
      contextlib.redirect_stderr(io.StringIO()),
      self.assertRaisesRegex(
        errors.UserError, f'no whole {folder}.*in its way'
      ),
    ):
      self.load(data_dir)

  def test_without_a_network_says_what_to_put_where(self):
    data_dir = self.enter_context(tempfile.TemporaryDirectory())
    stderr = io.StringIO()
    environment = {'XDG_CACHE_HOME': data_dir}
    with (
      mock.patch.dict(os.environ, environment),
      mock.patch.object(
        tf.keras.utils, 'get_file', side_effect=OSError('no network')
      ),
      contextlib.redirect_stderr(stderr),
      self.assertRaises(errors.UserError) as raised,
    ):
      self.load(data_dir)
    folder = f'{data_dir}/landmarks/gld160k'
    self.assertIn(f'There is no whole {folder}', str(raised.exception))
    self.assertIn('no network', str(raised.exception))
    self.assertIn('500 GB', stderr.getvalue())


if __name__ == '__main__':
  absltest.main()
