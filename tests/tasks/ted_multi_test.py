import pathlib
import shutil
import sqlite3
import tempfile

from absl.testing import absltest
import numpy as np

from base import errors
from tasks import registry
from tasks import ted_multi
from tasks.data import ted_talks
from tests.tasks.data import ted_source

_OOV, _BOS, _EOS = 4, 5, 6
_NUMBERS = {'the': 1, 'sea': 2, 'océano': 3}


class TedMultiTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    ted_source.write(cls.folder / 'source')
    cls.talks = ted_talks.read(cls.folder / 'source')
    cls.path = cls.folder / ted_talks.DATABASE
    ted_talks.write(cls.talks, cls.path)

  def load(self):
    return registry.load('ted_multi', data_dir=str(self.folder))

  def test_clients_are_those_of_the_files(self):
    task = self.load()
    for population, split in (
      (task.train, 'train'),
      (task.validation, 'validation'),
      (task.test, 'test'),
    ):
      self.assertEqual(
        list(population.client_ids),
        sorted(c for c, own in self.talks.splits.items() if own == split),
      )
      for name, load in population.sets.items():
        np.testing.assert_array_equal(
          population.sizes[name],
          [len(load(client_id)['x']) for client_id in population.client_ids],
        )

  def test_words_are_numbered(self):
    own = self.load().train.sets['train']('es-train_1')
    self.assertLen(own['x'], ted_source.num_sentences('train_1', 'es'))
    # 'the océano train1es2', of which the last is not in the vocabulary.
    words = [_BOS, _NUMBERS['the'], _NUMBERS['océano'], _OOV, _EOS]
    np.testing.assert_array_equal(own['x'][0], words + 15 * [0])
    np.testing.assert_array_equal(own['y'][0], words[1:] + 16 * [0])
    for ids in own.values():
      self.assertEqual(ids.dtype, np.int32)

  def test_held_out_talks_are_halved_in_their_order(self):
    whole = {'en': [], 'es': []}
    task = self.load()
    for client_id in task.test.client_ids:
      sets = task.test.sets
      first, second = (
        sets[name](client_id)['y'] for name in ('personalization', 'evaluation')
      )
      size = len(self.talks.sentences[client_id])
      self.assertLen(first, size // 2)
      self.assertLen(second, size - size // 2)
      whole[ted_talks.language(client_id)] += [*first, *second]
    # Words of a language are not said in the other.
    self.assertEqual({y[1] for y in whole['en']}, {_NUMBERS['sea']})
    self.assertEqual({y[1] for y in whole['es']}, {_NUMBERS['océano']})

  def test_a_client_is_trained_on_512_sentences_at_most(self):
    folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    sentences = {
      **self.talks.sentences,
      'en-long': [f'the {i % 7}'.encode() for i in range(600)],
    }
    talks = ted_talks.Talks(
      sentences,
      {**self.talks.splits, 'en-long': 'train'},
      [(str(i), 20) for i in range(7)],
    )
    ted_talks.write(talks, folder / ted_talks.DATABASE)
    task = registry.load('ted_multi', data_dir=str(folder))
    sizes = dict(zip(task.train.client_ids, task.train.sizes['train']))
    self.assertEqual(sizes['en-long'], 512)
    own = task.train.sets['train']('en-long')
    np.testing.assert_array_equal(own['y'][:, 1], np.arange(512) % 7 + 1)

  def test_groups_are_the_languages(self):
    task = self.load()
    group = task.attributes['group']
    self.assertEqual(group.values.keys(), self.talks.splits.keys())
    for client_id in group.values:
      self.assertTrue(client_id.startswith(f'{group.name(client_id)}-'))

  def test_model_has_these_words(self):
    weights = self.load().model.init(np.array([0, 1], np.int32))
    self.assertEqual(weights['embedding'].shape, [len(_NUMBERS) + 4, 96])

  def test_a_database_that_is_nowhere(self):
    data_dir = self.enter_context(tempfile.TemporaryDirectory())
    with self.assertRaisesRegex(
      errors.UserError, 'ted_multi_en_es.sqlite is in none .*prepare_ted_multi'
    ):
      registry.load('ted_multi', data_dir=data_dir)

  def test_a_damaged_database_is_named(self):
    def truncate(path):
      path.write_bytes(path.read_bytes()[:5000])

    def drop(table):
      def statement(path):
        with sqlite3.connect(path) as database:
          database.execute(f'DROP TABLE {table}')

      return statement

    for damage in (truncate, *map(drop, ('client_metadata', 'vocabulary'))):
      folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
      path = folder / self.path.name
      shutil.copy(self.path, path)
      damage(path)
      with self.assertRaisesRegex(
        errors.UserError, f'{path} is damaged.*prepare_ted_multi'
      ):
        ted_multi.load(ted_multi.Parameters(), str(folder), seed=0)


if __name__ == '__main__':
  absltest.main()
