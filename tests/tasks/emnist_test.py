"""Tests of EMNIST, on a small database and on digits of MNIST."""

import functools
import shutil
import sqlite3

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from tasks import registry
from tasks.data import rotations
from tests import data


def _dataset(client_id):
  rng = np.random.default_rng(list(client_id.encode()))
  n = rng.integers(1, 9)
  return tf.data.Dataset.from_tensor_slices(
    {
      'label': rng.integers(62, size=n).astype(np.int32),
      'pixels': rng.random((n, 28, 28), np.float32),
    }
  )


def _tff_examples(client_data, client_id):
  """Loads a client's examples as TFF does."""
  (examples,) = client_data.create_tf_dataset_for_client(client_id).batch(1000)
  return examples['pixels'].numpy()[..., np.newaxis], examples['label'].numpy()


_WRITERS = [f'f{i:04d}_00' for i in range(34)]


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  """Writes a small database of TFF's form."""
  folder = tmp_path_factory.mktemp('emnist')
  # A writer of the test split has another name here, to be told apart.
  splits = {**dict.fromkeys(_WRITERS, 'all_train'), 'test': 'all_test'}
  tff.simulation.datasets.save_to_sql_client_data(
    list(splits),
    _dataset,
    str(folder / 'emnist_all.sqlite'),
    split_names_by_client_id=splits,
  )
  return str(folder)


@pytest.fixture(name='of_tff', scope='module')
def _tff_client_data(folder):
  return tff.simulation.datasets.emnist.load_data(False, folder)[0]


@pytest.fixture(name='load_task')
def _load_task(folder):
  return functools.partial(registry.load, 'emnist', data_dir=folder)


def test_writers_are_split_as_in_motley(load_task):
  task = load_task()
  assert not task.cross_silo
  parts = [
    list(population.client_ids)
    for population in (task.validation, task.test, task.train)
  ]
  assert list(map(len, parts)) == [4, 5, 25]
  assert (
    sum(parts, []) == np.random.RandomState(13).permutation(_WRITERS).tolist()
  )


def test_the_seed_of_the_run_changes_nothing(load_task):
  first, second = load_task(seed=1), load_task(seed=2)
  assert first.test.client_ids == second.test.client_ids
  for client_id in first.test.client_ids:
    for name, load in first.test.sets.items():
      np.testing.assert_equal(
        load(client_id), second.test.sets[name](client_id)
      )


def test_train_examples_are_those_of_tff(load_task, of_tff):
  task = load_task()
  for client_id in task.train.client_ids:
    examples = task.train.sets['train'](client_id)
    x, y = _tff_examples(of_tff, client_id)
    np.testing.assert_array_equal(examples['x'], x)
    np.testing.assert_array_equal(examples['y'], y)
    for name, spec in task.model.example_spec.items():
      assert examples[name].dtype == spec.dtype
      assert examples[name].shape[1:] == tuple(spec.shape)


def test_held_out_examples_are_halved_in_an_order_of_their_own(
  load_task, of_tff
):
  task = load_task()
  in_order = 0
  for population in (task.validation, task.test):
    for client_id in population.client_ids:
      halves = [
        population.sets[name](client_id)
        for name in ('personalization', 'evaluation')
      ]
      x, y = _tff_examples(of_tff, client_id)
      assert len(halves[0]['y']) == len(y) // 2
      labels = np.concatenate([half['y'] for half in halves])
      images = np.concatenate([half['x'] for half in halves])
      in_order += np.array_equal(images, x)
      # An image stays with its label.
      order = np.argsort(images.sum(axis=(1, 2, 3)))
      expected_order = np.argsort(x.sum(axis=(1, 2, 3)))
      np.testing.assert_array_equal(images[order], x[expected_order])
      np.testing.assert_array_equal(labels[order], y[expected_order])
  assert in_order < 4


def test_sizes_are_known_without_loading(load_task):
  task = load_task()
  for population in (task.train, task.validation, task.test):
    for name, load in population.sets.items():
      sizes = [len(load(c)['y']) for c in population.client_ids]
      np.testing.assert_array_equal(population.sizes[name], sizes)


def test_half_of_the_writers_can_be_rotated(load_task):
  plain, task = load_task(), load_task(rotate_half=True)
  assert not plain.attributes
  for population in ('train', 'validation', 'test'):
    client_ids = getattr(task, population).client_ids
    groups = list(map(task.attributes['group'].name, client_ids))
    difference = groups.count(rotations.ROTATED) - groups.count(
      rotations.UPRIGHT
    )
    assert abs(difference) <= 1
    for client_id, group in zip(client_ids, groups):
      for name, load in getattr(task, population).sets.items():
        examples = load(client_id)
        expected = getattr(plain, population).sets[name](client_id)
        np.testing.assert_array_equal(examples['y'], expected['y'])
        upright = expected['x']
        if group == rotations.ROTATED:
          upright = upright[:, ::-1, ::-1]
        np.testing.assert_array_equal(examples['x'], upright)


def test_a_label_beyond_all_classes_is_named(folder, tmp_path):
  path = shutil.copy(f'{folder}/emnist_all.sqlite', tmp_path)
  example = tf.train.Example()
  example.features.feature['pixels'].float_list.value.extend([0.5] * 784)
  example.features.feature['label'].int64_list.value.append(2**40)
  with sqlite3.connect(path) as database:
    database.execute(
      'UPDATE examples SET serialized_example_proto = ?',
      (example.SerializeToString(),),
    )
  task = registry.load('emnist', data_dir=str(tmp_path))
  client_id = task.train.client_ids[0]
  with pytest.raises(
    errors.UserError, match=f'{path} .*label of {client_id} has 1099511627776'
  ):
    task.train.sets['train'](client_id)


@pytest.mark.parametrize('only_digits, num_classes', [(True, 10), (False, 62)])
def test_stand_in_with_digits_only_has_ten_classes(only_digits, num_classes):
  folder = data.tff_cache()
  task = registry.load('emnist', data_dir=str(folder), only_digits=only_digits)
  sizes = [
    len(population.client_ids)
    for population in (task.train, task.validation, task.test)
  ]
  assert sizes == [9, 1, 2]
  weights = task.model.init(tf.constant([0, 1]))
  assert weights['output_bias'].shape == [num_classes]
  examples = task.train.sets['train'](task.train.client_ids[0])
  assert (examples['x'].min(), examples['x'].max()) == (0, 1)
  assert np.median(examples['x']) > 0.9  # The background.
  assert set(examples['y']) == set(range(10))
