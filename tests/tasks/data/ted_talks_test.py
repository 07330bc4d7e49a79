import contextlib
import os
import pathlib
import sqlite3
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from tasks.data import ted_talks
from tests.tasks.data import ted_source


class ReadTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.source = pathlib.Path(
      self.enter_context(tempfile.TemporaryDirectory())
    )
    ted_source.write(self.source)

  def test_a_client_is_a_talk_in_a_language(self):
    talks = ted_talks.read(self.source)
    expected = {
      f'{language}-{talk}': split
      for split, name in ted_talks.FILES.items()
      for talk in ted_source.TALKS[name]
      for language in ('en', 'es')
      if ted_source.num_sentences(talk, language) >= 20
    }
    self.assertEqual(talks.splits, expected)
    self.assertEqual(talks.sentences.keys(), expected.keys())
    self.assertNotIn('en-train_0', expected)
    self.assertIn('es-dev_0', expected)
    languages = {ted_talks.language(client_id) for client_id in expected}
    self.assertEqual(languages, {'en', 'es'})

  def test_sentences_are_in_order_and_none_is_missing(self):
    talks = ted_talks.read(self.source)
    self.assertEqual(
      talks.sentences['es-test_1'],
      [f'the océano test1es{i}'.encode() for i in range(2, 23)],
    )

  def test_standardizes_as_tensorflow_does_in_motley(self):
    for sentence in (
      ' ¿ Y  ÉL dijo: "Don&apos;t"?\tNo_lo\xa0sé ... ( Applause )',
      "It 's a B-C , 3.5 % <br />",
      '...',
    ):
      lower = tf.strings.lower(sentence)
      plain = tf.strings.regex_replace(lower, '[[:punct:]]', '')
      self.assertEqual(
        ted_talks._words(sentence).split(),
        tf.strings.split(plain).numpy().tolist(),
      )

  def test_vocabulary_is_the_words_of_20_clients_to_train_on(self):
    talks = ted_talks.read(self.source)
    # Of 24 talks, 23 are long enough in English and 21 in Spanish.
    self.assertEqual(
      talks.vocabulary, [('the', 44), ('sea', 23), ('océano', 21)]
    )

  def test_shows_how_far_it_is(self):
    done = []
    ted_talks.read(self.source, done.append)
    self.assertEqual(done, sorted(done))
    self.assertEqual(done[-1], ted_talks.size(self.source))

  def test_a_file_that_is_not_there(self):
    (self.source / 'all_talks_dev.tsv').unlink()
    with self.assertRaisesRegex(
      errors.UserError, f'There is no {self.source}/all_talks_dev.tsv'
    ):
      ted_talks.read(self.source)

  @parameterized.named_parameters(
    ('of_no_text', b'\xff\xfe\x00', 'cannot be read'),
    ('empty', b'', "no column 'en'"),
    ('without_spanish', b'talk_name\ten\n', "no column 'es'"),
  )
  def test_a_file_of_another_form_is_named(self, content, message):
    path = self.source / 'all_talks_test.tsv'
    path.write_bytes(content)
    with self.assertRaisesRegex(errors.UserError, f'{path}.*{message}'):
      ted_talks.read(self.source)

  def test_too_few_talks(self):
    for name in ted_talks.FILES.values():
      (self.source / name).write_text('talk_name\ten\tes\na\tb\tc\n')
    with self.assertRaisesRegex(
      errors.UserError, f'{self.source} is too small'
    ):
      ted_talks.read(self.source)


class WriteTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
      self.enter_context(tempfile.TemporaryDirectory())
    )
    self.path = self.folder / 'new' / 'talks.sqlite'
    ted_source.write(self.folder / 'source')
    self.talks = ted_talks.read(self.folder / 'source')

  def test_tffs_client_data_reads_it(self):
    ted_talks.write(self.talks, self.path)
    self.assertEqual(os.listdir(self.path.parent), [self.path.name])
    for split in ted_talks.FILES:
      clients = tff.simulation.datasets.load_and_parse_sql_client_data(
        str(self.path), {ted_talks.FEATURE: tf.TensorSpec([], tf.string)}, split
      )
      self.assertEqual(
        clients.client_ids,
        sorted(c for c, own in self.talks.splits.items() if own == split),
      )
      for client_id in clients.client_ids:
        dataset = clients.create_tf_dataset_for_client(client_id)
        self.assertEqual(
          [own[ted_talks.FEATURE] for own in dataset.as_numpy_iterator()],
          self.talks.sentences[client_id],
        )

  def test_a_client_is_found_without_looking_at_all(self):
    ted_talks.write(self.talks, self.path)
    with contextlib.closing(sqlite3.connect(self.path)) as database:
      ((*_, plan),) = database.execute(
        'EXPLAIN QUERY PLAN SELECT * FROM examples WHERE client_id = ?', ('a',)
      )
    self.assertIn('USING INDEX', plan)

  def test_has_the_vocabulary(self):
    ted_talks.write(self.talks, self.path)
    with contextlib.closing(sqlite3.connect(self.path)) as database:
      rows = database.execute('SELECT * FROM vocabulary').fetchall()
    self.assertEqual(rows, self.talks.vocabulary)

  def test_replaces_one_that_is_there(self):
    self.path.parent.mkdir()
    self.path.write_text('old')
    self.test_has_the_vocabulary()

  def test_shows_how_far_it_is(self):
    done = []
    ted_talks.write(self.talks, self.path, done.append)
    self.assertEqual(done, sorted(done))
    self.assertEqual(done[-1], len(self.talks.splits))

  def test_leaves_nothing_behind_if_it_cannot(self):
    self.path.parent.mkdir()
    self.path.write_text('old')
    with (
      mock.patch.object(
        tff.simulation.datasets,
        'save_to_sql_client_data',
        side_effect=OSError('no space'),
      ),
      self.assertRaisesRegex(errors.UserError, f'{self.path} .*no space'),
    ):
      ted_talks.write(self.talks, self.path)
    self.assertEqual(os.listdir(self.path.parent), [self.path.name])
    self.assertEqual(self.path.read_text(), 'old')


if __name__ == '__main__':
  absltest.main()
