import concurrent.futures
import io
import lzma
import pathlib
import sqlite3
import tempfile
from unittest import mock
import urllib.error
import urllib.request

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
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


class PermutedTest(absltest.TestCase):
  def test_the_clients_are_dealt_out_as_in_motley(self):
    ids = [f'f{i:04d}' for i in range(3400)]
    permuted = tff_databases.Parameters().permuted(ids)
    self.assertEqual(
      permuted, np.random.RandomState(13).permutation(ids).tolist()
    )
    self.assertNotEqual(
      permuted, tff_databases.Parameters(split_seed=14).permuted(ids)
    )


class SplitTest(parameterized.TestCase):
  @parameterized.parameters(
    # Motley's databases, and smaller ones.
    (3400, 400 / 3400, 500 / 3400, (400, 500, 2500)),
    (38_758, 10_000 / 38_758, 28_758 / 38_758, (10_000, 28_758, 0)),
    (300, 400 / 3400, 500 / 3400, (35, 44, 221)),
    (3, 400 / 3400, 500 / 3400, (1, 1, 1)),
    (2, 10_000 / 38_758, 28_758 / 38_758, (1, 1, 0)),
  )
  def test_the_shares_are_those_of_motley(
    self, there_are, validation, test, expected
  ):
    ids = list(map(str, range(there_are)))
    parts = tff_databases.Parameters().split(ids, validation, test)
    self.assertEqual(tuple(map(len, parts)), expected)
    self.assertEqual(sum(parts, []), ids)

  def test_the_user_may_name_the_numbers(self):
    parameters = tff_databases.Parameters(
      num_validation_clients=2, num_test_clients=3
    )
    self.assertEqual(
      parameters.split('abcdefgh', 0.5, 0.5),
      (['a', 'b'], ['c', 'd', 'e'], ['f', 'g', 'h']),
    )

  def test_those_to_report_are_at_most_the_rest(self):
    parts = tff_databases.Parameters().split('abcdefghi', 0.9, 0.9)
    self.assertEqual(list(map(len, parts)), [8, 1, 0])

  @parameterized.parameters((8, 2), (9, None), (None, 9), (20, 1))
  def test_more_than_there_are(self, validation, test):
    parameters = tff_databases.Parameters(
      num_validation_clients=validation, num_test_clients=test
    )
    with self.assertRaisesRegex(errors.UserError, 'there are 9 clients'):
      parameters.split('abcdefghi', 0.1, 0.1)


class DatabaseTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
      self.enter_context(tempfile.TemporaryDirectory())
    )
    self.path = self.folder / 'small.sqlite'
    tff.simulation.datasets.save_to_sql_client_data(
      list(_SIZES), _dataset, str(self.path), split_names_by_client_id=_SPLITS
    )

  def open(self, data_dir=None, features=None, splits=('train', 'test')):
    def load_data(cache_dir):
      # What TFF's own `load_data` functions do.
      path = tff.simulation.datasets.download.get_compressed_file(
        f'http://nowhere.invalid/{self.path.name}.lzma', cache_dir
      )
      spec = _dataset('a').element_spec
      return [
        tff.simulation.datasets.load_and_parse_sql_client_data(
          path, spec, split
        )
        for split in splits
      ]

    return tff_databases.open_splits(
      self.path.name,
      str(data_dir or self.folder),
      load_data,
      splits,
      features or _FEATURES,
    )

  def assert_user_error(self, *parts, **arguments):
    with self.assertRaises(errors.UserError) as raised:
      self.open(**arguments)
    for part in parts:
      self.assertIn(str(part), str(raised.exception))

  def test_clients_and_their_sizes_are_known_unread(self):
    train, test = self.open()
    self.assertEqual(train.num_examples, {'a': 3, 'b': 1, "c'd": 5})
    self.assertEqual(test.num_examples, {'other': 2})
    np.testing.assert_array_equal(train.sizes(["c'd", 'a']), [5, 3])

  def test_examples_are_those_that_were_saved(self):
    for clients in self.open():
      for client_id in clients.num_examples:
        (expected,) = _dataset(client_id).batch(10)
        np.testing.assert_equal(
          dict(clients.read(client_id)),
          {name: tensor.numpy() for name, tensor in expected.items()},
        )

  def test_a_limit_takes_the_first(self):
    train, _ = self.open()
    np.testing.assert_array_equal(
      train.read("c'd", limit=2)['y'], train.read("c'd")['y'][:2]
    )
    self.assertLen(train.read('b', limit=2)['y'], 1)

  def test_threads_may_read_at_once(self):
    train, _ = self.open()
    ids = ['a', 'b', "c'd"] * 30
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
      read = list(threads.map(train.read, ids))
    for client_id, own in zip(ids, read):
      np.testing.assert_equal(own, train.read(client_id))

  def _truncate(self, size):
    self.path.write_bytes(self.path.read_bytes()[:size])

  def _execute(self, statement):
    with sqlite3.connect(self.path) as connection:
      connection.execute(statement)

  @parameterized.named_parameters(
    ('cut_off', lambda self: self._truncate(9000)),
    ('cut_off_early', lambda self: self._truncate(50)),
    ('empty', lambda self: self._truncate(0)),
    ('none', lambda self: self.path.write_bytes(b'x' * 9000)),
    (
      'without_the_numbers',
      lambda self: self._execute('DROP TABLE client_metadata'),
    ),
    (
      'without_a_client',
      lambda self: self._execute("DELETE FROM examples WHERE client_id = 'a'"),
    ),
    (
      'of_other_bytes',
      lambda self: self._execute("UPDATE examples SET client_id = 'a',"
                                 " serialized_example_proto = 'nonsense'"),
    ),
  )  # fmt: skip
  def test_a_damaged_database_is_named(self, damage):
    damage(self)
    self.assert_user_error(
      self.path, 'damaged', 'Remove it', 'https://', 'small.sqlite.lzma'
    )

  def test_a_database_of_something_else_is_named(self):
    features = {'pixels': tf.io.FixedLenFeature((), tf.float32)}
    self.assert_user_error(self.path, 'damaged', features=features)
    self.assert_user_error(self.path, 'damaged', splits=['all_train'])

  def test_a_folder_that_is_not_there(self):
    self.assert_user_error('/not/there does not exist', data_dir='/not/there')

  def test_without_a_network_says_what_to_put_where(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    error = urllib.error.URLError('no network')
    with mock.patch.object(urllib.request, 'urlopen', side_effect=error):
      self.assert_user_error(
        f'There is no {folder}/small.sqlite',
        'no network',
        'small.sqlite.lzma',
        'data_dir',
        data_dir=folder,
      )

  def test_a_download_that_breaks_off_is_not_taken_for_the_database(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    whole = lzma.compress(self.path.read_bytes())

    def broken(_):
      stream = io.BytesIO(whole[: len(whole) // 2])
      stream.headers = {}
      return stream

    with mock.patch.object(urllib.request, 'urlopen', broken):
      for _ in range(2):  # The second finds what the first has left.
        self.assert_user_error(
          f'{folder}/small.sqlite is damaged', 'Remove it', data_dir=folder
        )


if __name__ == '__main__':
  absltest.main()
