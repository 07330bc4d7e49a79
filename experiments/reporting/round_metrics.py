"""The file of the metrics of a training's rounds."""

from collections.abc import Mapping
import csv
import io
import itertools
import pathlib
from typing import Any

import numpy as np
import tensorflow_federated as tff

from base import errors
from experiments.reporting import folders

_ROUND = 'round'


def _to_line(fields: Any) -> str:
  line = io.StringIO()
  csv.writer(line, lineterminator='\n').writerow(fields)
  return line.getvalue()


class CsvReleaseManager(tff.program.ReleaseManager):
  """Writes a line of CSV for each round, or each of every so many rounds.

  TFF's own manager writes its whole file anew for each round, which takes
  longer the more rounds there were. A round that is released again, as after a
  kill, takes its old place and that of those behind it.
  """

  def __init__(self, path: pathlib.Path, every: int = 1):
    """Makes the manager; the file is first touched by `release`.

    Args:
      path: The file.
      every: Between how many rounds there is a line.
    """
    self._path = path
    self._every = every
    self._columns: list[str] = []

  async def release(self, value: Mapping[str, Any], key: int) -> None:
    """Writes the metrics of the round `key`, which have the same names always.

    Args:
      value: The metrics.
      key: The number of the round.
    """
    metrics = await tff.program.materialize_value(value)
    if not self._columns:
      self._columns = [_ROUND, *metrics]
      self._keep_rounds_before(key)
    numbers = (float(metrics[name]) for name in self._columns[1:])
    line = _to_line([key, *numbers])
    with (
      errors.writing(self._path),
      self._path.open('a', encoding='utf-8') as file,
    ):
      file.write(line)

  def _keep_rounds_before(self, key: int) -> None:
    """Takes from the file what is not of an earlier round."""
    header = _to_line(self._columns)
    rows = self._rows_before(key, header) if key > self._every else []
    self._path.parent.mkdir(parents=True, exist_ok=True)
    folders.write(self._path, ''.join([header, *rows]))

  def _rows_before(self, key: int, header: str) -> list[str]:
    """Reads the lines of earlier rounds, all of which must be there."""
    expected = range(self._every, key, self._every)
    try:
      with self._path.open(encoding='utf-8') as file:
        found, *rows = itertools.islice(file, len(expected) + 1)
      if found != header or len(rows) < len(expected):
        raise ValueError(f'it lacks rounds before {key}')
      for number, row in zip(expected, rows):
        if not row.startswith(f'{number},') or not row.endswith('\n'):
          raise ValueError(f'round {number} is not in its place')
      return rows
    except (OSError, ValueError) as error:
      raise errors.UserError(
        f'{self._path} is damaged: {error}. Delete it and the checkpoints of'
        f' {self._path.stem} to train anew.'
      ) from error


class TensorBoardReleaseManager(tff.program.TensorBoardReleaseManager):
  """TFF's own manager, in memory that does not grow with the rounds.

  TensorFlow keeps each Python number that it has made a tensor of for good, but
  none of NumPy's.
  """

  async def release(self, value: Mapping[str, Any], key: int) -> None:
    """Releases the metrics of the round `key` to TensorBoard."""
    metrics = await tff.program.materialize_value(value)
    await super().release(
      {name: np.float32(metric) for name, metric in metrics.items()},
      np.int64(key),
    )
