"""Tests of ADNI."""

import json

import numpy as np
import pytest
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


@pytest.fixture(name='paths')
def _paths(tmp_path):
  """Writes the files, and gives the path of each part."""
  paths = {}
  for part, sizes in _SIZES.items():
    paths[part] = tmp_path / 'adni' / part / f'my{part}.json'
    _write(paths[part], sizes)
  return paths


@pytest.fixture(name='load_task')
def _load_task(paths, tmp_path):
  del paths

  def load_task(seed=1, **values):
    return adni.load(adni.AdniSettings(**values), str(tmp_path), seed)

  return load_task


def test_the_test_images_of_each_scanner_are_split(paths, tmp_path):
  task = registry.load('adni', data_dir=str(tmp_path), seed=1)
  assert task.cross_silo
  assert task.train.client_ids == ('f_00000', 'f_00003')
  contents = json.loads(paths['test'].read_text())['user_data']
  for client_id, sizes in (('f_00000', (5, 1, 1)), ('f_00003', (9, 2, 3))):
    parts = [
      task.train.sets['train'](client_id),
      task.validation.sets['evaluation'](client_id),
      task.test.sets['evaluation'](client_id),
    ]
    for part, size in zip(parts, sizes):
      assert part['x'].shape == (size, 32, 32, 1)
      assert part['y'].shape == (size,)
      assert {v.dtype for v in part.values()} == {np.dtype('f4')}
    held_out = np.concatenate([parts[1]['y'], parts[2]['y']])
    np.testing.assert_allclose(
      np.sort(held_out), np.sort(contents[client_id]['y']), rtol=1e-6
    )


def test_the_seed_decides_the_split(load_task):
  def validation(**settings):
    sets = load_task(**settings).validation.sets
    return sets['evaluation']('f_00003')['y'].tolist()

  assert validation(seed=2, split_seed=1) == validation(seed=1)
  assert len({str(validation(seed=s)) for s in range(5)}) > 1


def test_the_loss_is_the_squared_error(load_task):
  task = load_task()
  batch = task.train.sets['train']('f_00003')
  weights = task.model.init(tf.constant([0, 1]))
  assert task.model.encode(weights, batch).shape == [9, 512]
  predictions = task.model.predict(task.model.scores(weights, batch))
  error = (predictions.numpy() - batch['y']) ** 2
  loss = task.model.loss(weights, batch)
  np.testing.assert_allclose(loss, error, rtol=1e-5)
  total, weight = task.model.statistics(weights, batch)[task.metric]
  np.testing.assert_allclose(total, error, rtol=1e-5)
  np.testing.assert_array_equal(weight, 1)


def test_the_model_is_that_of_keras(load_task):
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
  task = load_task()
  weights = task.model.init(tf.constant([0, 1]))
  keras.set_weights(list(weights.values()))
  batch = task.train.sets['train']('f_00003')
  np.testing.assert_allclose(
    task.model.predict(task.model.scores(weights, batch)),
    keras(batch['x'])[:, 0],
    rtol=1e-4,
  )


def test_says_that_the_data_needs_a_registration(load_task, paths):
  paths['test'].unlink()
  with pytest.raises(errors.UserError, match='registration.*preprocess.sh'):
    load_task()


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.write_text('{'),
    lambda path: path.write_bytes(path.read_bytes()[:2000]),
    lambda path: path.write_text('{"data": 1}'),
    lambda path: path.write_text('{"user_data": 1}'),
    lambda path: path.write_text('[' * 100_000),
    lambda path: path.write_text(path.read_text().replace('0.0,', '"1",', 1)),
    lambda path: path.write_text(path.read_text().replace('0.0,', '1e39,', 1)),
    lambda path: _write(path, _SIZES['train'], width=30),
    lambda path: _write(path, {'f_00000': 3}),
  ],
  ids=[
    'not_json',
    'cut_off',
    'other_names',
    'other_form',
    'too_deep',
    'a_text',
    'too_large',
    'other_width',
    'other_clients',
  ],
)
def test_a_damaged_file_is_named(damage, load_task, paths):
  damage(paths['train'])
  with pytest.raises(errors.UserError, match=str(paths['train'])):
    load_task()
