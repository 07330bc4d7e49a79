"""Writes photos of landmarks as TFF does, but few and small ones."""

import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

# Each client's number of photos; more than 64, and none, are among them.
SIZES = {str(10 + k): size for k, size in enumerate((7, 70, 3, 0, 12, 5))}


def _write_file(
  path: pathlib.Path, size: int, rng: np.random.Generator
) -> None:
  utils = tff.simulation.datasets.gldv2.vision_datasets_utils
  with tf.io.TFRecordWriter(str(path)) as writer:
    for i in range(size):
      # The photos differ in size; each has one colour, which tells its class.
      label = int(rng.integers(0, 203))
      pixels = np.full((40 + i, 60, 3), label, np.uint8)
      jpeg = tf.io.encode_jpeg(pixels, quality=100).numpy()
      writer.write(utils.create_example(jpeg, label).SerializeToString())


def write(folder: pathlib.Path) -> None:
  """Writes a file for each client, and a common one of test photos."""
  rng = np.random.default_rng(0)
  (folder / 'train').mkdir(parents=True)
  for client_id, size in SIZES.items():
    _write_file(folder / 'train' / client_id, size, rng)
  _write_file(folder / 'test.tfRecord', 2, rng)
