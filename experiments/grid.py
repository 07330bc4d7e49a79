"""Runs a grid of settings on all cores, and finds each method's best point.

  grid GRID.toml             runs all points with all repeats
  grid GRID.toml --dry_run   lists the points, and estimates how long they take

GRID.toml has a preset and lists of values:

  preset = "school"
  repeats = [100, 1100]            # seeds

  [[grid]]                         # there can be several
  algorithms = ["fedavg", "ditto"]
  settings = {total_rounds = 500}
  [grid.values]                    # all combinations of these are run
  client_learning_rate = [0.01, 0.03, 0.1]

The best point is chosen by the mean of the validation metric over clients and
repeats. The same command continues where it was stopped.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags
from experiments.sweeps import grid_file
from experiments.sweeps import launchers

_DRY_RUN = shared_flags.dry_run()
_DATA_DIR = shared_flags.data_dir()
_OUTPUT_DIR = shared_flags.output_dir('one for this grid only, in results/')
_LAUNCHER = launchers.define_flags()


def main(path: str) -> int:
  """Runs the grid that the user names, and returns the exit status."""
  file = paths.user_path(path)
  contents = grid_file.read(file)
  launcher, data_dir = _LAUNCHER(), _DATA_DIR()
  grids = launch.load('experiments.sweeps.grids')
  folder = _OUTPUT_DIR() or grids.default_folder(contents, file)
  return grids.main(contents, folder, data_dir, launcher, _DRY_RUN.value)


if __name__ == '__main__':
  launch.start(main, 'Name one file, GRID.toml.')
