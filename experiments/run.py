"""Trains and compares methods of personalized federated learning on a task.

Shows a table of how the methods do on held-out clients, and writes it, client
by client, with checkpoints and all settings to the output folder. The same
command again goes on where it was stopped.

  run                                          all methods on synthetic data
  run --task=school --algorithm=fedavg,local   these, as presets/school.toml has
  run --preset=mine.toml --set batch_size=10   a file of settings, but for one

A setting is taken from, the later the stronger: the defaults; the preset, which
is the one of the task's name if none is given; --set; the other flags.
"""

# Nothing that imports TensorFlow Federated, which takes seven seconds, is
# imported here: --help and what is plainly wrong are answered without it.
from collections.abc import Sequence
import os
import pathlib
import signal
import time
from typing import TYPE_CHECKING, Any

from absl import app
from absl import flags

from algorithms import registry as algorithm_registry
from base import errors
from experiments.configuration import config as config_lib
from experiments.configuration import execution
from experiments.reporting import terminal
from tasks import registry as task_registry

if TYPE_CHECKING:
  from algorithms import method as methods
  from experiments.reporting import output
  from personalization import evaluation
  from personalization import training
  from tasks import task as task_lib

_TASK = flags.DEFINE_string(
  'task', None, f'The task: {", ".join(task_registry.task_names())}.'
)
_ALGORITHM = flags.DEFINE_list(
  'algorithm',
  None,
  'The methods to compare, with commas between them:'
  f' {", ".join(algorithm_registry.short_names())}.',
)
_PRESET = flags.DEFINE_string(
  'preset',
  None,
  'A TOML file of settings, or the name of one that comes with the code:'
  f' {", ".join(config_lib.preset_names())}.',
)
_SET = flags.DEFINE_multi_string(
  'set',
  [],
  'A setting, as in batch_size=10, client_learning_rate=0.1 (of every method'
  ' that has it), finetuning.client_learning_rate=0.1 (of one) or'
  ' task.alpha=0.5. It can be given more than once.',
)
_SEED = flags.DEFINE_integer(
  'seed', None, 'The seed of all that is random.', lower_bound=0
)
_RUNTIME = flags.DEFINE_enum(
  'runtime',
  None,
  config_lib.RUNTIMES,
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
_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  os.environ.get('PFL_DATA_DIR'),
  'The folder of the data sets, by default $PFL_DATA_DIR. What is not there'
  ' is downloaded.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  'The folder to write to; by default one of this configuration only, in'
  ' results/.',
)


def _tell_of_skipped(where: str, client_ids: Sequence[str]) -> None:
  """Says which clients were left out, a few of them by name."""
  if client_ids:
    more = ', …' if len(client_ids) > 5 else ''
    terminal.say(
      f'{where}: left out {len(client_ids)} clients without examples:'
      f' {", ".join(client_ids[:5])}{more}'
    )


def _train(
  name: str,
  algorithm: 'methods.Method',
  task: 'task_lib.Task',
  options: 'schedule.TrainingSettings',
  folder: 'output.Folder',
) -> tuple['training.Trained', float | None]:
  """Trains; also returns the seconds, if it did not begin at a checkpoint."""
  from experiments.reporting import output
  from personalization import training

  if not algorithm.trains:
    return training.train(algorithm, task, options), 0.0
  start = time.monotonic()
  first_round = None
  with output.progress(
    f'{name}: training', options.total_rounds, 'rounds'
  ) as show:

    def on_round(round_num: int, metrics: Any) -> None:
      nonlocal first_round
      _stop_if_interrupted()
      first_round = first_round or round_num
      show(round_num, f'loss {metrics["loss"]:.4g}')

    trained = training.train(
      algorithm,
      task,
      options,
      checkpoint_dir=folder.checkpoint_dir(name),
      release_managers=folder.release_managers(name),
      on_round=on_round,
    )
    if first_round is None and options.total_rounds:
      show(options.total_rounds, 'as they are in its last checkpoint')
  seconds = time.monotonic() - start
  _tell_of_skipped(f'{name}: training', trained.skipped_clients)
  if trained.dropped_clients:
    terminal.say(
      f'{name}: training: dropped {trained.dropped_clients} updates of'
      ' clients that were not finite'
    )
  return trained, seconds if first_round == 1 else None


def _evaluate(
  name: str,
  algorithm: 'methods.Method',
  trained: 'training.Trained',
  task: 'task_lib.Task',
  populations: 'evaluation.Populations',
  config: config_lib.Config,
) -> tuple['output.Result', list['output.Row']]:
  """Evaluates a method; returns what the results are to say about it."""
  from experiments.reporting import output
  from personalization import evaluation as evaluation_lib

  start = time.monotonic()
  done = 0
  total = len(task.test.client_ids)
  if not task.cross_silo:
    total += len(task.validation.client_ids)
  total *= len(evaluation_lib.personalization_parts(task, config.measured))
  with output.progress(f'{name}: evaluation', total, 'clients') as show:

    def on_cohort(num_clients: int) -> None:
      nonlocal done
      _stop_if_interrupted()
      done += num_clients
      show(done)

    evaluation = evaluation_lib.evaluate(
      algorithm,
      trained,
      task,
      config.options,
      on_cohort,
      populations,
      config.measured,
    )
  _tell_of_skipped(f'{name}: evaluation', evaluation.skipped)
  how = task, config.measured, execution.choice(config.settings)
  result = {
    **output.make_result(evaluation, *how),
    'evaluation_seconds': time.monotonic() - start,
  }
  return result, output.make_rows(name, evaluation, *how)


def run(
  config: config_lib.Config,
  output_dir: pathlib.Path,
  data_dir: str | None = None,
) -> dict[str, 'output.Result']:
  """Trains and evaluates all methods, but for those that are done already.

  Args:
    config: The configuration of the run.
    output_dir: The folder to write to.
    data_dir: The folder of the data sets.

  Returns:
    The results of each method.

  Raises:
    UserError: If it cannot be run, before any training.
  """
  from experiments.reporting import output
  from personalization import evaluation

  task = execution.load_task(config, data_dir)
  with output.open_folder(output_dir, config) as folder:
    for name in folder.results:
      terminal.say(f'{name}: done before; delete {output_dir} to do it again')
    if folder.results.keys() == config.hyperparameters.keys():
      return folder.results

    execution.set_runtime(config.settings.runtime)
    algorithms = execution.build_algorithms(config, task, config.measured)
    # Before any training: there may be nobody to evaluate.
    populations = evaluation.prepare(
      task, measured=config.measured, seed=config.options.seed
    )
    # What trains the same is trained once, as the first of them.
    first: dict[str, str] = {}
    trained: dict[str, Any] = {}
    for name, algorithm in algorithms.items():
      trainer = first.setdefault(algorithm.training_key, name)
      if name in folder.results:
        continue
      if trainer not in trained:
        trained[trainer] = _train(
          trainer, algorithms[trainer], task, config.options, folder
        )
      state, seconds = trained[trainer]
      if trainer in folder.results:
        seconds = folder.results[trainer]['training_seconds']
      result, rows = _evaluate(
        name,
        algorithm,
        state,
        task,
        populations,
        config,
      )
      of_training = {
        'training': trainer if algorithm.trains else None,
        'rounds': config.options.total_rounds if algorithm.trains else 0,
        'warmstart_from': list(config.settings.warmstart_from),
        'training_seconds': seconds,
        'dropped_updates': state.dropped_clients,
        'skipped_in_training': list(state.skipped_clients),
        'communication': folder.communication(trainer, algorithm),
      }
      folder.add(name, {**result, **of_training}, rows)
    return folder.results


def _from_flags() -> config_lib.Request:
  of_settings = {
    'task.name': _TASK.value,
    'algorithms': _ALGORITHM.value,
    'seed': _SEED.value,
    'runtime': _RUNTIME.value,
    'total_rounds': _TOTAL_ROUNDS.value,
    'clients_per_round': _CLIENTS_PER_ROUND.value,
  }
  given = {n: value for n, value in of_settings.items() if value is not None}
  return config_lib.read(_PRESET.value, _SET.value, given)


def _main() -> None:
  request = _from_flags()
  execution.silence_imports()
  config = config_lib.resolve(request)
  output_dir = config_lib.user_path(
    _OUTPUT_DIR.value or f'results/{config.task}-{config.digest()}'
  )
  data_dir = _DATA_DIR.value
  if data_dir is not None:
    data_dir = str(config_lib.user_path(data_dir))
  results = run(config, output_dir, data_dir)
  from experiments.reporting import output

  output.print_table(results)
  terminal.say(f'Written to {output_dir}')


_interrupted = False


def _interrupt(signum: int, frame: Any) -> None:
  """Stops behind the round that is under way; the second time, at once.

  At once may be in the middle of what cannot be stopped cleanly, where Python
  prints a traceback and goes on.
  """
  global _interrupted
  del signum, frame
  if _interrupted:
    raise KeyboardInterrupt
  _interrupted = True


def _stop_if_interrupted() -> None:
  if _interrupted:
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
  """Runs what the flags say, and returns the exit status."""
  if len(argv) > 1:
    raise app.UsageError(f'There is no argument {argv[1]!r}, only flags.')
  # As Python has it, but it is not Python's: asyncio would replace that by one
  # that lets the rounds go on to the next checkpoint.
  signal.signal(signal.SIGINT, _interrupt)
  try:
    _main()
  except errors.UserError as error:
    terminal.say(f'Error: {error}')
    return 1
  except KeyboardInterrupt:
    terminal.say(
      '\nStopped. The same command goes on from the last checkpoint.'
    )
    return 130
  return 0


if __name__ == '__main__':
  app.run(main)
