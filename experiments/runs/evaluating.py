"""Evaluates a finished run on other clients than its own.

No rounds are run, and no candidate is chosen: the trained model is personalized
for each client, and evaluated at the candidate that the run chose.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

from algorithms import methods
from base import errors
from base import words
from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import results_folder
from experiments.reporting import serialization
from experiments.reporting import tables
from experiments.runs import execution
from experiments.runs import finished_methods
from experiments.runs import single_run
from experiments.runs import sources
from personalization.judgement import choosing
from personalization.judgement import evaluation
from personalization.judgement import measurements
from personalization.privacy import ways
from personalization.rounds import training
from tasks import task as tasks
from tasks.models import models

# The results of the training, which are copied from the run.
_TRAINING_RESULTS = (
  'rounds',
  'warmstart_from',
  'training_seconds',
  'dropped_updates',
  'diverged',
  'skipped_in_training',
  'frozen_weights_sha256',
  'communication',
  'costs',
  'privacy',
)
# The settings that may differ from the run's, in addition to those of its task.
_MEASURED = {
  'seed',
  *(
    field.name for field in dataclasses.fields(measurements.MeasurementSettings)
  ),
}


def _configure(
  source: sources.Source, names: Sequence[str], assignments: Sequence[str]
) -> configs.Config:
  """Makes the configuration of an evaluation.

  Args:
    source: The run.
    names: The methods.
    assignments: The values of `--set`.

  Raises:
    UserError: If a setting would change the training.
  """
  run = source.run
  preset = str(run.path / results_folder.CONFIG)
  config = configs.resolve(user_settings.read(preset, assignments))
  for difference in configs.differences(source.config, config):
    name = difference.partition(':')[0]
    of_task = name.startswith('task.') and name != 'task.name'
    if not of_task and name not in _MEASURED:
      raise errors.UserError(
        f'--set: {name} cannot be changed after {run.path} was trained. Only'
        ' the settings of its task, the seed and the measurements can differ.'
      )
  task_settings: Any = config.task_settings
  if hasattr(task_settings, 'encoding_file'):
    encoding = run.path / results_folder.ENCODING
    if not encoding.exists():
      raise errors.UserError(
        f'There is no {encoding}, which describes how data become examples.'
        ' Repeat the command of the run, which writes it.'
      )
    task_settings = dataclasses.replace(
      task_settings, encoding_file=str(encoding.resolve())
    )
  return dataclasses.replace(
    config,
    task_settings=task_settings,
    run=dataclasses.replace(config.run, algorithms=tuple(names)),
    method_settings={name: config.method_settings[name] for name in names},
  )


def _difference(model: models.Model, other: models.Model) -> str:
  """Says in what a model differs from another one, in a few words."""
  if type(model) is not type(other):
    return f'{type(model).__name__}, not {type(other).__name__}'
  return ', '.join(
    f'{field.name} is {errors.quote(value)}, not {errors.quote(than)}'
    for field in dataclasses.fields(model)
    if field.compare
    for value, than in [(getattr(m, field.name) for m in (model, other))]
    if value != than
  )


def _check_task(
  source: sources.Source,
  name: str,
  method: methods.Method,
  trained: tasks.Task,
  other: tasks.Task,
) -> None:
  """Raises a `UserError` if a method cannot be evaluated on another task."""
  advice = f'Evaluate on data like those that {source.run.path} was trained on.'
  if other.model != trained.model:
    raise errors.UserError(
      'These data or settings need another model than the run:'
      f' {_difference(other.model, trained.model)}. {advice}'
    )
  source.check_frozen_weights(name, other)
  for what, new_names, names in (
    ('vocabulary', other.vocabulary, trained.vocabulary),
    ('list of contexts', other.contexts, trained.contexts),
  ):
    if list(new_names) != list(names):
      raise errors.UserError(
        f'These data differ from those of the run in their {what}, so that the'
        f' same numbers mean different things. {advice}'
      )
  training.check(method, other, name)
  known = set(trained.train.client_ids)
  new = [client for client in other.test.client_ids if client not in known]
  if new and not method.personalizes_new_clients:
    raise errors.UserError(
      f'{name} can personalize only clients that it was trained on, and'
      f' {new[0]} is not one of them. Name another method.'
    )
  for attribute in method.needs:
    if attribute in trained.attributes:
      names = list(trained.attributes[attribute].names)
      new_names = list(other.attributes[attribute].names)
      if new_names != names:
        raise errors.UserError(
          f'{name} was trained with the {attribute}s {", ".join(names)}, but'
          f' these data have {", ".join(new_names)}. {advice}'
        )


def _add_found_groups(
  name: str, trained: single_run.Training, task: tasks.Task
) -> tasks.Task:
  """Returns a task with the groups that training found for its clients."""
  if trained.stage.found is None:
    return task
  found = trained.stage.found.values
  for client in task.test.client_ids:
    if client not in found:
      raise errors.UserError(
        f'{name} knows the groups of only the clients of its run, and {client}'
        ' is not one of them. Name another method.'
      )
  attributes = {**task.attributes, tasks.GROUP: trained.stage.found}
  return dataclasses.replace(task, attributes=attributes)


def evaluate(
  run_name: str,
  assignments: Sequence[str],
  output_dir: pathlib.Path | None,
  data_dir: str | None,
) -> tuple[dict[str, results_folder.Result], pathlib.Path]:
  """Evaluates the methods of a finished run on other clients.

  Args:
    run_name: FOLDER, or FOLDER:METHOD for one of its methods.
    assignments: The values of `--set`.
    output_dir: The folder to write to; by default one beside the run's folder.
    data_dir: The folder of the data sets.

  Returns:
    The results of each method, and the folder that they are in.

  Raises:
    UserError: If the run cannot be evaluated on these clients. This is checked
      before any computing.
  """
  source = sources.read(run_name)
  run, trained_config, folder = source.run, source.config, source.run.path
  names = list(run.methods)
  if source.chosen is not None:
    # The baseline first, as others are compared with its clients.
    needed = trained_config.run.baseline, source.method()
    names = list(dict.fromkeys(filter(None, needed)))
  if ways.ENTRIES[trained_config.privacy].of_examples:
    raise errors.UserError(
      f'The run in {folder} protects examples. Its evaluation would use them'
      ' once more, which its privacy guarantee does not account for.'
    )
  config = _configure(source, names, assignments)
  if output_dir is None:
    there = folder.resolve()
    output_dir = there.with_name(f'{there.name}-evaluated-{config.digest()}')
  trained_task = execution.load_task(trained_config, data_dir)
  task = execution.read_task(config, data_dir)
  built = execution.build_methods(trained_config, trained_task)
  for name in names:
    _check_task(source, name, built[name], trained_task, task)
  given = {
    name: finished_methods.chosen_candidates(run, name, task.test.client_ids)
    for name in names
  }
  populations = evaluation.prepare(
    task,
    measurement=config.measurement,
    seed=config.training.seed,
    chooses=False,
  )
  with results_folder.open_folder(output_dir, config) as results:
    for name, done in results.results.items():
      if done.get('evaluated_from') != str(folder.resolve()):
        raise errors.UserError(
          f'{output_dir} has results of another run. Name another output_dir.'
        )
      terminal.say(f'{name}: done before; delete {output_dir} to do it again')
    if task.notes:
      terminal.say(task.notes)
    finished = finished_methods.restore(source, trained_task, names)
    results.begin(task.encoding)
    known = set(trained_task.train.client_ids)
    for name in names:
      if name in results.results:
        continue
      method, trained = finished[name]
      stage = dataclasses.replace(
        trained.stage, task=_add_found_groups(name, trained, task)
      )
      measured, outcome = single_run.evaluate(
        name,
        dataclasses.replace(
          method,
          evaluation_sets=measurements.evaluation_sets(
            task, config.measurement
          ),
        ),
        dataclasses.replace(trained, stage=stage),
        task,
        populations,
        config,
        choosing.Choice(given=given[name]),
        results,
      )
      rows = serialization.make_rows(name, outcome)
      result = {
        **measured,
        **{what: run.methods[name][what] for what in _TRAINING_RESULTS},
        # Of which this folder has no files.
        'training': None,
        'started_from_training': None,
        'evaluated_from': str(folder.resolve()),
        'clients_in_training': sum(row['client'] in known for row in rows),
      }
      results.add(name, result, rows)
    return results.results, output_dir


def main(
  source: str,
  assignments: Sequence[str],
  output_dir: pathlib.Path | None,
  data_dir: str | None,
) -> int:
  """Evaluates a run and shows the results; returns the exit status."""
  results, output_dir = evaluate(source, assignments, output_dir, data_dir)
  tables.print_results(results)
  result = next(iter(results.values()))
  total = words.count(result['test']['num_clients'], 'clients')
  terminal.say(f'In training were {result["clients_in_training"]} of {total}.')
  terminal.say(f'Written to {output_dir}')
  single_run.refuse_diverged([results])
  return 0
