"""Evaluates a finished run on clients that it has not seen.

  evaluate FOLDER --set task.path=NEW.csv --set task.hold_out=all_clients
  evaluate FOLDER:finetuning --set task.split_seed=1

FOLDER is the output folder of a run. The trained model is personalized on each
client's own examples, and evaluated at the candidate that the run chose. No
rounds are run, and no candidate is chosen on these clients. A client that was
in training keeps its state. The tables and files are the same as those of a
run, so that report and plot can read them. --set may change the settings of the
task, the seed, and the measurements.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_SET = shared_flags.assignments()
_DATA_DIR = shared_flags.data_dir()
_OUTPUT_DIR = shared_flags.output_dir("one beside the run's folder")


def main(folder: str) -> int:
  """Evaluates the run that the user names, and returns the exit status."""
  output_dir, data_dir = _OUTPUT_DIR(), _DATA_DIR()
  return launch.load('experiments.runs.evaluating').main(
    str(paths.user_path(folder)), _SET.value, output_dir, data_dir
  )


if __name__ == '__main__':
  launch.start(main, 'Name the output folder of a run.')
