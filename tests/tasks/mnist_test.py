"""Tests of MNIST, on small files and on the real ones."""

import functools
import gzip

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from tasks import registry
from tasks.data import rotations
from tests import data
from tests.tasks import mnist_source
from tests.tasks import silo_examples


@pytest.fixture(name='folder')
def _folder(tmp_path):
  """Writes small files in the form of the real ones."""
  folder = tmp_path / 'mnist'
  mnist_source.write(folder)
  return folder


@pytest.fixture(name='load_task')
def _load_task(folder):
  return functools.partial(
    registry.load,
    'mnist',
    data_dir=str(folder.parent),
    seed=1,
    num_clients=20,
  )


def test_pixels_are_standardized_one_by_one_as_in_fedprox(load_task):
  task = load_task(partition='classes', classes_per_client=10)
  parts = [
    silo_examples.of_client(task, client_id)
    for client_id in task.train.client_ids
  ]
  x = np.concatenate([part['x'] for part in parts])
  y = np.concatenate([part['y'] for part in parts])
  images, labels = mnist_source.examples()
  pixels = images.reshape(len(images), -1).astype(np.float64)
  expected = (pixels - pixels.mean(axis=0)) / (pixels.std(axis=0) + 0.001)
  for values, all_labels in ((x, y), (expected, labels)):
    # Each image is with its label, in whatever order.
    order = np.lexsort((values[:, 30], values[:, 29].round(2)))
    values[:] = values[order]
    all_labels[:] = all_labels[order]
  np.testing.assert_allclose(x, expected, atol=1e-4)
  np.testing.assert_array_equal(y, labels)


def test_examples_fit_the_model(load_task):
  for name in ('logistic', 'cnn'):
    task = load_task(model=name)
    examples = task.train.sets['train'](task.train.client_ids[0])
    for feature, spec in task.model.example_spec.items():
      assert examples[feature].dtype == spec.dtype
      assert examples[feature].shape[1:] == tuple(spec.shape)
    weights = task.model.init(tf.constant([0, 1]))
    assert task.model.loss(weights, examples).shape == [len(examples['y'])]


def test_the_background_is_one_for_the_cnn_as_in_emnist(load_task):
  examples = load_task(model='cnn').train.sets['train']('client_00')
  assert np.all(examples['x'][:, 0, 0] == 1)
  assert 0 <= examples['x'].min() <= examples['x'].max() <= 1


def test_clients_have_two_digits_by_default(load_task):
  task = load_task()
  assert task.cross_silo
  assert len(task.train.client_ids) == 20
  for k, client_id in enumerate(task.train.client_ids):
    assert set(silo_examples.of_client(task, client_id)['y']) == {
      k % 10,
      (k + 1) % 10,
    }


def test_clients_can_be_writers(load_task):
  task = load_task(partition='writer')
  assert sorted(map(int, task.train.client_ids)) == list(range(20))
  _, labels = mnist_source.examples()
  np.testing.assert_array_equal(
    np.sort(silo_examples.of_client(task, '17')['y']),
    np.sort(labels[17 * 30 : 18 * 30]),
  )


def test_half_of_the_clients_can_be_rotated(load_task):
  plain, task = (
    load_task(partition='writer', model='cnn', rotate_half=rotated)
    for rotated in (False, True)
  )
  assert not plain.attributes
  groups = [task.attributes['group'].name(c) for c in task.train.client_ids]
  assert groups == 10 * [rotations.UPRIGHT, rotations.ROTATED]
  for client_id, group in zip(task.train.client_ids, groups):
    upright, examples = (
      silo_examples.of_client(t, client_id)['x'] for t in (plain, task)
    )
    if group == rotations.ROTATED:
      upright = upright[:, ::-1, ::-1]
    np.testing.assert_array_equal(examples, upright)


def test_a_seed_of_the_run_changes_the_split_but_not_the_clients(load_task):
  first, second = (load_task(seed=seed) for seed in (1, 2))
  images = [
    silo_examples.of_client(task, 'client_03')['x'] for task in (first, second)
  ]
  assert not np.array_equal(*images)
  np.testing.assert_array_equal(*(np.sort(x, axis=0) for x in images))


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(b'x' * 100),
    lambda path: path.write_bytes(path.read_bytes()[:200]),
    lambda path: mnist_source.write_idx(path, np.zeros(9, np.uint8)),
    lambda path: mnist_source.write_idx(path, np.zeros((100, 9, 9), np.uint8)),
    lambda path: path.write_bytes(gzip.compress(b'\0\0\x08\x03' + b'\1' * 99)),
  ],
  ids=['missing', 'not_gzip', 'cut_off', 'labels', 'small', 'other_size'],
)
def test_a_damaged_file_is_named(damage, load_task, folder):
  path = folder / 't10k-images-idx3-ubyte.gz'
  damage(path)
  with pytest.raises(errors.UserError, match=path.name):
    load_task()


def test_other_numbers_of_images_and_labels_are_refused(load_task, folder):
  mnist_source.write_idx(
    folder / 't10k-labels-idx1-ubyte.gz', np.zeros(9, np.uint8)
  )
  with pytest.raises(errors.UserError, match='509 labels'):
    load_task()


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(b'x' * 100),
    lambda path: path.write_bytes(path.read_bytes()[:300]),
    lambda path: np.savez(path, train_writer=np.zeros(500)),
    lambda path: np.savez(
      path, train_writer=np.zeros(500), test_writer=np.zeros(10)
    ),
    lambda path: np.savez(
      path, train_writer=np.full(500, np.nan), test_writer=np.zeros(100)
    ),
    lambda path: path.write_bytes(b''),
  ],
  ids=['missing', 'other', 'cut_off', 'names', 'too_few', 'nan', 'empty'],
)
def test_damaged_writers_are_named(damage, load_task, folder):
  path = folder / 'writers.npz'
  damage(path)
  with pytest.raises(errors.UserError, match='writers.npz'):
    load_task(partition='writer')


def test_sizes_of_the_real_files_are_nearly_those_of_fedprox():
  """FedProx, table 1: 69,035 samples, 1,000 devices, deviation 106."""
  folder = data.path('mnist').parent
  task = registry.load('mnist', data_dir=str(folder))
  total = sum(
    population.sizes[name]
    for population, name in (
      (task.train, 'train'),
      (task.validation, 'evaluation'),
      (task.test, 'evaluation'),
    )
  )
  assert len(total) == 1000
  assert total.sum() == pytest.approx(69_035, abs=30)
  assert total.std() == pytest.approx(106, abs=8)
  assert total.min() == 10


def test_the_real_writers():
  folder = data.path('mnist').parent
  task = registry.load('mnist', data_dir=str(folder), partition='writer')
  assert len(task.train.client_ids) == 836
