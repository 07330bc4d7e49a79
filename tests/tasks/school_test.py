"""Tests of School, on a small file and on the real one."""

import numpy as np
import pytest
import scipy.io
import tensorflow as tf

from base import errors
from tasks import school
from tasks.data import downloads
from tests import data


def _write(path, sizes, num_features=28, seed=0):
  """Writes a file in the form of the real one."""
  rng = np.random.default_rng(seed)
  features = np.empty((1, len(sizes)), object)
  scores = np.empty((1, len(sizes)), object)
  for i, size in enumerate(sizes):
    features[0, i] = rng.integers(0, 9, (size, num_features), np.uint8)
    features[0, i][:, -1] = 1
    scores[0, i] = rng.integers(1, 71, (size, 1), np.uint8)
  scipy.io.savemat(path, {'X': features, 'Y': scores})


_SIZES = {'school_000': 20, 'school_001': 33, 'school_002': 100}


@pytest.fixture(name='path')
def _path(tmp_path, monkeypatch):
  """Writes a small file in the place of the real one."""
  path = tmp_path / 'school.mat'
  _write(path, tuple(_SIZES.values()))
  # Its checksum is not that of the real file.
  monkeypatch.setattr(downloads, 'fetch', lambda *_: path)
  return path


@pytest.fixture(name='load_task')
def _load_task(path):
  del path

  def load_task(seed=1, **values):
    return school.load(school.SchoolSettings(**values), None, seed)

  return load_task


@pytest.fixture(name='real_task', scope='module')
def _real_task():
  folder = data.path('school').parent
  return school.load(school.SchoolSettings(), str(folder), seed=100)


def _scores(population, name):
  load = population.sets[name]
  return [load(client_id)['y'] for client_id in population.client_ids]


def test_each_school_is_split(load_task):
  task = load_task()
  assert task.cross_silo
  assert task.train.client_ids == tuple(_SIZES)
  for client_id, size in _SIZES.items():
    sizes = [
      len(population.sets[name](client_id)['y'])
      for population, name in (
        (task.train, 'train'),
        (task.validation, 'evaluation'),
        (task.test, 'evaluation'),
      )
    ]
    assert sum(sizes) == size
    assert sizes[2] == np.ceil(0.15 * size)


def test_schools_adapt_on_what_they_train_on(load_task):
  task = load_task()
  train = task.train.sets['train']('school_001')
  for population in (task.validation, task.test):
    adapt = population.sets['personalization']('school_001')
    np.testing.assert_array_equal(adapt['x'], train['x'])


def test_train_features_are_standardized_and_constant_ones_are_zero(load_task):
  task = load_task()
  for client_id in task.train.client_ids:
    x = task.train.sets['train'](client_id)['x']
    assert x.dtype == np.float32
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(axis=0)[:-1], 1, atol=1e-6)
    assert not x[:, -1].any()
    held_out = task.test.sets['evaluation'](client_id)['x']
    assert not held_out[:, -1].any()


def test_scores_are_between_zero_and_one(load_task):
  task = load_task()
  y = task.train.sets['train']('school_002')['y']
  assert y.dtype == np.float32
  assert 0 <= y.min() <= 0.1
  assert 0.9 <= y.max() <= 1


def test_the_seed_of_the_run_decides_unless_there_is_a_split_seed(
  load_task,
):
  def test_set(**settings):
    test = load_task(**settings).test
    return test.sets['evaluation']('school_002')['y'].tolist()

  assert test_set(seed=1) != test_set(seed=2)
  assert test_set(seed=1) == test_set(seed=2, split_seed=1)


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.write_bytes(b'x' * 1000),
    lambda path: path.write_bytes(path.read_bytes()[:3000]),
    lambda path: path.write_bytes(b''),
    lambda path: scipy.io.savemat(path, {'A': 1}),
    lambda path: scipy.io.savemat(path, {'X': 1, 'Y': 1}),
    lambda path: _write(path, (9, 9), num_features=5),
  ],
  ids=[
    'not_a_mat_file',
    'cut_off',
    'empty',
    'other_names',
    'other_form',
    'other_width',
  ],
)
def test_a_damaged_file_is_named(damage, load_task, path):
  damage(path)
  with pytest.raises(errors.UserError, match=str(path)):
    load_task()


def test_sizes_are_those_of_the_reference_implementation(real_task):
  assert len(real_task.train.client_ids) == 139
  totals = [
    sum(map(len, _scores(population, name)))
    for population, name in (
      (real_task.train, 'train'),
      (real_task.validation, 'evaluation'),
      (real_task.test, 'evaluation'),
    )
  ]
  assert totals == [10637, 2355, 2370]


def test_error_of_predicting_the_mean_is_that_of_the_reference(real_task):
  mean = np.concatenate(_scores(real_task.train, 'train')).mean()
  error = np.mean(
    [
      np.mean((y - mean) ** 2) / 2
      for y in _scores(real_task.test, 'evaluation')
    ]
  )
  assert error == pytest.approx(0.0184, rel=0, abs=0.5e-4)


def test_the_protocol_of_mr_mtl_splits_off_a_fifth_for_both(load_task):
  task = load_task(protocol='mr_mtl')
  for client_id, size in _SIZES.items():
    test = task.test.sets['evaluation'](client_id)
    assert len(test['y']) == np.ceil(0.2 * size)
    assert len(task.train.sets['train'](client_id)['y']) == size - len(
      test['y']
    )
    np.testing.assert_array_equal(
      task.validation.sets['evaluation'](client_id)['x'], test['x']
    )


def test_the_protocol_of_mr_mtl_judges_by_all_of_the_squared_error(load_task):
  motley, mr_mtl = load_task(), load_task(protocol='mr_mtl')
  batch = {'x': tf.ones([2, 28]), 'y': tf.constant([1.0, 3.0])}
  predicted = tf.constant([2.0, 3.0])
  half, _ = motley.model.prediction_statistics(predicted, batch)[motley.metric]
  whole, _ = mr_mtl.model.prediction_statistics(predicted, batch)[mr_mtl.metric]
  np.testing.assert_allclose(half, [0.5, 0])
  np.testing.assert_allclose(whole, [1, 0])
  # The loss stays half of it.
  weights = mr_mtl.model.init(tf.constant([0, 0]))
  np.testing.assert_allclose(mr_mtl.model.loss(weights, batch), [0.5, 4.5])
