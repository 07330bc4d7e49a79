"""Tests of the texts that a language model is pretrained on."""

import gzip
import json

import pytest

from base import errors
from experiments.language_models import corpora

_POSTS = (
  {'site': 'tea', 'user': 'a', 'text': 'One.'},
  {'site': 'tea', 'user': 'b', 'text': ' Two <unk>. '},
  {'site': 'ale', 'user': 'a', 'text': 'Three.'},
)


@pytest.fixture(name='data_dir')
def _data_dir(tmp_path):
  (tmp_path / 'wiki').mkdir()
  with gzip.open(tmp_path / 'wiki/wiki.valid.tokens.gz', 'wt') as file:
    file.write(
      ' \n = A <unk> = \n \n The <unk> <unk> ( " <unk> " ) is . \n'
      ' \n = = B = = \n \n = 1 <unk> \n'
    )
  (tmp_path / 'plain.txt').write_text('First line.\n\n= a =\nLast "line" .')
  lines = '\n'.join(map(json.dumps, _POSTS))
  with gzip.open(tmp_path / 'posts.jsonl.gz', 'wt') as file:
    file.write(lines)
  return str(tmp_path)


def _read(data_dir, *sources, left_out=None, field='text'):
  return corpora.read(sources, data_dir, True, field, left_out or {})


def test_unknown_words_and_headings_of_wikitext_are_left_out(data_dir, capsys):
  found = _read(data_dir, 'wiki')
  assert found == [' The', ' ("', '") is.\n= 1', '\n']
  assert found == _read(data_dir, 'wiki/wiki.valid.tokens')
  said = capsys.readouterr().err
  assert 'left out 2 headings' in said
  assert 'Left out <unk> 4 times' in said


def test_other_texts_are_as_they_are(data_dir):
  assert _read(data_dir, 'plain.txt') == ['First line.\n\n= a =\nLast "line" .']
  posts = ['One.\n', 'Two', '.\n', 'Three.\n']
  assert _read(data_dir, 'posts.jsonl') == posts
  assert _read(data_dir, 'posts.jsonl.gz', 'wiki')[:4] == posts
  assert _read(data_dir, 'posts.jsonl', field='user') == ['a\n', 'b\n', 'a\n']


@pytest.mark.parametrize(
  ('left_out', 'left'),
  (
    ({'user': ['a']}, ['Two', '.\n']),
    ({'user': ['a', 'b']}, []),
    ({'site': ['tea']}, ['Three.\n']),
    ({'site,user': ['tea b', 'ale a']}, ['One.\n']),
    ({'site': ['ale'], 'user': ['b']}, ['One.\n']),
  ),
)
def test_users_and_contexts_are_left_out_by_name(data_dir, left_out, left):
  assert _read(data_dir, 'posts.jsonl', left_out=left_out) == left


@pytest.mark.parametrize(
  ('source', 'left_out', 'field', 'message'),
  (
    ('posts.jsonl', {'user': ['c']}, 'text', "--leave_out: Unknown user 'c'"),
    ('posts.jsonl', {'who': ['a']}, 'text', '--leave_out=who=…: no .jsonl'),
    ('plain.txt', {'user': ['a']}, 'text', '--leave_out=user=…: no .jsonl'),
    ('posts.jsonl', {}, 'body', 'line 1, .*no text "body".*--text_field'),
    ('none.jsonl', {}, 'text', 'none.jsonl is in none of .*--source'),
    ('plain', {}, 'text', r'ends in \.tokens, \.txt or \.jsonl'),
  ),
)
def test_says_what_is_wrong(data_dir, source, left_out, field, message):
  with pytest.raises(errors.UserError, match=message):
    _read(data_dir, source, left_out=left_out, field=field)


@pytest.mark.parametrize(
  ('users', 'message'),
  (
    ([{'user': 'a'}, {}], 'not the fields of --leave_out'),
    ([{}, {'user': 'a'}], 'not the fields of --leave_out'),
    ([{'user': 'a'}, {'user': None}], 'no text "user"'),
  ),
)
def test_a_line_that_may_be_of_anybody_is_refused(tmp_path, users, message):
  lines = [{'text': 'One.', **user} for user in users]
  text = '\n'.join(map(json.dumps, lines))
  (tmp_path / 'posts.jsonl').write_text(text)
  with pytest.raises(errors.UserError, match=f'line 2, .*{message}'):
    _read(str(tmp_path), 'posts.jsonl', left_out={'user': ['a']})


def test_spaces_around_punctuation_marks_are_taken_out():
  found = corpora.join_tokens(
    ' He said : " It \'s 1 @,@ 250 @.@ 5 m ( 4 – 5 ft ) , well @-@ known ! " \n'
    " The actors ' room , [ sic ] , cost $ 3 ; they didn 't . \n"
  )
  assert found == (
    ' He said: "It\'s 1,250.5 m (4–5 ft), well-known!"\n'
    "The actors' room, [sic], cost $3; they didn't.\n"
  )
