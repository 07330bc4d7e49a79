"""Tests of TedMulti."""

import functools
import shutil
import sqlite3

import numpy as np
import pytest

from base import errors
from tasks import registry
from tasks import ted_multi
from tasks.data import ted_talks
from tests.tasks import ted_source

_OOV, _BOS, _EOS = 4, 5, 6
_NUMBERS = {'the': 1, 'sea': 2, 'océano': 3}


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  ted_source.write(folder / 'source')
  return folder


@pytest.fixture(name='talks', scope='module')
def _talks(folder):
  return ted_talks.read(folder / 'source')


@pytest.fixture(name='path', scope='module')
def _path(folder, talks):
  """Writes the database."""
  path = folder / ted_talks.DATABASE
  ted_talks.write(talks, path)
  return path


@pytest.fixture(name='load_task')
def _load_task(folder, path):
  del path
  return functools.partial(registry.load, 'ted_multi', data_dir=str(folder))


def test_clients_are_those_of_the_files(load_task, talks):
  task = load_task()
  for population, split in (
    (task.train, 'train'),
    (task.validation, 'validation'),
    (task.test, 'test'),
  ):
    assert list(population.client_ids) == sorted(
      c for c, of_talk in talks.splits.items() if of_talk == split
    )
    for name, load in population.sets.items():
      np.testing.assert_array_equal(
        population.sizes[name],
        [len(load(client_id)['x']) for client_id in population.client_ids],
      )


def test_words_are_numbered(load_task):
  examples = load_task().train.sets['train']('es-train_1')
  assert len(examples['x']) == ted_source.num_sentences('train_1', 'es')
  # 'the océano train1es2', whose last word is not in the vocabulary.
  words = [_BOS, _NUMBERS['the'], _NUMBERS['océano'], _OOV, _EOS]
  np.testing.assert_array_equal(examples['x'][0], words + 15 * [0])
  np.testing.assert_array_equal(examples['y'][0], words[1:] + 16 * [0])
  for ids in examples.values():
    assert ids.dtype == np.int32


def test_held_out_talks_are_halved_in_their_order(load_task, talks):
  whole = {'en': [], 'es': []}
  task = load_task()
  for client_id in task.test.client_ids:
    sets = task.test.sets
    first, second = (
      sets[name](client_id)['y'] for name in ('personalization', 'evaluation')
    )
    size = len(talks.sentences[client_id])
    assert len(first) == size // 2
    assert len(second) == size - size // 2
    whole[ted_talks.language(client_id)] += [*first, *second]
  # No word of one language occurs in the other.
  assert {y[1] for y in whole['en']} == {_NUMBERS['sea']}
  assert {y[1] for y in whole['es']} == {_NUMBERS['océano']}


def test_a_client_is_trained_on_512_sentences_at_most(talks, tmp_path):
  sentences = {
    **talks.sentences,
    'en-long': [f'the {i % 7}'.encode() for i in range(600)],
  }
  longer_talks = ted_talks.Talks(
    sentences,
    {**talks.splits, 'en-long': 'train'},
    [(str(i), 20) for i in range(7)],
  )
  ted_talks.write(longer_talks, tmp_path / ted_talks.DATABASE)
  task = registry.load('ted_multi', data_dir=str(tmp_path))
  sizes = dict(zip(task.train.client_ids, task.train.sizes['train']))
  assert sizes['en-long'] == 512
  examples = task.train.sets['train']('en-long')
  np.testing.assert_array_equal(examples['y'][:, 1], np.arange(512) % 7 + 1)


def test_groups_are_the_languages(load_task, talks):
  task = load_task()
  group = task.attributes['group']
  assert group.values.keys() == talks.splits.keys()
  for client_id in group.values:
    assert client_id.startswith(f'{group.name(client_id)}-')


def test_model_has_these_words(load_task):
  weights = load_task().model.init(np.array([0, 1], np.int32))
  assert weights['embedding'].shape == [len(_NUMBERS) + 4, 96]


def test_a_missing_database_is_refused_with_advice(tmp_path):
  data_dir = str(tmp_path)
  with pytest.raises(
    errors.UserError,
    match='ted_multi_en_es.sqlite is in none .*prepare_ted_multi',
  ):
    registry.load('ted_multi', data_dir=data_dir)


def _truncate(path):
  path.write_bytes(path.read_bytes()[:5000])


def _change(path, sql):
  with sqlite3.connect(path) as database:
    database.execute(sql)


@pytest.mark.parametrize(
  'damage',
  [
    _truncate,
    functools.partial(_change, sql='DROP TABLE client_metadata'),
    functools.partial(_change, sql='DROP TABLE vocabulary'),
    functools.partial(_change, sql='DELETE FROM vocabulary'),
    functools.partial(_change, sql="UPDATE vocabulary SET word = x'ff'"),
    functools.partial(
      _change, sql="UPDATE client_metadata SET num_examples = 'many'"
    ),
  ],
  ids=['cut_off', 'no_clients', 'no_vocabulary', 'no_words', 'bytes', 'sizes'],
)
def test_a_damaged_database_is_named(damage, path, tmp_path):
  damaged = tmp_path / path.name
  shutil.copy(path, damaged)
  damage(damaged)
  with pytest.raises(
    errors.UserError,
    match=f'{damaged} cannot be read as a whole database.*prepare_ted_multi',
  ):
    ted_multi.load(ted_multi.TedMultiSettings(), str(tmp_path), seed=0)
