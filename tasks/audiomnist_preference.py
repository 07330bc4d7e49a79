"""AudioMNIST preferences: a public substitute for speech preferences.

1,200 clips of 60 speakers (Becker et al. 2018), who say each digit twice. A
user likes one of 20 voices, each of which is three speakers (`voices`), or one
of 60 speakers, which is harder. Users train on the first take of a digit; the
second take is for validation and test.

All else is as in `tasks.speech_preference`. Results cannot be compared with
those of the paper, which has other voices.
"""

import dataclasses

import numpy as np

from base import errors
from base import settings
from tasks import registry
from tasks import speech_preference
from tasks import spoken_digits
from tasks import task
from tasks.data import audio
from tasks.data import preferences


@dataclasses.dataclass(frozen=True)
class AudiomnistPreferenceSettings(preferences.PreferenceSettings):
  """The settings of AudioMNIST preferences."""

  voices: int = settings.field(
    20,
    'The number of voices: speakers whose numbers are the same modulo this'
    ' number are one voice.',
    minimum=2,
    maximum=60,
  )


def load(
  settings: AudiomnistPreferenceSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the examples."""
  clips = spoken_digits.read_clips(data_dir)
  if len(set(clips.takes)) < 2:
    raise errors.UserError(
      f'{clips.path} has no second takes, which are the test examples. Add an'
      ' array of takes, 0 and 1.'
    )
  return speech_preference.make_task(
    'audiomnist_preference',
    settings,
    np.stack([audio.linear_spectrogram(clip) for clip in clips.samples]),
    clips.speakers % settings.voices,
    clips.takes == 0,
    seed,
  )


registry.register_task('audiomnist_preference', AudiomnistPreferenceSettings)
