"""EMNIST: handwritten characters, a writer a client (Motley, cross-device).

TFF's `tff.simulation.datasets.emnist`: 3,400 writers, digits and letters in 62
classes, grey images of 28x28 in which 1 is the background. As in Motley
(appendix B.1), what TFF calls a writer's test examples is left alone, and
2,500, 400 and 500 of the writers are to train on, to choose by and to report.
The writers that are held out have their examples shuffled once and halved.
"""

from collections.abc import Sequence
import dataclasses
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import seeds
from base import settings
from tasks import task
from tasks.data import client_data
from tasks.data import tff_databases
from tasks.models import cnn

_FEATURES = {
  'pixels': tf.io.FixedLenFeature((28, 28), tf.float32),
  'label': tf.io.FixedLenFeature((), tf.int64),
}
# Motley's 400 and 500 of 3,400.
_VALIDATION, _TEST = 400 / 3400, 500 / 3400

UPRIGHT, ROTATED = 'upright', 'rotated'


@dataclasses.dataclass(frozen=True)
class Parameters(tff_databases.Parameters):
  """The settings of the task."""

  only_digits: bool = settings.field(
    False, 'Whether to leave out the letters: 10 classes, not 62.'
  )
  rotate_half: bool = settings.field(
    False,
    'Whether to turn the images of every other writer upside down, so that'
    ' there are two groups of writers to be found.',
  )


def planted_groups(permuted_ids: Sequence[str]) -> task.Attribute:
  """Each client's group with `rotate_half`: every other one is rotated.

  In the order in which clients are dealt out, so that half of those to train
  on, half of those to choose by and half of those to report are.

  Args:
    permuted_ids: All clients, as `Parameters.permuted` gives them.

  Returns:
    Each client's group, `UPRIGHT` or `ROTATED`.
  """
  return task.Attribute(
    (UPRIGHT, ROTATED),
    {client_id: i % 2 for i, client_id in enumerate(permuted_ids)},
  )


def load(parameters: Parameters, data_dir: str | None, seed: int) -> task.Task:
  """Loads the task from TFF's database in `data_dir`, its cache folder."""
  del seed  # All that is random goes by `split_seed`.
  (writers,) = tff_databases.open_splits(
    'emnist_all.sqlite',
    data_dir,
    functools.partial(
      tff.simulation.datasets.emnist.load_data, parameters.only_digits
    ),
    ['digits_only_train' if parameters.only_digits else 'all_train'],
    _FEATURES,
  )
  permuted_ids = parameters.permuted(list(writers.num_examples))
  attributes = {}
  if parameters.rotate_half:
    attributes[task.GROUP] = planted_groups(permuted_ids)

  def examples(client_id: str) -> client_data.Examples:
    own = writers.read(client_id)
    x = own['pixels'][..., np.newaxis]
    if attributes and attributes[task.GROUP].name(client_id) == ROTATED:
      x = np.rot90(x, 2, axes=(1, 2))
    return {'x': x, 'y': own['label'].astype(np.int32)}

  def shuffled(client_id: str) -> client_data.Examples:
    own = examples(client_id)
    rng = seeds.generator('emnist', parameters.split_seed, client_id)
    rows = rng.permutation(client_data.num_examples(own))
    return {name: values[rows] for name, values in own.items()}

  validation, test, train = parameters.split(permuted_ids, _VALIDATION, _TEST)

  def held_out(client_ids: Sequence[str]) -> client_data.Population:
    return client_data.Population(
      client_ids,
      client_data.halves(shuffled),
      client_data.half_sizes(writers.sizes(client_ids)),
    )

  return task.Task(
    name='emnist',
    model=cnn.EmnistCnn(10 if parameters.only_digits else 62),
    metric='accuracy',
    higher_is_better=True,
    train=client_data.Population(
      train, {'train': examples}, {'train': writers.sizes(train)}
    ),
    validation=held_out(validation),
    test=held_out(test),
    cross_silo=False,
    batch_size=20,
    padded=False,
    attributes=attributes,
  )
