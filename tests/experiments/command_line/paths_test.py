"""Tests of paths as users give them."""

import pathlib

import pytest

from base import errors
from experiments.command_line import paths


def test_paths_are_the_users_under_bazel_run(monkeypatch, tmp_path):
  monkeypatch.setenv('BUILD_WORKING_DIRECTORY', str(tmp_path))
  assert paths.user_path('x') == tmp_path / 'x'
  assert paths.user_path('/x') == pathlib.Path('/x')


def test_paths_are_relative_to_the_working_directory_otherwise(monkeypatch):
  monkeypatch.delenv('BUILD_WORKING_DIRECTORY', raising=False)
  assert paths.user_path('x') == pathlib.Path('x')


def test_the_home_folder_can_be_named(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  assert paths.user_path('~/x') == pathlib.Path('/home/me/x')


def test_a_folder_of_data_must_be_there(monkeypatch, tmp_path):
  monkeypatch.setenv('BUILD_WORKING_DIRECTORY', str(tmp_path))
  assert paths.data_folder('.') == str(tmp_path)
  monkeypatch.delenv('PFL_DATA_DIR', raising=False)
  assert paths.data_folder(None) is None
  # Who needs no data needs no such folder.
  monkeypatch.setenv('PFL_DATA_DIR', '/nowhere')
  assert paths.data_folder(None) == '/nowhere'
  with pytest.raises(errors.UserError, match='nowhere does not exist'):
    paths.data_folder('nowhere')


@pytest.mark.parametrize(
  'path', ['', 'x\0y', 'x' * 5000, '~nobody-at-all/x', 'x\udce4y']
)
def test_a_path_that_cannot_be(path):
  with pytest.raises(errors.UserError, match='Invalid path'):
    paths.user_path(path)


def test_a_new_file_is_none_that_would_be_lost(tmp_path):
  assert paths.new_file('json', str(tmp_path / 'x')) == tmp_path / 'x'
  (tmp_path / 'mine').write_text('')
  for path, reason in (
    ('mine', 'exists already'),
    ('.', 'exists already'),
    ('none/x', 'there is no folder'),
  ):
    with pytest.raises(errors.UserError, match=f'--json: .*{reason}'):
      paths.new_file('json', str(tmp_path / path))
