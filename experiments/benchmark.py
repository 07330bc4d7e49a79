"""Measures rounds of federated averaging and other methods on several systems.

  native      TFF's own C++ runtime
  cohort      our runtime
  bare        a loop over the same batches, without federated machinery: in
              Keras, or in TensorFlow if Keras does not have the model
  vectorized  linear models only: a round written by hand as one XLA program
  example     our runtime, the gradient of each example clipped, with noise
  gaussian    our runtime, clients' updates clipped, with noise on their sum
  local       our runtime, clients' updates clipped, each with noise of its own
  distributed our runtime, clients' updates clipped, rotated and rounded, and
              summed with the noise of all of them

Each system has a process of its own. The systems take turns, so that other work
of the machine affects them alike. The tables have the median seconds of a
round, also as ratios to other systems; the seconds from the start to the end of
the first round, without imports; and the peak memory. Further tables have our
runtime's time and memory for cohorts of 10, 100 and 1,000 clients.

F1 to F6 are unmodified code of tff.learning, which has none of our methods.

T1 to T3 are real tasks, which need the databases of TFF in --data_dir. They run
the whole of training and evaluation on our runtime and in a bare loop.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from absl import app
from absl import flags

from experiments.benchmarks import workloads
from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_CHOSEN = flags.DEFINE_list(
  'workloads',
  [*workloads.MADE_UP, *workloads.LEARNING],
  'W1 (CNN, 20 clients of 200 images), W2 (linear, 139 clients of 80 rows),'
  ' W3 (LSTM, 20 clients of 64 sentences), W4 (FedEmbed, ten steps of each of'
  ' 100 users on 20 images), W5 (FedPC, ten steps of each of 20 clients on 15'
  ' utterances, before a frozen GPT-2 of 1.9 million weights), W6 (the CNN of'
  ' PFLlib, 20 clients of 100 photos), W7 (a small ResNet with group'
  ' normalization, 20 clients of 50 photos), W8 (with batch normalization);'
  ' F1 (dense'
  ' layers, 30 clients of 60 examples), F2 (CNN, 10 clients of 40 images), F3'
  ' (LSTM, 3 clients of 60 sentences), F4 (as F1, by Mime Lite), F5 (as F1,'
  ' with clients of many sizes) and F6 (as F1, with data sets that each round'
  ' makes) of tff.learning; and, with a'
  ' data_dir, T1 (50 clients of emnist), T2 (20 clients of stackoverflow) and'
  ' T3 (evaluation of 100 clients of emnist that are fine-tuned for 20'
  ' epochs).',
)
_METHODS = flags.DEFINE_list(
  'methods',
  list(workloads.METHODS),
  'Further methods to measure on W1 and W2, each on the cohort runtime and in a'
  f' bare loop: one or more of {", ".join(workloads.METHODS)}.',
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'The folder of the databases for T1 to T3.'
)
_TURNS = flags.DEFINE_integer(
  'turns',
  7,
  'The number of turns of each system.',
  lower_bound=1,
  upper_bound=1_000_000,
)
_SCALE = flags.DEFINE_boolean(
  'scale', True, 'Whether to measure cohorts of different sizes, too.'
)
_JSON = shared_flags.new_file(
  'json',
  'A file for the medians in seconds, {workload: {system: seconds}}; the key of'
  ' a further method names it, as in "W1 pfedme".',
)


def main() -> int:
  """Measures the systems as the flags say, and returns the exit status."""
  known = [*workloads.MADE_UP, *workloads.LEARNING, *workloads.TASKS]
  unknown = sorted(set(_CHOSEN.value) - set(known))
  if unknown:
    raise app.UsageError(
      f'There is no workload {unknown[0]!r}, only {", ".join(known)}.'
    )
  unknown = sorted(set(_METHODS.value) - set(workloads.METHODS))
  if unknown:
    raise app.UsageError(
      f'There is no bare loop of {unknown[0]!r}, only of'
      f' {", ".join(workloads.METHODS)}.'
    )
  if not _CHOSEN.value:
    raise app.UsageError(f'Name at least one workload of {", ".join(known)}.')
  if set(_CHOSEN.value) & set(workloads.TASKS) and not _DATA_DIR.value:
    raise app.UsageError('T1 to T3 need the --data_dir of their databases.')
  json_file = _JSON()
  data_dir = _DATA_DIR.value and paths.data_folder(_DATA_DIR.value)
  for name in set(_CHOSEN.value) & set(workloads.TASKS):
    launch.load('experiments.benchmarks.task_workloads').check(name, data_dir)
  return launch.load('experiments.benchmarks.measuring').main(
    _CHOSEN.value,
    _METHODS.value,
    _TURNS.value,
    _SCALE.value,
    data_dir,
    json_file,
  )


if __name__ == '__main__':
  launch.start(main)
