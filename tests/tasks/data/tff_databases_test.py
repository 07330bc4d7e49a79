"""Tests of reading the databases of TFF."""

import concurrent.futures
import functools
import io
import lzma
import sqlite3
from unittest import mock
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from tasks.data import tff_databases

_FEATURES = {
  'x': tf.io.FixedLenFeature((2,), tf.float32),
  'y': tf.io.FixedLenFeature((), tf.int64),
}
_SIZES = {'a': 3, 'b': 1, "c'd": 5, 'other': 2}
_SPLITS = {'a': 'train', 'b': 'train', "c'd": 'train', 'other': 'test'}


def _dataset(client_id):
  n = _SIZES[client_id]
  x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
  y = 100 * list(_SIZES).index(client_id) + np.arange(n)
  return tf.data.Dataset.from_tensor_slices({'x': x, 'y': y})


@pytest.fixture(name='path')
def _path(tmp_path):
  """Writes a small database."""
  path = tmp_path / 'small.sqlite'
  tff.simulation.datasets.save_to_sql_client_data(
    list(_SIZES), _dataset, str(path), split_names_by_client_id=_SPLITS
  )
  return path


@pytest.fixture(name='open_splits')
def _open_splits(path):
  def load_data(cache_dir, splits):
    # As TFF's own functions `load_data` do it.
    found = tff.simulation.datasets.download.get_compressed_file(
      f'http://nowhere.invalid/{path.name}.lzma', cache_dir
    )
    spec = _dataset('a').element_spec
    return [
      tff.simulation.datasets.load_and_parse_sql_client_data(found, spec, split)
      for split in splits
    ]

  def open_splits(data_dir=None, features=None, splits=('train', 'test')):
    return tff_databases.open_splits(
      path.name,
      str(data_dir or path.parent),
      functools.partial(load_data, splits=splits),
      splits,
      features or _FEATURES,
    )

  return open_splits


@pytest.fixture(name='assert_user_error')
def _assert_user_error(open_splits):
  def assert_user_error(*parts, **arguments):
    with pytest.raises(errors.UserError) as raised:
      open_splits(**arguments)
    for part in parts:
      assert str(part) in str(raised.value)

  return assert_user_error


def _truncate(path, size):
  path.write_bytes(path.read_bytes()[:size])


def _execute(path, statement):
  with sqlite3.connect(path) as connection:
    connection.execute(statement)


def test_clients_and_their_sizes_are_known_without_reading(open_splits):
  train, test = open_splits()
  assert train.num_examples == {'a': 3, 'b': 1, "c'd": 5}
  assert test.num_examples == {'other': 2}
  np.testing.assert_array_equal(train.sizes(["c'd", 'a']), [5, 3])


def test_examples_are_those_that_were_saved(open_splits):
  for clients in open_splits():
    for client_id in clients.num_examples:
      (expected,) = _dataset(client_id).batch(10)
      np.testing.assert_equal(
        dict(clients.read(client_id)),
        {name: tensor.numpy() for name, tensor in expected.items()},
      )


def test_a_limit_takes_the_first_examples(open_splits):
  train, _ = open_splits()
  np.testing.assert_array_equal(
    train.read("c'd", limit=2)['y'], train.read("c'd")['y'][:2]
  )
  assert len(train.read('b', limit=2)['y']) == 1


def test_threads_may_read_at_once(open_splits):
  train, _ = open_splits()
  ids = ['a', 'b', "c'd"] * 30
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    read = list(threads.map(train.read, ids))
  for client_id, examples in zip(ids, read):
    np.testing.assert_equal(examples, train.read(client_id))


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: _truncate(path, 9000),
    lambda path: _truncate(path, 50),
    lambda path: _truncate(path, 0),
    lambda path: path.write_bytes(b'x' * 9000),
    lambda path: _execute(path, 'DROP TABLE client_metadata'),
    lambda path: _execute(path, "DELETE FROM examples WHERE client_id = 'a'"),
    lambda path: _execute(
      path,
      "UPDATE examples SET client_id = 'a',"
      " serialized_example_proto = 'nonsense'",
    ),
  ],
  ids=[
    'cut_off',
    'cut_off_early',
    'empty',
    'none',
    'without_the_numbers',
    'without_a_client',
    'of_other_bytes',
  ],
)
def test_a_damaged_database_is_named(damage, assert_user_error, path):
  damage(path)
  assert_user_error(
    path, 'a whole database', 'Remove it', 'https://', 'small.sqlite.lzma'
  )


def test_a_database_of_something_else_is_named(assert_user_error, path):
  features = {'pixels': tf.io.FixedLenFeature((), tf.float32)}
  assert_user_error(path, 'a whole database', features=features)
  assert_user_error(path, 'a whole database', splits=['all_train'])


def test_a_missing_folder_is_named(assert_user_error):
  assert_user_error('/not/there does not exist', data_dir='/not/there')


def test_without_a_network_says_what_to_put_where(assert_user_error, tmp_path):
  folder = tmp_path / 'empty'
  folder.mkdir()
  error = urllib.error.URLError('no network')
  with mock.patch.object(urllib.request, 'urlopen', side_effect=error):
    assert_user_error(
      f'There is no {folder}/small.sqlite',
      'no network',
      'small.sqlite.lzma',
      'data_dir',
      data_dir=folder,
    )


def test_a_download_that_breaks_off_is_not_taken_for_the_database(
  assert_user_error, path, tmp_path
):
  folder = tmp_path / 'empty'
  folder.mkdir()
  whole = lzma.compress(path.read_bytes())

  def broken(_):
    stream = io.BytesIO(whole[: len(whole) // 2])
    stream.headers = {}
    return stream

  with mock.patch.object(urllib.request, 'urlopen', broken):
    for _ in range(2):  # The second finds what the first has left.
      assert_user_error(
        f'{folder}/small.sqlite cannot be read as a whole database',
        'Remove it',
        data_dir=folder,
      )
