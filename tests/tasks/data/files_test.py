"""Tests of the errors of files that cannot be read."""

import pytest
import tensorflow as tf

from base import errors
from tasks.data import files
from tests import attacks


@pytest.mark.parametrize(
  ('error', 'described'),
  [
    (ValueError('too long'), 'too long'),
    (FileNotFoundError(2, 'gone'), '[Errno 2] gone'),
    (KeyError('x'), "KeyError: 'x'"),
    (EOFError(), 'EOFError'),
    (RecursionError('too deep'), 'RecursionError: too deep'),
    (tf.errors.DataLossError(None, None, 'cut'), 'DataLossError: cut'),
  ],
)
def test_whatever_is_raised_names_the_file(error, described):
  with pytest.raises(errors.UserError) as raised:
    with files.reading('a.csv', 'a table', 'Replace it.'):
      raise error
  assert str(raised.value) == (
    f'a.csv cannot be read as a table ({described}). Replace it.'
  )


def test_what_the_user_is_told_already_stays():
  with pytest.raises(errors.UserError, match='^told$'):
    with files.reading('a.csv', 'a table', ''):
      raise errors.UserError('told')


@pytest.mark.parametrize('kind', attacks.ENDLESS)
def test_what_has_no_end_is_not_read(tmp_path, kind):
  path = tmp_path / 'file'
  attacks.ENDLESS[kind](path)
  with attacks.soon(), pytest.raises(errors.UserError, match='not a regular'):
    with files.reading(path, 'words', 'Replace it.'):
      path.read_text()
