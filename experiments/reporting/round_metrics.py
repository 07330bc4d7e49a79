"""The metrics of a training's rounds, as a table and for TensorBoard."""

from collections.abc import Iterable, Mapping
import csv
import io
import itertools
import pathlib
import time

from tensorboard.compat.proto import event_pb2
from tensorboard.summary.writer import record_writer
import tensorflow_federated as tff

from base import errors
from base.aliases import Structure
from experiments.reporting import folders

_ROUND = 'round'


def _to_line(fields: Iterable[object]) -> str:
  line = io.StringIO()
  csv.writer(line, lineterminator='\n').writerow(fields)
  return line.getvalue()


class CsvReleaseManager(tff.program.ReleaseManager):
  """Writes a line of CSV for each round, or for every few rounds.

  TFF's own manager writes the whole file again for each round, which takes
  longer the more rounds there were. If a round is released again, for example
  after a kill, its line replaces the old line and all lines after it.
  """

  def __init__(self, path: pathlib.Path, every: int = 1):
    """Makes the manager; the file is first touched by `release`.

    Args:
      path: The file.
      every: The number of rounds between lines.
    """
    self._path = path
    self._every = every
    self._columns: list[str] = []

  async def release(self, value: Mapping[str, Structure], key: int) -> None:
    """Writes the metrics of the round `key`; names must not change."""
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
    """Removes all lines from the file but those of earlier rounds."""
    header = _to_line(self._columns)
    rows = self._rows_before(key, header) if key > self._every else []
    with errors.writing(self._path):
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
        f' {self._path.stem} to train again.'
      ) from error


class TensorBoardReleaseManager(tff.program.ReleaseManager):
  """Writes an event for TensorBoard for each round.

  TFF's own manager never frees the memory that it takes for each round, and
  takes most of the time of a short round.
  """

  def __init__(self, folder: pathlib.Path):
    """Makes the manager; the folder is first touched by `release`.

    Args:
      folder: The folder, which may have events of an earlier process.
    """
    self._path = folder / f'events.out.tfevents.{time.time_ns()}'

  async def release(self, value: Mapping[str, Structure], key: int) -> None:
    """Writes the metrics of the round `key`."""
    metrics = await tff.program.materialize_value(value)
    event = event_pb2.Event(wall_time=time.time(), step=key)
    for name, metric in metrics.items():
      event.summary.value.add(tag=name, simple_value=metric)
    with errors.writing(self._path):
      self._path.parent.mkdir(parents=True, exist_ok=True)
      with self._path.open('ab') as file:
        record_writer.RecordWriter(file).write(event.SerializeToString())
