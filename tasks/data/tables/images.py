"""Images whose paths are in a column of a user's table."""

from collections.abc import Mapping
import dataclasses
import functools
import pathlib

import numpy as np
import pyarrow as pa
import tensorflow as tf

from base import inputs
from base import settings
from base import words
from tasks.data.tables import table_columns
from tasks.data.tables import table_files

# The first bytes of a PNG, JPEG, BMP or GIF image.
_STARTS = b'\x89PNG\r\n\x1a\n', b'\xff\xd8\xff', b'BM', b'GIF8'
_LONGEST_START = max(map(len, _STARTS))


@dataclasses.dataclass(frozen=True)
class ImageSettings(settings.Settings):
  """The settings of images that are inputs."""

  image_column: str | None = settings.field(
    None,
    'The column with the paths of images (PNG, JPEG, BMP or GIF), which are'
    ' then the only inputs. A relative path starts at the folder of the table.',
  )
  image_size: int = settings.field(
    32, 'The height and width that images are resized to.', minimum=4
  )
  image_channels: int = settings.field(
    3, '3 for color images, 1 for gray images.', choices=(1, 3)
  )


@dataclasses.dataclass(frozen=True)
class Images:
  """The images of all rows, which are decoded when they are taken.

  Attributes:
    table: The table.
    paths: The path of each row's image.
    settings: The settings.
  """

  table: table_files.Table
  paths: pa.Array
  settings: ImageSettings

  num_numbers = 0  # There are no inputs to standardize.

  @property
  def descriptions(self) -> Mapping[str, str]:
    """A description of the column, for the user."""
    height, width, channels = self.shape
    text = f'images of {height} x {width}, {words.count(channels, "channels")}'
    return {str(self.settings.image_column): text}

  @property
  def shape(self) -> tuple[int, int, int]:
    """The shape of an image."""
    return (
      self.settings.image_size,
      self.settings.image_size,
      self.settings.image_channels,
    )

  @functools.cached_property
  def _folder(self) -> pathlib.Path:
    path = self.table.path
    return path if path.is_dir() else path.parent

  def _path(self, row: int) -> pathlib.Path:
    return self._folder / self.paths[row].as_py()

  def check(self) -> None:
    """Raises a `UserError` if a file is missing, or begins as no image."""
    for row in range(len(self.paths)):
      path = self._path(row)
      if not path.is_file():
        self._refuse(row, 'is not a file')
      try:
        with inputs.open_bytes(path) as file:
          start = file.read(_LONGEST_START)
      except OSError as error:
        self._refuse(row, str(error.strerror))
      if not start.startswith(_STARTS):
        self._refuse(row, 'is not a PNG, JPEG, BMP or GIF image')

  def _refuse(self, row: int, problem: str) -> None:
    where = self._path(row)
    table_columns.refuse(
      self.table,
      row,
      str(self.settings.image_column),
      f'names {where}: {problem}.',
    )

  def take(self, rows: np.ndarray) -> np.ndarray:
    """Returns the images of some rows, `[n, height, width, channels]`, 0 to 1.

    Raises:
      UserError: If a file is not an image.
    """
    images = np.empty([len(rows), *self.shape], np.float32)
    for k, row in enumerate(rows.tolist()):
      try:
        images[k] = self._decode(self._path(row))
      except OSError as error:
        self._refuse(row, str(error.strerror))
      except tf.errors.OpError:
        self._refuse(row, 'is a damaged image')
    return images

  def _decode(self, path: pathlib.Path) -> np.ndarray:
    image = tf.io.decode_image(
      inputs.read_bytes(path),
      self.settings.image_channels,
      tf.float32,
      expand_animations=False,
    )
    resized = tf.image.resize(image, self.shape[:2], antialias=True)
    return resized.numpy()


def read(table: table_files.Table, settings: ImageSettings) -> Images:
  """Finds the images of all rows.

  Args:
    table: The table.
    settings: The settings, which name the column.

  Returns:
    The images.

  Raises:
    UserError: If there is no such column, or no such file.
  """
  column = table_columns.texts(
    table, str(settings.image_column), 'image_column'
  )
  images = Images(table, column.combine_chunks(), settings)
  images.check()
  return images
