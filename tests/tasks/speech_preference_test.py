"""Tests of preferences for voices: from a folder, and of AudioMNIST."""

import collections
import csv
import functools

import numpy as np
import pytest

from base import errors
from tasks import registry
from tasks import task as tasks
from tasks.data import audio
from tasks.data import preferences
from tests import data
from tests.tasks import wakeword_source


def _tone(k, size=6000):
  """A clip of the frequency that voice k has."""
  return 0.5 * np.sin(
    2 * np.pi * (500 + 400 * k) * np.arange(size) / audio.RATE
  )


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  """Writes 24 clips of each of three voices."""
  folder = tmp_path_factory.mktemp('data') / 'speech_preference'
  folder.mkdir()
  rows = []
  for k in range(72):
    voice = k % 3
    rng = np.random.default_rng(k)
    clip = _tone(voice) + 0.01 * rng.normal(size=6000)
    wakeword_source.write_wav(
      folder / f'{k}.wav', (clip * 2**14).astype(np.int16)
    )
    part = 'train' if k < 36 else 'test'
    rows.append(dict(file=f'{k}.wav', voice=f'voice_{voice}', part=part))
  with (folder / 'clips.csv').open('w', newline='') as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)
  return folder


@pytest.fixture(name='load_task', scope='module')
def _load_task(folder):
  return functools.partial(
    registry.load, 'speech_preference', data_dir=str(folder.parent), users=9
  )


def test_a_spectrogram_has_the_power_of_each_frequency():
  found = audio.linear_spectrogram(_tone(1, 8000))
  assert found.shape == (200, 375)
  # 900 Hz, in bins of 40 Hz, until the clip ends after 191 frames.
  np.testing.assert_array_equal(found[:, :180].argmax(axis=0) // 2, 11)
  assert np.all(found[:, 201:] == np.float16(np.log(1e-6)))
  assert audio.linear_spectrogram(_tone(1, 20_000)).shape == (200, 375)


def test_users_like_a_voice_and_train_on_other_clips_than_they_report(
  load_task,
):
  task = load_task()
  seen = {'train': set(), 'test': set()}
  for client_id in task.train.client_ids:
    likes = task.attributes[tasks.GROUP].values[client_id]
    for part, examples in (
      ('train', task.train.sets['train'](client_id)),
      ('test', task.validation.sets['evaluation'](client_id)),
      ('test', task.test.sets['evaluation'](client_id)),
    ):
      np.testing.assert_array_equal(
        examples['y'] == 1, examples['type'] == likes
      )
      seen[part] |= {x.tobytes() for x in examples['x']}
      # A voice is what it sounds like.
      bins = examples['x'][:, :, 50, 0].argmax(axis=1)
      np.testing.assert_array_equal(
        np.rint((40 * bins - 500) / 400), examples['type']
      )
  assert seen['train'].isdisjoint(seen['test'])


def test_spectrograms_are_standardized_by_those_to_train_on(load_task):
  task = load_task(users=30)
  x = {
    row.tobytes(): row
    for client_id in task.train.client_ids
    for row in task.train.sets['train'](client_id)['x']
  }
  everything = np.stack(list(x.values()))
  assert len(everything) == 36
  assert everything.mean() == pytest.approx(0, abs=1e-3)
  assert everything.std() == pytest.approx(1, abs=1e-3)


def test_without_parts_every_other_clip_of_a_voice_is_to_test(
  folder, load_task, tmp_path
):
  table = folder / 'clips.csv'
  text = table.read_text()
  try:
    table.write_text(text.replace(',train', ',').replace(',test', ','))
    task = load_task(users=30)
  finally:
    table.write_text(text)
  train = {
    row.tobytes()
    for client_id in task.train.client_ids
    for row in task.train.sets['train'](client_id)['x']
  }
  assert len(train) == 36


@pytest.mark.parametrize(
  'damage',
  [
    lambda text: text.replace('voice,', 'speaker,'),
    lambda text: text.replace('voice_1', ''),
    lambda text: text.replace(',test', ',held out'),
    lambda text: text.splitlines()[0],
    lambda text: text.replace('7.wav', 'missing.wav'),
  ],
  ids=['column', 'no_voice', 'part', 'empty', 'no_file'],
)
def test_a_wrong_table_is_named(damage, folder, load_task):
  table = folder / 'clips.csv'
  text = table.read_text()
  try:
    table.write_text(damage(text))
    with pytest.raises(errors.UserError, match='clips.csv'):
      load_task()
  finally:
    table.write_text(text)


def test_too_few_voices_for_the_unbalanced_population_are_refused(load_task):
  with pytest.raises(errors.UserError, match='task.balanced'):
    load_task(balanced=False)


def test_no_guess_by_the_voice_alone_is_better_than_its_share():
  # In a balanced population a type is liked as often as not; of the others, a
  # constant answer for each type is right for .5947 (speech), .6111 (digits).
  voices = [0.2, 0.04, 0.04, 0.04, 0.04, 0.08, *[0.04] * 14]
  digits = [0.25, 0.15, *[0.1] * 4, *[0.05] * 4]
  for shares, most in (
    ([0.1] * 10, 0.5),
    (digits, 0.6111),
    (voices, 0.5947),
  ):
    types = np.repeat(np.arange(len(shares)), 50)
    rng = np.random.default_rng(0)
    users = preferences.types_of_users(shares, 1500, rng)
    splits = preferences.draw(
      users, types, {('test',): np.arange(len(types))}, 0, True
    )
    rows = np.stack([split['test'] for split in splits])
    liked = collections.Counter(types[rows[:, :5]].ravel().tolist())
    others = collections.Counter(types[rows[:, 5:]].ravel().tolist())
    right = sum(max(liked[k], others[k]) for k in range(len(shares)))
    assert right / rows.size == pytest.approx(most, abs=0.012)


def test_the_clips_of_audiomnist():
  folder = data.path('audiomnist').parent
  task = registry.load(
    'audiomnist_preference', data_dir=str(folder), users=60, balanced=False
  )
  likes = collections.Counter(task.attributes[tasks.GROUP].values.values())
  assert likes[0] == max(likes.values()) > likes[5] > likes[1]
  assert set(likes) == set(range(20))
  examples = task.train.sets['train']('user_00007')
  assert examples['x'].shape == (20, 200, 375, 1)
  assert examples['x'].dtype == np.float32
  assert abs(examples['x'].mean()) < 0.5
