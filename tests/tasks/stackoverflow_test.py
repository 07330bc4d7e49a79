"""Tests of StackOverflow, on a small database and on posts of other sites."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.baselines.stackoverflow import (
  word_prediction_preprocessing as tff_preprocessing,
)

from base import errors
from tasks import registry
from tasks import stackoverflow
from tests import data

_WORDS = ('the', 'a', '.', "don't", '<URL>')
_OOV, _BOS, _EOS = 6, 7, 8

# Of each user, the dates and sentences in the database's order.
_POSTS = {
  'trained': [
    ('2011-03-04 10:11:12 UTC', 'the a .'),
    ('2010-01-01 00:00:00 UTC', 'a new word .'),
    ('2012-01-01 00:00:00 UTC', 'the the'),
  ],
  'also trained': [('2011-03-04 10:11:12 UTC', '.')],
  'held out': [
    ('2010-05-06 07:08:09.3 UTC', 'a'),
    ('2010-05-06 07:08:09.25 UTC', 'the'),
    ('2009-12-31 23:59:59 UTC', '<URL>'),
    ('2010-05-06 07:08:09 UTC', '.'),
    ('2010-05-06 07:08:09 UTC', "don't"),
  ],
  'one': [('2010-05-06 07:08:09 UTC', 'a .'), ('2010-05-06 07:08:08 UTC', '.')],
  'two': [('2010-05-06 07:08:09 UTC', 'a .')],
  'later': [('2018-05-06 07:08:09 UTC', 'a .')],
}
_SPLITS = {
  'trained': 'train',
  'also trained': 'train',
  'held out': 'heldout',
  'one': 'heldout',
  'two': 'heldout',
  'later': 'test',
}


def _dataset(client_id):
  dates, sentences = zip(*_POSTS[client_id])
  n = len(sentences)
  return tf.data.Dataset.from_tensor_slices(
    dict(
      creation_date=list(dates),
      score=np.zeros(n, np.int64),
      tags=['tag'] * n,
      title=['title'] * n,
      tokens=list(sentences),
      type=['answer'] * n,
    )
  )


def _first_words(examples):
  return examples['y'][:, 0].tolist()


@pytest.mark.parametrize(
  'sentence',
  [
    'the a .',
    "a word that isn't there , don't <URL>",
    'the ' * 18 + 'a',
    'the ' * 19 + 'a',
    'the ' * 20 + 'a',
    'the ' * 40,
    '',
    ' ',
    'a  a',
    'THE\ta',
  ],
)
def test_numbers_are_those_of_tff(sentence):
  to_ids = tff_preprocessing.build_to_ids_fn(list(_WORDS), 20)
  expected = to_ids({'tokens': tf.constant(sentence)}).numpy()
  (ids,) = stackoverflow.Vocabulary(_WORDS).to_ids([sentence.encode()])
  assert ids.dtype == np.int32
  np.testing.assert_array_equal(ids[: len(expected)], expected)
  np.testing.assert_array_equal(ids[len(expected) :], 0)
  assert len(ids) == 21


def test_special_words_have_tffs_numbers():
  special = tff_preprocessing.get_special_tokens(len(_WORDS))
  assert special.out_of_vocab == [_OOV]
  ids = stackoverflow.Vocabulary(_WORDS).to_ids([b'else'])
  assert ids[0, :4].tolist() == [_BOS, _OOV, _EOS, special.padding]


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  """Writes a small database of TFF's form."""
  folder = tmp_path_factory.mktemp('stackoverflow')
  tff.simulation.datasets.save_to_sql_client_data(
    list(_POSTS),
    _dataset,
    str(folder / 'stackoverflow.sqlite'),
    split_names_by_client_id=_SPLITS,
  )
  (folder / 'counts').write_text(
    ''.join(f'{word}\t{9 - i}\n' for i, word in enumerate(_WORDS))
  )
  return folder


@pytest.fixture(name='load_task')
def _load_task(folder):
  def load_task(**values):
    values = dict(word_counts='counts', vocabulary_size=5) | values
    return registry.load('stackoverflow', data_dir=str(folder), **values)

  return load_task


def test_users_are_split_as_in_motley(load_task):
  task = load_task()
  assert task.train.client_ids == ('also trained', 'trained')
  order = np.random.RandomState(13).permutation(['held out', 'one', 'two'])
  assert task.validation.client_ids == [order[0]]
  assert task.test.client_ids == list(order[1:])


def test_the_word_to_predict_is_the_next_one(load_task):
  examples = load_task().train.sets['train']('trained')
  x = [[_BOS, 1, 2, 3, _EOS], [_BOS, 2, _OOV, _OOV, 3, _EOS], [_BOS, 1, 1]]
  y = [[1, 2, 3, _EOS], [2, _OOV, _OOV, 3, _EOS], [1, 1, _EOS]]
  for name, sentences in (('x', x), ('y', y)):
    for row, sentence in zip(examples[name], sentences):
      np.testing.assert_array_equal(row[: len(sentence)], sentence)
  assert examples['x'].shape == (3, 20)


def test_the_older_half_is_to_adapt_to(load_task):
  task = load_task(num_validation_clients=1, num_test_clients=2)
  sets = task.test.sets  # Both populations have the same.
  assert _first_words(sets['personalization']('held out')) == [5, 3]
  assert _first_words(sets['evaluation']('held out')) == [4, 1, 2]


def test_the_first_sentences_in_the_database_are_taken(load_task):
  task = load_task(max_examples=2)
  assert _first_words(task.train.sets['train']('trained')) == [1, 2]
  sets = task.test.sets
  assert _first_words(sets['personalization']('held out')) == [1]
  assert _first_words(sets['evaluation']('held out')) == [2]


@pytest.mark.parametrize('max_examples', [1, 2, 3, 1024])
def test_sizes_are_known_without_loading(max_examples, load_task):
  task = load_task(max_examples=max_examples)
  for population in (task.train, task.validation, task.test):
    for name, load in population.sets.items():
      sizes = [len(load(c)['y']) for c in population.client_ids]
      np.testing.assert_array_equal(population.sizes[name], sizes)


def test_the_model_takes_the_examples(load_task):
  task = load_task()
  examples = task.train.sets['train']('trained')
  weights = task.model.init(tf.constant([0, 1]))
  assert weights['output_bias'].shape == [_EOS + 1]
  correct, counted = task.model.statistics(weights, examples)['accuracy']
  assert counted.numpy().tolist() == [3, 2, 2]
  assert correct.shape == [3]


def test_more_words_than_are_counted_are_refused(load_task):
  with pytest.raises(
    errors.UserError, match='vocabulary_size is 6, but only 5 words'
  ):
    load_task(vocabulary_size=6)


@pytest.mark.parametrize('line', ['the', 'the 3 4', 'the three', '\n'])
def test_word_counts_of_another_form_are_refused(line, load_task, folder):
  (folder / 'others').write_text(f'a 9\n{line}\n')
  with pytest.raises(
    errors.UserError,
    match=f'{folder}/others, which task.word_counts names',
  ):
    load_task(word_counts='others')


def test_a_missing_file_of_word_counts_is_named(load_task):
  with pytest.raises(errors.UserError, match='/not/there'):
    load_task(word_counts='/not/there')


def test_a_failed_download_of_word_counts_says_what_to_do(load_task, folder):
  error = Exception('URL fetch failure')  # As Keras raises it.
  with mock.patch.object(tf.keras.utils, 'get_file', side_effect=error):
    with pytest.raises(
      errors.UserError, match=f'{folder} .*URL fetch.*task.word_counts'
    ):
      load_task(word_counts=None)


def test_by_default_the_words_are_those_of_tff(load_task, folder):
  counts = {word: 1 for word in _WORDS}
  with mock.patch.object(
    tff.simulation.datasets.stackoverflow,
    'load_word_counts',
    return_value=counts,
  ) as load_word_counts:
    actual, expected = (
      task.train.sets['train']('trained')
      for task in (load_task(word_counts=None), load_task())
    )
  load_word_counts.assert_called_once_with(cache_dir=str(folder), vocab_size=5)
  np.testing.assert_equal(actual, expected)


def test_stand_in_has_the_form_of_the_real_data():
  folder = data.tff_cache()
  task = registry.load(
    'stackoverflow',
    data_dir=str(folder),
    word_counts='datasets/stackoverflow.word_count',
    max_examples=10_000,
  )
  sizes = [
    len(population.client_ids)
    for population in (task.train, task.validation, task.test)
  ]
  assert sizes == [422, 23, 67]
  assert task.train.sizes['train'].sum() == 25_489
  examples = task.train.sets['train'](task.train.client_ids[0])
  assert set(examples['x'][:, 0]) == {10_002}
  assert 1 <= examples['y'].max() <= 10_003
  # Most words are in the vocabulary.
  assert np.mean(examples['y'] == 10_001) < 0.2
