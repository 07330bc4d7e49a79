"""Tests of files that are there whole or not at all."""

import errno

import pytest

from base import errors
from base import whole_files


def test_a_file_takes_its_place_when_it_is_complete(tmp_path):
  path = tmp_path / 'file'
  path.write_text('before')
  with whole_files.writing(path) as temporary:
    temporary.write_text('after')
    assert path.read_text() == 'before'
  assert path.read_text() == 'after'
  assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
  ('error', 'raised'),
  [
    (OSError(errno.ENOSPC, 'No space left'), errors.ResourceError),
    (KeyboardInterrupt(), KeyboardInterrupt),
  ],
)
def test_what_stops_it_leaves_what_was_there(tmp_path, error, raised):
  path = tmp_path / 'file'
  path.write_text('before')
  with pytest.raises(raised), whole_files.writing(path) as temporary:
    temporary.write_text('aft')
    raise error
  assert path.read_text() == 'before'
  assert list(tmp_path.iterdir()) == [path]
