"""Exports the states that the clients of a finished run keep, as arrays."""

import contextlib
import csv
import io
import os
import pathlib

import numpy as np

from base import errors
from base import whole_files
from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.reporting import results_folder
from personalization.rounds import client_states


def _find_training(
  run: results_folder.FinishedRun, name: str | None
) -> tuple[str, int]:
  """Returns a training with states, and the number of its last round."""
  last_rounds = {
    result['training']: result['rounds']
    for result in run.methods.values()
    if result['training'] is not None
    and (
      results_folder.checkpoint_dir(run.path, result['training'])
      / client_states.FILE_NAME
    ).exists()
  }
  if not last_rounds:
    raise errors.UserError(
      f'{run.path} has no states of clients: none of its methods keeps any.'
    )
  if name is None and len(last_rounds) == 1:
    name = next(iter(last_rounds))
  if name is None:
    raise errors.UserError(
      f'{run.path} has the states of {" and ".join(last_rounds)}. Name one of'
      ' them with --training.'
    )
  if name not in last_rounds:
    raise errors.unknown('training', name, last_rounds)
  return name, last_rounds[name]


def export(
  folder: pathlib.Path,
  training: str | None = None,
  output_dir: pathlib.Path | None = None,
) -> pathlib.Path:
  """Writes the states client by client, with only one in memory at a time.

  Args:
    folder: The output folder of a run.
    training: The training; None for the only one.
    output_dir: The folder to write to; by default one in `folder`.

  Raises:
    UserError: If there are no such states.
  """
  run = results_folder.read(folder)
  training, last_round = _find_training(run, training)
  checkpoints = results_folder.checkpoint_dir(folder, training)
  if output_dir is None:
    output_dir = folder / 'states' / training
  else:
    folders.check_empty('output_dir', output_dir)
  with errors.writing(output_dir):
    output_dir.mkdir(parents=True, exist_ok=True)
  clients = [
    client_id
    for client_id, _ in client_states.read_saved(checkpoints, last_round)
  ]
  arrays: dict[str, np.ndarray] = {}
  with (
    contextlib.ExitStack() as unfinished,
    terminal.progress('exporting', len(clients), 'clients') as show,
  ):
    states = client_states.read_saved(checkpoints, last_round)
    for k, (_, state) in enumerate(states):
      for name, leaf in state.items():
        if name not in arrays:
          path = output_dir / f'{name.replace("/", ".")}.npy'
          arrays[name] = _make_array(
            unfinished.enter_context(whole_files.writing(path)),
            leaf.dtype,
            (len(clients), *leaf.shape),
          )
        arrays[name][k] = leaf
      show(k + 1)
    arrays.clear()  # Writes the rest to the files.
  table = io.StringIO()
  csv.writer(table, lineterminator='\n').writerows(
    [['client'], *([client_id] for client_id in clients)]
  )
  folders.write(output_dir / 'clients.csv', table.getvalue())
  return output_dir


def _make_array(
  path: pathlib.Path, dtype: np.dtype, shape: tuple[int, ...]
) -> np.ndarray:
  """Makes a NumPy file of an array that is written little by little."""
  array = np.lib.format.open_memmap(path, 'w+', dtype, shape)
  # Else a disk that is full would kill the program when the array is written.
  with path.open('r+b') as file:
    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
  return array


def main(
  folder: pathlib.Path, training: str | None, output_dir: pathlib.Path | None
) -> int:
  """Exports the states that a user asked for; returns the exit status."""
  written = export(folder, training, output_dir)
  terminal.say(f'Written to {written}')
  return 0
