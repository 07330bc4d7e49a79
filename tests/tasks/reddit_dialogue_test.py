"""Tests of Reddit, on small corpora in the layout of ConvoKit."""

import gzip
import json

import numpy as np
import pytest

from base import errors
from tasks import registry
from tests.tasks import dialogue_source

_FOLDER = 'reddit-corpus-small'


def _utterance(number, speaker, text, meta, conversation='c0'):
  return {
    'id': f'u{number}',
    'conversation_id': conversation,
    'text': text,
    'speaker': speaker,
    'meta': {'score': 1, **meta},
    'reply-to': None,
    'timestamp': 1_500_000_000 + number,
    'vectors': [],
  }


def _said(speaker, subreddit, times):
  return [(speaker, subreddit, 'It is so. (Is it?)')] * times


# Two sentences each. 'few' are too few, and so are ann's without 'rare'.
_POSTS = [
  *_said('ann', 'aww', 5),
  *_said('bob', 'aww', 4),
  *_said('bob', 'news', 8),
  *_said('cat', 'news', 6),
  *_said('few', 'news', 2),
  *_said('dan', 'news', 4),
  *_said('dan', 'rare', 2),
  ('[deleted]', 'news', 'It is so.'),
  ('cat', 'news', '[removed]'),
  ('cat', 'news', None),
]


def _write(folder, lines, conversations=None):
  corpus = folder / _FOLDER
  corpus.mkdir()
  (corpus / 'utterances.jsonl').write_text('\n'.join(lines), encoding='utf-8')
  (corpus / 'speakers.json').write_text('{}', encoding='utf-8')
  if conversations is not None:
    text = json.dumps(conversations)
    (corpus / 'conversations.json').write_text(text, encoding='utf-8')


def _lines(posts=_POSTS):
  return [
    json.dumps(_utterance(i, speaker, text, {'subreddit': subreddit}))
    for i, (speaker, subreddit, text) in enumerate(posts)
  ]


def _load(folder, **values):
  values = (
    dict(min_utterances=10, min_context_utterances=14, utterance_length=16)
    | values
  )
  return registry.load('reddit_dialogue', data_dir=str(folder), **values)


def _contexts(task):
  """The names of the contexts of each user."""
  return {
    user: {
      task.contexts[number]
      for population, name in (
        (task.train, 'train'),
        (task.test, 'personalization'),
      )
      for number in population.sets[name](user)['context']
    }
    for user in task.train.client_ids
  }


def test_clients_are_users_and_contexts_their_subreddits(tmp_path):
  dialogue_source.write(tmp_path)
  _write(tmp_path, _lines())
  task = _load(tmp_path)
  assert list(task.contexts) == ['aww', 'news']
  # Without 'rare', which has four utterances, dan has but eight.
  assert _contexts(task) == {
    'ann': {'aww'},
    'bob': {'aww', 'news'},
    'cat': {'news'},
  }
  sizes = [
    population.sizes[name]
    for population, name in (
      (task.train, 'train'),
      (task.validation, 'evaluation'),
      (task.test, 'personalization'),
      (task.test, 'evaluation'),
    )
  ]
  # All but what was deleted.
  np.testing.assert_array_equal(sum(sizes), [10, 24, 12])


def test_contexts_that_are_left_out_are_not_numbered(tmp_path):
  dialogue_source.write(tmp_path)
  _write(tmp_path, _lines())
  task = _load(tmp_path, min_context_utterances=20)
  assert list(task.contexts) == ['news']
  assert _contexts(task) == {'bob': {'news'}, 'cat': {'news'}}
  everyone = _load(tmp_path, min_context_utterances=1)
  assert list(everyone.contexts) == ['aww', 'news', 'rare']
  assert _contexts(everyone)['dan'] == {'news', 'rare'}


@pytest.mark.parametrize('old', [False, True])
def test_a_conversation_may_tell_the_subreddit(tmp_path, old):
  """In the layout of ConvoKit's versions before and from 2.4 on."""
  dialogue_source.write(tmp_path)
  lines = []
  for i, (speaker, subreddit, text) in enumerate(_POSTS):
    utterance = _utterance(i, speaker, text, {}, subreddit)
    if old:
      utterance = {
        **utterance,
        'user': utterance['speaker'],
        'root': utterance['conversation_id'],
      }
      del utterance['speaker'], utterance['conversation_id']
    lines.append(json.dumps(utterance))
  conversations = {
    subreddit: {'subreddit': subreddit, 'title': 'A title'}
    for _, subreddit, _ in _POSTS
  }
  if not old:
    conversations = {
      name: {'meta': meta, 'vectors': []}
      for name, meta in conversations.items()
    }
  _write(tmp_path, lines, conversations)
  assert _contexts(_load(tmp_path)).keys() == {'ann', 'bob', 'cat'}


def test_files_may_be_compressed(tmp_path):
  dialogue_source.write(tmp_path)
  (tmp_path / _FOLDER).mkdir()
  packed = gzip.compress('\n'.join(_lines()).encode())
  (tmp_path / _FOLDER / 'utterances.jsonl.gz').write_bytes(packed)
  assert len(_load(tmp_path).train.client_ids) == 3


def test_users_and_subreddits_of_few_utterances_are_left_out_as_in_the_paper(
  tmp_path,
):
  dialogue_source.write(tmp_path)
  posts = [*_said('ann', 'aww', 75), *_said('bob', 'news', 74)]
  _write(tmp_path, _lines(posts))
  task = registry.load(
    'reddit_dialogue', data_dir=str(tmp_path), utterance_length=16
  )
  assert list(task.train.client_ids) == ['ann']


_GOOD = _lines()[0]


@pytest.mark.parametrize(
  'line',
  [
    '{',
    'null',
    '{"speaker": "ann", "text": "So."}',
    json.dumps({**json.loads(_GOOD), 'text': 3}),
    json.dumps({**json.loads(_GOOD), 'meta': []}),
    json.dumps({**json.loads(_GOOD), 'meta': {'subreddit': None}}),
  ],
)
def test_says_which_line_is_no_utterance(tmp_path, line):
  _write(tmp_path, [_GOOD, line])
  message = (
    'utterances.jsonl, line 2, cannot be read as an utterance .*ConvoKit'
  )
  with pytest.raises(errors.UserError, match=message):
    _load(tmp_path)


@pytest.mark.parametrize('contents', [b'{', b'[]', b'\xff'])
def test_says_that_the_conversations_are_damaged(tmp_path, contents):
  _write(tmp_path, [_GOOD])
  (tmp_path / _FOLDER / 'conversations.json').write_bytes(contents)
  with pytest.raises(errors.UserError, match='conversations.json cannot be'):
    _load(tmp_path)


def test_says_what_is_missing(tmp_path):
  with pytest.raises(errors.UserError, match=f'{_FOLDER} is in none of'):
    _load(tmp_path)
  (tmp_path / _FOLDER).mkdir()
  with pytest.raises(errors.UserError, match='utterances.jsonl is in none of'):
    _load(tmp_path)


def test_says_that_nobody_has_enough(tmp_path):
  dialogue_source.write(tmp_path)
  _write(tmp_path, [_GOOD])
  with pytest.raises(errors.UserError, match='task.min_utterances=10'):
    _load(tmp_path)
