"""Audits the privacy of finished runs: what their releases really tell.

  audit FOLDER             a run, or a folder of several, such as of repeats
  audit FOLDER:fedavg      one of its methods

Each private training is done again with canaries: clients of which half, by
fair coins, send a direction of their own, while all others send nothing; or
examples with such gradients, where silos protect their examples. The
more of them are found in the model, the larger ε must be. The released models,
also those that a run started from, are compared with each other, to find noise
that they share. And the losses of clients are compared with those of clients
that were not trained on. FOLDER/audit has the numbers and figures. The exit
status is 1 if something contradicts a guarantee.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from absl import flags

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_CANARIES = flags.DEFINE_integer(
  'canaries',
  1000,
  'The number of canaries of each training; at most one for each weight of the'
  ' model. The more, the larger a bound can be.',
  lower_bound=20,
  upper_bound=2**14,
)
_DATA_DIR = shared_flags.data_dir()


def main(folder: str) -> int:
  """Audits what the user names, and returns the exit status."""
  data_dir = _DATA_DIR()
  return launch.load('experiments.runs.auditing').main(
    str(paths.user_path(folder)), _CANARIES.value, data_dir
  )


if __name__ == '__main__':
  launch.start(main, 'Name the output folder of a run.')
