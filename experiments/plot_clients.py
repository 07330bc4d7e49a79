"""Draws how many examples of each class each client of a task has.

  plot_clients --task=mnist
  plot_clients --task=mnist --set task.partition=dirichlet --set task.alpha=0.1

It writes clients_by_class.png, .svg and .pdf, and .csv with the numbers. The
settings are those of experiments:run.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags
from experiments.configuration import user_settings

_TASK = shared_flags.task()
_PRESET = shared_flags.preset()
_SET = shared_flags.assignments()
_DATA_DIR = shared_flags.data_dir()
_OUTPUT_DIR = shared_flags.output_dir('results/TASK-clients')


def main() -> int:
  """Draws the clients of a task, and returns the exit status."""
  given = {} if _TASK.value is None else {'task.name': _TASK.value}
  request = user_settings.read(_PRESET.value, _SET.value, given)
  output_dir = _OUTPUT_DIR() or paths.user_path(
    f'results/{request.task}-clients'
  )
  data_dir = _DATA_DIR()
  return launch.load('experiments.reporting.figures.classes').main(
    request, output_dir, data_dir
  )


if __name__ == '__main__':
  launch.start(main)
