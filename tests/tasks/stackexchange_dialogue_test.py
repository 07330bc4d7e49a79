"""Tests of Stack Exchange as a dialogue, on a small file and on its posts."""

import json

import numpy as np
import pytest

from base import errors
from tasks import dialogue
from tasks import registry
from tasks.models import gpt2
from tests import data
from tests.tasks import dialogue_source


def _post(user, kind, text='It is ale. (It is a lager.) So it is!'):
  site = user.split(':')[0]
  return dict(site=site, type=kind, user=user, text=text, title=None)


# A user of both types of posts, one of one type, and one who says too little.
_POSTS = [
  *[_post('beer:1', kind) for kind in ('question', 'answer') for _ in range(2)],
  *[_post('coffee:2', 'answer') for _ in range(4)],
  _post('coffee:3', 'question'),
]


def _write(folder, lines):
  (folder / 'stackexchange').mkdir(exist_ok=True)
  path = folder / 'stackexchange/posts.jsonl'
  path.write_text('\n'.join(lines), encoding='utf-8')


def _load(folder, **values):
  values = dict(min_utterances=10, utterance_length=16) | values
  return registry.load('stackexchange_dialogue', data_dir=str(folder), **values)


def test_contexts_are_sites_and_types_of_posts_and_users_may_have_several(
  tmp_path,
):
  dialogue_source.write(tmp_path)
  _write(tmp_path, map(json.dumps, _POSTS))
  task = _load(tmp_path)
  assert list(task.train.client_ids) == ['beer:1', 'coffee:2']
  assert list(task.contexts) == [
    'beer question',
    'beer answer',
    'coffee answer',
    'coffee question',
  ]
  contexts = [
    np.unique(task.train.sets['train'](user)['context']).tolist()
    for user in task.train.client_ids
  ]
  assert contexts == [[0, 1], [2]]
  assert task.model.most_contexts == 2
  # Users with several contexts are in no group.
  assert not task.attributes


def test_a_sentence_may_end_behind_a_bracket():
  text = 'It is ale. (It is a lager.) "So it is!" he says.'
  assert dialogue.split_sentences(text, written=True) == [
    'It is ale.',
    '(It is a lager.)',
    '"So it is!"',
    'he says.',
  ]


@pytest.mark.parametrize(
  'line', ['{', '[]', 'null', '{"site": "beer"}', json.dumps(_post('b:1', 3))]
)
def test_says_which_line_is_no_post(tmp_path, line):
  _write(tmp_path, [json.dumps(_POSTS[0]), line])
  with pytest.raises(
    errors.UserError, match='line 2, cannot be read as a post'
  ):
    _load(tmp_path)


def test_says_which_file_is_missing(tmp_path):
  with pytest.raises(errors.UserError, match='posts.jsonl is in none of'):
    _load(tmp_path)


def test_real_users_have_up_to_six_contexts(tmp_path):
  posts = data.path('stackexchange/posts.jsonl.gz')
  # With all tokens of GPT-2, by which short sentences are left out.
  dialogue_source.write(tmp_path, gpt2.Gpt2(50_257, 32, 2, 1, 1))
  task = _load(
    tmp_path,
    file=str(posts),
    tokenizer=str(data.path('gpt2_bpe')),
    min_utterances=25,
    utterance_length=32,
  )
  assert sorted(task.contexts) == [
    f'{site} {kind}'
    for site in ('beer', 'coffee', 'matheducators')
    for kind in ('answer', 'question')
  ]
  users = task.train.client_ids
  assert len(users) == 272
  said = [
    [
      population.sets[name](user)['context']
      for population, name in (
        (task.train, 'train'),
        (task.validation, 'evaluation'),
        (task.test, 'personalization'),
        (task.test, 'evaluation'),
      )
    ]
    for user in users
  ]
  several = [len(np.unique(np.concatenate(of_user))) > 1 for of_user in said]
  assert sum(several) == 145
