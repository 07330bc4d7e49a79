"""Reads folders of clips, and tables with data on each clip."""

from collections.abc import Callable, Mapping, Sequence
import csv
import pathlib
from typing import TypeVar

import numpy as np

from tasks.data import audio
from tasks.data import files

_Known = TypeVar('_Known')
# A row of the table, by column.
Row = Mapping[str, str]


def _read_clip(
  path: pathlib.Path, represent: Callable[[np.ndarray], np.ndarray], table: str
) -> np.ndarray:
  advice = f'Replace it, or leave it out of {table}.'
  with files.reading(path, 'a clip', advice):
    return represent(audio.read_wav(path))


def read(
  table: pathlib.Path,
  parse: Callable[[Sequence[Row]], _Known],
  represent: Callable[[np.ndarray], np.ndarray],
  advice: str,
) -> tuple[np.ndarray, _Known]:
  """Reads the clips that a table names in its column `file`.

  Args:
    table: The CSV file, in the folder of the clips.
    parse: Parses the rows. It may raise any error for invalid rows.
    represent: Computes the representation of a clip from its samples.
    advice: Says how to get the files.

  Returns:
    The representation of each clip, `[clips, …]`, and the parsed rows.

  Raises:
    UserError: If the table or a clip cannot be read.
  """
  with files.reading(table, 'a table of clips', advice):
    with table.open(encoding='utf-8', newline='') as file:
      rows = list(csv.DictReader(file, strict=True))
    for number, row in enumerate(rows, 1):
      # Further values have the name None, and missing values are None.
      if None in row or None in row.values():
        raise ValueError(f'row {number} has more or fewer columns than others')
    known = parse(rows)
    paths = [table.parent / row['file'] for row in rows]
  clips = [_read_clip(path, represent, table.name) for path in paths]
  return np.stack(clips), known
