"""Makes the database of the task ted_multi in the folder of the data.

  wget http://phontron.com/data/ted_talks.tar.gz
  tar xzf ted_talks.tar.gz --one-top-level
  prepare_ted_multi --source=ted_talks --data_dir=FOLDER

The archive has 352 MB. It is the multilingual corpus of Qi et al. 2018; the
task uses its English and Spanish.
"""

import sys

from absl import app
from absl import flags

from base import errors
from experiments import run  # noqa: F401, it defines --data_dir.
from experiments.configuration import config as config_lib
from experiments.configuration import execution

_SOURCE = flags.DEFINE_string(
  'source', None, 'The folder of the unpacked archive.', required=True
)
flags.declare_key_flag('data_dir')


def _main() -> None:
  execution.silence_imports()
  from experiments.reporting import output
  from tasks.data import downloads
  from tasks.data import ted_talks

  data_dir = flags.FLAGS.data_dir
  if data_dir is not None:
    data_dir = str(config_lib.user_path(data_dir))
  path = downloads.places(ted_talks.DATABASE, data_dir)[0]
  source = config_lib.user_path(_SOURCE.value)

  megabyte = 1_000_000
  total = ted_talks.size(source) // megabyte
  with output.progress('reading', total, 'MB') as show:
    talks = ted_talks.read(source, lambda done: show(done // megabyte))
  with output.progress('writing', len(talks.splits), 'talks') as show:
    ted_talks.write(talks, path, show)
  splits = list(talks.splits.values())
  sizes = ', '.join(f'{splits.count(name)} {name}' for name in ted_talks.FILES)
  print(f'{path}: {sizes} clients, {len(talks.vocabulary)} words')


def main(argv: list[str]) -> int:
  """Makes the database and returns the exit status."""
  if len(argv) > 1:
    raise app.UsageError(f'There is no argument {argv[1]!r}, only flags.')
  try:
    _main()
  except errors.UserError as error:
    print(f'Error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  app.run(main)
