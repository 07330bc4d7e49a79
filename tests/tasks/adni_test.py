import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from base import errors
from tasks import adni
from tasks import registry

_SIZES = {
  'train': {'f_00003': 9, 'f_00000': 5},
  'test': {'f_00003': 5, 'f_00000': 2},
}


def _write(path, sizes, width=32):
  """Writes a file as Motley's generate_json.py does."""
  rng = np.random.default_rng(0)
  user_data = {
    user: {
      'x': (rng.integers(0, 256, (size, 32, width)) / 255).tolist(),
      'y': rng.uniform(0.8, 2, size).tolist(),
    }
    for user, size in sizes.items()
  }
  contents = {
    'users': list(sizes),
    'user_data': user_data,
    'num_samples': list(sizes.values()),
  }
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(contents))


class AdniTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = self.enter_context(tempfile.TemporaryDirectory())
    root = pathlib.Path(self.folder) / 'adni'
    self.paths = {
      part: root / part / f'my{part}.json' for part in ('train', 'test')
    }
    for part, path in self.paths.items():
      _write(path, _SIZES[part])

  def load(self, seed=1, **parameters):
    return adni.load(adni.Parameters(**parameters), self.folder, seed)

  def test_splits_the_test_images_of_each_scanner(self):
    task = registry.load('adni', data_dir=self.folder, seed=1)
    self.assertTrue(task.cross_silo)
    self.assertEqual(task.train.client_ids, ('f_00000', 'f_00003'))
    contents = json.loads(self.paths['test'].read_text())['user_data']
    for client_id, sizes in (('f_00000', (5, 1, 1)), ('f_00003', (9, 2, 3))):
      parts = [
        task.train.sets['train'](client_id),
        task.validation.sets['evaluation'](client_id),
        task.test.sets['evaluation'](client_id),
      ]
      for part, size in zip(parts, sizes):
        self.assertEqual(part['x'].shape, (size, 32, 32, 1))
        self.assertEqual(part['y'].shape, (size,))
        self.assertEqual({v.dtype for v in part.values()}, {np.dtype('f4')})
      held_out = np.concatenate([parts[1]['y'], parts[2]['y']])
      np.testing.assert_allclose(
        np.sort(held_out), np.sort(contents[client_id]['y']), rtol=1e-6
      )

  def test_the_seed_decides_the_split(self):
    def validation(**settings):
      sets = self.load(**settings).validation.sets
      return sets['evaluation']('f_00003')['y'].tolist()

    self.assertEqual(validation(seed=2, split_seed=1), validation(seed=1))
    self.assertGreater(len({str(validation(seed=s)) for s in range(5)}), 1)

  def test_the_loss_is_the_squared_error(self):
    task = self.load()
    batch = task.train.sets['train']('f_00003')
    weights = task.model.init(tf.constant([0, 1]))
    self.assertEqual(task.model.encode(weights, batch).shape, [9, 512])
    predictions = task.model.predict(task.model.scores(weights, batch))
    error = (predictions.numpy() - batch['y']) ** 2
    loss = task.model.loss(weights, batch)
    np.testing.assert_allclose(loss, error, rtol=1e-5)
    total, weight = task.model.statistics(weights, batch)[task.metric]
    np.testing.assert_allclose(total, error, rtol=1e-5)
    np.testing.assert_array_equal(weight, 1)

  def test_the_model_is_that_of_keras(self):
    layers = tf.keras.layers
    keras = tf.keras.Sequential(
      [
        layers.Conv2D(
          32, 5, padding='same', activation='relu', input_shape=(32, 32, 1)
        ),
        layers.MaxPool2D(2),
        layers.Conv2D(64, 5, padding='same', activation='relu'),
        layers.MaxPool2D(2),
        layers.Flatten(),
        layers.Dense(512, activation='relu'),
        layers.Dense(1),
      ]
    )
    task = self.load()
    weights = task.model.init(tf.constant([0, 1]))
    keras.set_weights(list(weights.values()))
    batch = task.train.sets['train']('f_00003')
    np.testing.assert_allclose(
      task.model.predict(task.model.scores(weights, batch)),
      keras(batch['x'])[:, 0],
      rtol=1e-4,
    )

  def test_says_that_the_data_needs_a_registration(self):
    self.paths['test'].unlink()
    with self.assertRaisesRegex(errors.UserError, 'register.*preprocess.sh'):
      self.load()

  @parameterized.named_parameters(
    ('not_json', lambda path: path.write_text('{')),
    ('cut_off', lambda path: path.write_bytes(path.read_bytes()[:2000])),
    ('other_names', lambda path: path.write_text('{"data": 1}')),
    ('other_form', lambda path: path.write_text('{"user_data": 1}')),
    ('other_width', lambda path: _write(path, _SIZES['train'], width=30)),
    ('other_clients', lambda path: _write(path, {'f_00000': 3})),
  )
  def test_a_damaged_file_is_named(self, damage):
    damage(self.paths['train'])
    with self.assertRaisesRegex(errors.UserError, str(self.paths['train'])):
      self.load()


if __name__ == '__main__':
  absltest.main()
