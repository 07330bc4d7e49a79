"""Tests of WikiText, on small files of its form and on its articles."""

import gzip

import numpy as np
import pytest

from base import errors
from tasks import registry
from tasks import wikitext
from tests import data

_PARAGRAPH = ' The sea is <unk> . " It is blue ! " He said : why ? \n'


def _article(title, paragraphs=4):
  return (
    f' \n = {title} = \n \n'
    + _PARAGRAPH
    + ' \n = = Waters = = \n \n'
    + _PARAGRAPH * (paragraphs - 1)
  )


_TITLES = {
  'train': ['Battle of A', 'Lobster', '<unk>'],
  'valid': ['Sonic ( 1991 video game )', '<unk>'],
  'test': ['Beauty ( 1999 film )'],
}


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  (folder / 'wikitext-2').mkdir()
  for split, titles in _TITLES.items():
    text = ''.join(map(_article, titles)).encode()
    name = f'wiki.{split}.tokens'
    if split == 'test':
      name, text = f'{name}.gz', gzip.compress(text)
    (folder / 'wikitext-2' / name).write_bytes(text)
  return folder


def _load(folder, **values):
  return registry.load('wikitext', data_dir=str(folder), **values)


def test_clients_are_the_articles_of_all_files(folder):
  assert list(_load(folder).train.client_ids) == [
    '00000 Battle of A',
    '00001 Lobster',
    '00002 <unk>',
    '00003 Sonic ( 1991 video game )',
    '00004 <unk>',
    '00005 Beauty ( 1999 film )',
  ]


def test_groups_are_the_topics_of_titles(folder):
  group = _load(folder).attributes['group']
  assert [group.name(c) for c in sorted(group.values)] == [
    'battle',
    'other',
    'other',
    'video game',
    'other',
    'film',
  ]


@pytest.mark.parametrize(
  'title, expected',
  [
    ("Battle of Sullivan 's Island", 'battle'),
    ('Japanese battleship Asahi', 'other'),
    ('The Battle of Algiers ( 1966 film )', 'film'),
    ('Battles of Lexington and Concord', 'battle'),
    ('Video Games Live', 'video game'),
    ('Music of Final Fantasy VII', 'music'),
    ('Lyme disease', 'disease'),
    ('Homarus gammarus', 'other'),
  ],
)
def test_topic_is_the_last_that_the_title_names(title, expected):
  assert wikitext.topic(title) == expected


def test_sentences_end_behind_their_marks():
  assert wikitext.split_sentences(_PARAGRAPH.split()) == [
    'The sea is <unk> .'.split(),
    '" It is blue ! "'.split(),
    'He said : why ?'.split(),
  ]


def test_lines_of_formulas_are_no_titles():
  lines = [' = A = \n', ' \n', ' k = 1 : \n', ' = 2 k = \n', ' \n', ' = B = \n']
  articles = list(wikitext.read_articles(iter(lines)))
  assert [title for title, _ in articles] == ['A', 'B']
  assert [['=', '2', 'k', '=']] == articles[0][1][1:]


def test_three_quarters_of_the_sentences_are_trained_on(folder):
  task = _load(folder)
  assert task.cross_silo
  for client_id in task.train.client_ids:
    # 12 sentences of no more than 20 words, none of them a heading.
    train, validation, test = (
      sets[name](client_id)['y']
      for sets, name in (
        (task.train.sets, 'train'),
        (task.validation.sets, 'evaluation'),
        (task.test.sets, 'evaluation'),
      )
    )
    assert [len(train), len(validation), len(test)] == [9, 1, 2]
    np.testing.assert_array_equal(
      task.test.sets['personalization'](client_id)['y'], train
    )
    together = np.concatenate([train, validation, test])
    words = ['', *task.vocabulary]
    rebuilt = sorted(
      ' '.join(words[w] for w in y if 0 < w < len(words)) for y in together
    )
    assert rebuilt == sorted(
      4 * ['The sea is .', '" It is blue ! "', 'He said : why ?']
    )


def test_sizes_are_those_of_the_examples(folder):
  for values in ({}, {'hold_out': 'clients'}, {'sentence_length': 3}):
    task = _load(folder, **values)
    for population in (task.train, task.validation, task.test):
      for name, load in population.sets.items():
        np.testing.assert_array_equal(
          population.sizes[name],
          [len(load(client_id)['x']) for client_id in population.client_ids],
        )


def test_seed_decides_the_split(folder):
  def trained_on(seed):
    task = _load(folder, split_seed=seed)
    return [task.train.sets['train'](c)['x'] for c in task.train.client_ids]

  np.testing.assert_array_equal(trained_on(1), trained_on(1))
  assert any(
    not np.array_equal(one, other)
    for one, other in zip(trained_on(1), trained_on(2))
  )


def test_clients_that_are_held_out_have_a_group_and_no_say_in_the_words(
  folder, tmp_path
):
  task = _load(folder, hold_out='clients')
  held_out = {*task.validation.client_ids, *task.test.client_ids}
  assert held_out
  assert not held_out & {*task.train.client_ids}
  assert not task.cross_silo
  assert held_out <= task.attributes['group'].values.keys()

  (tmp_path / 'wikitext-2').mkdir()
  texts = [_article(f'Article {i}').replace('sea', f'sea{i}') for i in range(8)]
  path = tmp_path / 'wikitext-2' / 'wiki.train.tokens'
  path.write_text(''.join(texts))
  task = _load(tmp_path, hold_out='clients', splits='train')
  trained = {f'sea{int(c[:5])}' for c in task.train.client_ids}
  assert {w for w in task.vocabulary if w.startswith('sea')} == trained
  assert len(trained) == 6


def test_short_articles_are_left_out(folder):
  with pytest.raises(errors.UserError, match='task.min_sentences=13'):
    _load(folder, min_sentences=13)


def test_a_missing_file_is_named_with_advice(folder):
  with pytest.raises(
    errors.UserError, match='wiki.train.tokens is in none .*task.source'
  ):
    _load(folder, source='wikitext-103')


def test_a_file_without_articles_is_named(tmp_path):
  (tmp_path / 'wiki.train.tokens').write_text('The sea . \n')
  with pytest.raises(
    errors.UserError, match='wiki.train.tokens has no article'
  ):
    _load(tmp_path)


def test_real_articles_are_120():
  task = _load(
    data.path('wikitext2').parent, source='wikitext2', splits='valid,test'
  )
  assert len(task.train.client_ids) == 120
  group = task.attributes['group']
  names = [group.name(c) for c in task.train.client_ids]
  assert {n: names.count(n) for n in set(names)} == {
    'battle': 5,
    'film': 2,
    'video game': 1,
    'other': 112,
  }
