"""Data sets in the four files of MNIST: gray images in the IDX format."""

import gzip
import pathlib

import numpy as np

from base import errors
from tasks.data import downloads
from tasks.data import files

_PARTS = ('train', 't10k')
# Rows and columns of an image.
SIZE = 28


def _read(
  path: pathlib.Path, num_axes: int, source: str, advice: str
) -> np.ndarray:
  """Reads a file of bytes in the IDX format."""
  with files.reading(path, f'a file of {source}', advice):
    contents = gzip.decompress(path.read_bytes())
    if contents[:4] != bytes([0, 0, 8, num_axes]):
      raise ValueError(f'it does not have {num_axes} axes of bytes')
    start = 4 + 4 * num_axes
    shape = np.frombuffer(contents[4:start], '>i4')
    if num_axes == 3 and tuple(shape[1:]) != (SIZE, SIZE):
      raise ValueError(f'it has images of shape {shape[1:].tolist()}')
    return np.frombuffer(contents, np.uint8, offset=start).reshape(shape)


def read(
  source: str,
  folder: str,
  data_dir: str | None,
  advice: str,
  installed: str | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
  """Reads the four files.

  Args:
    source: The name of the data set, for errors.
    folder: The name of its folder.
    data_dir: The folder of the user's data.
    advice: How the user can get the files.
    installed: The folder in which a package of the system installs them.

  Returns:
    The images, `[n, 28, 28]` uint8, and the labels, `[n]` int32, of the
    training file and then of the test file, and the number of the first.

  Raises:
    UserError: If they cannot be found or read.
  """

  def read_parts(kind: str, num_axes: int) -> list[np.ndarray]:
    names = [f'{part}-{kind}-idx{num_axes}-ubyte.gz' for part in _PARTS]
    return [
      _read(
        downloads.find(f'{folder}/{name}', data_dir, advice, installed),
        num_axes,
        source,
        advice,
      )
      for name in names
    ]

  images = np.concatenate(read_parts('images', 3))
  parts = read_parts('labels', 1)
  labels = np.concatenate(parts).astype(np.int32)
  if len(images) != len(labels):
    raise errors.UserError(
      f'There are {len(images)} images and {len(labels)} labels in the files of'
      f' {source}. {advice}'
    )
  return images, labels, len(parts[0])
