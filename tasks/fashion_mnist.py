"""Fashion-MNIST: photos of clothes, of which each client has some classes.

70,000 photos in ten classes (Xiao et al. 2017), in four files of the form of
MNIST's. The 20 clients are those of PFLlib (Zhang et al. 2025), whose shares of
each class are drawn from Dirichlet(0.1), and the network is that of its
benchmark. A tenth of each client's examples are validation examples and a tenth
test examples (cross-silo); in PFLlib a quarter are test examples, and none are
for validation.
"""

import dataclasses

import numpy as np

from base import settings
from tasks import registry
from tasks import task
from tasks.data import idx_files
from tasks.data import partitions
from tasks.data import populations
from tasks.data import silos
from tasks.models import cnn

_DEBIAN = '/usr/share/datasets/fashion-mnist'
_ADVICE = (
  "Install Debian's package dataset-fashion-mnist, or save its four files, such"
  ' as train-images-idx3-ubyte.gz, in the folder fashion_mnist of the data_dir.'
)


@dataclasses.dataclass(frozen=True)
class FashionMnistSettings(partitions.PartitionSettings):
  """The settings of Fashion-MNIST."""

  partition: str = partitions.field('pfllib_dirichlet')
  num_clients: int = partitions.num_clients_field(20)
  alpha: float = settings.redefine(partitions.PartitionSettings, 'alpha', 0.1)
  partition_seed: int = partitions.seed_field(1)


def load(
  settings: FashionMnistSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  images, labels, _ = idx_files.read(
    'Fashion-MNIST', 'fashion_mnist', data_dir, _ADVICE, _DEBIAN
  )

  def take(rows: np.ndarray) -> populations.Examples:
    # From -1 to 1, as in PFLlib.
    x = images[rows, ..., np.newaxis].astype(np.float32) / 127.5 - 1
    return {'x': x, 'y': labels[rows]}

  return task.Task(
    name='fashion_mnist',
    model=cnn.PflLibCnn(),
    metric='accuracy',
    higher_is_better=True,
    batch_size=10,
    padded=False,
    **silos.make_populations_of_rows(
      partitions.make(settings, labels, data_dir), take, settings.seed(seed)
    ),
  )


registry.register_task('fashion_mnist', FashionMnistSettings)
