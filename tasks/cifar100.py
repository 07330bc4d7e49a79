"""CIFAR-100: photos in a hundred classes, of which each client has some.

60,000 photos of 32x32 (Krizhevsky 2009), from the binary version. The 20
clients are those of PFLlib (Zhang et al. 2025), whose shares of each class are
drawn from Dirichlet(0.1), and the network is that of its benchmark.
"""

import dataclasses

from tasks import photos
from tasks import registry
from tasks import task
from tasks.data import cifar_files

# A record has the number of one of 20 groups of classes before its class.
_SOURCE = cifar_files.Source(
  'CIFAR-100',
  'cifar100',
  'cifar-100-binary',
  ('train.bin', 'test.bin'),
  num_classes=100,
  label_bytes=2,
)


@dataclasses.dataclass(frozen=True)
class Cifar100Settings(photos.PfllibSettings):
  """The settings of CIFAR-100."""


def load(
  settings: Cifar100Settings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  rows, labels = _SOURCE.read(data_dir)
  return photos.make_task(
    'cifar100', settings, rows, labels, 100, data_dir, seed
  )


registry.register_task('cifar100', Cifar100Settings)
