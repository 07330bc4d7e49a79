"""Tests of files that are opened, whoever wrote them."""

import pytest

from base import inputs
from tests import attacks


@pytest.mark.parametrize('kind', attacks.ENDLESS)
def test_what_has_no_end_is_refused(tmp_path, kind):
  path = tmp_path / 'file'
  attacks.ENDLESS[kind](path)
  with attacks.soon():
    for read in (inputs.read_bytes, inputs.open_bytes, inputs.read_text):
      with pytest.raises(OSError):
        read(path)
    with pytest.raises(OSError, match='not a regular file'):
      inputs.check(path)


def test_a_folder_is_no_file(tmp_path):
  with pytest.raises(IsADirectoryError):
    inputs.read_bytes(tmp_path)
  inputs.check(tmp_path)
  inputs.check(tmp_path / 'nothing')


def test_a_file_is_read_as_it_is_up_to_a_bound(tmp_path):
  path = tmp_path / 'file'
  path.write_bytes('ü\r\n'.encode())
  assert inputs.read_text(path, 4) == 'ü\r\n'
  with pytest.raises(OSError, match='larger than 3 bytes'):
    inputs.read_bytes(path, 3)
