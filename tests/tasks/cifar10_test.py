"""Tests of CIFAR-10, on small files of the form of the real ones."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from tasks import registry
from tests import data
from tests.tasks import silo_examples

_FILES = [f'data_batch_{k}.bin' for k in range(1, 6)] + ['test_batch.bin']


def _records():
  """The records of all files: a label, then a plane of each color."""
  rng = np.random.default_rng(0)
  records = rng.integers(0, 256, (600, 1 + 3 * 1024)).astype(np.uint8)
  records[:, 0] = rng.integers(10, size=600)
  return records


@pytest.fixture(name='folder')
def _folder(tmp_path):
  folder = tmp_path / 'cifar10' / 'cifar-10-batches-bin'
  folder.mkdir(parents=True)
  for name, records in zip(_FILES, np.split(_records(), 6)):
    (folder / name).write_bytes(records.tobytes())
  return folder


@pytest.fixture(name='load_task')
def _load_task(folder):
  return functools.partial(
    registry.load, 'cifar10', data_dir=str(folder.parents[1])
  )


def test_clients_have_three_classes_and_all_photos(load_task):
  task = load_task()
  assert task.cross_silo
  assert len(task.train.client_ids) == 20
  size = 0
  for k, client_id in enumerate(task.train.client_ids):
    labels = silo_examples.of_client(task, client_id)['y']
    assert set(labels) == {k % 10, (k + 1) % 10, (k + 2) % 10}
    size += len(labels)
  assert size == 600


def test_photos_are_rows_of_pixels_of_three_colors(load_task):
  task = load_task(num_clients=1, classes_per_client=10)
  examples = silo_examples.of_client(task, 'client_0')
  assert examples['x'].dtype == np.float32
  assert (examples['x'].min(), examples['x'].max()) == (-1, 1)
  found = {
    (np.round((photo + 1) * 127.5).astype(np.uint8).tobytes(), label)
    for photo, label in zip(examples['x'], examples['y'])
  }
  for record in _records():
    label, red, green, blue = np.split(record, [1, 1025, 2049])
    photo = np.stack([red, green, blue], axis=1).reshape(32, 32, 3)
    assert (photo.tobytes(), label[0]) in found


def test_the_model_is_that_of_keras(load_task):
  layers = tf.keras.layers
  keras = tf.keras.Sequential(
    [
      layers.Conv2D(6, 5, activation='relu', input_shape=(32, 32, 3)),
      layers.MaxPool2D(2),
      layers.Conv2D(16, 5, activation='relu'),
      layers.MaxPool2D(2),
      layers.Flatten(),
      layers.Dense(120, activation='relu'),
      layers.Dense(84, activation='relu'),
      layers.Dense(10),
    ]
  )
  task = load_task()
  weights = task.model.init(tf.constant([0, 1]))
  # PyTorch's tutorial has as many.
  assert sum(np.size(weight) for weight in weights.values()) == 62_006
  assert sum(task.model.parts.values(), ()) == tuple(weights)
  keras.set_weights(list(weights.values()))
  batch = task.train.sets['train']('client_00')
  np.testing.assert_allclose(
    task.model.scores(weights, batch), keras(batch['x']), atol=1e-5
  )
  assert task.model.encode(weights, batch).shape[1] == 84


_PFLLIB = dict(num_clients=3, alpha=1, partition='pfllib_dirichlet')


def _rows(task, part, client_id):
  """The photos of a part of a client, which all differ."""
  population, name = {
    'train': (task.train, 'train'),
    'validation': (task.validation, 'evaluation'),
    'test': (task.test, 'evaluation'),
  }[part]
  examples = population.sets[name](client_id)
  assert population.sizes[name][int(client_id[-1])] == len(examples['y'])
  return {photo.tobytes() for photo in examples['x']}


def test_splits_of_pfllib_test_the_same_photos(load_task):
  published = load_task(split='pfllib', **_PFLLIB)
  honest = load_task(split='pfllib_validation', **_PFLLIB)
  for client_id in published.train.client_ids:
    train, validation, test = (
      _rows(published, part, client_id)
      for part in ('train', 'validation', 'test')
    )
    assert validation == test
    assert not train & test
    assert len(test) == -(-(len(train) + len(test)) // 4)
    assert _rows(honest, 'test', client_id) == test
    held_out = _rows(honest, 'validation', client_id)
    assert len(held_out) == len(train) // 5
    assert _rows(honest, 'train', client_id) == train - held_out


def test_splits_of_pfllib_need_its_partitions(load_task):
  with pytest.raises(errors.UserError, match='only for a task.partition of'):
    load_task(split='pfllib')


def test_the_network_of_pfllib_has_its_number_of_weights(load_task):
  task = load_task(model='cnn')
  weights = task.model.init(tf.constant([0, 1]))
  assert sum(np.size(weight) for weight in weights.values()) == 878_538
  batch = task.train.sets['train']('client_00')
  assert task.model.scores(weights, batch).shape[1] == 10


def test_the_real_photos_have_the_clients_of_pfllib():
  folder = data.path('cifar10/cifar-10-batches-bin').parents[1]
  task = registry.load(
    'cifar10',
    data_dir=str(folder),
    partition='pfllib_dirichlet',
    alpha=0.1,
    partition_seed=1,
    split='pfllib',
  )
  correct = total = 0
  for client_id in task.train.client_ids:
    train = task.train.sets['train'](client_id)['y']
    test = task.test.sets['evaluation'](client_id)['y']
    correct += (test == np.bincount(train).argmax()).sum()
    total += len(test)
  # The accuracy of a constant, the most frequent class of each client.
  assert (total, round(correct / total, 3)) == (15_005, 0.745)


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(b''),
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(b'\xff' * 3073),
  ],
  ids=['missing', 'empty', 'cut_off', 'other_labels'],
)
def test_a_damaged_file_is_named(damage, load_task, folder):
  path = folder / 'data_batch_3.bin'
  damage(path)
  with pytest.raises(errors.UserError, match=str(path)):
    load_task()


def test_says_where_to_get_the_files(tmp_path):
  with pytest.raises(errors.UserError, match='Unpack https'):
    registry.load('cifar10', data_dir=str(tmp_path))
