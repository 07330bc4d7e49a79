"""Trains and compares methods of personalized federated learning on a task.

Shows a table of how the methods do on held-out clients, and writes it, client
by client, with checkpoints and all settings to the output folder. The same
command again goes on where it was stopped.

  run                                          all methods on synthetic data
  run --task=school --algorithm=fedavg,local   these, as presets/school.toml has
  run --preset=mine.toml --set batch_size=10   a file of settings, but for one
  run --seeds=0,1,2                            once for each of these seeds

A setting is taken from, the later the stronger: the defaults; the preset, which
is the one of the task's name if none is given; --set; the other flags.
"""

from absl import flags

from algorithms import registry as algorithm_registry
from base import errors
from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags
from experiments.configuration import user_settings
from personalization import privacy

_TASK = shared_flags.task()
_ALGORITHM = flags.DEFINE_list(
  'algorithm',
  None,
  'The methods to compare, with commas between them:'
  f' {", ".join(algorithm_registry.short_names())}; or a trainer and a'
  ' personalizer, as hypcluster+finetuning.',
)
_PRESET = shared_flags.preset()
_SET = shared_flags.assignments()
_SEED = flags.DEFINE_integer(
  'seed', None, 'The seed of all that is random.', lower_bound=0
)
_SEEDS = flags.DEFINE_list(
  'seeds',
  None,
  'Seeds to repeat the run with, as 0,1,2. Each has a folder of its own in that'
  ' of the output, and their mean and deviation are shown.',
)
_RUNTIME = flags.DEFINE_enum(
  'runtime',
  None,
  user_settings.RUNTIMES,
  "What runs the computations: ours, which is the default, or TFF's own.",
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
  f'How to train privately: {", ".join(privacy.names())}.',
)
_EPSILON = flags.DEFINE_float(
  'epsilon', None, 'The ε that is to be guaranteed; the noise follows from it.'
)
_DELTA = flags.DEFINE_float(
  'delta', None, 'The δ of the guarantee; by default N^-1.1.'
)
_DATA_DIR = shared_flags.data_dir()
_OUTPUT_DIR = shared_flags.output_dir(
  'one of this configuration only, in results/'
)


def _request(seed: int | None) -> user_settings.Request:
  """Reads what the flags ask for, with this seed if there is one."""
  of_settings = {
    'task.name': _TASK.value,
    'algorithms': _ALGORITHM.value,
    'seed': seed,
    'runtime': _RUNTIME.value,
    'total_rounds': _TOTAL_ROUNDS.value,
    'clients_per_round': _CLIENTS_PER_ROUND.value,
    'privacy.name': _PRIVACY.value,
    'privacy.epsilon': _EPSILON.value,
    'privacy.delta': _DELTA.value,
  }
  given = {n: value for n, value in of_settings.items() if value is not None}
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
      '--seeds takes whole numbers with commas between them, as 0,1,2, not'
      f' {",".join(_SEEDS.value)!r}.'
    )
  return seeds


def _main() -> int:
  output_dir = _OUTPUT_DIR.value and paths.user_path(_OUTPUT_DIR.value)
  data_dir = paths.folder(_DATA_DIR.value)
  if _SEEDS.value is None:
    request = _request(_SEED.value)
    return launch.load('experiments.runs.single_run').main(
      request, output_dir, data_dir
    )
  requests = {seed: _request(seed) for seed in _seeds()}
  return launch.load('experiments.runs.repeated_runs').main(
    requests, output_dir, data_dir
  )


def main(argv: list[str]) -> int:
  """Runs what the flags say, and returns the exit status."""
  launch.refuse_arguments(argv)
  return launch.carry_out(_main)


if __name__ == '__main__':
  launch.start(main)
