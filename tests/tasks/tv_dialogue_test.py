"""Tests of the characters of Friends and of Game of Thrones."""

import gzip
import json

import pytest

from base import errors
from tasks import registry
from tasks import tv_dialogue
from tests import data
from tests.tasks import dialogue_source


def _season(lines):
  utterances = [
    {'speakers': speakers, 'transcript': text, 'tokens': []}
    for speakers, text in lines
  ]
  return json.dumps(
    {'episodes': [{'scenes': [{'utterances': utterances}]}]}
  ).encode()


_FRIENDS = [
  *[(['Ross Geller'], 'It is so. Is it?')] * 10,
  *[(['Joey Tribbiani'], 'How you doing?')] * 15,
  (['Ross Geller', 'Joey Tribbiani'], 'No.'),
  (['A waiter'], 'Yes, sir.'),
  ([], 'Time passes.'),
]
_THRONES = """\
EXT. THE WALL - DAY
CUT TO: the gate
EXT: the gate opens
JON SNOW: I know nothing. Nothing!
Jorah Mormont (softly): Khaleesi, we must go.
JORAH [to DAENERYS]: We must go now.
They leave.
"""


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  dialogue_source.write(folder)
  seasons = folder / 'tv/json'
  seasons.mkdir(parents=True)
  (seasons / 'friends_season_01.json').write_bytes(_season(_FRIENDS[:12]))
  (seasons / 'friends_season_02.json.gz').write_bytes(
    gzip.compress(_season(_FRIENDS[12:]))
  )
  (seasons / 'README').write_text('not a season')
  (folder / 'tv/final_data.txt').write_text(10 * _THRONES)
  return folder


def _load(folder, **values):
  values = dict(min_utterances=10, utterance_length=16) | values
  return registry.load('tv_dialogue', data_dir=str(folder), **values)


def test_clients_are_the_characters_who_say_most(folder):
  task = _load(folder)
  ids = list(task.train.client_ids)
  assert ids == [
    'friends Ross Geller',
    'friends Joey Tribbiani',
    'game_of_thrones JON SNOW',
    'game_of_thrones JORAH',
  ]
  one_each = _load(folder, friends_characters=1, game_of_thrones_characters=1)
  assert list(one_each.train.client_ids) == ids[::2]


def test_contexts_are_the_shows(folder):
  task = _load(folder)
  assert task.model.num_contexts == 2
  group = task.attributes['group']
  for client_id in task.train.client_ids:
    assert client_id.startswith(group.name(client_id))
    contexts = task.train.sets['train'](client_id)['context']
    assert set(contexts) == {group.values[client_id]}


def test_lines_of_thrones_have_a_name_and_perhaps_a_note(folder):
  lines = list(tv_dialogue._read_thrones(folder / 'tv/final_data.txt'))
  assert lines[:3] == [
    ('JON SNOW', 'I know nothing. Nothing!'),
    ('JORAH', 'Khaleesi, we must go.'),
    ('JORAH', 'We must go now.'),
  ]
  assert len(lines) == 30


def test_one_show_is_enough(folder):
  task = _load(folder, shows='friends', game_of_thrones='none')
  assert task.model.num_contexts == 1
  assert len(task.train.client_ids) == 2


@pytest.mark.parametrize(
  'values, message',
  [
    ({'friends': 'none'}, 'none is in none of .*character-mining'),
    ({'friends': 'gpt2'}, 'gpt2 has no utterances'),
    ({'game_of_thrones': 'none'}, 'none is in none of .*shows=friends'),
    ({'friends': 'tv/final_data.txt'}, 'final_data.txt cannot be read'),
    ({'game_of_thrones': 'tv/json/README'}, 'README has no utterances'),
  ],
)
def test_says_which_show_is_missing(folder, values, message):
  with pytest.raises(errors.UserError, match=message):
    _load(folder, **values)


@pytest.mark.parametrize(
  'contents', [b'{', b'{}', b'{"episodes": 3}', b'\xff', _season([([3], 'a')])]
)
def test_says_which_season_is_damaged(tmp_path, contents):
  path = tmp_path / 'friends_season_03.json'
  path.write_bytes(contents)
  with pytest.raises(errors.UserError, match=f'{path} cannot be read'):
    _load(tmp_path, friends=str(tmp_path))


def test_has_the_main_characters_of_the_real_seasons(folder):
  task = _load(
    folder,
    shows='friends',
    friends=str(data.path('tv/json')),
    min_utterances=25,
  )
  names = [client_id.split()[1] for client_id in task.train.client_ids]
  assert sorted(names) == sorted(
    ['Ross', 'Rachel', 'Monica', 'Chandler', 'Joey', 'Phoebe']
  )
