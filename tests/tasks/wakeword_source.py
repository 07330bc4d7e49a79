"""A small folder of clips of a wake word, for tests."""

from collections.abc import Iterable, Sequence
import csv
import pathlib
import wave

import numpy as np

from tasks.data import audio

# The clips of each type of device; every fifth has the word.
DEVICES = {'phone': 40, 'speaker': 100}


def write_wav(
  path: pathlib.Path, samples: np.ndarray, rate: int = audio.RATE
) -> None:
  """Writes a clip."""
  with wave.open(str(path), 'wb') as file:
    file.setnchannels(1)
    file.setsampwidth(2)
    file.setframerate(rate)
    file.writeframes(samples.astype('<i2').tobytes())


def write_table(folder: pathlib.Path, rows: Iterable[Sequence[str]]) -> None:
  """Writes the table of the clips."""
  with (folder / 'clips.csv').open('w', newline='') as file:
    csv.writer(file).writerows(rows)


def write(folder: pathlib.Path) -> None:
  """Writes clips in which the word is a high tone."""
  folder.mkdir()
  rows = [['file', 'device', 'label', 'note']]
  time = np.arange(audio.RATE) / audio.RATE
  for device, size in DEVICES.items():
    for k in range(size):
      label = int(k % 5 == 0)
      tone = np.sin(2 * np.pi * (300 + 10 * k + 3000 * label) * time)
      write_wav(folder / f'{device}_{k}.wav', 5000 * tone)
      rows.append([f'{device}_{k}.wav', device, str(label), 'x'])
  write_table(folder, rows)
