"""Tests of what the columns of a table become."""

import numpy as np
import pytest

from base import errors
from tasks.data.tables import features
from tasks.data.tables import table_files


@pytest.fixture(name='make')
def _make(tmp_path):
  """Makes the inputs of a CSV file whose first rows are to train on."""

  def make(text, num_train=None, **how):
    path = tmp_path / 't.csv'
    path.write_text(text)
    table = table_files.read(path)
    train = np.arange(table.num_rows) < (num_train or table.num_rows)
    settings = features.FeatureSettings(**how)
    columns, made = features.fit(table, tuple(table.columns), settings, train)
    again = features.encode(table, columns)
    np.testing.assert_array_equal(_all(again, 2), _all(made, 2))
    assert again.descriptions == made.descriptions
    return made

  return make


def _all(features, rows=4):
  return features.take(np.arange(rows))


def test_numbers_are_standardized_by_the_rows_to_train_on(make):
  made = make('a,b\n1,5\n3,5\n10,6\n2,5\n', 2)
  assert made.shape == (2,)
  assert made.num_numbers == 2
  # A constant is zero, whatever it is elsewhere.
  np.testing.assert_array_equal(_all(made), [[-1, 0], [1, 0], [8, 0], [0, 0]])


@pytest.mark.parametrize('how', ['none', 'client'])
def test_otherwise_numbers_stay_as_they_are(how, make):
  made = make('a\n1\n3\n10\n2\n', standardize=how)
  np.testing.assert_array_equal(_all(made)[:, 0], [1, 3, 10, 2])


def test_rows_are_taken_in_any_order(make):
  made = make('a,b\n1,x\n2,y\n3,x\n', standardize='none')
  np.testing.assert_array_equal(
    made.take(np.array([2, 0, 1])), [[3, 1, 0], [1, 1, 0], [2, 0, 1]]
  )


def test_a_category_that_is_not_trained_on_is_all_zeros(make):
  made = make('a\nx\ny\nz\nx\n', 2)
  np.testing.assert_array_equal(_all(made), [[1, 0], [0, 1], [0, 0], [1, 0]])


def test_a_missing_category_is_a_category(make):
  made = make('a,b\nx,u\n"",u\nx,u\ny,u\n')
  assert made.shape == (3 + 1,)
  np.testing.assert_array_equal(_all(made)[1], [1, 0, 0, 1])
  assert '(missing)' in made.descriptions['a']


def test_truth_is_a_category(make):
  made = make('a\ntrue\nfalse\ntrue\ntrue\n')
  np.testing.assert_array_equal(_all(made)[:, 1], [1, 0, 1, 1])


def test_numbers_are_categories_where_the_user_says_so(make):
  made = make('a\n10\n9\n10\n11\n', category_columns=('a',))
  # By size.
  np.testing.assert_array_equal(_all(made)[1], [1, 0, 0])


def test_a_missing_number_is_refused_where_it_is(make):
  with pytest.raises(
    errors.UserError, match=r"t.csv, line 3: column 'a' has no value"
  ):
    make('a,b\n1,1\nNA,2\n')


def test_a_missing_number_is_the_mean_to_train_on_and_an_input_says_so(make):
  made = make('a\n1\n3\nNA\n9\n', 2, missing='fill', standardize='none')
  np.testing.assert_array_equal(_all(made), [[1, 0], [3, 0], [2, 1], [9, 0]])
  assert made.num_numbers == 1


def test_a_text_is_the_counts_of_its_hashed_words(make):
  made = make(
    'a\none two\ntwo one\nthree\n""\n', text_columns=('a',), text_features=8
  )
  x = _all(made)
  assert x.shape == (4, 8)
  np.testing.assert_array_equal(x[0], x[1])
  assert np.any(x[2] != x[0])
  assert not x[3].any()


def test_a_text_is_the_counts_of_the_words_of_a_vocabulary(make, tmp_path):
  words = tmp_path / 'words.txt'
  words.write_text('two\none\n')
  made = make(
    'a\none two two\nthree\n',
    text_columns=('a',),
    text_vocabulary=str(words),
  )
  np.testing.assert_array_equal(_all(made, 2), [[2, 1], [0, 0]])


def test_words_of_a_vocabulary_that_no_text_has_are_counted(make, tmp_path):
  words = tmp_path / 'words.txt'
  words.write_text('Two\none\ntwo\nboth words\n')
  made = make(
    'a\none TWO\nthree\n',
    text_columns=('a',),
    text_vocabulary=str(words),
  )
  # Whatever their case.
  np.testing.assert_array_equal(_all(made, 1), [[1, 1, 0]])
  assert made.descriptions['a'] == 'a text, 3 words, 1 of them in no text'


def test_a_vocabulary_that_cannot_be_read_is_told(make, tmp_path):
  with pytest.raises(errors.UserError, match='task.text_vocabulary'):
    make('a\nx\n', text_columns=('a',), text_vocabulary=str(tmp_path / 'no'))


def test_a_text_among_numbers_is_told_where_it_is(make):
  with pytest.raises(
    errors.UserError, match=r"t.csv, line 4: column 'a' has '\?', while most"
  ):
    make('a\n1\n2\n?\n3\n')


def test_too_many_categories_are_told(make):
  with pytest.raises(
    errors.UserError, match="column 'a' has 3 categories, more than"
  ):
    make('a\nx\ny\nz\nx\n', max_categories=2)


@pytest.mark.parametrize(
  ('text', 'told'), [('1e999', 'inf'), ('1e39', '1e[+]39'), ('-1e300', '-1e')]
)
def test_a_number_beyond_those_of_models_is_told_where_it_is(make, text, told):
  with pytest.raises(
    errors.UserError, match=f"line 3: column 'a' has {told}.* up to 3.4e[+]38"
  ):
    make(f'a\n1\n{text}\n')


@pytest.mark.parametrize('text', ['12,5', '1,234.5', '-1.234,5'])
def test_numbers_with_commas_are_told_where_they_are(make, text):
  with pytest.raises(
    errors.UserError, match=f"line 2: column 'a' has '{text}'. .* commas"
  ):
    make(f'a\n"{text}"\n"9,5"\n')


def test_texts_with_commas_are_categories(make):
  assert make('a\n"0,5"\n"1,2,x"\n').shape == (2,)
