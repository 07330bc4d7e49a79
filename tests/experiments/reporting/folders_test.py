"""Tests of the folders that programs write their results to."""

import pytest

from base import errors
from experiments.reporting import folders


@pytest.mark.parametrize('make', ['write_bytes', 'mkdir'])
def test_what_is_not_of_the_programs_is_not_replaced(tmp_path, make):
  path = tmp_path / 'clients.png'
  folders.check_own(path)
  getattr(path, make)(*([b'drawn by hand'] if make == 'write_bytes' else []))
  with pytest.raises(errors.UserError, match='clients.png is there already'):
    folders.check_own(path)


def test_what_is_of_the_programs_may_be_replaced(tmp_path):
  path = tmp_path / 'report.html'
  path.write_text(f'<meta name="generator" content="{folders.MARK}">')
  folders.check_own(path)


def test_only_an_empty_folder_is_written_to(tmp_path):
  folders.check_empty('export_dir', tmp_path)
  folders.check_empty('export_dir', tmp_path / 'none')
  (tmp_path / 'file').write_text('')
  for path in (tmp_path, tmp_path / 'file'):
    with pytest.raises(errors.UserError, match='--export_dir: .* is there'):
      folders.check_empty('export_dir', path)


@pytest.mark.parametrize('name', ['vocab.json', 'metrics'])
def test_a_folder_with_results_of_nobody_knows_what_is_refused(tmp_path, name):
  (tmp_path / name).write_text('mine')
  with (
    pytest.raises(errors.UserError, match=f'has {name} but no pretraining.js'),
    folders.locked(tmp_path, folders.PRETRAINING),
  ):
    pytest.fail('It has the folder.')


@pytest.mark.parametrize('kind', folders.KINDS)
@pytest.mark.parametrize('other', folders.KINDS)
def test_a_folder_of_another_kind_is_refused(tmp_path, kind, other):
  mark = tmp_path / other.marks[0]
  if other == folders.GRID:
    mark.mkdir()
  else:
    mark.write_text('mine')
  if kind == other:
    with folders.locked(tmp_path, kind):
      pass
    return
  with pytest.raises(errors.UserError, match=f'{mark.name}, so that it is'):
    with folders.locked(tmp_path, kind):
      pytest.fail('It has the folder.')
  assert [*tmp_path.iterdir()] == [mark]


def test_a_folder_that_stays_empty_is_removed(tmp_path):
  path = tmp_path / 'results' / 'run'
  with folders.locked(path, folders.RUN):
    assert path.is_dir()
  assert not [*tmp_path.iterdir()]
  with folders.locked(path, folders.RUN):
    (path / 'config.toml').write_text('')
  assert (path / 'config.toml').exists()
  path = tmp_path / 'empty'
  path.mkdir()
  with folders.locked(path, folders.RUN):
    pass
  assert path.is_dir()


def test_a_file_in_the_place_of_a_folder_is_found_before_anything(tmp_path):
  (tmp_path / 'plots').write_text('')
  with (
    pytest.raises(errors.UserError, match='plots is in the place of a folder'),
    folders.locked(tmp_path, folders.GRID),
  ):
    pytest.fail('It has the folder.')


@pytest.mark.parametrize(
  ('error', 'told'),
  [
    (KeyError('round'), 'it has no round'),
    (UnicodeDecodeError('utf-8', b'x' * 10**6, 0, 1, 'why'), 'it is not UTF-8'),
    (IsADirectoryError(21, 'Is a directory', 'x'), 'Is a directory'),
    (ValueError('no number ' * 1000), 'no number ' * 20),
    (TypeError("'NoneType' has no len()"), 'it has another form'),
  ],
)
def test_what_is_wrong_with_a_file_is_told_in_a_few_words(error, told):
  assert folders.fault(error) == told
