"""AudioMNIST preferences: a stand-in for speech preferences, of real speakers.

1,200 clips of 60 speakers (Becker et al. 2018), who say each digit twice. A
user likes one of 20 voices, each of which is three speakers (`voices`), or one
of 60 speakers, which is harder. Users train on the first take of a digit, and
choose by and report the second.

All else is as in `tasks.speech_preference`. Results are not to be compared with
those of the paper, whose voices are others.
"""

import dataclasses

import numpy as np

from base import errors
from base import settings
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
    'The number of voices: speakers whose numbers are the same modulo it are'
    ' one voice.',
    minimum=2,
    maximum=60,
  )


def load(
  settings: AudiomnistPreferenceSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides who has what."""
  clips = spoken_digits.read_clips(data_dir)
  if len(set(clips.takes)) < 2:
    raise errors.UserError(
      f'{clips.path} has no second takes, but the first are to train on and'
      ' the second to report. Add an array of takes, 0 and 1.'
    )
  return speech_preference.make_task(
    'audiomnist_preference',
    settings,
    np.stack([audio.linear_spectrogram(clip) for clip in clips.samples]),
    clips.speakers % settings.voices,
    clips.takes == 0,
    seed,
  )
