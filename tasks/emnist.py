"""EMNIST: handwritten characters; each writer is a client (Motley).

TFF's `tff.simulation.datasets.emnist`: 3,400 writers, digits and letters in 62
classes, gray images of 28x28 in which 1 is the background. As in Motley
(appendix B.1, cross-device), 2,500 writers are training clients, 400 validation
clients and 500 test clients, and the examples that TFF calls a writer's test
examples are not used. The examples of held-out writers are shuffled once and
halved.
"""

import dataclasses
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import settings
from tasks import registry
from tasks import task
from tasks.data import arrays
from tasks.data import devices
from tasks.data import populations
from tasks.data import rotations
from tasks.data import tff_databases
from tasks.models import cnn

_FEATURES = {
  'pixels': tf.io.FixedLenFeature((28, 28), tf.float32),
  'label': tf.io.FixedLenFeature((), tf.int64),
}
# Motley's 400 and 500 of 3,400.
_VALIDATION, _TEST = 400 / 3400, 500 / 3400


@dataclasses.dataclass(frozen=True)
class EmnistSettings(devices.HeldOutSettings):
  """The settings of EMNIST."""

  only_digits: bool = settings.field(
    False, 'Whether to leave out the letters: 10 classes, not 62.'
  )
  rotate_half: bool = rotations.field()


def load(
  settings: EmnistSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task from TFF's database in `data_dir`, its cache folder."""
  del seed  # All randomness follows from `split_seed`.
  (writers,) = tff_databases.open_splits(
    'emnist_all.sqlite',
    data_dir,
    functools.partial(
      tff.simulation.datasets.emnist.load_data, settings.only_digits
    ),
    ['digits_only_train' if settings.only_digits else 'all_train'],
    _FEATURES,
  )
  permuted_ids = settings.permuted(list(writers.num_examples))
  attributes = {}
  if settings.rotate_half:
    attributes[task.GROUP] = rotations.groups(permuted_ids)

  def load_client(client_id: str, limit: int | None) -> populations.Examples:
    examples = writers.read(client_id, limit)
    x = examples['pixels'][..., np.newaxis]
    group = attributes.get(task.GROUP)
    if group and group.name(client_id) == rotations.ROTATED:
      x = rotations.turn(x)
    where = f'label of {client_id}'
    with tff_databases.reading(writers.path, writers.advice):
      y = arrays.convert(examples['label'], np.int32, where)
    return {'x': x, 'y': y}

  validation, test, train = (
    devices.Devices(client_ids, load_client, writers.sizes(client_ids))
    for client_ids in settings.split(permuted_ids, _VALIDATION, _TEST)
  )
  return task.Task(
    name='emnist',
    model=cnn.EmnistCnn(10 if settings.only_digits else 62),
    metric='accuracy',
    higher_is_better=True,
    batch_size=20,
    padded=False,
    attributes=attributes,
    **devices.make_populations(
      train=train,
      validation=validation,
      test=test,
      shuffle_key=('emnist', settings.split_seed),
    ),
  )


registry.register_task('emnist', EmnistSettings)
