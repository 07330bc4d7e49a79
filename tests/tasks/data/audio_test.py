"""Tests of clips and spectrograms."""

import wave

import numpy as np
import pytest

from tasks.data import audio


def _tone(frequency, seconds=1.0, loudness=0.5):
  time = np.arange(round(seconds * audio.RATE)) / audio.RATE
  return loudness * np.sin(2 * np.pi * frequency * time)


def _write(path, samples, channels=1, width=2, rate=audio.RATE):
  with wave.open(str(path), 'wb') as file:
    file.setnchannels(channels)
    file.setsampwidth(width)
    file.setframerate(rate)
    file.writeframes(samples.astype(f'<i{width}').tobytes())


def test_a_wav_file_is_read_as_it_was_written(tmp_path):
  samples = np.array([0, 1, -(2**15), 2**15 - 1])
  _write(tmp_path / 'a.wav', samples)
  read = audio.read_wav(tmp_path / 'a.wav')
  np.testing.assert_array_equal(read * 2**15, samples)


@pytest.mark.parametrize('form', [dict(channels=2), dict(rate=8000)], ids=str)
def test_a_wav_file_of_another_form_is_refused(form, tmp_path):
  _write(tmp_path / 'a.wav', np.zeros(8), **form)
  with pytest.raises(ValueError, match='not one of 16 bits at 16000 Hz'):
    audio.read_wav(tmp_path / 'a.wav')


@pytest.mark.parametrize('seconds', [0.3, 0.975, 1.5])
def test_all_spectrograms_have_the_same_shape(seconds):
  made = audio.spectrogram(_tone(500, seconds))
  assert made.shape == (audio.FRAMES, audio.BANDS, 1)
  assert made.dtype == np.float32


def test_higher_tones_are_in_higher_bands():
  bands = [
    audio.spectrogram(_tone(frequency)).mean(axis=0).argmax()
    for frequency in (200, 500, 1000, 2000, 4000, 7000)
  ]
  assert bands == sorted(set(bands))
  # Bands are evenly spaced in mels between 60 and 7,600 Hz.
  mel = 2595 * np.log10(1 + np.array([60, 1000, 7600]) / 700)
  assert bands[2] == pytest.approx(
    65 * (mel[1] - mel[0]) / (mel[2] - mel[0]) - 1, abs=0.5
  )


def test_a_louder_clip_is_higher_by_the_logarithm_of_its_power():
  quiet, loud = (audio.spectrogram(_tone(1000, loudness=n)) for n in (0.1, 0.4))
  band = loud.mean(axis=0).argmax()
  np.testing.assert_allclose(
    4 * (loud - quiet)[:, band], 2 * np.log(4), rtol=1e-2
  )


def test_short_clips_are_in_the_middle_of_silence():
  made = audio.spectrogram(_tone(1000, 0.3)).max(axis=(1, 2))
  heard = np.flatnonzero(made > made.min() + 1)
  assert heard.min() + heard.max() == pytest.approx(audio.FRAMES - 1, abs=1)
  assert len(heard) == pytest.approx(30, abs=4)
