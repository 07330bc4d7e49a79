import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import scipy.io

from base import errors
from tasks import school
from tasks.data import downloads
from tests import data


def _write(path, sizes, num_features=28, seed=0):
  """Writes a file of the form of the real one."""
  rng = np.random.default_rng(seed)
  features = np.empty((1, len(sizes)), object)
  scores = np.empty((1, len(sizes)), object)
  for i, size in enumerate(sizes):
    features[0, i] = rng.integers(0, 9, (size, num_features), np.uint8)
    features[0, i][:, -1] = 1
    scores[0, i] = rng.integers(1, 71, (size, 1), np.uint8)
  scipy.io.savemat(path, {'X': features, 'Y': scores})


class SmallSchoolTest(parameterized.TestCase):
  """On data made up."""

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / 'school.mat'
    self.sizes = {'school_000': 20, 'school_001': 33, 'school_002': 100}
    _write(self.path, tuple(self.sizes.values()))
    # It has not the checksum of the real file.
    self.enter_context(
      mock.patch.object(downloads, 'fetch', lambda *_: self.path)
    )

  def load(self, seed=1, **parameters):
    return school.load(school.Parameters(**parameters), None, seed)

  def test_splits_each_school(self):
    task = self.load()
    self.assertTrue(task.cross_silo)
    self.assertEqual(task.train.client_ids, tuple(self.sizes))
    for client_id, size in self.sizes.items():
      sizes = [
        len(population.sets[name](client_id)['y'])
        for population, name in (
          (task.train, 'train'),
          (task.validation, 'evaluation'),
          (task.test, 'evaluation'),
        )
      ]
      self.assertEqual(sum(sizes), size)
      self.assertEqual(sizes[2], np.ceil(0.15 * size))

  def test_schools_adapt_on_what_they_train_on(self):
    task = self.load()
    train = task.train.sets['train']('school_001')
    for population in (task.validation, task.test):
      adapt = population.sets['personalization']('school_001')
      np.testing.assert_array_equal(adapt['x'], train['x'])

  def test_train_features_are_standardized_and_constant_ones_are_zero(self):
    task = self.load()
    for client_id in task.train.client_ids:
      x = task.train.sets['train'](client_id)['x']
      self.assertEqual(x.dtype, np.float32)
      np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
      np.testing.assert_allclose(x.std(axis=0)[:-1], 1, atol=1e-6)
      self.assertFalse(x[:, -1].any())
      held_out = task.test.sets['evaluation'](client_id)['x']
      self.assertFalse(held_out[:, -1].any())

  def test_scores_are_between_zero_and_one(self):
    task = self.load()
    y = task.train.sets['train']('school_002')['y']
    self.assertEqual(y.dtype, np.float32)
    self.assertBetween(y.min(), 0, 0.1)
    self.assertBetween(y.max(), 0.9, 1)

  def test_the_seed_of_the_run_decides_the_split_unless_there_is_another(self):
    def test_set(**settings):
      test = self.load(**settings).test
      return test.sets['evaluation']('school_002')['y'].tolist()

    self.assertNotEqual(test_set(seed=1), test_set(seed=2))
    self.assertEqual(test_set(seed=1), test_set(seed=2, split_seed=1))

  @parameterized.named_parameters(
    ('not_a_mat_file', lambda path: path.write_bytes(b'x' * 1000)),
    ('cut_off', lambda path: path.write_bytes(path.read_bytes()[:3000])),
    ('empty', lambda path: path.write_bytes(b'')),
    ('other_names', lambda path: scipy.io.savemat(path, {'A': 1})),
    ('other_form', lambda path: scipy.io.savemat(path, {'X': 1, 'Y': 1})),
    ('other_width', lambda path: _write(path, (9, 9), num_features=5)),
  )
  def test_a_damaged_file_is_named(self, damage):
    damage(self.path)
    with self.assertRaisesRegex(errors.UserError, str(self.path)):
      self.load()


class RealSchoolTest(absltest.TestCase):
  """Facts from the reference implementation."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = data.path('school').parent
    cls.task = school.load(school.Parameters(), str(folder), seed=100)

  def scores(self, population, name):
    load = population.sets[name]
    return [load(client_id)['y'] for client_id in population.client_ids]

  def test_sizes(self):
    self.assertLen(self.task.train.client_ids, 139)
    totals = [
      sum(map(len, self.scores(population, name)))
      for population, name in (
        (self.task.train, 'train'),
        (self.task.validation, 'evaluation'),
        (self.task.test, 'evaluation'),
      )
    ]
    self.assertEqual(totals, [10637, 2355, 2370])

  def test_error_of_predicting_the_mean(self):
    mean = np.concatenate(self.scores(self.task.train, 'train')).mean()
    error = np.mean(
      [
        np.mean((y - mean) ** 2) / 2
        for y in self.scores(self.task.test, 'evaluation')
      ]
    )
    self.assertAlmostEqual(error, 0.0184, places=4)


if __name__ == '__main__':
  absltest.main()
