"""A run: all methods of a configuration, trained, evaluated and compared."""

from collections.abc import Hashable, Mapping, Sequence
import pathlib
import time
from typing import Any

import tensorflow_federated as tff

from algorithms import methods
from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import results_folder
from experiments.reporting import serialization
from experiments.reporting import tables
from experiments.runs import execution
from personalization import evaluation
from personalization import measurements
from personalization import outcomes
from personalization import schedules
from personalization import training
from tasks import task


def _tell_of_skipped(where: str, client_ids: Sequence[str]) -> None:
  """Says which clients were left out, a few of them by name."""
  if client_ids:
    more = ', …' if len(client_ids) > 5 else ''
    terminal.say(
      f'{where}: left out {len(client_ids)} clients without examples:'
      f' {", ".join(client_ids[:5])}{more}'
    )


def _release_managers(
  folder: results_folder.RunFolder, name: str
) -> tuple[tff.program.ReleaseManager, ...]:
  """Makes what keeps the metrics of the rounds of a training."""
  return (
    tff.program.CSVFileReleaseManager(
      folder.metrics_file(name), key_fieldname='round'
    ),
    tff.program.TensorBoardReleaseManager(folder.tensorboard_dir(name)),
  )


def _train(
  name: str,
  method: methods.Method,
  task: task.Task,
  settings: schedules.TrainingSettings,
  folder: results_folder.RunFolder,
) -> tuple[training.Trained, float | None]:
  """Trains; also returns the seconds, if it did not begin at a checkpoint."""
  if not method.trains:
    return training.train(method, task, settings), 0.0
  start = time.monotonic()
  first_round = None
  with terminal.progress(
    f'{name}: training', settings.total_rounds, 'rounds'
  ) as show:

    def on_round(round_num: int, metrics: Mapping[str, float]) -> None:
      nonlocal first_round
      launch.stop_if_interrupted()
      first_round = first_round or round_num
      show(round_num, f'loss {metrics["loss"]:.4g}')

    trained = training.train(
      method,
      task,
      settings,
      checkpoint_dir=folder.checkpoint_dir(name),
      release_managers=_release_managers(folder, name),
      on_round=on_round,
    )
    if first_round is None and settings.total_rounds:
      show(settings.total_rounds, 'as they are in its last checkpoint')
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
  method: methods.Method,
  trained: training.Trained,
  task: task.Task,
  populations: evaluation.Populations,
  config: configs.Config,
) -> outcomes.Outcome:
  """Evaluates a method; returns what comes of it."""
  done = 0
  total = len(task.test.client_ids)
  if not task.cross_silo:
    total += len(task.validation.client_ids)
  total *= len(measurements.personalization_parts(task, config.measurement))
  with terminal.progress(f'{name}: evaluation', total, 'clients') as show:

    def on_cohort(num_clients: int) -> None:
      nonlocal done
      launch.stop_if_interrupted()
      done += num_clients
      show(done)

    evaluated = evaluation.evaluate(
      method,
      trained,
      task,
      config.training,
      on_cohort,
      populations,
      config.measurement,
    )
  _tell_of_skipped(f'{name}: evaluation', evaluated.skipped)
  return outcomes.Outcome(
    evaluated, task, config.measurement, execution.choice(config.run)
  )


def run(
  config: configs.Config, output_dir: pathlib.Path, data_dir: str | None = None
) -> dict[str, results_folder.Result]:
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
  task = execution.load_task(config, data_dir)
  with results_folder.open_folder(output_dir, config) as folder:
    for name in folder.results:
      terminal.say(f'{name}: done before; delete {output_dir} to do it again')
    if folder.results.keys() == config.method_settings.keys():
      return folder.results

    execution.set_runtime(config.run.runtime)
    built = execution.build_methods(config, task, config.measurement)
    # Before any training: there may be nobody to evaluate.
    populations = evaluation.prepare(
      task, measurement=config.measurement, seed=config.training.seed
    )
    # What trains the same is trained once, as the first of them.
    first: dict[Hashable, str] = {}
    trained: dict[str, tuple[training.Trained, float | None]] = {}
    for name, method in built.items():
      trainer = first.setdefault(method.training_key, name)
      if name in folder.results:
        continue
      if trainer not in trained:
        trained[trainer] = _train(
          trainer, built[trainer], task, config.training, folder
        )
      ended, seconds = trained[trainer]
      if trainer in folder.results:
        seconds = folder.results[trainer]['training_seconds']
      start = time.monotonic()
      outcome = _evaluate(
        name,
        method,
        ended,
        task,
        populations,
        config,
      )
      result: dict[str, Any] = {
        **serialization.make_result(outcome),
        'evaluation_seconds': time.monotonic() - start,
        'training': trainer if method.trains else None,
        'rounds': config.training.total_rounds if method.trains else 0,
        'warmstart_from': list(config.run.warmstart_from),
        'training_seconds': seconds,
        'dropped_updates': ended.dropped_clients,
        'skipped_in_training': list(ended.skipped_clients),
        'frozen_weights_sha256': method.trainer.model.frozen_digest,
        'communication': folder.communication(
          trainer, method.parameters_down, method.parameters_up
        ),
      }
      folder.add(name, result, serialization.make_rows(name, outcome))
    return folder.results


def main(
  request: user_settings.Request,
  output_dir: pathlib.Path | None,
  data_dir: str | None,
) -> int:
  """Runs what a user asked for and shows it; returns the exit status."""
  config = configs.resolve(request)
  output_dir = output_dir or paths.user_path(
    f'results/{config.task}-{config.digest()}'
  )
  results = run(config, output_dir, data_dir)
  tables.print_results(results)
  terminal.say(f'Written to {output_dir}')
  return 0
