import contextlib
import hashlib
import io
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from base import errors
from tasks.data import downloads

_CONTENT = b'the data'
_SHA256 = hashlib.sha256(_CONTENT).hexdigest()


class FetchTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
      self.enter_context(tempfile.TemporaryDirectory())
    )
    self.data = self.folder / 'data'
    self.data.mkdir()
    self.cached = self.folder / 'cache' / 'pfl' / 'task' / 'file.mat'
    self.origin = self.folder / 'origin'
    self.url = self.origin.as_uri()
    environment = {'XDG_CACHE_HOME': str(self.folder / 'cache')}
    self.enter_context(mock.patch.dict(os.environ, environment))
    self.stderr = self.enter_context(contextlib.redirect_stderr(io.StringIO()))

  def fetch(self):
    return downloads.fetch('task/file.mat', self.url, _SHA256, str(self.data))

  def assert_user_error(self, *parts):
    with self.assertRaises(errors.UserError) as raised:
      self.fetch()
    for part in parts:
      self.assertIn(str(part), str(raised.exception))

  def test_finds_a_file_in_the_data_folder(self):
    (self.data / 'file.mat').write_bytes(_CONTENT)
    self.assertEqual(self.fetch(), self.data / 'file.mat')

  def test_finds_a_file_in_the_folder_of_its_task(self):
    (self.data / 'task').mkdir()
    (self.data / 'task' / 'file.mat').write_bytes(_CONTENT)
    self.assertEqual(self.fetch(), self.data / 'task' / 'file.mat')

  def test_finds_a_file_in_the_cache(self):
    self.cached.parent.mkdir(parents=True)
    self.cached.write_bytes(_CONTENT)
    self.assertEqual(self.fetch(), self.cached)
    self.assertEmpty(self.stderr.getvalue())

  def test_downloads_to_the_cache_and_says_so(self):
    self.origin.write_bytes(_CONTENT)
    self.assertEqual(self.fetch(), self.cached)
    self.assertEqual(self.cached.read_bytes(), _CONTENT)
    self.assertEqual(os.listdir(self.cached.parent), ['file.mat'])
    self.assertIn(self.url, self.stderr.getvalue())

  def test_needs_no_data_folder(self):
    self.origin.write_bytes(_CONTENT)
    path = downloads.fetch('task/file.mat', self.url, _SHA256, None)
    self.assertEqual(path, self.cached)

  def test_a_wrong_file_of_the_user_is_named_and_kept(self):
    file = self.data / 'file.mat'
    file.write_bytes(b'something else')
    self.assert_user_error(file, 'damaged', self.url)
    self.assertEqual(file.read_bytes(), b'something else')

  def test_a_wrong_download_leaves_nothing_behind(self):
    self.origin.write_bytes(b'something else')
    self.assert_user_error(self.url, 'not the file that is meant')
    self.assertEmpty(os.listdir(self.cached.parent))

  def test_without_a_network_says_what_to_put_where(self):
    self.assert_user_error(self.url, self.data / 'task' / 'file.mat')
    self.assertEmpty(os.listdir(self.cached.parent))

  def test_a_data_folder_that_does_not_exist(self):
    self.data.rmdir()
    self.assert_user_error(self.data, 'does not exist')


if __name__ == '__main__':
  absltest.main()
