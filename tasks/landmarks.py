"""Landmarks: the landmark in a photo; each photographer is a client (Motley).

The federated Google Landmarks v2 of Hsu et al. 2020 as TFF writes it: gld160k,
164,172 photos of 2,028 landmarks by 1,262 contributors to Wikipedia, of whom
1,112 are training clients, 50 validation clients and 100 test clients. As in
Motley's code, the model sees the middle of a photo, 7/8 of its height and
width, at 128x128 (224x224 in Hsu et al.); a client trains on at most 64 photos;
the photos of held-out clients are shuffled once and halved. Two things differ:
Motley distorts training photos at random, and draws new 64 photos in each
round.
"""

import dataclasses
import os
import pathlib
import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from base import seeds
from base import settings
from tasks import registry
from tasks import task
from tasks.data import arrays
from tasks.data import devices
from tasks.data import downloads
from tasks.data import files
from tasks.data import populations
from tasks.models import mobilenet

_NUM_CLASSES = {'gld160k': 2028, 'gld23k': 203}
# Motley's 50 and 100 of 1,262.
_VALIDATION, _TEST = 50 / 1262, 100 / 1262
_MAX_TRAIN_EXAMPLES = 64
_CENTRAL_FRACTION = 7 / 8
# TFF's names.
_FEATURES = {
  'image/encoded_jpeg': tf.io.FixedLenFeature((), tf.string),
  'class': tf.io.FixedLenFeature((), tf.int64),
}
_TRAIN = 'train'
# TFF writes this file last.
_TEST_FILE = 'test.tfRecord'


@dataclasses.dataclass(frozen=True)
class LandmarksSettings(devices.HeldOutSettings):
  """The settings of Landmarks."""

  dataset: str = settings.field(
    'gld160k',
    "TFF's name of the data: gld160k as in Motley, or gld23k, a small part of"
    ' it with 23,080 photos of 203 landmarks by 233 clients.',
    choices=tuple(_NUM_CLASSES),
  )
  image_size: int = settings.field(
    128, 'The height and width that photos are resized to.', minimum=32
  )


def _is_complete(folder: pathlib.Path) -> bool:
  return (folder / _TRAIN).is_dir() and (folder / _TEST_FILE).is_file()


def _download(folder: pathlib.Path) -> None:
  """Has TFF download the data and write this folder."""
  gldv2 = tff.simulation.datasets.gldv2
  print(
    f'There is no whole {folder}: TFF downloads all of Google Landmarks v2,'
    ' 500 GB',
    file=sys.stderr,
  )
  # TFF 0.87 does not pass its logger on when it reads the folder that it has
  # written. It would fail, and download everything again the next time.
  gldv2.vision_datasets_utils.load_tfrecord.__defaults__ = (gldv2.LOGGER,)
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    gldv2.load_data(
      cache_dir=str(folder.parent), gld23k=folder.name == 'gld23k'
    )
    if not _is_complete(folder):
      raise ValueError('an incomplete folder is in its way')
  except Exception as error:  # A download fails in a dozen ways.
    raise errors.UserError(
      f'There is no whole {folder}, and TFF cannot download it ({error}). Have'
      ' tff.simulation.datasets.gldv2.load_data write it where there is a'
      f' network: a folder {_TRAIN} with a file for each client, and'
      f' {_TEST_FILE}.'
    ) from error


def _find(dataset: str, data_dir: str | None) -> pathlib.Path:
  """Finds the folder of the data, and downloads it if it is in no place."""
  candidates = downloads.places(f'landmarks/{dataset}', data_dir)
  for folder in candidates:
    if _is_complete(folder):
      return folder
  _download(candidates[0])
  return candidates[0]


def num_examples(path: pathlib.Path) -> int:
  """Counts the examples in a client's file, reading only a little of it."""
  count = 0
  with (
    files.reading(path, 'photos', 'Replace it.'),
    path.open('rb', buffering=0) as file,
  ):
    # The record's length and its checksum, the record and its checksum.
    while length := file.read(8):
      file.seek(4 + int.from_bytes(length, 'little') + 4, os.SEEK_CUR)
      count += 1
  return count


def load(
  settings: LandmarksSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; a client's photos are read each time they are needed."""
  del seed  # All randomness follows from `split_seed`.
  folder = _find(settings.dataset, data_dir) / _TRAIN
  size = settings.image_size

  @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
  def decode(jpeg: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_jpeg(jpeg, channels=3)
    image = tf.image.central_crop(image, _CENTRAL_FRACTION)
    image = tf.image.resize(image, [size, size])
    return tf.cast(tf.round(image), tf.uint8)

  def load_client(client_id: str, limit: int | None) -> populations.Examples:
    """Loads photos in a random order, which is the same at every call."""
    path = folder / client_id
    rng = seeds.generator('landmarks', settings.split_seed, client_id)
    with files.reading(path, 'photos', 'Replace it.'):
      records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
      order = rng.permutation(len(records))[:limit]
      chosen = tf.constant([records[i] for i in order], tf.string)
      examples = tf.io.parse_example(chosen, _FEATURES)
      images = [decode(jpeg) for jpeg in examples['image/encoded_jpeg']]
      return {
        'x': np.reshape(np.array(images, np.uint8), [-1, size, size, 3]),
        'y': arrays.convert(examples['class'], np.int32, 'class'),
      }

  def make_devices(client_ids: list[str]) -> devices.Devices:
    sizes = [num_examples(folder / client_id) for client_id in client_ids]
    return devices.Devices(client_ids, load_client, np.array(sizes, np.int64))

  validation, test, train = map(
    make_devices,
    settings.split(
      settings.permuted(sorted(os.listdir(folder))), _VALIDATION, _TEST
    ),
  )
  return task.Task(
    name='landmarks',
    model=mobilenet.MobileNetV2(_NUM_CLASSES[settings.dataset], size),
    metric='accuracy',
    higher_is_better=True,
    batch_size=16,
    padded=False,
    **devices.make_populations(
      train=train,
      validation=validation,
      test=test,
      max_train_examples=_MAX_TRAIN_EXAMPLES,
    ),
  )


registry.register_task('landmarks', LandmarksSettings)
