"""Makes the database of the task ted_multi, in the folder of the data.

  wget http://phontron.com/data/ted_talks.tar.gz
  tar xzf ted_talks.tar.gz --one-top-level
  prepare_ted_multi --source=ted_talks --data_dir=FOLDER

The archive has 352 MB. It is the multilingual corpus of Qi et al. 2018, of
which English and Spanish are used.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from absl import flags

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_SOURCE = flags.DEFINE_string(
  'source', None, 'The folder of the unpacked archive.', required=True
)
_DATA_DIR = shared_flags.data_dir()


def main() -> int:
  """Makes the database, and returns the exit status."""
  return launch.load('experiments.language_models.ted_multi').main(
    paths.user_path(_SOURCE.value), _DATA_DIR()
  )


if __name__ == '__main__':
  launch.start(main)
