"""The binary files of CIFAR-10 and CIFAR-100 (Krizhevsky 2009).

A record is the label of a photo, of one byte or more, the last of which is its
class, and then its red, its green and its blue values, row by row.
"""

from collections.abc import Sequence
import dataclasses
import pathlib

import numpy as np

from tasks.data import downloads
from tasks.data import files

_SIZE, _CHANNELS = 32, 3


@dataclasses.dataclass(frozen=True)
class Source:
  """The files of one of the two data sets.

  Attributes:
    title: The name of the data set.
    name: The folder of its task.
    folder: The folder that its archive makes there.
    files: The names of the files.
    num_classes: The number of classes.
    label_bytes: The number of bytes before a photo.
  """

  title: str
  name: str
  folder: str
  files: Sequence[str]
  num_classes: int
  label_bytes: int = 1

  @property
  def _advice(self) -> str:
    archive = self.title.lower()
    return (
      f'Unpack https://www.cs.toronto.edu/~kriz/{archive}-binary.tar.gz in the'
      f' folder {self.name} of the data_dir.'
    )

  def _read_file(self, path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    with files.reading(path, f'a file of {self.title}', self._advice):
      values = np.frombuffer(path.read_bytes(), np.uint8)
      records = values.reshape(-1, self.label_bytes + _CHANNELS * _SIZE**2)
      labels = records[:, self.label_bytes - 1].astype(np.int32)
      if not 0 <= labels.max(initial=-1) < self.num_classes:
        raise ValueError(f'it has no labels from 0 to {self.num_classes - 1}')
    photos = records[:, self.label_bytes :]
    photos = photos.reshape(-1, _CHANNELS, _SIZE, _SIZE)
    return photos.transpose(0, 2, 3, 1), labels

  def read(self, data_dir: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Reads the photos, `[n, height, width, 3]` bytes, and the labels.

    Raises:
      UserError: If a file is missing or damaged.
    """
    name = f'{self.name}/{self.folder}'
    folder = downloads.find(name, data_dir, self._advice)
    parts = [self._read_file(folder / name) for name in self.files]
    photos, labels = map(np.concatenate, zip(*parts))
    return photos, labels
