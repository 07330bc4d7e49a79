"""Tests of downloads."""

import functools
import hashlib
import os

import pytest

from base import errors
from tasks.data import downloads

_CONTENT = b'the data'
_SHA256 = hashlib.sha256(_CONTENT).hexdigest()


@pytest.fixture(name='data_dir')
def _data_dir(tmp_path):
  data_dir = tmp_path / 'data'
  data_dir.mkdir()
  return data_dir


@pytest.fixture(name='cached')
def _cached(tmp_path, monkeypatch):
  """Names the path in the cache."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  return tmp_path / 'cache' / 'pfl' / 'task' / 'file.mat'


@pytest.fixture(name='origin')
def _origin(tmp_path):
  """Names what is downloaded, if the test writes it."""
  return tmp_path / 'origin'


@pytest.fixture(name='fetch')
def _fetch(data_dir, cached, origin):
  del cached
  return functools.partial(
    downloads.fetch, 'task/file.mat', origin.as_uri(), _SHA256, str(data_dir)
  )


@pytest.fixture(name='assert_user_error')
def _assert_user_error(fetch):
  def assert_user_error(*parts):
    with pytest.raises(errors.UserError) as raised:
      fetch()
    for part in parts:
      assert str(part) in str(raised.value)

  return assert_user_error


def test_a_file_is_found_in_the_data_folder(fetch, data_dir):
  (data_dir / 'file.mat').write_bytes(_CONTENT)
  assert fetch() == data_dir / 'file.mat'


def test_a_file_is_found_in_the_folder_of_its_task(fetch, data_dir):
  (data_dir / 'task').mkdir()
  (data_dir / 'task' / 'file.mat').write_bytes(_CONTENT)
  assert fetch() == data_dir / 'task' / 'file.mat'


def test_a_file_is_found_in_the_cache(fetch, cached, capsys):
  cached.parent.mkdir(parents=True)
  cached.write_bytes(_CONTENT)
  assert fetch() == cached
  assert not capsys.readouterr().err


def test_a_download_goes_to_the_cache_and_is_announced(
  fetch, cached, origin, capsys
):
  origin.write_bytes(_CONTENT)
  assert fetch() == cached
  assert cached.read_bytes() == _CONTENT
  assert os.listdir(cached.parent) == ['file.mat']
  assert origin.as_uri() in capsys.readouterr().err


def test_no_data_folder_is_needed(cached, origin):
  origin.write_bytes(_CONTENT)
  path = downloads.fetch('task/file.mat', origin.as_uri(), _SHA256, None)
  assert path == cached


def test_a_wrong_file_of_the_user_is_named_and_kept(
  assert_user_error, data_dir, origin
):
  file = data_dir / 'file.mat'
  file.write_bytes(b'something else')
  assert_user_error(file, 'damaged', origin.as_uri())
  assert file.read_bytes() == b'something else'


def test_a_wrong_download_leaves_nothing_behind(
  assert_user_error, cached, origin
):
  origin.write_bytes(b'something else')
  assert_user_error(origin.as_uri(), 'not the right one')
  assert not os.listdir(cached.parent)


def test_without_a_network_says_what_to_put_where(
  assert_user_error, data_dir, cached, origin
):
  assert_user_error(origin.as_uri(), data_dir / 'task' / 'file.mat')
  assert not os.listdir(cached.parent)


def test_a_data_folder_that_does_not_exist_is_named(
  assert_user_error, data_dir
):
  data_dir.rmdir()
  assert_user_error(data_dir, 'does not exist')
