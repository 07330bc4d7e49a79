"""FEMNIST's letters a to j, of which each client has some (Self-FL).

The lower-case letters a to j of the writers to train on in TFF's database of
EMNIST, divided as in FedProx (Li et al. 2020): 200 clients with five of the
letters each, and lognormal numbers of examples; or by writer. Self-FL has
clients with 1 to 206 examples and does not say how they are made. Images are
gray, 28x28, with 1 as the background, and the model is FedProx's multinomial
logistic regression. A tenth of each client's examples are validation examples
and a tenth test examples (cross-silo).
"""

import dataclasses
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from tasks import mnist
from tasks import registry
from tasks import task
from tasks.data import partitions
from tasks.data import tff_databases

_FEATURES = {
  'pixels': tf.io.FixedLenFeature((28, 28), tf.float32),
  'label': tf.io.FixedLenFeature((), tf.int64),
}
_WRITER = 'writer'
# TFF's classes are the digits, the capitals, and then the others.
_LETTER_A = 36
_NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class FemnistLettersSettings(partitions.PartitionSettings):
  """The settings of FEMNIST's letters."""

  partition: str = partitions.field('lognormal', _WRITER)
  num_clients: int = partitions.num_clients_field(200)
  classes_per_client: int = partitions.classes_field(5)
  model: str = mnist.model_field()


def load(
  settings: FemnistLettersSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  (writers,) = tff_databases.open_splits(
    'emnist_all.sqlite',
    data_dir,
    functools.partial(tff.simulation.datasets.emnist.load_data, False),
    ['all_train'],
    _FEATURES,
  )
  images, letters, names = [], [], []
  for writer in writers.num_examples:
    examples = writers.read(writer)
    letter = examples['label'] - _LETTER_A
    wanted = (letter >= 0) & (letter < _NUM_CLASSES)
    images.append(examples['pixels'][wanted])
    letters.append(letter[wanted])
    names.append(np.repeat(writer, wanted.sum()))
  labels = np.concatenate(letters).astype(np.int32)
  if not len(labels):
    raise errors.UserError(
      f'{writers.path} has none of the letters a to j. {writers.advice}'
    )
  clients = partitions.make(
    settings, labels, data_dir, {_WRITER: np.concatenate(names)}
  )
  return mnist.make_task(
    'femnist_letters',
    settings.model,
    np.concatenate(images),
    labels,
    clients,
    settings.seed(seed),
  )


registry.register_task('femnist_letters', FemnistLettersSettings)
