"""Repeats of a run, which differ only in their seed."""

from collections.abc import Mapping
import dataclasses
import functools
import pathlib

from experiments.command_line import paths
from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import folders
from experiments.reporting import manifests
from experiments.reporting import repeats
from experiments.reporting import results_folder
from experiments.reporting import sources
from experiments.reporting import tables
from experiments.runs import execution
from experiments.runs import ledgers
from experiments.runs import single_run

# The file of the statistics over the seeds, in the folder of all repeats.
SUMMARY = 'repeats.json'


def _default_folder(config: configs.Config) -> pathlib.Path:
  """Names a folder that does not depend on the seeds."""
  training = dataclasses.replace(config.training, seed=0)
  digest = dataclasses.replace(config, training=training).digest()
  return paths.user_path(f'results/{config.task}-{digest}-seeds')


def run(
  by_seed: Mapping[int, configs.Config],
  output_dir: pathlib.Path,
  data_dir: str | None = None,
) -> list[sources.Run]:
  """Runs a configuration with each of several seeds.

  Each run has its own folder, from which it continues if it was stopped. The
  runs share compiled programs.

  Args:
    by_seed: The configuration of each seed.
    output_dir: The folder of the runs' folders.
    data_dir: The folder of the data sets.

  Raises:
    UserError: If a run cannot be run, before any training.
  """
  folders.check_free(output_dir, folders.REPEATS)
  folders.check_own(output_dir / SUMMARY, '"seeds"')
  folders_of_runs = {seed: output_dir / f'seed_{seed}' for seed in by_seed}
  for seed, config in by_seed.items():
    with results_folder.open_folder(folders_of_runs[seed], config):
      pass  # Fails if the folder belongs to another configuration.
  set_runtime = functools.cache(execution.set_runtime)
  for seed, config in by_seed.items():
    terminal.say(f'Seed {seed}')
    single_run.run(config, folders_of_runs[seed], data_dir, set_runtime)
  (repeated,) = sources.read_repeats(list(folders_of_runs.values()))
  series = sources.list_series(repeated)
  summary = {'seeds': list(by_seed), **repeats.summarize(series)}
  manifests.Manifest(output_dir).write(
    ledgers.files(ledgers.gather(folders_of_runs))
    | {SUMMARY: folders.to_json(summary, allow_nan=False)}
  )
  return repeated


def main(
  requests: Mapping[int, user_settings.Request],
  output_dir: pathlib.Path | None,
  data_dir: str | None,
) -> int:
  """Runs what a user asked for with each seed; returns the exit status."""
  by_seed = {
    seed: configs.resolve(request) for seed, request in requests.items()
  }
  terminal.say(next(iter(requests.values())).origin)
  output_dir = output_dir or _default_folder(next(iter(by_seed.values())))
  repeated = run(by_seed, output_dir, data_dir)
  tables.print_repeats(sources.list_series(repeated))
  ledgers.show(output_dir)
  terminal.say(f'Written to {output_dir}')
  single_run.refuse_diverged([run.methods for run in repeated])
  return 0
