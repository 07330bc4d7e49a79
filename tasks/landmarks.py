"""Landmarks: which landmark a photo shows, by photographer (Motley).

The federated Google Landmarks v2 of Hsu et al. 2020, gld160k, as TFF reads it:
1,262 authors of Wikipedia, each a client, 164,172 photos of 2,028 landmarks. As
in Motley's code, a MobileNetV2 sees the middle of a photo, 7/8 of its height
and width, at 128x128 (224x224 in Hsu et al.), and a client is trained on 64
photos at most. What is not as there:
- Photos are not distorted at random: a client has the same ones every time.
- Hence the 64 are the same in each round, too.
"""

import dataclasses
import os
import pathlib
import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import client_data
from tasks import downloads
from tasks import errors
from tasks import parameters as parameters_lib
from tasks import task
from tasks.models import mobilenet

_NUM_CLASSES = {'gld160k': 2028, 'gld23k': 203}
_CENTRAL_FRACTION = 7 / 8
_MAX_TRAIN_EXAMPLES = 64
# Motley's, with which its clients are ours.
_SPLIT_SEED = 13


@dataclasses.dataclass(frozen=True)
class Parameters(parameters_lib.Parameters):
  """The settings of the task."""

  dataset: str = parameters_lib.field(
    'gld160k',
    "TFF's name of the data: Motley's, or a small part of 203 landmarks.",
    choices=tuple(_NUM_CLASSES),
  )
  image_size: int = parameters_lib.field(
    128, 'The height and width that images are resized to.', minimum=32
  )
  num_validation_clients: int = parameters_lib.field(
    50, 'The number of clients to choose by.', minimum=1
  )
  num_test_clients: int = parameters_lib.field(
    100, 'The number of clients to report.', minimum=1
  )


def _find(dataset: str, data_dir: str | None) -> pathlib.Path:
  """The folder that TFF has made or is to make, with a file for each client."""
  candidates = downloads.places(f'landmarks/{dataset}', data_dir)
  for path in candidates:
    if (path / 'train').is_dir():
      return path
  return candidates[0]


def _open(folder: pathlib.Path) -> tff.simulation.datasets.ClientData:
  """The clients in that folder, or downloaded to it."""
  if not (folder / 'train').is_dir():
    print(
      f'There is no {folder / "train"}: downloading all 500 GB of the Google'
      ' Landmarks Dataset v2',
      file=sys.stderr,
    )
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    train, _ = tff.simulation.datasets.gldv2.load_data(
      cache_dir=str(folder.parent), gld23k=folder.name == 'gld23k'
    )
  except (
    Exception
  ) as error:  # Keras raises no other kind for a failed download.
    raise errors.UserError(
      f'{folder} cannot be read as TFF writes it, nor be downloaded ({error}).'
      f' Have tff.simulation.datasets.gldv2.load_data download it where there'
      f' is a network, and put the folder {folder.name} of its cache, with'
      f' train that has a file for each client, at {folder}'
    ) from error
  return train


def num_examples(path: pathlib.Path) -> int:
  """The number of examples in a client's file, of which little is read."""
  count = 0
  with path.open('rb') as file:
    # A TFRecord: its length, a checksum of that, the record, a checksum of it.
    while length := file.read(8):
      file.seek(int.from_bytes(length, 'little') + 8, os.SEEK_CUR)
      count += 1
  return count


def load(parameters: Parameters, data_dir: str | None, seed: int) -> task.Task:
  """Loads the task; the photos of a client are read when they are asked for."""
  del seed  # Motley's split is the same in all of its runs.
  folder = _find(parameters.dataset, data_dir)
  images = _open(folder)
  size = parameters.image_size

  def resize(element: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    image = tf.image.central_crop(element['image/decoded'], _CENTRAL_FRACTION)
    image = tf.round(tf.image.resize(image, [size, size]))
    # A grey image has one channel only.
    image = tf.broadcast_to(image, [size, size, 3])
    return tf.cast(image, tf.uint8), element['class'][0]

  def examples(client_id: str) -> client_data.Examples:
    dataset = images.create_tf_dataset_for_client(client_id)
    try:
      photos = list(dataset.map(resize, tf.data.AUTOTUNE).as_numpy_iterator())
    except tf.errors.OpError as error:
      raise errors.UserError(
        f'{folder / "train" / client_id} cannot be read as a'
        f" client's photos ({error.message}). Replace it."
      ) from error
    order = client_data.seeded_rng('landmarks', client_id).permutation(
      len(photos)
    )
    x = np.empty([len(photos), size, size, 3], np.uint8)
    y = np.empty(len(photos), np.int32)
    for row, place in enumerate(order):
      x[row], y[row] = photos[place]
    return {'x': x, 'y': y}

  def some_examples(client_id: str) -> client_data.Examples:
    return {
      name: values[:_MAX_TRAIN_EXAMPLES]
      for name, values in examples(client_id).items()
    }

  client_ids = np.random.RandomState(_SPLIT_SEED).permutation(images.client_ids)
  first_test = parameters.num_validation_clients
  first_train = first_test + parameters.num_test_clients
  if first_train >= len(client_ids):
    raise errors.UserError(
      f'num_validation_clients and num_test_clients are {first_train} together,'
      f' but {folder / "train"} has {len(client_ids)} clients, of which some'
      ' must be left to train on.'
    )
  validation, test, train = (
    tuple(map(str, part))
    for part in np.split(client_ids, [first_test, first_train])
  )
  held_out = client_data.halves(examples)
  return task.Task(
    name='landmarks',
    model=mobilenet.mobilenet_v2(_NUM_CLASSES[parameters.dataset], size),
    metric='accuracy',
    higher_is_better=True,
    train=client_data.Population(train, {'train': some_examples}),
    validation=client_data.Population(validation, held_out),
    test=client_data.Population(test, held_out),
    cross_silo=False,
    batch_size=16,
    padded=False,
  )
