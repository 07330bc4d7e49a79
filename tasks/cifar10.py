"""CIFAR-10: photos in ten classes, of which each client has some.

60,000 photos of 32x32 (Krizhevsky 2009), from the binary version. As in Self-FL
there are 20 clients of three classes, and the network is that of PyTorch's
tutorial. Self-FL's clients have random sizes, by a formula in pFedMe's code;
here each class is distributed evenly. The preset `cifar10` has PFLlib's clients
and network instead.
"""

import dataclasses

from tasks import photos
from tasks import registry
from tasks import task
from tasks.data import cifar_files
from tasks.data import partitions

_FILES = (*(f'data_batch_{k}.bin' for k in range(1, 6)), 'test_batch.bin')
_SOURCE = cifar_files.Source(
  'CIFAR-10', 'cifar10', 'cifar-10-batches-bin', _FILES, num_classes=10
)


@dataclasses.dataclass(frozen=True)
class Cifar10Settings(photos.PhotoSettings):
  """The settings of CIFAR-10."""

  partition: str = partitions.field('classes')
  num_clients: int = partitions.num_clients_field(20)
  classes_per_client: int = partitions.classes_field(3)
  model: str = photos.model_field('tutorial', 'tutorial')


def load(
  settings: Cifar10Settings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  rows, labels = _SOURCE.read(data_dir)
  return photos.make_task('cifar10', settings, rows, labels, 10, data_dir, seed)


registry.register_task('cifar10', Cifar10Settings)
