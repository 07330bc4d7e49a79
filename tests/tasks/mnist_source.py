"""Small files in the form of MNIST's, for tests."""

import gzip
import pathlib

import numpy as np


def write_idx(path: pathlib.Path, values: np.ndarray) -> None:
  """Writes a file as those of MNIST are."""
  header = bytes([0, 0, 8, values.ndim])
  shape = np.array(values.shape, '>i4').tobytes()
  path.write_bytes(gzip.compress(header + shape + values.tobytes()))


def examples() -> tuple[np.ndarray, np.ndarray]:
  """Makes 600 images and labels, the first 500 of which are to train on."""
  rng = np.random.default_rng(0)
  size = 600
  labels = rng.integers(10, size=size).astype(np.uint8)
  images = rng.integers(0, 256, (size, 28, 28)).astype(np.uint8)
  images[:, 0, 0] = 0  # A corner is empty.
  # Two pixels have the image's number, by which it is known.
  images[:, 1, 1], images[:, 1, 2] = np.divmod(np.arange(size), 256)
  return images, labels


def write(folder: pathlib.Path) -> None:
  """Writes the files; a writer has 30 images."""
  folder.mkdir()
  images, labels = examples()
  writers = np.arange(len(labels)) // 30
  for part, rows in (('train', slice(500)), ('t10k', slice(500, None))):
    write_idx(folder / f'{part}-images-idx3-ubyte.gz', images[rows])
    write_idx(folder / f'{part}-labels-idx1-ubyte.gz', labels[rows])
  np.savez(
    folder / 'writers.npz',
    train_writer=writers[:500],
    test_writer=writers[500:],
  )
