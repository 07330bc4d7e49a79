"""Tests of reading tables of users."""

import gzip
import time

import pytest

from base import errors
from tasks.data.tables import table_files
from tests import attacks
from tests.tasks import table_source


def _values(table):
  return {name: column.to_pylist() for name, column in table.columns.items()}


def _refused(path, **how):
  with pytest.raises(errors.UserError) as raised:
    table_files.read(path, **how)
  return str(raised.value)


@pytest.mark.parametrize(
  'name', ['t.csv.gz', 't.parquet', 't.jsonl', 't.jsonl.gz']
)
def test_all_formats_have_the_same_values(name, tmp_path):
  rows = table_source.rows()
  plain = table_files.read(table_source.write(tmp_path / 't.csv', rows))
  other = table_files.read(table_source.write(tmp_path / name, rows))
  assert _values(other) == _values(plain)


def test_a_folder_is_its_files_behind_each_other(tmp_path):
  rows = table_source.rows()
  table_source.write(tmp_path / '2.jsonl', rows[5:])
  table_source.write(tmp_path / '1.csv', rows[:5])
  (tmp_path / 'README').write_text('not a table')
  table = table_files.read(tmp_path)
  assert table.columns['a'].to_pylist() == [row['a'] for row in rows]
  assert list(map(table_files.stem, table.files)) == ['1', '2']
  assert table.where(4) == f'{tmp_path / "1.csv"}, line 6'
  assert table.where(5) == f'{tmp_path / "2.jsonl"}, line 1'


def test_whole_numbers_of_one_file_go_with_fractions_of_another(tmp_path):
  (tmp_path / '1.csv').write_text('a\n1\n')
  (tmp_path / '2.csv').write_text('a\n1.5\n')
  assert _values(table_files.read(tmp_path)) == {'a': [1.0, 1.5]}


def test_names_that_look_like_numbers_stay_as_they_are(tmp_path):
  path = tmp_path / 't.csv'
  path.write_text('who,a\n007,1\nNA,2\n')
  table = table_files.read(path, ['who', 'none'])
  assert _values(table) == {'who': ['007', 'NA'], 'a': [1, 2]}


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
  path = tmp_path / 't.csv'
  path.write_text('a,b\n1,2\n', encoding='utf-8-sig')
  assert list(table_files.read(path).columns) == ['a', 'b']


def test_a_line_is_counted_behind_empty_ones_and_those_within_quotes(tmp_path):
  path = tmp_path / 't.csv'
  path.write_text('a,b\n\n1,"x\ny"\n2,z\n')
  table = table_files.read(path)
  assert [table.where(row) for row in (0, 1)] == [
    f'{path}, line 3',
    f'{path}, line 5',
  ]


@pytest.mark.parametrize(
  ('contents', 'problem'),
  [
    (b'a,b\n1,2\n3\n', 'line 3 has 1 columns, but the first line has 2'),
    (b'a,b\n1,2\n3,\xff\n', 'line 3 is not UTF-8'),
    (b'a,\xff\n1,2\n', 'line 1 is not UTF-8'),
    (b'', 'it is empty'),
    (b'a,b\n', 'has no rows'),
    (b'a,a\n1,2\n', "has several columns 'a'"),
  ],
)
@pytest.mark.parametrize('compressed', [False, True])
def test_what_is_wrong_with_a_csv_file_is_told(
  contents, problem, compressed, tmp_path
):
  path = tmp_path / ('t.csv.gz' if compressed else 't.csv')
  path.write_bytes(gzip.compress(contents) if compressed else contents)
  message = _refused(path)
  assert str(path) in message
  assert problem in message


@pytest.mark.parametrize(
  ('contents', 'problem'),
  [
    ('{"a": 1}\n\n{"a":\n', 'line 3 is not JSON'),
    ('[' * 100_000, 'line 1 is not JSON'),
    ('{"a": 1}\n[2]\n', 'line 2 is not an object'),
    (
      '{"a": 1}\n{"a": "x"}\n',
      "in line 2, column 'a' is a text, but a number in line 1",
    ),
    ('', 'it is empty'),
  ],
)
def test_what_is_wrong_with_json_lines_is_told(contents, problem, tmp_path):
  path = tmp_path / 't.jsonl'
  path.write_text(contents)
  message = _refused(path)
  assert str(path) in message
  assert problem in message


@pytest.mark.parametrize('name', ['t.csv.gz', 't.jsonl.gz', 't.parquet'])
def test_a_file_that_is_cut_off_is_told(name, tmp_path):
  path = table_source.write(tmp_path / name, table_source.rows())
  path.write_bytes(path.read_bytes()[:100])
  assert f'{path} cannot be read' in _refused(path)


def test_files_that_do_not_go_together_are_told(tmp_path):
  (tmp_path / '1.csv').write_text('a\n1\n')
  other = tmp_path / '2.csv'
  other.write_text('a\nx\n')
  assert f"{other}: column 'a' is string, but int64 in" in _refused(tmp_path)
  other.write_text('a,b\n1,2\n')
  message = _refused(tmp_path)
  assert 'not have the same columns: b is in one of them only' in message


@pytest.mark.parametrize(
  ('name', 'problem'),
  [('none.csv', 'There is no file'), ('', 'no table in the folder')],
)
def test_a_table_that_is_not_there_is_told(name, problem, tmp_path):
  assert problem in _refused(tmp_path / name)


def test_an_unknown_ending_is_told(tmp_path):
  (tmp_path / 't.xlsx').write_text('')
  assert 'The endings are .csv' in _refused(tmp_path / 't.xlsx')


def test_an_unknown_column_is_told(tmp_path):
  table = table_files.read(
    table_source.write(tmp_path / 't.csv', table_source.rows(1, 2))
  )
  with pytest.raises(
    errors.UserError, match="task.client_column: .* Did you mean 'site'?"
  ):
    table.column('sites', 'client_column')


@pytest.mark.parametrize(
  ('text', 'problem'),
  [
    ('a;b\n1;2\n', "separated by ';' rather than commas; write commas."),
    ('a\tb\n1\t2\n', 'rather than commas; end its name in .tsv.'),
  ],
)
def test_another_delimiter_is_told(text, problem, tmp_path):
  (tmp_path / 't.csv').write_text(text)
  assert problem in _refused(tmp_path / 't.csv')


def test_an_array_of_json_is_told(tmp_path):
  (tmp_path / 't.jsonl').write_text('[\n{"a": 1}\n]\n')
  assert 'line 1 begins an array, but must be an object. ' in _refused(
    tmp_path / 't.jsonl'
  )


def test_hidden_files_are_not_of_the_table(tmp_path):
  (tmp_path / '1.csv').write_text('a\n1\n')
  (tmp_path / '._1.csv').write_bytes(b'\0\5')
  assert table_files.read(tmp_path).num_rows == 1


@pytest.mark.parametrize('kind', attacks.ENDLESS)
@pytest.mark.parametrize('name', ['b.csv', 'b.jsonl.gz', 'b.parquet'])
def test_what_has_no_end_among_the_files_is_named(tmp_path, kind, name):
  (tmp_path / 'a.csv').write_text('a,b\n1,2\n')
  attacks.ENDLESS[kind](tmp_path / name)
  with attacks.soon():
    for path in (tmp_path, tmp_path / name):
      with pytest.raises(errors.UserError, match=f'{name}.* not a regular'):
        table_files.read(path)


def test_many_columns_are_not_compared_with_each_other(tmp_path):
  names = ','.join(f'c{k}' for k in range(40_000))
  path = tmp_path / 'wide.csv'
  path.write_text(f'{names}\n{names}\n')
  start = time.process_time()
  assert len(table_files.read(path).columns) == 40_000
  # Else it takes more than 15 s.
  assert time.process_time() - start < 8
