"""Tests of Stack Exchange, on a small file of its form and on its posts."""

import gzip
import json

import numpy as np
import pytest

from base import errors
from tasks import registry
from tasks import stackexchange
from tests import data


def _post(user='beer:1', text='Ale is good. So is lager!', **others):
  return {'site': user.split(':')[0], 'user': user, 'text': text, **others}


# Two users of 8 sentences or more, and one of fewer.
_POSTS = [
  *[_post() for _ in range(4)],
  _post('coffee:7', "Is it hot?\nIt's hot. " * 4, title='Coffee'),
  _post('coffee:8', title=None),
]


@pytest.fixture(name='folder')
def _folder(tmp_path):
  _write(tmp_path, map(json.dumps, _POSTS))
  return tmp_path


def _write(folder, lines):
  (folder / 'stackexchange').mkdir()
  path = folder / 'stackexchange' / 'posts.jsonl.gz'
  path.write_bytes(gzip.compress('\n'.join(lines).encode()))


def _load(folder, **values):
  return registry.load('stackexchange', data_dir=str(folder), **values)


def test_clients_are_the_users_and_groups_their_sites(folder):
  task = _load(folder)
  assert list(task.train.client_ids) == ['beer:1', 'coffee:7']
  group = task.attributes['group']
  assert [group.name(c) for c in task.train.client_ids] == ['beer', 'coffee']


def test_text_is_split_into_sentences_and_words():
  text = 'Is it 5.5 % ABV? (See here.)\nI don\'t "know"...'
  assert stackexchange.split_sentences(text) == [
    ['is', 'it', '5', '.', '5', '%', 'abv', '?'],
    ['(', 'see', 'here', '.', ')'],
    ['i', "don't", '"', 'know', '"', '.', '.', '.'],
  ]


def test_titles_are_sentences(folder):
  task = _load(folder)
  sizes = [
    sum(
      len(sets[name]('coffee:7')['x'])
      for sets, name in (
        (task.train.sets, 'train'),
        (task.validation.sets, 'evaluation'),
        (task.test.sets, 'evaluation'),
      )
    )
  ]
  assert sizes == [9]


@pytest.mark.parametrize(
  'line, message',
  [
    ('{"site": ', 'Expecting value'),
    ('[]', 'no object'),
    (json.dumps({'site': 'beer', 'text': 'a'}), 'no text "user"'),
    (json.dumps(_post(title=3)), 'no text "title"'),
    (json.dumps(_post() | {'site': 'tea'}), 'user beer:1 is of tea and beer'),
  ],
)
def test_a_line_that_is_no_post_is_named(line, message, tmp_path):
  _write(tmp_path, [json.dumps(_post()), line])
  with pytest.raises(
    errors.UserError, match=f'posts.jsonl.gz, line 2, .*{message}'
  ):
    _load(tmp_path)


def test_model_spells_the_vocabulary(folder):
  task = _load(folder)
  assert task.metric == 'perplexity'
  assert task.model.frozen['spelling'].shape[0] == len(task.vocabulary) + 4
  assert task.model.vocabulary_size == len(task.vocabulary)


def test_real_users_are_of_three_sites():
  task = _load(data.path('stackexchange').parent)
  group = task.attributes['group']
  names = [group.name(c) for c in task.train.client_ids]
  assert {n: names.count(n) for n in set(names)} == {
    'beer': 316,
    'coffee': 75,
    'matheducators': 248,
  }
  assert len(task.vocabulary) == 5000
  examples = task.train.sets['train'](task.train.client_ids[0])
  assert examples['y'].max() < 5004
  assert np.all((examples['y'] == 0).sum(axis=1) < 20)
