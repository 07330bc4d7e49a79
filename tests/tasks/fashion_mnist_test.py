"""Tests of Fashion-MNIST, on small files of the form of the real ones."""

import functools
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from tasks import fashion_mnist
from tasks import registry
from tests import data
from tests.tasks import mnist_source
from tests.tasks import silo_examples


@pytest.fixture(name='folder')
def _folder(tmp_path):
  folder = tmp_path / 'fashion_mnist'
  mnist_source.write(folder)
  return folder


@pytest.fixture(name='load_task')
def _load_task(folder):
  return functools.partial(
    registry.load, 'fashion_mnist', data_dir=str(folder.parent)
  )


def _sizes(task):
  return [
    len(silo_examples.of_client(task, client_id)['y'])
    for client_id in task.train.client_ids
  ]


def test_clients_have_unequal_shares_of_all_photos(load_task):
  task = load_task(num_clients=5)
  assert task.cross_silo
  sizes = _sizes(task)
  assert sum(sizes) == 600
  assert max(sizes) > 1.3 * min(sizes)
  labels = silo_examples.of_client(task, 'client_0')['y']
  shares = np.bincount(labels, minlength=10) / len(labels)
  assert shares.max() > 0.2 > 0.02 > shares.min()


def test_photos_are_with_their_labels(load_task):
  task = load_task(num_clients=1)
  examples = silo_examples.of_client(task, 'client_0')
  assert examples['x'].dtype == np.uint8
  pixels = examples['x'][..., 0].astype(int)
  number = 256 * pixels[:, 1, 1] + pixels[:, 1, 2]
  images, labels = mnist_source.examples()
  np.testing.assert_array_equal(np.sort(number), np.arange(600))
  np.testing.assert_array_equal(pixels, images[number])
  np.testing.assert_array_equal(examples['y'], labels[number])


def test_the_model_is_that_of_keras(load_task):
  layers = tf.keras.layers
  keras = tf.keras.Sequential(
    [
      layers.Conv2D(32, 5, activation='relu', input_shape=(28, 28, 1)),
      layers.MaxPool2D(2),
      layers.Conv2D(64, 5, activation='relu'),
      layers.MaxPool2D(2),
      layers.Flatten(),
      layers.Dense(512, activation='relu'),
      layers.Dense(10),
    ]
  )
  task = load_task(num_clients=1)
  weights = task.model.init(tf.constant([0, 1]))
  # PFLlib's has as many.
  assert sum(np.size(weight) for weight in weights.values()) == 582_026
  assert sum(task.model.parts.values(), ()) == tuple(weights)
  keras.set_weights(list(weights.values()))
  batch = {
    name: feature[:20]
    for name, feature in task.train.sets['train']('client_0').items()
  }
  np.testing.assert_allclose(
    # The model makes numbers from -1 to 1 of bytes.
    task.model.scores(weights, batch),
    keras(batch['x'].astype(np.float32) / 127.5 - 1),
    atol=1e-5,
  )


def test_weights_start_as_in_pytorch(load_task):
  weights = load_task(num_clients=1).model.init(tf.constant([0, 1]))
  for layer, inputs in dict(conv1=25, conv2=800, dense=1024).items():
    for name in 'kernel', 'bias':
      largest = np.abs(weights[f'{layer}_{name}']).max() * np.sqrt(inputs)
      assert 0.8 < largest <= 1


def test_finds_the_files_that_debian_installs(folder, monkeypatch, tmp_path):
  monkeypatch.setattr(fashion_mnist, '_DEBIAN', str(folder))
  (tmp_path / 'other').mkdir()
  for data_dir in None, str(tmp_path / 'other'):
    task = registry.load('fashion_mnist', data_dir=data_dir, num_clients=1)
    assert _sizes(task) == [600]


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(b''),
    lambda path: mnist_source.write_idx(path, np.zeros([9, 32, 32], np.uint8)),
  ],
  ids=['missing', 'empty', 'other_size'],
)
def test_a_damaged_file_is_named(damage, load_task, folder, monkeypatch):
  monkeypatch.setattr(fashion_mnist, '_DEBIAN', str(folder / 'none'))
  path = folder / 't10k-images-idx3-ubyte.gz'
  damage(path)
  with pytest.raises(errors.UserError, match=str(path)) as error:
    load_task()
  assert 'dataset-fashion-mnist' in str(error.value)


def test_the_real_data_have_seven_thousand_photos_of_each_class():
  folder = pathlib.Path(fashion_mnist._DEBIAN)
  if not folder.exists():
    folder = data.path('fashion_mnist')
  task = registry.load('fashion_mnist', data_dir=str(folder))
  labels = np.concatenate(
    [silo_examples.of_client(task, c)['y'] for c in task.train.client_ids]
  )
  np.testing.assert_array_equal(np.bincount(labels), [7000] * 10)
  # The clients of PFLlib.
  sizes = _sizes(task)
  assert sizes[:5] + sizes[-1:] == [82, 320, 875, 2603, 1455, 4698]
