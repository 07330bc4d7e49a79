"""Tests of Vehicle."""

import numpy as np
import pytest
import scipy.io
import tensorflow as tf

from base import errors
from tasks import registry
from tasks import vehicle

_SIZES = (40, 61, 100)


def _write(path, sizes=_SIZES, num_features=100, labels=(-1, 1), passage=None):
  """Writes a file in the form of the real one."""
  rng = np.random.default_rng(0)
  x = np.empty((len(sizes), 1), object)
  y = np.empty((len(sizes), 1), object)
  for i, size in enumerate(sizes):
    x[i, 0] = rng.normal(3, 2, (size, num_features))
    y[i, 0] = rng.choice(labels, (size, 1)).astype(np.int16)
  if passage is not None:
    x[1, 0] = x[1, 0].astype(np.result_type(x[1, 0], passage))
    x[1, 0][3, 4] = passage
  scipy.io.savemat(path, {'X': x, 'Y': y})


@pytest.fixture(name='path')
def _path(tmp_path):
  path = tmp_path / 'vehicle.mat'
  _write(path)
  return path


@pytest.fixture(name='load_task')
def _load_task(path):
  def load_task(seed=1, **values):
    settings = vehicle.VehicleSettings(**values)
    return vehicle.load(settings, str(path.parent), seed)

  return load_task


def test_each_sensor_is_split(path):
  task = registry.load('vehicle', data_dir=str(path.parent), seed=1)
  assert task.cross_silo
  assert task.train.client_ids == ('sensor_000', 'sensor_001', 'sensor_002')
  for client_id, size in zip(task.train.client_ids, _SIZES):
    parts = [
      task.train.sets['train'](client_id),
      task.validation.sets['evaluation'](client_id),
      task.test.sets['evaluation'](client_id),
    ]
    assert sum(len(part['y']) for part in parts) == size
    assert len(parts[2]['y']) == int(np.ceil(0.15 * size))
    np.testing.assert_allclose(parts[0]['x'].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(parts[0]['x'].std(axis=0), 1, atol=1e-5)
    for part in parts:
      assert part['x'].dtype == np.float32
      assert part['y'].dtype == np.float32
      assert set(part['y']) <= set([-1, 1])


def test_loss_is_the_regularized_hinge_loss_and_metric_the_accuracy(load_task):
  model = load_task().model
  rng = np.random.default_rng(0)
  batch = {
    'x': tf.constant(rng.normal(size=(7, 100)), tf.float32),
    'y': tf.constant(rng.choice([-1.0, 1.0], 7), tf.float32),
  }
  kernel, bias = rng.normal(size=100), 0.3
  weights = {
    'kernel': tf.constant(kernel, tf.float32),
    'bias': tf.constant(bias, tf.float32),
  }
  scores = batch['x'].numpy() @ kernel + bias
  y = batch['y'].numpy()
  square = np.sum(kernel**2) + bias**2
  np.testing.assert_allclose(
    model.loss(weights, batch),
    np.maximum(0, 1 - y * scores) + 0.5 * 1e-4 * square,
    rtol=1e-4,
  )
  total, weight = model.statistics(weights, batch)['accuracy']
  np.testing.assert_array_equal(total, np.sign(scores) == y)
  np.testing.assert_array_equal(weight, 1)


def test_model_starts_at_zero(load_task):
  weights = load_task().model.init(tf.constant([0, 1]))
  for leaf in weights.values():
    np.testing.assert_array_equal(leaf, 0)


def test_a_missing_file_is_refused_with_advice(load_task, path):
  path.unlink()
  with pytest.raises(errors.UserError, match='vehicle/vehicle.mat.*X.*Y'):
    load_task()


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.write_bytes(b'x' * 1000),
    lambda path: scipy.io.savemat(path, {'A': 1}),
    lambda path: _write(path, num_features=5),
    lambda path: _write(path, sizes=()),
  ],
  ids=['not_a_mat_file', 'other_names', 'other_width', 'nobody'],
)
def test_a_damaged_file_is_named(damage, load_task, path):
  damage(path)
  with pytest.raises(errors.UserError, match=str(path)):
    load_task()


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(passage=np.nan), r'X of client 1 has nan at \[3, 4\]'),
    (dict(passage=1e39), r'X of client 1 has 1e\+39 at'),
    (dict(passage=1j), 'X of client 1 is complex128, not numbers'),
    (dict(labels=(0, 1)), 'Y of client 0 has the label 0'),
  ],
)
def test_a_wrong_number_is_named(changes, message, load_task, path):
  _write(path, **changes)
  with pytest.raises(errors.UserError, match=message):
    load_task()
