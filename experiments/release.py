"""Releases the private models of a finished run, and nothing else of it.

  release FOLDER --output_dir=OUT            all models that were trained
  release FOLDER:fedadam --output_dir=OUT    that of one method
  release FOLDER --output_dir=OUT --metrics_epsilon=.5   and noised metrics

FOLDER is the output folder of a run with --privacy and --privacy_seed=secret.
It has much that its guarantee does not cover: metrics, states, seeds, what was
learned from the data to encode them. OUT has the models, GUARANTEE.md, which
says in words what holds for who sees all of OUT, and the same as release.json.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from absl import flags

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_METRICS_EPSILON = flags.DEFINE_float(
  'metrics_epsilon',
  None,
  'The ε, beside that of the models, of metrics of the test clients, which get'
  ' noise; by default no metrics are released.',
)
_OUTPUT_DIR = shared_flags.new_output_dir()
_DATA_DIR = shared_flags.data_dir()


def main(folder: str) -> int:
  """Releases what the user names, and returns the exit status."""
  output_dir, data_dir = _OUTPUT_DIR(), _DATA_DIR()
  return launch.load('experiments.runs.releasing').main(
    str(paths.user_path(folder)),
    _METRICS_EPSILON.value,
    output_dir,
    data_dir,
  )


if __name__ == '__main__':
  launch.start(main, 'Name the output folder of a run.')
