"""Tests of Spoken digits, on a few clips and on those of AudioMNIST."""

import functools

import numpy as np
import pytest

from base import errors
from tasks import registry
from tasks import spoken_digits
from tasks.data import audio
from tests import data


def _clips(size=300):
  rng = np.random.default_rng(0)
  sizes = rng.integers(3000, 20_000, size)
  return dict(
    samples=rng.integers(-3000, 3000, sizes.sum()).astype(np.int16),
    offsets=np.concatenate([[0], np.cumsum(sizes)]),
    speaker=(1 + np.arange(size) % 10).astype(np.int16),
    digit=(np.arange(size) // 10 % 10).astype(np.int8),
  )


@pytest.fixture(name='path')
def _path(tmp_path):
  path = tmp_path / 'audiomnist' / 'digits_16k.npz'
  path.parent.mkdir()
  np.savez(path, **_clips())
  return path


@pytest.fixture(name='load_task')
def _load_task(path):
  return functools.partial(
    registry.load, 'spoken_digits', data_dir=str(path.parents[1])
  )


def _all(task, client_id, feature):
  return np.concatenate(
    [
      task.train.sets['train'](client_id)[feature],
      task.validation.sets['evaluation'](client_id)[feature],
      task.test.sets['evaluation'](client_id)[feature],
    ]
  )


def test_speakers_are_dealt_to_five_types_of_devices(load_task):
  task = load_task()
  assert task.train.client_ids == tuple('ABCDE')
  for device in 'ABCDE':
    # 60 clips of two speakers, a tenth of them of the digit.
    labels = _all(task, device, 'y')
    assert (len(labels), labels.sum()) == (60, 6)


def test_clips_of_the_first_device_are_as_they_are(load_task):
  clips = _clips()
  expected = {
    audio.spectrogram(
      audio.scale_samples(clips['samples'][clips['offsets'][k] :][: int(size)])
    )
    .round(3)
    .tobytes()
    for k, size in enumerate(np.diff(clips['offsets']))
    if clips['speaker'][k] % 5 == 0
  }
  found = {x.round(3).tobytes() for x in _all(load_task(), 'A', 'x')}
  assert len(found & expected) > 50  # But for what rounding tells apart.


def test_a_filter_lets_only_its_band_pass():
  rng = np.random.default_rng(0)
  noise = rng.normal(size=audio.RATE)
  recorded = spoken_digits.Device(band=(300, 3400)).record(noise, rng)
  power = np.abs(np.fft.rfft(recorded)) ** 2  # A number for each Hz.
  np.testing.assert_allclose(power[:300], 0, atol=1e-9)
  np.testing.assert_allclose(power[3401:], 0, atol=1e-9)
  np.testing.assert_allclose(
    power[300:3401], np.abs(np.fft.rfft(noise))[300:3401] ** 2
  )


def test_an_echo_is_the_clip_once_more():
  click = np.zeros(audio.RATE)
  click[0] = 1
  device = spoken_digits.Device(echoes=((0.5, 0.25),))
  recorded = device.record(click, np.random.default_rng(0))
  np.testing.assert_allclose(recorded[[0, 8000]], [1, 0.25], atol=1e-12)
  assert np.abs(recorded).sum() == pytest.approx(1.25)


def test_noise_is_as_loud_as_it_says():
  rng = np.random.default_rng(0)
  clip = np.sin(np.arange(audio.RATE))
  noise = spoken_digits.Device(noise=0.5).record(clip, rng) - clip
  ratio = np.sqrt(np.mean(noise**2) / np.mean(clip**2))
  assert ratio == pytest.approx(0.5, rel=0.03)


def test_recordings_are_the_same_at_every_call(load_task):
  first, again = (load_task(seed=seed, split_seed=1) for seed in (1, 2))
  np.testing.assert_array_equal(_all(first, 'E', 'x'), _all(again, 'E', 'x'))


def test_the_digit_can_be_chosen(load_task):
  assert _all(load_task(digit=3), 'B', 'y').sum() == 6


def test_a_digit_that_nobody_says_is_refused(load_task, path):
  clips = _clips()
  clips['digit'] %= 3
  np.savez(path, **clips)
  with pytest.raises(errors.UserError, match='no clips of the digit 7'):
    load_task()


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(b'x'),
    lambda path: path.write_bytes(path.read_bytes()[:9999]),
    lambda path: np.savez(path, a=1),
    lambda path: np.savez(path, **(_clips() | dict(digit=np.zeros(3)))),
    lambda path: np.savez(path, **(_clips() | dict(samples=np.zeros(3)))),
    lambda path: np.savez(
      path, **(_clips() | dict(offsets=np.zeros(301, int)))
    ),
    lambda path: np.savez(path, **(_clips() | dict(offsets=3))),
    lambda path: np.savez(path, **(_clips() | dict(speaker=np.full(300, 0.5)))),
    lambda path: np.savez(path, **(_clips() | dict(digit=np.zeros((300, 1))))),
  ],
  ids=[
    'missing',
    'other',
    'cut',
    'names',
    'digits',
    'samples',
    'offsets',
    'one_offset',
    'half_a_speaker',
    'axes',
  ],
)
def test_a_wrong_file_is_named(damage, load_task, path):
  damage(path)
  with pytest.raises(errors.UserError, match=path.name):
    load_task()


def test_the_clips_of_audiomnist():
  folder = data.path('audiomnist').parent
  task = registry.load('spoken_digits', data_dir=str(folder))
  for device in 'ABCDE':
    labels = _all(task, device, 'y')
    assert (len(labels), labels.sum()) == (240, 24)
  x = np.concatenate([_all(task, device, 'x') for device in 'ABCDE'])
  # Inputs are of the size that networks are made for.
  assert abs(x.mean()) < 1
  assert 0.3 < x.std() < 2
