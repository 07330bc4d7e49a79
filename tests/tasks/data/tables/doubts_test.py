"""Tests that what is hardly meant in a table is told before training."""

import numpy as np
import pytest

from base import errors
from tasks import registry
from tests import attacks
from tests.tasks import table_source


@pytest.fixture(name='load')
def _load(tmp_path):
  """Loads a table of these rows, of which two columns are noise."""

  def load(change=lambda k, row: {}, ending='csv', **settings):
    rng = np.random.default_rng(1)
    rows = []
    for k in range(120):
      row = {'who': f'c{k % 6}', 'a': rng.normal(), 'b': int(rng.integers(9))}
      row['y'] = 'yes' if row['a'] + rng.normal() > 0 else 'no'
      rows.append(row | change(k, row))
    path = table_source.write(tmp_path / f't.{ending}', rows)
    given = {'client_column': 'who', 'target_column': 'y', **settings}
    return registry.load('table', path=str(path), **given)

  return load


def _found(task):
  return ' '.join(task.notes.partition('Look at this:')[2].split())


def test_of_a_good_table_nothing_is_told(load):
  assert not _found(load())
  assert not _found(load(target_column='a', feature_columns='b'))
  assert load(doubts='error').name == 'table'


@pytest.mark.parametrize(
  ('change', 'told'),
  [
    (lambda k, row: {'copy': row['y']}, 'follows from column copy alone'),
    (lambda k, row: {'c': {'yes': 7, 'no': 3}[row['y']]}, 'column c alone'),
    (
      # A category of its own for some values of the target.
      lambda k, row: {'c': row['y'] + str(k % 3)},
      'column c alone',
    ),
    (
      lambda k, row: {'c': k / 100 + 5 * (row['y'] == 'yes')},
      'column c alone',
    ),
    (lambda k, row: {'c': 4}, 'Column c has one value only'),
    (lambda k, row: {'c': 4, 'd': 'x'}, 'Columns c, d each has one value'),
    (lambda k, row: {'who': [' 1', '01', '1', '2'][k % 4]}, "' 1' and '01' an"),
    (lambda k, row: {'who': ['Ann', 'ann', 'bob'][k % 3]}, "'Ann' and 'ann'"),
    (lambda k, row: {'y': f'name {k}'}, '120 rows have 120 classes'),
  ],
)
def test_what_is_hardly_meant_is_told(load, change, told):
  assert told in _found(load(change))
  with pytest.raises(errors.UserError, match='task.doubts=note') as raised:
    load(change, doubts='error')
  assert told in str(raised.value)


def test_an_empty_column_is_told(load):
  task = load(lambda k, row: {'c': None}, missing='fill')
  assert 'Column c is empty' in _found(task)


def test_a_number_in_another_unit_is_the_target(load):
  def change(k, row):
    return {'celsius': 3 * row['a'], 'fahrenheit': 32 + 5.4 * row['a']}

  task = load(change, target_column='fahrenheit', ignored_columns='a,y')
  assert 'column celsius alone' in _found(task)


def test_numbers_of_rows_tell_nothing(load):
  assert not _found(load(lambda k, row: {'row': k}))


def test_a_class_that_nobody_learns_is_told(load):
  def change(k, row):
    part = ['train', 'train', 'validation', 'test'][k % 4]
    return {'part': part} | ({'y': 'rare'} if k in (3, 7) else {})

  task = load(change, split_column='part')
  assert 'No row to train on has the class rare' in _found(task)


def test_rows_that_a_quote_has_joined_are_told(tmp_path):
  lines = [f'c{k % 4}\t{k % 7}\t{k % 2}' for k in range(120)]
  lines[30] = 'c2\t"5\t0'
  lines[40] = 'c2\t5"\t0'
  path = tmp_path / 't.tsv'
  path.write_text('\n'.join(['who\ta\ty', *lines]) + '\n')
  settings = {'client_column': 'who', 'target_column': 'y', 'path': str(path)}
  try:
    found = _found(registry.load('table', category_columns='a', **settings))
  except errors.UserError as error:
    found = str(error)
  assert 't.tsv, line 32' in found


def test_figures_say_how_many_clients_they_rest_on(load):
  notes = load(lambda k, row: {'who': 'alone' if k == 5 else row['who']}).notes
  assert 'of 6 test clients, with candidates chosen by 6' in notes
  assert '7 with fewer than 32 rows to train on, a batch' in notes
  notes = load(hold_out='clients').notes
  assert 'of 1 test client, with candidates chosen by 1' in notes


def test_any_name_can_be_told(load):
  names = [*attacks.NAMES.values()]

  def change(k, row):
    return {'who': names[k % 40 % len(names)], 'c': names[0]}

  assert 'Column c has one value' in _found(load(change, ending='parquet'))
