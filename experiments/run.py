"""Trains and compares methods of personalized federated learning on a task.

Shows a table of the methods' results on held-out clients. The output folder
gets the results of each client, checkpoints and all settings. The same command
continues where it was stopped.

  run                                          all methods on synthetic data
  run --task=school --algorithm=fedavg,local   two methods on School
  run --preset=mine.toml --set batch_size=10   mine.toml, but for one setting
  run --seeds=0,1,2                            once for each of these seeds

Settings come from the defaults; the preset, by default the one with the task's
name if it is for this task; --set; and the other flags. A later one of these
replaces an earlier one. A line before the training says which preset it is.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from absl import flags

from algorithms import registry as algorithm_registry
from base import errors
from experiments.command_line import launch
from experiments.command_line import shared_flags
from experiments.configuration import user_settings
from personalization.privacy import ways

_TASK = shared_flags.task()
_ALGORITHM = flags.DEFINE_list(
  'algorithm',
  None,
  'The methods to compare, with commas between them:'
  f' {", ".join(algorithm_registry.short_names())}; or a trainer and a'
  ' personalizer, such as hypcluster+finetuning.',
)
_PRESET = shared_flags.preset()
_SET = shared_flags.assignments()
_SEED = flags.DEFINE_integer(
  'seed', None, 'The seed of all that is random.', lower_bound=0
)
_SEEDS = flags.DEFINE_list(
  'seeds',
  None,
  'Seeds to repeat the run with, as in 0,1,2. Each has its own folder in the'
  ' output folder. The mean and the deviation over seeds are shown.',
)
_RUNTIME = flags.DEFINE_enum(
  'runtime',
  None,
  user_settings.RUNTIMES,
  "The runtime: cohort is ours, and the default; native is TFF's own; remote"
  ' uses the workers of --remote_workers.',
)
_REMOTE_WORKERS = flags.DEFINE_list(
  'remote_workers',
  None,
  'The workers of --runtime=remote, as in HOST:PORT,HOST:PORT. The command'
  ' python -m tff_runtimes.worker starts one.',
)
_TOTAL_ROUNDS = flags.DEFINE_integer(
  'total_rounds', None, 'The number of rounds.', lower_bound=0
)
_CLIENTS_PER_ROUND = flags.DEFINE_integer(
  'clients_per_round',
  None,
  'The number of clients in a round; 0 for all.',
  lower_bound=0,
)
_PRIVACY = flags.DEFINE_string(
  'privacy',
  None,
  f'How to train privately: {", ".join(ways.names())}.',
)
_EPSILON = flags.DEFINE_float(
  'epsilon', None, 'The ε to guarantee; the noise follows from it.'
)
_DELTA = flags.DEFINE_float(
  'delta', None, 'The δ of the guarantee; by default N^-1.1.'
)
_PRIVACY_SEED = flags.DEFINE_enum(
  'privacy_seed',
  None,
  ways.SEEDS,
  'Where the noise comes from: the seed of the run, so that ε is simulated'
  ' (public, the default), or a secret that is drawn for this run.',
)
_DATA_DIR = shared_flags.data_dir()
_OUTPUT_DIR = shared_flags.output_dir(
  'one for this configuration only, in results/'
)


def _request(seed: int | None) -> user_settings.Request:
  """Makes a request from the flags, with this seed if there is one."""
  settings = {
    'task.name': _TASK.value,
    'algorithms': _ALGORITHM.value,
    'seed': seed,
    'runtime': _RUNTIME.value,
    'remote_workers': _REMOTE_WORKERS.value,
    'total_rounds': _TOTAL_ROUNDS.value,
    'clients_per_round': _CLIENTS_PER_ROUND.value,
    'privacy.name': _PRIVACY.value,
    'privacy.epsilon': _EPSILON.value,
    'privacy.delta': _DELTA.value,
    'privacy.seed': _PRIVACY_SEED.value,
  }
  given = {n: value for n, value in settings.items() if value is not None}
  return user_settings.read(_PRESET.value, _SET.value, given)


def _seeds() -> list[int]:
  """Reads --seeds."""
  if _SEED.value is not None:
    raise errors.UserError('Give either --seed or --seeds, and not both.')
  try:
    seeds = list(dict.fromkeys(map(int, _SEEDS.value)))
  except ValueError:
    seeds = []
  if not seeds:
    raise errors.UserError(
      '--seeds takes whole numbers with commas between them, as in 0,1,2, not'
      f' {",".join(_SEEDS.value)!r}.'
    )
  return seeds


def main() -> int:
  """Runs the methods that the flags name, and returns the exit status."""
  output_dir, data_dir = _OUTPUT_DIR(), _DATA_DIR()
  if _SEEDS.value is None:
    request = _request(_SEED.value)
    return launch.load('experiments.runs.single_run').main(
      request, output_dir, data_dir
    )
  requests = {seed: _request(seed) for seed in _seeds()}
  return launch.load('experiments.runs.repeated_runs').main(
    requests, output_dir, data_dir
  )


if __name__ == '__main__':
  launch.start(main)
