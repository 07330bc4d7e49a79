"""Folders of clips, and tables of what is known of each."""

from collections.abc import Callable, Mapping, Sequence
import csv
import pathlib
from typing import TypeVar
import wave

import numpy as np

from base import errors
from tasks.data import audio

_Known = TypeVar('_Known')
# A row of the table, by column.
Row = Mapping[str, str]


def _read_clip(
  path: pathlib.Path, represent: Callable[[np.ndarray], np.ndarray], table: str
) -> np.ndarray:
  try:
    return represent(audio.read_wav(path))
  except (OSError, EOFError, ValueError, wave.Error) as error:
    raise errors.UserError(
      f'{path} cannot be read as a clip ({error}). Replace it, or leave it out'
      f' of {table}.'
    ) from error


def read(
  table: pathlib.Path,
  parse: Callable[[Sequence[Row]], _Known],
  represent: Callable[[np.ndarray], np.ndarray],
  advice: str,
) -> tuple[np.ndarray, _Known]:
  """Reads the clips that a table names in its column `file`.

  Args:
    table: The CSV file, in the folder of the clips.
    parse: Makes of the rows what is known of the clips. It may raise KeyError,
      TypeError and ValueError.
    represent: From the samples of a clip to what stands for it.
    advice: Says how to put the files there.

  Returns:
    What stands for each clip, `[clips, …]`, and what is known of them.

  Raises:
    UserError: If the table or a clip cannot be read.
  """
  try:
    with table.open(encoding='utf-8', newline='') as file:
      rows = list(csv.DictReader(file))
    known = parse(rows)
    paths = [table.parent / row['file'] for row in rows]
  except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
    raise errors.UserError(
      f'{table} cannot be read as a table of clips ({error!r}). {advice}'
    ) from error
  clips = [_read_clip(path, represent, table.name) for path in paths]
  return np.stack(clips), known
