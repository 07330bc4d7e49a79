"""Tests of dialogue tasks, by that of Shakespeare's characters."""

import collections
import gzip
import json

import numpy as np
import pytest

from base import errors
from tasks import dialogue
from tasks import registry
from tasks.data import bpe
from tests import data
from tests.tasks import dialogue_source

_LENGTH = 8


def _write(folder, lines):
  (folder / 'shakespeare').mkdir(exist_ok=True)
  path = folder / 'shakespeare/speeches.jsonl.gz'
  path.write_bytes(gzip.compress('\n'.join(lines).encode()))


def _speech(play, who, number):
  return json.dumps(
    {'play': play, 'who': who, 'text': f'Who is {number}?\nIt is he, {number}!'}
  )


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  dialogue_source.write(folder)
  # Ten clients of 20 utterances in two plays, and one of fewer.
  _write(
    folder,
    [
      *(_speech(f'p{k % 2}', f'#{k}', i) for k in range(10) for i in range(10)),
      _speech('p2', '#0', 0),
    ],
  )
  return folder


def _load(folder, **values):
  values = dict(min_utterances=20, utterance_length=_LENGTH) | values
  return registry.load('shakespeare_dialogue', data_dir=str(folder), **values)


def _utterances(population, client_id, name):
  """The utterances of a set, as texts."""
  examples = population.sets[name](client_id)
  encoding = bpe.Encoding([('Ġ', 't'), ('h', 'e')])
  words = np.concatenate([examples['x'][:, :1], examples['y']], axis=1)
  return [encoding.decode(row[row > 0] - 1) for row in words]


def test_a_client_is_a_character_and_its_context_the_play(folder):
  task = _load(folder)
  assert len(task.train.client_ids) == 10
  assert (task.model.num_contexts, task.model.most_contexts) == (3, 1)
  for client_id in task.train.client_ids:
    play = client_id.split()[0]
    contexts = task.train.sets['train'](client_id)['context']
    assert set(contexts) == {int(play[1])}
    assert task.attributes['group'].name(client_id) == play


def test_the_plays_may_be_those_of_the_most_speeches(folder):
  task = _load(folder, num_plays=1)
  assert task.model.num_contexts == 1
  assert [c.split()[0] for c in task.train.client_ids] == ['p0'] * 5


def test_a_sentence_ends_after_its_mark():
  text = 'Is it?\nIt is 5.5 … So\nbe it.  "Ay!" he'
  assert dialogue.split_sentences(text) == [
    'Is it?',
    'It is 5.5 …',
    'So be it.',
    '"Ay!" he',
  ]


def test_examples_are_the_tokens_and_those_that_follow(folder):
  task = _load(folder, utterance_length=12)
  encoding = bpe.Encoding([('Ġ', 't'), ('h', 'e')])
  examples = task.train.sets['train']('p0 #0')
  texts = _utterances(task.train, 'p0 #0', 'train')
  for x, y, text in zip(examples['x'], examples['y'], texts):
    tokens = np.array(encoding.encode(text)) + 1
    assert len(tokens) <= 12
    np.testing.assert_array_equal(x[: len(tokens)], tokens[:11])
    np.testing.assert_array_equal(y, [*tokens[1:], *[0] * (12 - len(tokens))])


def test_utterances_are_cut(folder):
  # A token is a letter, but for "he".
  found = set(_utterances(_load(folder).train, 'p0 #0', 'train'))
  assert 'It is he,' in found
  assert found <= {'It is he,', *(f'Who is {i}' for i in range(10))}


def test_known_users_adapt_to_half_of_what_is_to_report(folder):
  task = _load(folder, utterance_length=16)
  assert task.cross_silo
  user = 'p1 #3'
  adaptation = _utterances(task.test, user, 'personalization')
  assert _utterances(task.validation, user, 'personalization') == adaptation
  parts = [
    _utterances(task.train, user, 'train'),
    _utterances(task.validation, user, 'evaluation'),
    adaptation,
    _utterances(task.test, user, 'evaluation'),
  ]
  assert [len(part) for part in parts] == [12, 4, 2, 2]
  # Each utterance is in one part.
  assert collections.Counter(sum(parts, [])) == collections.Counter(
    text for i in range(10) for text in (f'Who is {i}?', f'It is he, {i}!')
  )


def test_withheld_users_are_in_no_training(folder):
  task = _load(folder, hold_out='clients')
  assert not task.cross_silo
  populations = task.train, task.validation, task.test
  ids = [population.client_ids for population in populations]
  assert [len(client_ids) for client_ids in ids] == [6, 2, 2]
  assert len(set().union(*ids)) == 10
  for half in ('personalization', 'evaluation'):
    assert len(_utterances(task.test, ids[2][0], half)) == 10


def test_the_model_has_the_weights_of_the_file(folder):
  task = _load(folder)
  assert task.model.language_model == dialogue_source.SIZES
  assert task.model.frozen['wte'].shape == (258, 8)
  assert (task.metric, task.higher_is_better) == ('perplexity', False)
  assert list(_load(folder, trained='head').model.parts['head']) == ['head']


@pytest.mark.parametrize(
  'values, message',
  [
    ({'weights': 'none.npz'}, 'none.npz is in none of .*program pretrain'),
    ({'weights_sha256': '0' * 64}, 'not the right file'),
    ({'tokenizer': 'shakespeare'}, 'as a byte-pair encoding'),
    ({'min_utterances': 21}, 'task.min_utterances=21'),
    ({'utterance_length': 17}, 'utterance_length must be at most 16'),
    ({'first_word': 258}, 'first_word must be below 258'),
    (
      {'trained': 'adapters', 'adapted': ('gate',)},
      "Unknown matrix in task.adapted 'gate'",
    ),
  ],
)
def test_says_what_is_wrong(folder, values, message):
  with pytest.raises(errors.UserError, match=message):
    _load(folder, **values)


def test_bytes_and_words_after_the_first_three_words_are_counted(folder):
  task = _load(folder, utterance_length=16)
  examples = task.train.sets['train'](task.train.client_ids[0])
  for words, num_bytes, begun in zip(
    examples['y'], examples['bytes'], examples['begun']
  ):
    # "It is he, 7!" has four words, and "Who is 7?" three.
    is_long = 'he' in ''.join(task.vocabulary[n - 1] for n in words if n)
    assert (num_bytes.sum(), begun.sum()) == ((3, 1) if is_long else (0, 0))


def test_users_may_be_limited_to_some_utterances(folder):
  def parts(task):
    return [
      _utterances(task.train, user, 'train') for user in task.train.client_ids
    ]

  limited = _load(folder, max_utterances=10)
  assert {len(part) for part in parts(limited)} == {6}
  assert parts(limited) == parts(_load(folder, max_utterances=10))


def test_adapters_and_prompts_are_made_of_the_settings(folder):
  settings = dict(trained='adapters', adapted=('q', 'up'), rank=2, alpha=3.0)
  model = _load(folder, **settings).model
  assert model.parts['down'] == ('q_down', 'up_down')
  assert (model.rank, model.scale) == (2, 1.5)
  up = _load(folder, **settings | {'trained': 'adapters_up'}).model
  assert up.parts['down'] == () and up.frozen['up_down'].shape == (1, 8, 2)
  prompt = _load(folder, first_word=3).model
  weights = prompt.init([1, 2])
  np.testing.assert_array_equal(
    weights['psi'] * weights['phi'][0], prompt.frozen['wte'][3]
  )


def test_says_which_line_is_no_speech(tmp_path):
  for line in ('{', '[]', '{"play": "p", "who": "w"}', '{"play": 1}'):
    _write(tmp_path, [_speech('p', 'w', 1), line])
    with pytest.raises(
      errors.UserError, match='line 2, cannot be read as a speech'
    ):
      _load(tmp_path)


def test_has_the_characters_of_the_real_plays(folder):
  task = _load(
    folder,
    file=str(data.path('shakespeare/speeches.jsonl.gz')),
    min_utterances=25,
    utterance_length=16,
  )
  assert len(task.attributes['group'].names) == 37
  # Bytes are tokens here, so that shorter sentences count as well.
  assert len(task.train.client_ids) >= 497
