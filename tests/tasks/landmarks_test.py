"""Tests of Landmarks."""

import functools
import pathlib
import shutil
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from tasks import landmarks
from tasks import registry
from tests.tasks import gld_source

_GLDV2 = tff.simulation.datasets.gldv2
_SIZES = gld_source.SIZES
_SMALL = dict(num_validation_clients=1, num_test_clients=2, image_size=32)


@pytest.fixture(name='data_dir', scope='module')
def _data_dir(tmp_path_factory):
  data_dir = tmp_path_factory.mktemp('data')
  gld_source.write(data_dir / 'landmarks' / 'gld160k')
  return str(data_dir)


@pytest.fixture(name='folder')
def _folder(data_dir):
  return pathlib.Path(data_dir) / 'landmarks' / 'gld160k'


@pytest.fixture(name='load_task')
def _load_task(data_dir):
  return functools.partial(
    registry.load, 'landmarks', **{'data_dir': data_dir, **_SMALL}
  )


def test_the_split_seed_decides_the_split(load_task):
  task = load_task()
  populations = (task.train, task.validation, task.test)
  assert [len(p.client_ids) for p in populations] == [3, 1, 2]
  client_ids = [c for p in populations for c in p.client_ids]
  assert set(client_ids) == set(_SIZES)
  assert sorted(client_ids) != client_ids
  again = load_task()
  assert again.test.client_ids == task.test.client_ids
  other = load_task(split_seed=14)
  assert other.train.client_ids != task.train.client_ids


def test_motleys_clients_are_split_as_in_motley():
  client_ids = [str(k) for k in range(1262)]
  parts = landmarks.LandmarksSettings().split(
    client_ids, landmarks._VALIDATION, landmarks._TEST
  )
  assert [len(part) for part in parts] == [50, 100, 1112]


def test_no_photo_is_read_before_a_client_is_asked_for(load_task):
  with mock.patch.object(tf.data, 'TFRecordDataset') as dataset:
    load_task()
  dataset.assert_not_called()


def test_sizes_are_those_of_the_sets(load_task):
  task = load_task()
  for population in (task.train, task.validation, task.test):
    for name, load in population.sets.items():
      sizes = [len(load(c)['y']) for c in population.client_ids]
      np.testing.assert_array_equal(population.sizes[name], sizes)


def test_a_client_is_trained_on_64_photos_at_most(load_task):
  tasks = (load_task(split_seed=seed) for seed in range(50))
  task = next(task for task in tasks if '11' in task.train.client_ids)
  sizes = dict(zip(task.train.client_ids, task.train.sizes['train']))
  assert sizes['11'] == 64
  examples = task.train.sets['train']('11')
  assert examples['x'].shape == (64, 32, 32, 3)


def test_photos_are_those_of_tffs_loader(load_task, folder, monkeypatch):
  # Otherwise TFF's loader fails, see `landmarks`.
  monkeypatch.setattr(
    _GLDV2.vision_datasets_utils.load_tfrecord,
    '__defaults__',
    (_GLDV2.LOGGER,),
  )
  tffs, _ = _GLDV2.load_data(cache_dir=str(folder.parent))
  assert tffs.client_ids == sorted(_SIZES)
  task = load_task()
  for population in (task.train, task.validation, task.test):
    for client_id in population.client_ids:
      expected = sorted(
        int(photo['class'][0])
        for photo in tffs.create_tf_dataset_for_client(client_id)
      )
      sets = [load(client_id) for load in population.sets.values()]
      y = np.concatenate([of_set['y'] for of_set in sets])
      if len(sets) > 1:
        assert sorted(y) == expected
      assert set(y) <= set(expected)
      for of_set in sets:
        assert of_set['x'].dtype == np.uint8
        assert of_set['y'].dtype == np.int32
        # Each pixel is its class, as far as JPEG can say it.
        colors = of_set['y'][:, np.newaxis, np.newaxis, np.newaxis]
        np.testing.assert_allclose(
          of_set['x'].astype(int) - colors, 0, rtol=0, atol=2
        )


def test_the_model_sees_the_middle_of_a_photo(load_task, folder, tmp_path):
  pixels = np.zeros((64, 128, 3), np.uint8)
  pixels[4:60, 8:120] = 200  # 7/8 of either.
  jpeg = tf.io.encode_jpeg(pixels, quality=100).numpy()
  example = _GLDV2.vision_datasets_utils.create_example(jpeg, 3)
  new_dir = str(tmp_path)
  new_folder = pathlib.Path(new_dir) / 'gld160k'
  shutil.copytree(folder, new_folder)
  for client_id in _SIZES:
    with tf.io.TFRecordWriter(str(new_folder / 'train' / client_id)) as writer:
      writer.write(example.SerializeToString())
  task = load_task(data_dir=new_dir)
  examples = task.train.sets['train'](task.train.client_ids[0])
  assert examples['x'].mean() > 197


def test_held_out_clients_are_shuffled_once_and_halved(load_task):
  task = load_task()
  for client_id in task.test.client_ids:
    halves = [load(client_id) for load in task.test.sets.values()]
    again = [load(client_id) for load in task.test.sets.values()]
    for half, other in zip(halves, again):
      np.testing.assert_array_equal(half['x'], other['x'])
    sizes = [len(half['y']) for half in halves]
    assert sizes[0] == _SIZES[client_id] // 2
    assert sum(sizes) == _SIZES[client_id]


def test_the_photos_of_a_file_are_counted(folder):
  for client_id, size in _SIZES.items():
    path = folder / 'train' / client_id
    assert landmarks.num_examples(path) == size


def test_model_is_for_these_photos(load_task, folder):
  assert load_task().model.example_spec['x'].shape == [32, 32, 3]
  shutil.copytree(folder, folder.with_name('gld23k'))
  for dataset, classes in (('gld160k', 2028), ('gld23k', 203)):
    weights = load_task(dataset=dataset).model.init(tf.constant([0, 1]))
    assert weights['output_bias'].shape == [classes]


def test_a_damaged_file_is_named(load_task, folder, tmp_path):
  new_dir = str(tmp_path)
  new_folder = pathlib.Path(new_dir) / 'landmarks' / 'gld160k'
  shutil.copytree(folder, new_folder)
  task = load_task(data_dir=new_dir)
  client_id = next(c for c in task.train.client_ids if _SIZES[c])
  path = new_folder / 'train' / client_id
  path.write_bytes(path.read_bytes()[:-10])
  with pytest.raises(
    errors.UserError, match=f'{path} cannot be read as photos'
  ):
    task.train.sets['train'](client_id)


def _save(path, label):
  """Saves a photo of a client."""
  example = _GLDV2.vision_datasets_utils.create_example(
    tf.io.encode_jpeg(np.zeros([9, 9, 3], np.uint8)).numpy(), label
  )
  with tf.io.TFRecordWriter(str(path)) as writer:
    writer.write(example.SerializeToString())


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda path: path.write_bytes(b'x' * 99), 'cannot be read as photos'),
    (lambda path: (path.unlink(), path.mkdir()), 'Is a directory'),
    (lambda path: _save(path, 2**40), 'class has 1099511627776'),
  ],
  ids=['other', 'folder', 'other_label'],
)
def test_what_is_no_file_of_a_client_is_named(
  damage, message, load_task, folder, tmp_path
):
  new_folder = tmp_path / 'landmarks' / 'gld160k'
  shutil.copytree(folder, new_folder)
  path = new_folder / 'train' / '10'
  damage(path)
  with pytest.raises(errors.UserError, match=f'{path} .*{message}'):
    task = load_task(data_dir=str(tmp_path))
    for population in (task.train, task.validation, task.test):
      if '10' in population.client_ids:
        for load in population.sets.values():
          load('10')


def test_more_held_out_clients_than_there_are_are_refused(data_dir):
  with pytest.raises(errors.UserError, match='num_test_clients 6'):
    registry.load('landmarks', data_dir=data_dir, num_test_clients=6)


def test_what_was_not_written_to_its_end_is_not_taken(
  load_task, folder, tmp_path, monkeypatch
):
  new_dir = str(tmp_path)
  new_folder = pathlib.Path(new_dir) / 'landmarks' / 'gld160k'
  shutil.copytree(folder, new_folder)
  (new_folder / 'test.tfRecord').unlink()
  monkeypatch.setenv('XDG_CACHE_HOME', new_dir)
  with pytest.raises(
    errors.UserError, match=f'no whole {new_folder}.*in its way'
  ):
    load_task(data_dir=new_dir)


def test_without_a_network_says_what_to_put_where(
  load_task, tmp_path, monkeypatch, capsys
):
  new_dir = str(tmp_path)
  monkeypatch.setenv('XDG_CACHE_HOME', new_dir)
  get_file = mock.Mock(side_effect=OSError('no network'))
  monkeypatch.setattr(tf.keras.utils, 'get_file', get_file)
  with pytest.raises(errors.UserError) as raised:
    load_task(data_dir=new_dir)
  folder = f'{new_dir}/landmarks/gld160k'
  assert f'There is no whole {folder}' in str(raised.value)
  assert 'no network' in str(raised.value)
  assert '500 GB' in capsys.readouterr().err
