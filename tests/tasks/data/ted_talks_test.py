"""Tests of making the database of TED talks."""

import contextlib
import os
import sqlite3
from unittest import mock

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from tasks.data import ted_talks
from tests.tasks import ted_source


@pytest.fixture(name='source')
def _source(tmp_path):
  """Writes the files."""
  source = tmp_path / 'source'
  ted_source.write(source)
  return source


@pytest.fixture(name='talks')
def _talks(source):
  return ted_talks.read(source)


@pytest.fixture(name='path')
def _path(tmp_path):
  """Names the path of the database."""
  return tmp_path / 'new' / 'talks.sqlite'


def test_a_client_is_a_talk_in_a_language(talks):
  expected = {
    f'{language}-{talk}': split
    for split, name in ted_talks.FILES.items()
    for talk in ted_source.TALKS[name]
    for language in ('en', 'es')
    if ted_source.num_sentences(talk, language) >= 20
  }
  assert talks.splits == expected
  assert talks.sentences.keys() == expected.keys()
  assert 'en-train_0' not in expected
  assert 'es-dev_0' in expected
  languages = {ted_talks.language(client_id) for client_id in expected}
  assert languages == {'en', 'es'}


def test_sentences_are_in_order_and_none_is_missing(talks):
  assert talks.sentences['es-test_1'] == [
    f'the océano test1es{i}'.encode() for i in range(2, 23)
  ]


def test_sentences_are_standardized_as_tensorflow_does_in_motley():
  for sentence in (
    ' ¿ Y  ÉL dijo: "Don&apos;t"?\tNo_lo\xa0sé ... ( Applause )',
    "It 's a B-C , 3.5 % <br />",
    '...',
  ):
    lower = tf.strings.lower(sentence)
    plain = tf.strings.regex_replace(lower, '[[:punct:]]', '')
    assert (
      ted_talks._words(sentence).split()
      == tf.strings.split(plain).numpy().tolist()
    )


def test_vocabulary_is_the_words_of_20_clients_to_train_on(talks):
  # Of 24 talks, 23 are long enough in English and 21 in Spanish.
  assert talks.vocabulary == [('the', 44), ('sea', 23), ('océano', 21)]


def test_reading_shows_how_far_it_is(source):
  done = []
  ted_talks.read(source, done.append)
  assert done == sorted(done)
  assert done[-1] == ted_talks.size(source)


def test_a_missing_file_is_named(source):
  (source / 'all_talks_dev.tsv').unlink()
  with pytest.raises(
    errors.UserError, match=f'There is no {source}/all_talks_dev.tsv'
  ):
    ted_talks.read(source)


@pytest.mark.parametrize(
  'content, message',
  [
    (b'\xff\xfe\x00', 'cannot be read'),
    (b'', "no column 'en'"),
    (b'talk_name\ten\n', "no column 'es'"),
  ],
  ids=['of_no_text', 'empty', 'without_spanish'],
)
def test_a_file_of_another_form_is_named(content, message, source):
  path = source / 'all_talks_test.tsv'
  path.write_bytes(content)
  with pytest.raises(errors.UserError, match=f'{path}.*{message}'):
    ted_talks.read(source)


def test_too_few_talks_are_refused(source):
  for name in ted_talks.FILES.values():
    (source / name).write_text('talk_name\ten\tes\na\tb\tc\n')
  with pytest.raises(errors.UserError, match=f'{source} is too small'):
    ted_talks.read(source)


def test_tffs_client_data_reads_the_database(talks, path):
  ted_talks.write(talks, path)
  assert os.listdir(path.parent) == [path.name]
  for split in ted_talks.FILES:
    clients = tff.simulation.datasets.load_and_parse_sql_client_data(
      str(path), {ted_talks.FEATURE: tf.TensorSpec([], tf.string)}, split
    )
    assert clients.client_ids == sorted(
      c for c, of_talk in talks.splits.items() if of_talk == split
    )
    for client_id in clients.client_ids:
      dataset = clients.create_tf_dataset_for_client(client_id)
      assert [
        sentence[ted_talks.FEATURE] for sentence in dataset.as_numpy_iterator()
      ] == talks.sentences[client_id]


def test_a_client_is_found_without_looking_at_all(talks, path):
  ted_talks.write(talks, path)
  with contextlib.closing(sqlite3.connect(path)) as database:
    ((*_, plan),) = database.execute(
      'EXPLAIN QUERY PLAN SELECT * FROM examples WHERE client_id = ?', ('a',)
    )
  assert 'USING INDEX' in plan


def _vocabulary(path):
  with contextlib.closing(sqlite3.connect(path)) as database:
    return database.execute('SELECT * FROM vocabulary').fetchall()


def test_database_has_the_vocabulary(talks, path):
  ted_talks.write(talks, path)
  assert _vocabulary(path) == talks.vocabulary


def test_a_database_that_is_there_is_replaced(talks, path):
  path.parent.mkdir()
  path.write_text('old')
  ted_talks.write(talks, path)
  assert _vocabulary(path) == talks.vocabulary


def test_writing_shows_how_far_it_is(talks, path):
  done = []
  ted_talks.write(talks, path, done.append)
  assert done == sorted(done)
  assert done[-1] == len(talks.splits)


def test_a_failed_write_leaves_the_old_database(talks, path):
  path.parent.mkdir()
  path.write_text('old')
  with (
    mock.patch.object(
      tff.simulation.datasets,
      'save_to_sql_client_data',
      side_effect=OSError('no space'),
    ),
    pytest.raises(errors.UserError, match=f'{path} .*no space'),
  ):
    ted_talks.write(talks, path)
  assert os.listdir(path.parent) == [path.name]
  assert path.read_text() == 'old'
