"""The database of the task ted_multi, made from its archive."""

import pathlib

from experiments.command_line import terminal
from tasks.data import downloads
from tasks.data import ted_talks

_MEGABYTE = 1_000_000


def main(source: pathlib.Path, data_dir: str | None) -> int:
  """Makes the database; returns the exit status.

  Args:
    source: The folder of the unpacked archive.
    data_dir: The folder of the data sets.
  """
  path = downloads.places(ted_talks.DATABASE, data_dir)[0]
  total = ted_talks.size(source) // _MEGABYTE
  with terminal.progress('reading', total, 'MB') as show:
    talks = ted_talks.read(source, lambda done: show(done // _MEGABYTE))
  with terminal.progress('writing', len(talks.splits), 'talks') as show:
    ted_talks.write(talks, path, show)
  splits = list(talks.splits.values())
  sizes = ', '.join(f'{splits.count(name)} {name}' for name in ted_talks.FILES)
  print(f'{path}: {sizes} clients, {len(talks.vocabulary)} words')
  return 0
