"""MNIST: handwritten digits, divided at random or by writer.

70,000 images in 10 classes, in the four files of LeCun and Cortes. By default
they are divided as in FedProx (Li et al. 2020) and Self-FL: 1,000 clients with
two digits each, whose numbers of examples follow a power law, and multinomial
logistic regression on pixels that are standardized one by one. A tenth of each
client's examples are validation examples and a tenth test examples
(cross-silo).
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from base import settings
from tasks import registry
from tasks import task
from tasks.data import arrays
from tasks.data import downloads
from tasks.data import files
from tasks.data import idx_files
from tasks.data import partitions
from tasks.data import populations
from tasks.data import rotations
from tasks.data import silos
from tasks.models import cnn
from tasks.models import linear
from tasks.models import models

_WRITER = 'writer'
_WRITERS_FILE = 'writers.npz'
_NUM_CLASSES = 10
_LOGISTIC = 'logistic'
_ADVICE = (
  'Save the four files of MNIST, as *-images-idx3-ubyte.gz and'
  ' *-labels-idx1-ubyte.gz of train and t10k, in the folder mnist of the'
  ' data_dir.'
)
_ADVICE_ON_WRITERS = (
  'Make it from the labels of QMNIST, which have the writers: a NumPy file of'
  ' train_writer, [60000], and test_writer, [10000]; or set another'
  ' task.partition.'
)


def model_field() -> str:
  """Defines the setting `model` of a task of ten characters."""
  return settings.field(
    _LOGISTIC,
    "Multinomial logistic regression, or the network of the task 'emnist'.",
    choices=(_LOGISTIC, 'cnn'),
  )


@dataclasses.dataclass(frozen=True)
class MnistSettings(partitions.PartitionSettings):
  """The settings of MNIST.

  Of the first 400 seeds, `partition_seed` is the one whose sizes are nearest to
  FedProx: 69,052 examples with a deviation of 113 over clients, instead of
  69,035 with a deviation of 106.
  """

  partition: str = partitions.field('power_law', _WRITER)
  num_clients: int = partitions.num_clients_field(1000)
  partition_seed: int = partitions.seed_field(70)
  rotate_half: bool = rotations.field()
  model: str = model_field()


def read(data_dir: str | None) -> tuple[np.ndarray, np.ndarray, int]:
  """Reads the images, the labels, and the number of the training images."""
  return idx_files.read('MNIST', 'mnist', data_dir, _ADVICE)


def _read_writers(data_dir: str | None, size: int) -> np.ndarray:
  path = downloads.find(f'mnist/{_WRITERS_FILE}', data_dir, _ADVICE_ON_WRITERS)
  with files.reading(path, 'the writers', _ADVICE_ON_WRITERS):
    parts = dict(train_writer=np.int64, test_writer=np.int64)
    writers = np.concatenate(list(arrays.read_columns(path, parts).values()))
    if len(writers) != size:
      raise ValueError(f'{len(writers)} writers of {size} images')
  return writers


def _standardize(images: np.ndarray) -> np.ndarray:
  """Standardizes each pixel over all images, as FedProx does."""
  pixels = images.reshape(len(images), -1).astype(np.float32)
  mean, deviation = pixels.mean(axis=0), pixels.std(axis=0)
  pixels -= mean
  pixels /= deviation + 0.001
  return pixels


def make_task(
  name: str,
  model: str,
  images: np.ndarray,
  labels: np.ndarray,
  clients: partitions.Partition,
  split_seed: int,
  attributes: Mapping[str, task.Attribute] | None = None,
) -> task.Task:
  """Makes a task of gray images of ten characters, `[n, 28, 28]` or pixels."""
  learned: models.Model
  if model == _LOGISTIC:
    x = images.reshape(len(images), -1)
    learned = linear.LogisticRegression(x.shape[1], num_classes=_NUM_CLASSES)
  else:
    x = images[..., np.newaxis]
    learned = cnn.EmnistCnn(_NUM_CLASSES)

  def take(rows: np.ndarray) -> populations.Examples:
    return {'x': x[rows], 'y': labels[rows]}

  return task.Task(
    name=name,
    model=learned,
    metric='accuracy',
    higher_is_better=True,
    batch_size=10,
    padded=model == _LOGISTIC,
    attributes=attributes or {},
    **silos.make_populations_of_rows(clients, take, split_seed),
  )


def load(settings: MnistSettings, data_dir: str | None, seed: int) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  images, labels, _ = read(data_dir)
  columns: Mapping[str, np.ndarray] = {}
  if settings.partition == _WRITER:
    columns = {_WRITER: _read_writers(data_dir, len(labels))}
  clients = partitions.make(settings, labels, data_dir, columns)
  attributes = {}
  if settings.rotate_half:
    attributes[task.GROUP] = group = rotations.groups(list(clients))
    for client_id, rows in clients.items():
      if group.name(client_id) == rotations.ROTATED:
        images[rows] = rotations.turn(images[rows])

  if settings.model == _LOGISTIC:
    x = _standardize(images)
  else:  # As in TFF's EMNIST, where 1 is the background.
    x = 1 - images / np.float32(255)
  return make_task(
    'mnist',
    settings.model,
    x,
    labels,
    clients,
    settings.seed(seed),
    attributes,
  )


registry.register_task('mnist', MnistSettings)
