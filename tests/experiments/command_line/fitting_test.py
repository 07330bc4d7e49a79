"""Tests of tables in narrow terminals."""

import io

import rich.box
import rich.console
import rich.table

from experiments.command_line import fitting

_MEAN = '0.01158 ± 0.00012'


def _table(*figures, point='client_learning_rate=0.01 lambda=[1, 2]'):
  table = rich.table.Table(title='School', box=rich.box.SIMPLE)
  table.add_column('method')
  table.add_column('best point')
  for name in figures:
    table.add_column(name, justify='right')
  for method in ('fedavg', 'hypcluster+finetuning'):
    table.add_row(method, point, *[_MEAN] * len(figures))
  return table


def _lines(tables, width):
  file = io.StringIO()
  console = rich.console.Console(file=file, width=width, markup=False)
  for table in tables:
    console.print(table)
  return file.getvalue().splitlines()


def test_a_table_that_fits_is_as_it_was():
  table = _table('ours')
  assert fitting.fit(table, 120) == [table]


def test_headers_and_texts_are_broken_before_figures():
  table = _table('ours, as they were counted', 'published')
  (fitted,) = fitting.fit(table, 95)
  text = '\n'.join(_lines([fitted], 95))
  assert text.count(_MEAN) == 4
  assert 'hypcluster+finetuning' in text
  assert 'ours, as they were counted' not in text


def test_what_does_not_fit_is_another_table_with_the_keys():
  tables = fitting.fit(_table('ours', 'published', 'ε'), 80)
  assert len(tables) == 2
  lines = _lines(tables, 80)
  text = '\n'.join(lines)
  assert max(map(len, lines)) <= 80
  assert text.count(_MEAN) == 6
  assert text.count('hypcluster+finetuning') == 2
  assert text.count('School') == 1


def test_there_may_be_several_keys():
  tables = fitting.fit(_table('ours', 'published', point='0.5'), 60, num_keys=2)
  assert [len(table.columns) for table in tables] == [3, 3]


def test_long_words_are_folded_and_nothing_is_left_out():
  tables = fitting.fit(_table('ours', point='word' * 20), 80)
  text = ''.join(''.join(_lines(tables, 80)).split())
  assert '…' not in text
  assert text.count('word') > 30
