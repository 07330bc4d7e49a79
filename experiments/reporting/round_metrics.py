"""The file of the metrics of a training's rounds."""

from collections.abc import Mapping
import csv
import io
import pathlib
from typing import Any

import tensorflow_federated as tff

from base import errors
from experiments.reporting import folders

_ROUND = 'round'


def _to_line(fields: Any) -> str:
  line = io.StringIO()
  csv.writer(line, lineterminator='\n').writerow(fields)
  return line.getvalue()


class CsvReleaseManager(tff.program.ReleaseManager):
  """Writes a line of CSV for each round.

  TFF's own manager writes its whole file anew for each round, which takes
  longer the more rounds there were. A round that is released again, as after a
  kill, takes its old place and that of those behind it.
  """

  def __init__(self, path: pathlib.Path):
    """Makes the manager; the file is first touched by `release`."""
    self._path = path
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
    lines = [_to_line(self._columns)]
    if self._path.exists():
      text = self._path.read_text('utf-8')
      header, *rows = text.splitlines(keepends=True) or ['']
      if header == lines[0]:
        for row in rows:
          number, _, rest = row.partition(',')
          # A line that a kill cut off has no end.
          if number.isdigit() and int(number) < key and rest.endswith('\n'):
            lines.append(row)
    self._path.parent.mkdir(parents=True, exist_ok=True)
    folders.write(self._path, ''.join(lines))
