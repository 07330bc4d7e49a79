"""Spoken digits: a public substitute for a wake word, a digit of AudioMNIST.

1,200 clips of 60 speakers (Becker et al. 2018), who say each digit twice. The
wake word is one of the digits. A speaker has one of five types of devices,
which are simulated by filters, echoes and noise:

  A  the clips as they are
  B  a telephone: 300 to 3,400 Hz
  C  a muffled device: up to 1,500 Hz, with some noise
  D  a tinny device: from 1,000 Hz on, with some noise
  E  a distant device: echoes, and much noise

All else is as in `tasks.wakeword`.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import NamedTuple

import numpy as np

from base import errors
from base import seeds
from base import settings
from tasks import registry
from tasks import task
from tasks import wakeword
from tasks.data import arrays
from tasks.data import audio
from tasks.data import downloads
from tasks.data import files

_ADVICE = (
  'Save AudioMNIST (https://github.com/soerenab/AudioMNIST), resampled to 16'
  ' kHz, in the folder audiomnist of the data_dir: a NumPy file of all samples'
  ' [n] int16, the offsets [clips + 1] of the clips in them, and the speaker,'
  ' the digit and the take [clips] of each.'
)

_COLUMNS = dict(
  samples=np.int16,
  offsets=np.int64,
  speaker=np.int64,
  digit=np.int64,
  take=np.int64,
)


@dataclasses.dataclass(frozen=True)
class Device:
  """The distortion of clips by a type of device.

  Attributes:
    band: The lowest and the highest frequency that passes, in Hz.
    echoes: The delay of each echo, in s, and its relative loudness.
    noise: The noise, relative to the clip: the ratio of root mean squares.
  """

  band: tuple[float, float] = (0.0, audio.RATE / 2)
  echoes: Sequence[tuple[float, float]] = ()
  noise: float = 0.0

  def record(self, samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns a clip, from -1 to 1, as the device records it."""
    recorded = samples.astype(np.float64)
    for seconds, loudness in self.echoes:
      delay = round(seconds * audio.RATE)
      recorded[delay:] += loudness * samples[: max(len(samples) - delay, 0)]
    spectrum = np.fft.rfft(recorded)
    frequency = np.fft.rfftfreq(len(recorded), 1 / audio.RATE)
    low, high = self.band
    spectrum[(frequency < low) | (frequency > high)] = 0
    recorded = np.fft.irfft(spectrum, len(recorded))
    level = self.noise * np.sqrt(np.mean(recorded**2))
    return recorded + level * rng.normal(size=len(recorded))


DEVICES = {
  'A': Device(),
  'B': Device(band=(300, 3400)),
  'C': Device(band=(0, 1500), noise=0.1),
  'D': Device(band=(1000, audio.RATE / 2), noise=0.1),
  'E': Device(echoes=((0.03, 0.6), (0.07, 0.5), (0.13, 0.4)), noise=0.3),
}


@dataclasses.dataclass(frozen=True)
class SpokenDigitsSettings(wakeword.WakewordSettings):
  """The settings of Spoken digits."""

  digit: int = settings.field(
    7, 'The digit that is the wake word.', minimum=0, maximum=9
  )


class Clips(NamedTuple):
  """Clips of spoken digits.

  Attributes:
    path: Their file.
    samples: The samples of each clip, from -1 to 1.
    speakers: The number of the speaker of each clip.
    digits: The digit in each clip.
    takes: The number of earlier takes of the digit; zeros if not known.
  """

  path: pathlib.Path
  samples: Sequence[np.ndarray]
  speakers: np.ndarray
  digits: np.ndarray
  takes: np.ndarray


def read_clips(data_dir: str | None) -> Clips:
  """Reads the clips of AudioMNIST from a folder; raises a `UserError`."""
  path = downloads.find('audiomnist/digits_16k.npz', data_dir, _ADVICE)
  with files.reading(path, 'clips', _ADVICE):
    found = arrays.read_columns(path, _COLUMNS, optional=('take',))
    samples, offsets = found['samples'], found['offsets']
    speakers, digits = found['speaker'], found['digit']
    takes = found.get('take', np.zeros_like(speakers))
    if not len(offsets) - 1 == len(speakers) == len(digits) == len(takes) > 0:
      raise ValueError(
        f'{len(offsets) - 1} clips, {len(speakers)} speakers and'
        f' {len(digits)} digits'
      )
    if (
      offsets[0] != 0
      or np.any(np.diff(offsets) < 1)
      or offsets[-1] > len(samples)
    ):
      raise ValueError('clips without samples')
  clips = np.split(audio.scale_samples(samples), offsets[1:-1])
  return Clips(path, clips, speakers, digits, takes)


def load(
  settings: SpokenDigitsSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  clips = read_clips(data_dir)
  labels = (clips.digits == settings.digit).astype(np.int32)
  if not 0 < labels.sum() < len(labels):
    raise errors.UserError(
      f'{clips.path} has no clips of the digit {settings.digit}, or no others.'
      ' Name another task.digit.'
    )
  names = list(DEVICES)
  devices = np.array(
    [names[speaker % len(names)] for speaker in clips.speakers]
  )
  x = [
    audio.spectrogram(
      DEVICES[device].record(clip, seeds.generator('recording', k))
    )
    for k, (clip, device) in enumerate(zip(clips.samples, devices))
  ]
  return wakeword.make_task(
    'spoken_digits', settings, np.stack(x), labels, devices, seed
  )


registry.register_task('spoken_digits', SpokenDigitsSettings)
