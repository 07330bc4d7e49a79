"""Speech preferences: each user likes one voice, as in FedEmbed, section 4.3.

The paper's 12,420 utterances of 20 synthetic voices are not public. The data
are a folder with WAV files, one channel of 16 bits at 16 kHz, and a table
clips.csv of the columns file, voice and part. The part is train, or test for
clips for validation and test. Without this column, every other clip of a voice
is for test.

In the unbalanced population a fifth of the users like the first voice and 8 %
the sixth; the other voices are liked by equal numbers of users. As there are
few clips, several users have the same clips with different labels.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from base import errors
from tasks import registry
from tasks import task
from tasks.data import audio
from tasks.data import clip_tables
from tasks.data import downloads
from tasks.data import preferences
from tasks.models import preference

_TABLE = 'clips.csv'
_ADVICE = (
  'Make a folder speech_preference in the data_dir, with WAV files and a table'
  f' {_TABLE} of the columns file, voice and, optionally, part (train or test).'
)
# The first and the sixth voice.
_LIKED_MORE = {0: 0.2, 5: 0.08}


@dataclasses.dataclass(frozen=True)
class SpeechPreferenceSettings(preferences.PreferenceSettings):
  """The settings of speech preferences."""


def _parse(
  rows: Sequence[clip_tables.Row],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the voices of the clips, and which clips are to train on."""
  names = [row['voice'] for row in rows]
  if not all(names) or not rows:
    raise ValueError('a clip has no voice' if rows else 'it has no clips')
  _, voices = np.unique(names, return_inverse=True)
  parts = [row.get('part') for row in rows]
  if any(parts):
    known = {'train': True, 'test': False}
    return voices, np.array([known[str(part)] for part in parts])
  train = np.empty(len(rows), bool)
  train[np.argsort(voices, kind='stable')] = np.arange(len(rows)) % 2 == 0
  return voices, train


def _shares(num_voices: int, balanced: bool) -> tuple[float, ...]:
  """Returns the share of the users that like each voice."""
  more = {} if balanced else _LIKED_MORE
  if num_voices <= max(more, default=0):
    raise errors.UserError(
      f'There are {num_voices} voices, but more users must like the sixth than'
      ' others. Set task.balanced to true.'
    )
  each = (1 - sum(more.values())) / (num_voices - len(more))
  return tuple(more.get(voice, each) for voice in range(num_voices))


def make_task(
  name: str,
  preference_settings: preferences.PreferenceSettings,
  spectrograms: np.ndarray,
  voices: np.ndarray,
  is_train: np.ndarray,
  seed: int,
) -> task.Task:
  """Makes the task of preferences for voices.

  Args:
    name: The name of the task.
    preference_settings: The settings.
    spectrograms: The spectrogram of each clip, of any scale.
    voices: The number of the voice of each clip.
    is_train: Whether users train on each clip.
    seed: The seed of the run.

  Returns:
    The task; spectrograms are standardized by those to train on.
  """
  mean = spectrograms[is_train].mean(dtype=np.float64)
  deviation = spectrograms[is_train].std(dtype=np.float64)
  train, test = np.flatnonzero(is_train), np.flatnonzero(~is_train)
  num_voices = int(voices.max()) + 1

  def take(rows: np.ndarray) -> np.ndarray:
    x = (spectrograms[rows].astype(np.float32) - mean) / deviation
    return x[..., np.newaxis].astype(np.float32)

  data = preferences.Data(
    take=take,
    types=voices,
    shares=_shares(num_voices, preference_settings.balanced),
    sources={('train',): train, ('test', 'validation'): test},
    held_out={('train',): train, ('test',): test},
  )
  model = preference.SpeechPreference(
    num_voices, activation=preference_settings.activation
  )
  return preferences.make_task(name, preference_settings, model, data, seed)


def load(
  settings: SpeechPreferenceSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the examples."""
  table = downloads.find(f'speech_preference/{_TABLE}', data_dir, _ADVICE)
  spectrograms, known = clip_tables.read(
    table, _parse, audio.linear_spectrogram, _ADVICE
  )
  return make_task('speech_preference', settings, spectrograms, *known, seed)


registry.register_task('speech_preference', SpeechPreferenceSettings)
