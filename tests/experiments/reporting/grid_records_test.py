"""Tests of the records of a grid's runs."""

import pytest

from base import errors
from experiments.reporting import grid_records


@pytest.fixture(name='folder')
def _folder(tmp_path):
  (tmp_path / 'runs').mkdir()
  return tmp_path


def _add(folder, program, *keys):
  records = grid_records.GridRecords(folder, program)
  for key in keys:
    records.add({'key': key, 'of': program})
  return records


def test_programs_read_what_others_have_added(folder):
  one = _add(folder, 'one', 'a')
  two = _add(folder, 'two', 'b', 'c')
  assert list(two.by_key) == ['a', 'b', 'c']
  assert one.read_others() == ['b', 'c']
  assert not one.read_others()
  two.add({'key': 'd'})
  assert one.read_others() == ['d']
  assert one.by_key['d'] == {'key': 'd'}


def test_a_run_that_was_done_twice_counts_once(folder):
  one = grid_records.GridRecords(folder, 'one')
  _add(folder, 'two', 'a')
  one.add({'key': 'a', 'of': 'one'})
  assert not one.read_others()
  assert list(grid_records.GridRecords(folder).by_key) == ['a']


def test_a_line_that_was_cut_off_is_lost_alone(folder):
  old = folder / 'runs.jsonl'
  lines = [grid_records.to_line({'key': key}) for key in 'ab']
  old.write_text(f'{lines[0]}{{"key": "cut o\n{lines[1]}')
  cut_off = folder / 'runs/cut_off.jsonl'
  line = grid_records.to_line({'key': 'c'})
  cut_off.write_text(line[:-9])
  records = grid_records.GridRecords(folder)
  assert list(records.by_key) == ['a', 'b']
  # Perhaps it was only being written.
  cut_off.write_text(line)
  assert records.read_others() == ['c']


@pytest.mark.parametrize('text', ['[]', 'x\n', '{"key": "a", "checksum": "0"}'])
def test_a_damaged_file_is_named(folder, text):
  path = folder / 'runs/damaged.jsonl'
  path.write_text(text)
  with pytest.raises(errors.UserError, match=f'{path} is damaged'):
    grid_records.GridRecords(folder)
