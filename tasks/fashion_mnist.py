"""Fashion-MNIST: photos of clothes, of which each client has some classes.

70,000 photos in ten classes (Xiao et al. 2017), in four files of the form of
MNIST's. The 20 clients are those of PFLlib (Zhang et al. 2025), whose shares of
each class are drawn from Dirichlet(0.1), and the network is that of its
benchmark. Their photos are split in tenths, unless `split` asks for PFLlib's.
"""

import dataclasses

import numpy as np

from tasks import photos
from tasks import registry
from tasks import task
from tasks.data import idx_files

_DEBIAN = '/usr/share/datasets/fashion-mnist'
_ADVICE = (
  "Install Debian's package dataset-fashion-mnist, or save its four files, such"
  ' as train-images-idx3-ubyte.gz, in the folder fashion_mnist of the data_dir.'
)


@dataclasses.dataclass(frozen=True)
class FashionMnistSettings(photos.PfllibSettings):
  """The settings of Fashion-MNIST."""


def load(
  settings: FashionMnistSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  images, labels, _ = idx_files.read(
    'Fashion-MNIST', 'fashion_mnist', data_dir, _ADVICE, _DEBIAN
  )
  rows = images[..., np.newaxis]
  return photos.make_task(
    'fashion_mnist', settings, rows, labels, 10, data_dir, seed
  )


registry.register_task('fashion_mnist', FashionMnistSettings)
