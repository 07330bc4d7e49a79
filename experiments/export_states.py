"""Writes the states that clients keep from round to round, as NumPy arrays.

  export_states FOLDER                     of a run that trained one method
  export_states FOLDER --training=ditto    of one of its trainings

FOLDER/states/TRAINING gets a file clients.csv with a line for each client that
took part in training. For each part of their states, such as a personal model's
kernel, it gets a file PART.npy with the clients as its first axis, in the same
order: numpy.load('personal.kernel.npy', mmap_mode='r').
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from absl import flags

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_TRAINING = flags.DEFINE_string(
  'training', None, 'The training; not needed if there is only one.'
)
_OUTPUT_DIR = shared_flags.output_dir("states/TRAINING in the run's folder")


def main(folder: str) -> int:
  """Exports the states that the user asks for, and returns the exit status."""
  output_dir = _OUTPUT_DIR()
  return launch.load('experiments.reporting.exported_states').main(
    paths.user_path(folder), _TRAINING.value, output_dir
  )


if __name__ == '__main__':
  launch.start(main, 'Name the output folder of a run.')
