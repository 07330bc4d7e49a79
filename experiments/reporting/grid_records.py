"""The records of a grid's runs, to which several programs can add at once.

runs/NAME.jsonl   a line for each run that the program NAME finished
runs.jsonl        the same, from older versions with only one program

Each program writes a separate file, as not every file system lets several
machines append to the same one. Runs are deterministic, so that two records of
one run are the same, and count once.
"""

from collections.abc import Mapping
import json
import pathlib

from base import errors
from base import inputs
from base.aliases import Json
from experiments.reporting import folders

Record = Mapping[str, Json]

_FOLDER, _OLD_FILE = folders.GRID.marks


def lower_is_chosen(record: Record) -> bool:
  """Tells whether a grid chooses points with a low validation metric."""
  return not (
    record['higher_is_better'] and record['chosen_by'] == record['metric']
  )


def to_line(record: Record) -> str:
  """Writes a record with its checksum, as a line of a file of records."""
  text = json.dumps(record, allow_nan=False)
  checksum = folders.checksum(json.loads(text))
  return json.dumps({**record, 'checksum': checksum}) + '\n'


def _read_line(line: bytes) -> Record | None:
  """Reads a record; None if a kill cut it off.

  Raises:
    One of `folders.DAMAGE`: If the line is damaged.
  """
  try:
    record = json.loads(line)
  except ValueError:
    if line.startswith(b'{'):
      return None
    raise
  if record.pop('checksum') != folders.checksum(record):
    raise ValueError('it is not as it was written')
  return record


class GridRecords:
  """The records of a grid's finished runs.

  Attributes:
    by_key: The records, by the keys of their runs.
    program: The name of the program that adds records.
  """

  def __init__(self, folder: pathlib.Path, program: str = ''):
    """Reads the records.

    Args:
      folder: The folder of the grid.
      program: A unique name of the program; without it, no records can be
        added.

    Raises:
      UserError: If a file of records is damaged.
    """
    self.program = program
    self._old = folder / _OLD_FILE
    self._folder = folder / _FOLDER
    self._own = self._folder / f'{program}.jsonl'
    # The number of bytes that were read of each file.
    self._read: dict[pathlib.Path, int] = {}
    self.by_key: dict[str, Record] = {}
    self.read_others()

  def read_others(self) -> list[str]:
    """Reads new records of other programs; returns the keys of their runs.

    Raises:
      UserError: If a file of records is damaged.
    """
    paths = sorted(self._folder.glob('*.jsonl'))
    if self._old.exists():
      paths.insert(0, self._old)
    return [
      key for path in paths if path != self._own for key in self._read_new(path)
    ]

  def _read_new(self, path: pathlib.Path) -> list[str]:
    """Reads the new records in a file; returns the keys of their runs."""
    new = []
    try:
      with inputs.open_bytes(path) as file:
        file.seek(self._read.get(path, 0))
        lines = file.readlines()
      for line in lines:
        record = _read_line(line) if line.strip() else None
        if record is None and not line.endswith(b'\n'):
          break  # It is still being written, or was cut off.
        self._read[path] = self._read.get(path, 0) + len(line)
        if record is not None and record['key'] not in self.by_key:
          self.by_key[record['key']] = record
          new.append(record['key'])
    except folders.DAMAGE as error:
      raise errors.UserError(
        f'{path} is damaged ({folders.fault(error)}). Delete the lines at'
        ' fault; their runs are then run again.'
      ) from error
    return new

  def add(self, record: Record) -> None:
    """Adds the record of a run, and writes it."""
    with errors.writing(self._own):
      # Closed each time, as other machines may see a file only then.
      with self._own.open('ab') as file:
        file.write(to_line(record).encode())
    self.by_key.setdefault(record['key'], record)
