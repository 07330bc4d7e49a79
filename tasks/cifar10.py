"""CIFAR-10: photos in ten classes, of which each client has some.

60,000 photos of 32x32 (Krizhevsky 2009), from the binary version, whose files
have 10,000 records of a label and the red, green and blue values of a photo.
As in Self-FL there are 20 clients of three classes, and the network is that of
PyTorch's tutorial. Self-FL's clients have random sizes, by a formula in
pFedMe's code; here each class is distributed evenly. A tenth of each client's
examples are validation examples and a tenth test examples (cross-silo).
"""

import dataclasses
import pathlib

import numpy as np

from tasks import registry
from tasks import task
from tasks.data import downloads
from tasks.data import files
from tasks.data import partitions
from tasks.data import populations
from tasks.data import silos
from tasks.models import cnn

_FOLDER = 'cifar-10-batches-bin'
_FILES = (*(f'data_batch_{k}.bin' for k in range(1, 6)), 'test_batch.bin')
_ADVICE = (
  'Unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz in the folder'
  ' cifar10 of the data_dir.'
)
_SIZE, _CHANNELS = 32, 3
_NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Cifar10Settings(partitions.PartitionSettings):
  """The settings of CIFAR-10."""

  partition: str = partitions.field('classes')
  num_clients: int = partitions.num_clients_field(20)
  classes_per_client: int = partitions.classes_field(3)


def _read(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  """Reads the photos, `[n, height, width, 3]` bytes, and the labels."""
  with files.reading(path, 'a file of CIFAR-10', _ADVICE):
    values = np.frombuffer(path.read_bytes(), np.uint8)
    records = values.reshape(-1, 1 + _CHANNELS * _SIZE**2)
    labels = records[:, 0].astype(np.int32)
    if not 0 <= labels.max(initial=-1) < _NUM_CLASSES:
      raise ValueError('it has no labels from 0 to 9')
  photos = records[:, 1:].reshape(-1, _CHANNELS, _SIZE, _SIZE)
  return photos.transpose(0, 2, 3, 1), labels


def load(
  settings: Cifar10Settings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  folder = downloads.find(f'cifar10/{_FOLDER}', data_dir, _ADVICE)
  photos, labels = map(
    np.concatenate, zip(*(_read(folder / name) for name in _FILES))
  )

  def take(rows: np.ndarray) -> populations.Examples:
    # From -1 to 1, as in PyTorch's tutorial.
    x = photos[rows].astype(np.float32) / 127.5 - 1
    return {'x': x, 'y': labels[rows]}

  return task.Task(
    name='cifar10',
    model=cnn.Cifar10Cnn(),
    metric='accuracy',
    higher_is_better=True,
    batch_size=10,
    padded=False,
    **silos.make_populations_of_rows(
      partitions.make(settings, labels, data_dir), take, settings.seed(seed)
    ),
  )


registry.register_task('cifar10', Cifar10Settings)
