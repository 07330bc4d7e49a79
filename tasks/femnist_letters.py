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
from base import settings
from tasks import registry
from tasks import task
from tasks.data import partitions
from tasks.data import populations
from tasks.data import silos
from tasks.data import tff_databases
from tasks.models import cnn
from tasks.models import linear
from tasks.models import models

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
  model: str = settings.field(
    'logistic',
    "Multinomial logistic regression, or the network of the task 'emnist'.",
    choices=('logistic', 'cnn'),
  )


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
  x, labels = np.concatenate(images), np.concatenate(letters).astype(np.int32)
  if not len(labels):
    raise errors.UserError(
      f'{writers.path} has none of the letters a to j. {writers.advice}'
    )
  clients = partitions.make(
    settings, labels, data_dir, {_WRITER: np.concatenate(names)}
  )
  model: models.Model
  if settings.model == 'logistic':
    x = x.reshape(len(x), -1)
    model = linear.LogisticRegression(x.shape[1], num_classes=_NUM_CLASSES)
  else:
    x = x[..., np.newaxis]
    model = cnn.EmnistCnn(_NUM_CLASSES)

  def take(rows: np.ndarray) -> populations.Examples:
    return {'x': x[rows], 'y': labels[rows]}

  return task.Task(
    name='femnist_letters',
    model=model,
    metric='accuracy',
    higher_is_better=True,
    batch_size=10,
    padded=settings.model == 'logistic',
    **silos.make_populations_of_rows(clients, take, settings.seed(seed)),
  )


registry.register_task('femnist_letters', FemnistLettersSettings)
