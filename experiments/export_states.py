"""Writes what clients keep from round to round, as arrays that NumPy reads.

  export_states FOLDER                     of a run that trained one method
  export_states FOLDER --training=ditto    of one of its trainings

FOLDER/states/TRAINING gets a file clients.csv with a line for each client that
took part in training, and for each part of their states, as a personal model's
kernel, a file PART.npy with the clients as its first axis, in the same order:
numpy.load('personal.kernel.npy', mmap_mode='r').
"""

from absl import app
from absl import flags

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_TRAINING = flags.DEFINE_string(
  'training', None, 'The training; there is no need to name the only one.'
)
_OUTPUT_DIR = shared_flags.output_dir("states/TRAINING in the run's folder")


def _main(folder: str) -> int:
  output_dir = _OUTPUT_DIR.value and paths.user_path(_OUTPUT_DIR.value)
  return launch.load('experiments.reporting.exported_states').main(
    paths.user_path(folder), _TRAINING.value, output_dir
  )


def main(argv: list[str]) -> int:
  """Exports what the arguments and flags say, and returns the exit status."""
  if len(argv) != 2:
    raise app.UsageError('Name the output folder of a run.')
  return launch.carry_out(lambda: _main(argv[1]))


if __name__ == '__main__':
  launch.start(main)
