"""Methods of a finished run, in the state in which their training ended."""

import asyncio
from collections.abc import Iterable, Sequence
import pathlib
from typing import NamedTuple

from algorithms import methods
from base import errors
from experiments.reporting import results_folder
from experiments.runs import execution
from experiments.runs import single_run
from experiments.runs import sources
from personalization.rounds import checkpoints
from tasks import task as tasks


class FinishedMethod(NamedTuple):
  """A method of a finished run.

  Attributes:
    method: The method.
    training: Its training.
  """

  method: methods.Method
  training: single_run.Training


def chosen_candidates(
  run: results_folder.FinishedRun, name: str, clients: Sequence[str]
) -> dict[str, str]:
  """Finds which candidate a finished run has chosen for clients.

  If none is chosen, it is the last one.

  Args:
    run: The run.
    name: The method.
    clients: The clients, who may be others than those of the run.

  Raises:
    UserError: If clients of the run chose for themselves, and one was not among
      them.
  """
  by_client = {row['client']: row['candidate'] for row in run.clients[name]}
  of_all = list(run.methods[name]['chosen'])
  if not of_all:
    of_all = list(run.methods[name]['candidates'])[-1:]
  for client in clients:
    if client not in by_client and len(of_all) > 1:
      raise errors.UserError(
        f'In {run.path} each client has chosen a candidate of {name} for'
        f' itself, and {client} was none of them. The candidates are'
        f' {", ".join(of_all)}.'
      )
  return {client: by_client.get(client, of_all[0]) for client in clients}


def _check_checkpoint(folder: pathlib.Path, training: str, rounds: int) -> None:
  """Raises a `UserError` if the last checkpoint of a training is gone."""
  where = results_folder.checkpoint_dir(folder, training)
  manager = checkpoints.NpzProgramStateManager(where)
  # Without this checkpoint the training would start again.
  if rounds and rounds not in (asyncio.run(manager.get_versions()) or ()):
    raise errors.UserError(
      f'{where} has no checkpoint of round {rounds}, with which the training'
      ' has ended. Do the run again, in another folder.'
    )


def restore(
  source: sources.Source, task: tasks.Task, names: Iterable[str]
) -> dict[str, FinishedMethod]:
  """Restores methods of a finished run.

  Raises:
    UserError: If a checkpoint is gone or damaged.
  """
  names, config, folder = list(names), source.config, source.run.path
  for name, result in source.run.methods.items():
    if result['training'] is not None and {name, result['training']} & {*names}:
      _check_checkpoint(folder, result['training'], result['rounds'])
  execution.set_runtime(config.run)
  built = execution.build_methods(config, task)
  with results_folder.open_folder(folder, config) as run_folder:
    trainings = single_run.Trainings(built, task, config, run_folder)
    try:
      return {
        name: FinishedMethod(built[name], trainings.get(built[name]))
        for name in names
      }
    except checkpoints.DamagedCheckpointError as error:
      # An earlier checkpoint is not what the run has evaluated.
      raise errors.UserError(
        f'{error.fault} Do the run again, in another folder.'
      ) from error
